"""Errors a person can act on.

Every error the lab raises on purpose derives from `AttnlabError`; the command line prints its text and
nothing else. A text says what must be what, what was got, where, and how to go on.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import final

MOST_LISTED = 30
"""Names that a hint lists, where none is near."""


class AttnlabError(Exception):
    """Tell a person what went wrong and what to do; base of all errors raised on purpose."""


@final
class SpecError(AttnlabError):
    """Report a specification (study file, part name, constructor argument) that cannot be built."""


@final
class DataError(AttnlabError):
    """Report data that is missing, unreadable, or unfit for the task."""


@final
class ModuleError(AttnlabError):
    """Report a user's module that raised, or returned another shape or type than its place needs."""


class TrainingError(AttnlabError):
    """Report a training run that had to stop, with the step and, where known, the layer."""


class RunError(AttnlabError):
    """Report a run folder that cannot be used: locked, full disk, damaged, or of another study."""


@final
class Interrupted(RunError):  # noqa: N818 a person's wish is no error
    """Report that a person stopped a run, and how it goes on."""


LONGEST_TEXT = 400
"""Characters of what a person's own code says that are told; it may raise with a whole tensor."""


def text_of(error: BaseException) -> str:
    """Type and text of an exception on one line; one of a person's own may raise when it is asked for its text."""
    try:
        text = " ".join(str(error).split())
    except BaseException as other:
        text = f"(no text: asked for it, it raised {type(other).__name__})"
    shown = text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]} ..."
    return f"{type(error).__name__}: {shown}" if shown else type(error).__name__


def no_credentials(error: Exception, address: str) -> str:
    """How to give the credentials that a store's library asks for; nothing where that is not what it says."""
    if "Credential" not in type(error).__name__:
        return ""
    return (
        f"no credentials for {address}: {text_of(error).partition(': ')[2]}; set them as its library reads them, "
        "for s3:// AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or ~/.aws/credentials"
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint that names the known word closest to `name`, or lists them, many in part.

    Examples
    --------
    >>> nearest("sofmax", ["softmax", "sigmoid"])
    "did you mean 'softmax'?"
    """
    words = sorted(known)
    more = f", and {len(words) - MOST_LISTED} more" if len(words) > MOST_LISTED else ""
    return did_you_mean(name, words) or "known: " + (", ".join(words[:MOST_LISTED]) + more or "none")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint that names the known word closest to `name`, or nothing where no word is close."""
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'?" if close else ""
