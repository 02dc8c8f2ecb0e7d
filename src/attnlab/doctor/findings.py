"""What an examination ends with: findings, each with its evidence, and a verdict over all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, final

from attnlab.inspection.drawing.pieces import drawn, table

Severity = Literal["error", "warning", "info"]
Nature = Literal["bug", "known effect", "set-up", "fact"]
Verdict = Literal["bug", "not examined", "known effect", "set-up", "healthy"]

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
"""From worst to mildest."""

SENTENCES: dict[Verdict, str] = {
    "bug": "it does not compute what it must",
    "not examined": "too little of it could be examined to say that it is right",
    "known effect": "no bug was found; what may surprise is a known effect",
    "set-up": "no bug was found; what may surprise comes from how it is set up",
    "healthy": "nothing wrong was found",
}
"""What each verdict means."""

MOST_UNFINISHED = 2
"""Checks that may come to no end, of some twenty, before nothing can be said of the whole."""

NOT_EXAMINED = "could not be examined"
"""How the message of a check begins that came to no end."""


SCRAMBLED_HEADS = "scrambled heads"
"""What is wrong where the rows of heads are brought to other positions."""


@final
@dataclass(frozen=True)
class Finding:
    """State one thing that was found out about a module.

    Parameters
    ----------
    check : str
        Id of the check, a key of `CHECKS`.
    severity : {"error", "warning", "info"}
        A bug in any use; a known effect or a risk; a fact worth knowing.
    message : str
        One sentence.
    evidence : str
        What was measured, with units.
    remedy : str
        What to do; empty for facts.
    source : str
        Where the effect or the rule is described.
    nature : {"bug", "known effect", "set-up", "fact"}
        What it means for the verdict; by default an error is a bug, a warning a known effect, an info a fact.
    accepted : bool
        Whether a person accepts it: it is told, and means nothing for the verdict.
    scores_times : float, optional
        Of a wrong scale: what the scores would have to be multiplied by, at the sizes that were examined.
    samples_meet_in : str, optional
        Of samples that see each other: the class of the submodule in which they meet first.
    called : str, optional
        What is wrong, in a name that several findings share, such as `SCRAMBLED_HEADS`.
    """

    check: str
    severity: Severity
    message: str
    evidence: str
    remedy: str = ""
    source: str = ""
    nature: Nature | None = None
    accepted: bool = False
    scores_times: float | None = None
    samples_meet_in: str | None = None
    called: str | None = None

    @property
    def weighs(self) -> Nature:
        """What the finding means for the verdict."""
        usual: dict[Severity, Nature] = {"error": "bug", "warning": "known effect", "info": "fact"}
        return "fact" if self.accepted else self.nature or usual[self.severity]

    @property
    def is_unfinished(self) -> bool:
        """Whether it says that a check came to no end."""
        return self.message.startswith(f"{NOT_EXAMINED}:")

    def to_json(self) -> dict[str, Any]:
        """The finding as plain data."""
        data = asdict(self)
        del data["nature"]
        return {key: value for key, value in data.items() if value is not None}


@final
@dataclass(frozen=True)
class FindingText:
    """Hold the words of one finding, beside its check; what stands in braces is filled in by what was measured."""

    severity: Severity  # see `Finding`
    message: str  # one sentence
    remedy: str = ""  # what to do; empty for facts
    source: str = ""  # where the effect or the rule is described
    nature: Nature | None = None  # see `Finding`
    called: str | None = None  # see `Finding`

    def finding(self, check: str, evidence: str, words: Mapping[str, object] | None = None) -> Finding:
        """The finding with its evidence, braces in message and remedy filled by `words`."""
        filled = words or {}
        message, remedy = self.message.format_map(filled), self.remedy.format_map(filled)
        told = (self.severity, message, evidence, remedy, self.source, self.nature)
        return Finding(check, *told, called=self.called)


@final
@dataclass(frozen=True)
class Diagnosis:
    """Hold everything that was found out about one module.

    Parameters
    ----------
    name : str
        What was examined.
    findings : tuple of Finding
        Worst first.
    assumptions : mapping of str to str
        How the module was called, and what was taken for granted.
    seconds : mapping of str to float
        Wall time of each check that ran.
    study : mapping or None
        The study that trains the module on a text, as plain data; None where no text was given.
    """

    name: str
    findings: tuple[Finding, ...]
    assumptions: Mapping[str, str]
    seconds: Mapping[str, float] = field(default_factory=dict)
    study: Mapping[str, Any] | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict: the gravest of what the findings mean."""
        present = {finding.weighs for finding in self.findings}
        if "bug" not in present and len(self.unfinished) > MOST_UNFINISHED:
            return "not examined"
        order: tuple[Verdict, ...] = ("bug", "known effect", "set-up")
        return next((verdict for verdict in order if verdict in present), "healthy")

    @property
    def summary(self) -> str:
        """What the verdict means, with the checks that led to it."""
        checks = dict.fromkeys(finding.check for finding in self.findings if finding.weighs == self.verdict)
        said = SENTENCES[self.verdict] + (f" ({', '.join(checks)})" if checks else "")
        return said + (f"; could not be examined: {', '.join(self.unfinished)}" if self.unfinished else "")

    @property
    def unfinished(self) -> tuple[str, ...]:
        """The checks that came to no end."""
        return tuple(dict.fromkeys(finding.check for finding in self.findings if finding.is_unfinished))

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that are bugs in any use, but those that are accepted."""
        return tuple(finding for finding in self.findings if finding.severity == "error" and not finding.accepted)

    def to_json(self) -> dict[str, Any]:
        """The diagnosis as plain data."""
        return {
            "name": self.name,
            "verdict": self.verdict,
            "summary": self.summary,
            "findings": [finding.to_json() for finding in self.findings],
            "assumptions": dict(self.assumptions),
            "seconds": {check: round(seconds, 3) for check, seconds in self.seconds.items()},
            **({} if self.study is None else {"study": dict(self.study)}),
        }

    @property
    def grave(self) -> tuple[Finding, ...]:
        """The errors, and what came to no end in time."""
        grave = (f for f in self.findings if f.severity == "error" or (f.severity == "warning" and f.is_unfinished))
        return tuple(finding for finding in grave if not finding.accepted)

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.verdict}: {self.summary}"]
        for finding in self.findings:
            accepted = " (accepted)" if finding.accepted else ""
            lines += [
                f"{finding.severity}{accepted}: {finding.check}: {finding.message}",
                f"  evidence: {finding.evidence}",
            ]
            lines += [f"  remedy: {finding.remedy}"] if finding.remedy else []
            lines += [f"  source: {finding.source}"] if finding.source else []
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The findings, worst first, as notebooks show them."""
        rows = [
            (f"{one.severity}{' (accepted)' if one.accepted else ''}", one.check, one.message, one.evidence, one.remedy)
            for one in self.findings
        ]
        found = [table(("", "check", "what was found", "evidence", "remedy"), rows)] if rows else []
        return drawn(f"{self.name}: {self.verdict}", self.summary, *found).html


def worst_first(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Sort findings by severity; those of one severity keep their order."""
    return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))
