"""What a class declares in words, and what becomes of a finding that its words excuse.

Names in code excuse nothing: a variable called ``qk`` says no more than one called ``s``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from attnlab.doctor.examination import Examination
from attnlab.doctor.findings import Finding

_LONGEST = 90  # characters of a quotation: with its message it stays within two or three lines
_DENIED = re.compile(r"\b(not|no|never|unlike|isn't|avoids?)( \w+){0,2} $", re.IGNORECASE)
"""Words before a phrase that take it back."""


def quote(exam: Examination, phrases: re.Pattern[str]) -> str:
    """The sentence of docstrings and comments in which a phrase stands, or nothing."""
    for sentence in re.split(r"(?<=[.;!?])(?<!et al\.)\s+|\n+", exam.patient.said):
        for match in phrases.finditer(sentence):
            if not _DENIED.search(sentence[: match.start()]):
                start = 0 if len(sentence) <= _LONGEST else match.start()
                return sentence[start : start + _LONGEST].strip(" .;")
    return ""


def excused(findings: Iterable[Finding], words: str) -> Iterator[Finding]:
    """Yield findings as they are; where words of the class declare them, errors as facts and warnings not at all."""
    for finding in findings:
        if not words or finding.severity == "info":
            yield finding
        elif finding.severity == "error":
            said = f'{finding.message.rstrip(".")}; declared: "{words}".'
            yield replace(finding, severity="info", nature=None, message=said, remedy="")


def first_error(findings: Iterable[Finding]) -> Iterator[Finding]:
    """The first error and nothing after it; where there is none, the first of the others."""
    other = None
    for finding in findings:
        if finding.severity == "error":
            yield finding
            return
        other = other or finding
    if other is not None:
        yield other


def unused_on_purpose(exam: Examination, *names: str) -> str:
    """The words by which a class says that it takes an argument and does not use it, or nothing."""
    deleted = re.search(rf"\bdel\b[^\n#]*\b{re.escape(names[0])}\b", exam.patient.text) if names[0] else None
    if deleted:
        return deleted[0]
    name = rf"`*\b({'|'.join(re.escape(each) for each in names if each)})\b`*"
    idle = r"(unused|ignored|not used|never used|not read|never read|a no-op|a placeholder)"
    why = (
        r"(does not (use|look at|read)|has no effect|for (\w+ )?(compatibility|the interface|the signature|the api)"
        r"|same (signature|arguments) as)"
    )
    direct = rf"{name}( argument)?( is|:|,)?( accepted (but|and))? {idle}(?! (key|position|token|entr|where|for))"
    return quote(exam, re.compile(rf"{direct}|\bunused {name}|ignores? (the |its |any )?{name}|{name}.*{why}", re.I))
