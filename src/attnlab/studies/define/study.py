"""A study as a person writes it: read, merged with a scale, checked, with file and line in every complaint."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, final

import pydantic
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from attnlab.core.build import is_path
from attnlab.core.errors import SpecError, nearest
from attnlab.core.files import fingerprint, user_path
from attnlab.core.processes.apart import own_code_in
from attnlab.studies.define.complaints import explain, places_of
from attnlab.studies.define.reading import find, library, plain_types, read
from attnlab.studies.define.rules import NO_SECONDS, Rules

SpecValue = str | dict[str, Any]
Contrast = tuple[str, str]
"""The variant that is judged, and what it is compared with."""
OWN_FILES = {
    *("study.json", "rules.json", "environment.json", "layout.json", "tuning.json", "workers.log"),
    *("report.json", "report.md", "report.html", "charts"),
}
"""What a study's folder holds beside its variants."""
BESIDE_MODEL = ("training", "task")
"""Keys of a variant that are not the model's."""
SET_BY_VARIANTS = ("batch", "context", "silver", "beside", "beam", "alpha", "coverage", "replace_unknown")
"""Arguments of a task that a variant may set: how the data is shown, what is learned beside it, and how answers are
written; no other data."""
LONGEST_NAME = 100
"""Characters of a folder's name; file systems take 255."""


@final
class Published(BaseModel):
    """Hold what a paper says of the variants of a study.

    Parameters
    ----------
    source : str
        Which paper and table, and what does not fit.
    parameters : dict
        Number of parameters by name of the variant.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str = Field(min_length=1)
    parameters: dict[str, int] = Field(min_length=1)


@final
class Study(BaseModel):
    """Ask one question: variants x seeds on a task, a baseline, and rules.

    Parameters
    ----------
    question : str
        The question in words.
    task : str or dict
        Name of a task, or a mapping with ``name`` and constructor arguments.
    model : dict
        The model all variants share: ``name`` and constructor arguments. A file whose variants all have a ``name`` may
        leave it out.
    baseline : str
        Name of the variant the others are compared with.
    variants : dict
        For each name what differs: merged over `model`. A mapping whose ``name`` differs replaces.
        The key ``training`` merges over `training`, and ``task`` over `task`; of that it may set `SET_BY_VARIANTS`.
    rules : Rules
        How the variants are compared.
    compare : dict, optional
        For each variant that is judged what it is compared with, one variant or several: the comparisons whose
        intervals hold together, and for which seeds are spent. By default every variant with the baseline.
    training : dict
        Settings of the training recipe that all variants share.
    published : Published, optional
        What a paper says of the variants; a plan shows it beside what is counted.
    name : str
        Name of the study, from its file.
    scale : str, optional
        The scale that was merged in.
    folder : str
        Folder that relative paths in the file start from.
    content : dict
        The merged file as it was written: what the study's hash covers.
    places : dict
        Where the file names task, model, training and each key of these ("model.KEY"), and each variant
        ("variants.NAME"), as errors begin with it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    question: str = Field(min_length=1)
    task: SpecValue
    model: dict[str, Any]
    baseline: str
    variants: dict[str, dict[str, Any] | None] = Field(min_length=1)
    rules: Rules
    compare: dict[str, str | list[str]] | None = None
    training: dict[str, Any] = Field(default_factory=dict)
    published: Published | None = None
    name: str = "study"
    scale: str | None = None
    folder: str = "."
    content: dict[str, Any] = Field(default_factory=dict, repr=False)
    places: dict[str, str] = Field(default_factory=dict, repr=False, exclude=True)

    @field_validator("compare", mode="before")
    @classmethod
    def _check_form_of_compare(cls, compare: object) -> object:
        """Say in one sentence how comparisons are written."""
        rows = compare.values() if isinstance(compare, Mapping) else [compare]
        texts = [one for row in rows for one in (row if isinstance(row, list) else [row])]
        if compare is not None and not (isinstance(compare, Mapping) and all(isinstance(one, str) for one in texts)):
            raise ValueError(f"must be {{variant: other}} or {{variant: [other, another]}}; got {compare!r}")
        return compare

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        if self.baseline not in self.variants:
            raise ValueError(f"baseline '{self.baseline}' is no variant; {nearest(self.baseline, self.variants)}")
        if "name" not in self.model:
            raise ValueError("model needs a 'name'")
        for variant, override in self.variants.items():
            self._check_beside_model(variant, override or {})
        slugs: dict[str, str] = {}
        for variant in self.variants:
            if slug(variant) in OWN_FILES or len(slug(variant)) > LONGEST_NAME:
                raise ValueError(f"variants: '{variant}' cannot be a folder of the study; choose another, shorter name")
            if not variant.isprintable():
                raise ValueError(f"variants: {variant!r} holds characters that cannot be shown; leave them out")
            other = slugs.setdefault(slug(variant), variant)
            if other != variant:
                raise ValueError(f"variants '{other}' and '{variant}' would share the folder '{slug(variant)}'")
        return self

    @model_validator(mode="after")
    def _check_ends(self) -> Self:
        own = [(variant or {}).get("training") or {} for variant in self.variants.values()]
        for settings in (self.training, *own):
            if "budget" in settings and self.rules.target is None:
                raise ValueError("training may not set 'budget': every variant has that of the rules")
            if "seconds" in (settings.get("budget") or {}):
                raise ValueError(NO_SECONDS)
            if settings.get("early_stop") and self.rules.target:
                raise ValueError("with a target training may not set 'early_stop': every run uses its whole budget")
            if "stop_at" in settings:
                raise ValueError("training may not set 'stop_at': every run of a study uses its whole budget")
        return self

    @model_validator(mode="after")
    def _check_compare(self) -> Self:
        if self.compare is None:
            return self
        if not self.contrasts:
            raise ValueError("compare: names no comparison; leave it out to compare every variant with the baseline")
        seen: set[frozenset[str]] = set()
        for variant, other in self.contrasts:
            for name in (variant, other):
                if name not in self.variants:
                    raise ValueError(f"compare: '{name}' is no variant; {nearest(name, self.variants)}")
            if variant == other:
                raise ValueError(f"compare: '{variant}' is compared with itself")
            if frozenset((variant, other)) in seen:
                raise ValueError(f"compare: '{variant}' and '{other}' are compared twice")
            seen.add(frozenset((variant, other)))
        return self

    @model_validator(mode="after")
    def _check_split(self) -> Self:
        if self.rules.split and isinstance(self.task, dict) and "data_seed" in self.task:
            raise ValueError("task sets 'data_seed', and rules.split draws one for every run; leave one of them out")
        return self

    @model_validator(mode="after")
    def _check_published(self) -> Self:
        for name in self.published.parameters if self.published else ():
            if name not in self.variants:
                raise ValueError(f"published: '{name}' is no variant; {nearest(name, self.variants)}")
        return self

    def _check_beside_model(self, variant: str, override: Mapping[str, Any]) -> None:
        for key in BESIDE_MODEL:
            if override.get(key) is not None and not isinstance(override[key], dict):
                raise ValueError(f"variants: {key} of '{variant}' must be a mapping; got {override[key]!r}")
        unknown = [key for key in override.get("task") or {} if key not in SET_BY_VARIANTS]
        if unknown:
            may = f"{', '.join(SET_BY_VARIANTS[:-1])} and {SET_BY_VARIANTS[-1]}"
            raise ValueError(
                f"variants: task of '{variant}' may set {may} only, so that all are measured on the same data; "
                f"got {', '.join(unknown)}"
            )

    @property
    def contrasts(self) -> tuple[Contrast, ...]:
        """The comparisons that are judged: those of `compare`, else every variant with the baseline."""
        if self.compare is None:
            return tuple((name, self.baseline) for name in self.variants if name != self.baseline)
        return tuple(
            (variant, other)
            for variant, others in self.compare.items()
            for other in ([others] if isinstance(others, str) else others)
        )

    @property
    def hash(self) -> str:
        """The sha256 of what the study file says at this scale, and of the user's files it names."""
        return study_hash(self.content, self.files())

    def to_json(self) -> dict[str, Any]:
        """What `restore_study` needs to make the same study."""
        return {"name": self.name, "scale": self.scale, "folder": self.folder, "content": self.content}

    def files(self) -> dict[str, str]:
        """The sha256 of every ``path.py`` that the study names, by the path as written."""
        named = {text.rpartition(":")[0] for text in own_code_in(self.content)}
        files = {name: Path(self.folder) / user_path(name) for name in sorted(named)}
        return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items() if path.is_file()}

    def named(self, variants: Sequence[str] | None) -> list[str]:
        """The names of variants, or of all; one that is unknown raises a `SpecError`."""
        names = list(self.variants) if variants is None else list(variants)
        for name in names:
            if name not in self.variants:
                raise SpecError(f"'{name}' is no variant of the study; {nearest(name, self.variants)}")
        return names

    def model_spec(self, variant: str) -> dict[str, Any]:
        """The full model specification of a variant."""
        override = {key: value for key, value in (self.variants[variant] or {}).items() if key not in BESIDE_MODEL}
        return merge(self.model, override)

    def place_of(self, text: str, variants: Sequence[str]) -> str:
        """Where the file says what is wrong with variants alike: at a key that they share, if a text names one.

        If it names none, or one that they set for themselves, that is where the first of them stands, with their names.
        """

        def named(words: str) -> bool:
            return re.search(rf"\b{re.escape(words)}\b", text) is not None

        said = [self.variants[name] or {} for name in variants]
        own = {key for one in said for part in (one, *(one.get(part) or {} for part in BESIDE_MODEL)) for key in part}
        shared = [
            place for place in self.places if named(place.rpartition(".")[2]) and not place.startswith("variants")
        ]
        if len(variants) > 1 and shared and not any(map(named, own - {*BESIDE_MODEL})):
            return self.places[max(shared, key=lambda place: place.count("."))]
        names = ", ".join(f"'{name}'" for name in variants)
        return f"{self.places.get(f'variants.{variants[0]}', '')}variant{'s' * (len(variants) > 1)} {names}: "

    def task_spec(self, variant: str | None = None, seed: int = 0) -> SpecValue:
        """The task as a run of a variant sees it; without one, what all variants share of it."""
        shown = ((self.variants[variant] or {}).get("task") if variant else None) or {}
        drawn = {} if self.rules.split is None else {"data_seed": seed}
        if not (shown or drawn):
            return self.model_dump(include={"task"})["task"]
        return merge({"name": self.task} if isinstance(self.task, str) else self.task, {**shown, **drawn})

    def training_settings(self, variant: str) -> dict[str, Any]:
        """The training settings of a variant, without the rules' budget and tuned settings."""
        return merge(self.training, (self.variants[variant] or {}).get("training") or {})


def restore_study(saved: Mapping[str, Any]) -> Study:
    """The study of which `Study.to_json` was kept."""
    study = parse_study(saved["content"], name=saved["name"], path=Path(saved["folder"]) / "study.yaml")
    return study.model_copy(update={"scale": saved["scale"]})


def study_hash(content: Mapping[str, Any], files: Mapping[str, str]) -> str:
    """The sha256 of a study's content and of the files it names, by theirs."""
    return fingerprint({"content": content, "files": files})


def slug(name: str) -> str:
    """A name as a folder name: letters, digits, dots and single hyphens."""
    return re.sub(r"[^\w.]+", "-", name.strip().lower()).strip("-.") or "variant"


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two nested mappings; what is above wins.

    A nested mapping with a ``name`` of its own that differs replaces the one below: arguments of one
    part make no sense for another.

    Examples
    --------
    >>> merge({"mixer": {"name": "attention", "n_heads": 4}}, {"mixer": {"name": "attention", "dropout": 0.1}})
    {'mixer': {'name': 'attention', 'n_heads': 4, 'dropout': 0.1}}
    >>> merge({"mixer": {"name": "attention", "n_heads": 4}}, {"mixer": {"name": "lstm"}})
    {'mixer': {'name': 'lstm'}}
    """
    if "name" in above and above["name"] != below.get("name"):
        return dict(above)
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def load_study(source: str | Path, *, scale: str | None = None, changes: Mapping[str, Any] | None = None) -> Study:
    """Read a study from a file or from the library.

    Parameters
    ----------
    source : str or Path
        Path of a YAML file, or the name of a study of the library.
    scale : str, optional
        Name of one of the file's ``scales``, merged over the rest; a variant that is null there is left out.
    changes : mapping, optional
        Merged over everything, as ``{"rules": {"seeds": 3}}``.

    Returns
    -------
    Study
        The checked study; relative ``path.py:Class`` names are resolved against the file's folder.

    Raises
    ------
    SpecError
        With file and line of every problem.
    """
    path = find(source, library(), "study")
    raw = read(path)
    return parse_study(raw, name=path.stem, scale=scale, changes=changes, path=path)


def with_model(said: Mapping[str, Any]) -> dict[str, Any]:
    """What is said, the class of the first variant as the model where none is and each variant is a whole one."""
    variants = said.get("variants")
    whole = list(variants.values()) if isinstance(variants, Mapping) else []
    if "model" in said or not whole or not all(isinstance(one, Mapping) and "name" in one for one in whole):
        return dict(said)
    return {**said, "model": {"name": whole[0]["name"]}}


def parse_study(
    raw: Mapping[str, Any],
    *,
    name: str = "study",
    scale: str | None = None,
    changes: Mapping[str, Any] | None = None,
    path: Path | None = None,
) -> Study:
    """Check a study given as a mapping.

    Parameters
    ----------
    raw : mapping
        The study, as a file would say it.
    name : str
        Name of the study.
    scale : str, optional
        Name of one of its ``scales``, merged over the rest.
    changes : mapping, optional
        Merged over everything.
    path : Path, optional
        Where it was read; relative paths start at its folder, else at the current one.

    Returns
    -------
    Study
        The checked study.

    Raises
    ------
    SpecError
        With every problem at once.
    """
    folder = path.parent if path else Path.cwd()
    try:
        plain = plain_types(raw)
    except SpecError as error:
        raise SpecError(f"{path or name}: {error}") from error
    if not isinstance(plain, dict):
        raise SpecError(f"{path or name}: a study file must be a mapping; got {type(plain).__name__}")
    plain = with_model(merge(at_scale(plain, scale, str(path or name)), changes or {}))
    resolved = _resolve_data(_resolve_paths(plain, folder), folder)
    own = {"name": name, "scale": scale, "folder": str(folder), "content": plain, "places": places_of(raw, path)}
    try:
        return Study.model_validate({**resolved, **own})
    except pydantic.ValidationError as error:
        raise SpecError(explain(error, raw, path or Path(name))) from error


def at_scale(said: Mapping[str, Any], scale: str | None, where: str) -> dict[str, Any]:
    """What a file says without its ``scales``, one of them merged over the rest; `where` begins what is wrong."""
    plain = dict(said)
    given = plain.pop("scales", None)
    scales = {} if given is None else given
    if not isinstance(scales, dict) or not all(isinstance(one, dict) for one in scales.values()):
        raise SpecError(f"{where}: scales must be a mapping of names to mappings; got {scales!r}")
    if scale is None:
        return plain
    if scale not in scales:
        raise SpecError(f"{where}: no scale '{scale}'; {nearest(scale, scales) if scales else 'it has none'}")
    try:
        return _scaled(plain, scales[scale])
    except SpecError as error:
        raise SpecError(f"{where}: scales.{scale}.{error}") from error


def _scaled(study: dict[str, Any], scale: dict[str, Any]) -> dict[str, Any]:
    """A study with a scale merged over it, without the variants that are null there and what they are compared with."""
    merged = merge(study, scale)
    variants, changes = study.get("variants"), scale.get("variants")
    if isinstance(variants, dict) and isinstance(changes, dict):
        left_out = [variant for variant, change in changes.items() if change is None]
        for variant in left_out:
            if variant not in variants:
                raise SpecError(
                    f"variants: null leaves out '{variant}', which is no variant; {nearest(variant, variants)}"
                )
        merged["variants"] = {key: value for key, value in merged["variants"].items() if key not in left_out}
        if isinstance(merged.get("compare"), dict):
            merged["compare"] = _without(merged["compare"], left_out)
    return merged


def _without(compare: dict[str, Any], left_out: list[str]) -> dict[str, Any]:
    kept = {}
    for variant, others in compare.items():
        listed = [other for other in (others if isinstance(others, list) else [others]) if other not in left_out]
        if variant not in left_out and listed:
            kept[variant] = listed if isinstance(others, list) else others
    return kept


def _resolve_paths(value: Any, folder: Path) -> Any:
    """Make every relative ``path.py:Class`` absolute."""
    if isinstance(value, dict):
        return {key: _resolve_paths(item, folder) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolve_paths(item, folder) for item in value]
    if isinstance(value, str) and is_path(value):
        path, _, attribute = value.rpartition(":")
        return f"{(folder / user_path(path)).resolve()}:{attribute}"
    return value


def _resolve_data(study: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Make the task's files absolute where they lie beside the study; what does not is a name, or found from here."""

    def with_files(of: Any) -> Any:
        task = of.get("task") if isinstance(of, dict) else None
        if not isinstance(task, dict):
            return of
        return {**of, "task": {key: _beside(folder, key, given) for key, given in task.items()}}

    variants = study.get("variants")
    if isinstance(variants, dict):
        study = {**study, "variants": {name: with_files(variant) for name, variant in variants.items()}}
    return with_files(study)


def _beside(folder: Path, key: str, given: Any) -> Any:
    """A file or folder beside a study, absolute; a word that is the name of none stays as it is.

    A corpus is a folder, or files whose names begin with its name and a dot.
    """
    if isinstance(given, list):
        return [_beside(folder, key, one) for one in given]
    if isinstance(given, dict):
        return {inner: _beside(folder, inner, one) for inner, one in given.items()}
    if not isinstance(given, str) or not given.strip() or is_path(given):
        return given
    path = folder / user_path(given)
    is_file = path.is_file() and (key in ("text", "corpus") or "." in given)
    is_folder = given != path.name and (path.is_dir() or (key == "corpus" and any(path.parent.glob(f"{path.name}.*"))))
    return str(path.resolve()) if is_file or is_folder else given
