"""The command line: every command is one call of the library.

Exit codes: 0 fine, 1 a run failed, 2 wrong use, 130 stopped with Ctrl-C or by SIGTERM. Nothing heavy is imported
before a command needs it.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Sequence

import cyclopts

from attnlab.cli.terminal import Terminal, adapt_to_surroundings
from attnlab.core.errors import AttnlabError, DataError, Interrupted, RunError, SpecError, did_you_mean, text_of

HUGE_PAGES = "THP_MEM_ALLOC_ENABLE"
"""Read by torch at its first allocation: on Linux, large tensors lie in pages of 2 MiB instead of 4 KiB then."""

FINE, FAILED, WRONG_USE, INTERRUPTED = 0, 1, 2, 130
HELP = """A laboratory for attention: what is each part worth, on my task, on my machine, and how sure can I be?

Try: attnlab run shapes
"""
COMPLETION = """Print what lets a shell complete commands.

bash: `eval "$(attnlab completion bash)"` in `~/.bashrc`. zsh: the same with `zsh` in `~/.zshrc`, behind `compinit`, or
`attnlab completion zsh > FOLDER/_attnlab`, a folder of `$fpath`. fish:
`attnlab completion fish > ~/.config/fish/completions/attnlab.fish`.
"""


def _default_shown(value: object) -> str | None:
    """A default as help has it: nothing where it is empty."""
    return None if value in (None, "", ()) else str(value)


EVERYWHERE = cyclopts.Parameter(negative_iterable=(), show_default=_default_shown)
"""Of every argument: no option that empties a list, no empty default."""
app = cyclopts.App(name="attnlab", help=HELP, version_flags=["--version"], default_parameter=EVERYWHERE)
app.command("attnlab.cli.run:run", name="run", help="Run a study to its verdict; go on where it stopped.")
app.command("attnlab.cli.plan:plan", name="plan", help="Say what a study would cost, before a second is spent.")
app.command("attnlab.cli.doctor:doctor", name="doctor", help="Examine an attention of your own: is it right?")
app.command("attnlab.cli.explain:explain", name="explain", help="Explain a number: bug, known effect, set-up, noise?")
app.command("attnlab.cli.draw:draw", name="draw", help="Draw the models of a study, as figures of a paper.")
app.command("attnlab.cli.overfit:overfit", name="overfit", help="Let it learn a few items by heart: can it learn?")
app.command(
    "attnlab.cli.trained.heads:heads", name="heads", help="Say what each head and layer of trained models is worth."
)
app.command(
    "attnlab.cli.trained.translate:translate", name="translate", help="Translate sentences with a run of a study."
)
app.command("attnlab.cli.trained.parse:parse", name="parse", help="Find the trees of sentences with a run of a study.")
app.command(
    "attnlab.cli.trained.score:score", name="score", help="Translate a held-out part or your text; print BLEU and chrF."
)
app.command("attnlab.cli.trained.classify:classify", name="classify", help="Name the classes of texts with a run.")
app.command("attnlab.cli.trained.predict:predict", name="predict", help="Let a run answer for sequences of numbers.")
app.command("attnlab.cli.trained.generate:generate", name="generate", help="Let a language model of a study write.")
app.command(
    "attnlab.cli.trained.export:export", name="export", help="Take a trained model out: to torch, ONNX, transformers."
)
app.command("attnlab.cli.view:view", name="view", help="Show studies and runs in a browser, also while they train.")
app.command("attnlab.cli.report:report", name="report", help="Write the report of a study's folder anew.")
app.command("attnlab.cli.catalog:show", name="list", help="List studies, tasks, models and every part.")
app.command("attnlab.cli.schema:schema", name="schema", help="Print the JSON schema of study files, for editors.")
app.command("attnlab.cli.completion:completion", name="completion", help=COMPLETION)
app.command("attnlab.cli.bench:bench", name="bench", help="Measure attnlab beside its alternatives, in one run.")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, by default with the words of the process, and exit with its code."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what batch systems and containers send is as Ctrl-C
    os.environ.setdefault(HUGE_PAGES, "1")
    adapt_to_surroundings()
    sys.exit(call(arguments))


def call(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; a person's mistake is a sentence, never a traceback."""
    errors = Terminal(stderr=True)
    try:
        code = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except (cyclopts.CycloptsError, AttnlabError, OSError, KeyboardInterrupt) as error:
        return _said(error, errors)
    except (MemoryError, RuntimeError) as error:
        return _too_large(error, errors)
    return code if isinstance(code, int) else FINE


def _said(error: BaseException, errors: Terminal) -> int:
    """Say what went wrong and return the exit code."""
    code = WRONG_USE
    match error:
        case cyclopts.UnknownOptionError():
            _print(_unknown_option(error), errors)
        case cyclopts.CycloptsError():
            errors.print(cyclopts.CycloptsPanel(error))
            errors.print("see:", *("attnlab", *(error.command_chain or ()), "--help"), markup=False, highlight=False)
        case KeyboardInterrupt():
            code = INTERRUPTED
        case Interrupted():
            errors.print(f"\n{error}", markup=False, soft_wrap=True)
            code = INTERRUPTED
        case AttnlabError():
            from attnlab.studies.storage.mirror import with_urls

            _print(with_urls(str(error)), errors)
            code = WRONG_USE if isinstance(error, SpecError | DataError | RunError) else FAILED
        case BrokenPipeError():  # who read the output has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = FINE
        case OSError():
            told = filter(None, ("attnlab", error.strerror or str(error), error.filename))
            errors.print(": ".join(map(str, told)), markup=False, soft_wrap=True)
    return code


def _too_large(error: Exception, errors: Terminal) -> int:
    """Say that something asks for more than there is, and return the exit code; raise what says anything else."""
    from attnlab.core.machine import NO_MEMORY, SMALLER

    if isinstance(error, RecursionError):
        said = "something given is nested too deeply to be worked with; make it flatter"
    elif isinstance(error, MemoryError) or re.search(f"{NO_MEMORY}|out of memory", str(error)):
        said = f"this asks for more memory than there is ({text_of(error)}); {SMALLER}"
    elif "can't start new thread" in str(error):  # what Python says of either limit
        said = "no thread can be started: there is no memory for one, or as many run as may (ulimit -v, ulimit -u)"
    else:
        raise error
    try:
        _print(said, errors)
    except MemoryError:  # nor is there for colors
        os.write(2, f"attnlab: {said}\n".encode(errors="backslashreplace"))
    return FAILED


def _print(said: str, errors: Terminal) -> None:
    """Say one thing that went wrong."""
    errors.print("[bold red]attnlab:[/] ", end="")
    errors.print(said, markup=False, highlight=False, soft_wrap=True)


def _unknown_option(error: cyclopts.UnknownOptionError) -> str:
    """Name an option that a command does not have, and the nearest it has; all of them where none is near."""
    word = error.token.keyword or error.token.value
    options = [argument for argument in error.argument_collection if argument.names[0].startswith("-")]
    known = ", ".join(argument.names[0] for argument in options)
    hint = did_you_mean(word.partition("=")[0], [name for argument in options for name in argument.names]) or (
        f"known: {known} (write -- before words that begin with a dash and are no options)"
    )
    return f"{' '.join(error.command_chain or ())} has no option {word}; {hint}"
