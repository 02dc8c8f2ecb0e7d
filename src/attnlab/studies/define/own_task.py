"""Whether a task of a person's own keeps what a task must keep: each member is called, all that is wrong is said."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, final, get_args, get_type_hints

import torch
from torch import Tensor, nn

from attnlab.core.build import describe_exception
from attnlab.core.contracts import Batch, Floor, Metric
from attnlab.core.errors import AttnlabError, SpecError
from attnlab.studies.define.assemble import build_model, build_task, fitting_models
from attnlab.tasks.codecs import KINDS, codec_of

ATTRIBUTES: Mapping[str, Callable[[Any], bool]] = {
    "name": lambda value: isinstance(value, str) and bool(value),
    "causal": lambda value: isinstance(value, bool),
    "metrics": lambda value: bool(value) and all(isinstance(one, Metric) for one in value),
    "judged": lambda value: all(isinstance(one, Metric) for one in value),
    "parts": lambda value: not isinstance(value, str) and tuple(value)[:1] == ("validation",),
    "tokens_per_step": lambda value: isinstance(value, int) and value > 0,
}
"""What a task has, and whether it is that."""
WANTED = {
    "name": "a word",
    "causal": "True or False: whether an output may depend on inputs up to its own position only",
    "metrics": "a tuple of Metric (attnlab.core.contracts), the first of which decides what is best",
    "judged": "a tuple of Metric, empty where nothing is measured of a model as a whole",
    "parts": 'a tuple of the held-out parts, "validation" first',
    "tokens_per_step": "a whole number: the positions with a loss in one training batch",
}
METHODS = ("train_batch", "loss", "evaluate", "model_arguments", "floors", "alarms", "describe", "examples")
EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "text": ("text", "loss", "predicted", "labels"),
    "series": ("items",),
    "pairs": ("pairs",),
}
"""What `examples` must hold by its kind; others are kept and not drawn."""
ITEMS = {"items": ("input", "target", "prediction"), "pairs": ("source", "target", "predicted")}


def complaints_about(task: Any, model: Mapping[str, Any] | None = None) -> list[str]:
    """Call every member of what should keep `StudyTask` with real shapes; say in sentences what is missing or wrong.

    It is given the outputs of a model, by default the first of the lab's that fits it. Held-out parts are evaluated
    whole, but the model is called on the first row of each batch alone.
    """
    return _Check(task, model).complaints()


def require_kept(task: Any, name: str, model: Mapping[str, Any] | None = None) -> None:
    """Raise a `SpecError` with all complaints about a task, if there are any."""
    complaints = complaints_about(task, model)
    if complaints:
        listed = "".join(f"\n- {one}" for one in complaints)
        raise SpecError(f"task '{name}' does not keep what a task must keep (docs/own-task.md):{listed}")


def examine_named(name: str, arguments: Mapping[str, Any]) -> None:
    """Build the task that ``FILE.py:Name`` names and raise as `require_kept` does."""
    require_kept(build_task({"name": name, **arguments}), name)


@final
class _Check:
    """Go through a task once; what one member gives is needed by the next."""

    def __init__(self, task: Any, model: Mapping[str, Any] | None) -> None:
        self.task, self._spec = task, model
        self._found: list[str] = []
        self._model: nn.Module | None = None
        self._batch: Batch | None = None
        self._seen: list[Batch] = []

    def complaints(self) -> list[str]:
        """Everything that was found."""
        for name, fits in ATTRIBUTES.items():
            value = getattr(self.task, name, None)
            if value is None:
                self._say(f"'{name}' is missing: {WANTED[name]}")
            elif not self._called(name, lambda value=value, fits=fits: fits(value)):
                self._say(f"'{name}' must be {WANTED[name]}; got {value!r:.80}")
        for name in METHODS:
            if not callable(getattr(self.task, name, None)):
                self._say(f"the method '{name}' is missing")
        steps = (self._train, self._built, self._loss, self._evaluated, self._told, self._floored, self._shown)
        for step in steps:
            step()
        return self._found

    def _say(self, complaint: str) -> None:
        self._found.append(complaint)

    def _called(self, name: str, call: Callable[[], Any] | None = None) -> Any:
        """What a call, or a method without arguments, returns; None where it is missing, or with a complaint raises."""
        if name in METHODS and not callable(getattr(self.task, name, None)):
            return None
        try:
            return call() if call else getattr(self.task, name)()
        except AttnlabError as error:
            self._say(f"{name}: {error}")
        except Exception as error:
            self._say(f"{name} raised {describe_exception(error)}")
        return None

    def _train(self) -> None:
        batch = self._called("train_batch", lambda: self.task.train_batch(0, 0))
        if batch is None:
            return
        if not isinstance(batch, Batch) or not all(isinstance(one, Tensor) for one in (*batch.inputs, batch.targets)):
            self._say("train_batch must return a Batch (attnlab.core.contracts) of tensors, the inputs as a tuple")
            return
        rows = {len(one) for one in (*batch.inputs, batch.targets)}
        if len(rows) > 1 or not batch.inputs:
            shapes = [tuple(one.shape) for one in (*batch.inputs, batch.targets)]
            self._say(
                f"all tensors of a batch must have the batch axis first; got inputs and targets of shapes {shapes}"
            )
            return
        self._batch = batch
        again = self._called("train_batch", lambda: self.task.train_batch(0, 0))
        pairs = zip((*batch.inputs, batch.targets), (*again.inputs, again.targets), strict=True) if again else ()
        if not all(torch.equal(first, second) for first, second in pairs):
            self._say(
                "train_batch must be a pure function of step and seed, so that a run can be continued: two calls with "
                "step 0 and seed 0 differ; draw with attnlab.core.generators.generator_for(seed, step)"
            )

    def _built(self) -> None:
        arguments = self._called("model_arguments")
        if arguments is None:
            return
        if not isinstance(arguments, Mapping):
            self._say(f"model_arguments must return sizes by the names of constructor arguments; got {arguments!r:.80}")
            return
        specs = [self._spec] if self._spec else [{"name": name} for name in fitting_models(arguments)]
        if not specs:
            self._say(
                f"model_arguments fit no model of the lab; got {', '.join(arguments) or 'none'}; give vocab_size and "
                "max_length, or d_in, d_out, max_length and length, or name your own model in a study"
            )
        first, batch = None, self._batch
        for spec in specs:
            try:
                with torch.random.fork_rng(devices=[]):
                    self._model = build_model(dict(spec), self.task).eval()
            except AttnlabError as error:
                if not self._spec:  # else it is said of the study's variants
                    self._say(f"no model can be built for it: {error}")
                return
            first = first or self._model
            with contextlib.suppress(Exception):  # the next one may fit; if none does, the first says why not
                if batch is not None:
                    self.task.loss(self._predict(batch), batch, 0.0)
                    return
        self._model = first

    def _predict(self, batch: Batch) -> Tensor:
        """The outputs for the first row of a batch, given for all of its rows."""
        self._seen.append(batch)
        with torch.no_grad():
            first = self._model(*batch.rows(0, 1).inputs).float()  # pyrefly: ignore[not-callable]
        return first.expand(len(batch.targets), *first.shape[1:]).clone()

    @property
    def _ready(self) -> bool:
        return self._model is not None and self._batch is not None

    def _loss(self) -> None:
        batch = self._batch if self._ready else None
        if batch is None or (outputs := self._called("model", lambda: self._predict(batch))) is None:
            return
        outputs.requires_grad_()
        loss = self._called("loss", lambda: self.task.loss(outputs, batch, 0.0))
        if loss is None:
            return
        if not isinstance(loss, Tensor) or loss.ndim or not loss.isfinite():
            self._say(f"loss must return one finite number as a tensor without axes; got {loss!r:.80}")
        elif not loss.requires_grad:
            self._say("loss has no gradient: compute it from the outputs with torch alone, without detach or item")
        if callable(count := getattr(self.task, "targets_of", None)):
            number = self._called("targets_of", lambda: count(batch))
            if number is not None and not number > 0:
                self._say(f"targets_of must return how many targets a batch has; got {number!r:.80}")

    def _evaluated(self) -> None:
        if not self._ready:
            return
        names: set[str] = set()
        parts = getattr(self.task, "parts", ())
        for part in () if isinstance(parts, str) else parts:
            measured = self._called("evaluate", lambda part=part: self.task.evaluate(self._predict, part))
            if measured is None:
                return
            wrong = [name for name, value in measured.items() if not isinstance(value, float | int)]
            if wrong:
                self._say(f"evaluate must return numbers; got {measured[wrong[0]]!r:.60} for '{wrong[0]}'")
            names |= set(measured)
        known = {one.name for one in getattr(self.task, "metrics", ()) if isinstance(one, Metric)}
        if names != known:
            self._say(
                f"evaluate must return the metrics, over all parts {', '.join(sorted(known))}; got "
                f"{', '.join(sorted(names)) or 'none'}"
            )

    def _told(self) -> None:
        alarms = self._called("alarms")
        if alarms is not None and (isinstance(alarms, str) or not all(isinstance(one, str) for one in alarms)):
            self._say(f"alarms must return a tuple of sentences, empty if there is none; got {alarms!r:.80}")
        described = self._called("describe")
        if described is not None:
            self._require_json("describe", described)
        codec = codec_of(self.task)
        if codec is not None and getattr(codec, "kind", None) not in KINDS:
            self._say(f"'codec' must be one of attnlab.tasks.codecs; got {codec!r:.80}")

    def _require_json(self, name: str, value: Any) -> bool:
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            self._say(f"{name} must return JSON types alone (numbers, words, lists, dicts): {error}")
            return False
        if not isinstance(value, dict):
            self._say(f"{name} must return a dict; got {value!r:.80}")
        return isinstance(value, dict)

    def _floored(self) -> None:
        floors = self._called("floors") or ()
        metrics = [one for name in ("metrics", "judged") for one in getattr(self.task, name, ())]
        known = {one.name for one in metrics if isinstance(one, Metric)}
        kinds = get_args(get_type_hints(Floor)["kind"])
        for floor in floors:
            if not isinstance(floor, Floor):
                self._say(f"floors must return Floor (attnlab.core.contracts) alone; got {floor!r:.80}")
            elif floor.metric not in known or floor.kind not in kinds or not math.isfinite(floor.value):
                self._say(
                    f"the floor '{floor.name}' must be a finite number of a metric among {', '.join(sorted(known))} "
                    f"and of a kind among {', '.join(kinds)}; got {floor.value}, '{floor.metric}', '{floor.kind}'"
                )

    def _shown(self) -> None:
        if not self._ready:
            return
        self._seen = []
        shown = self._called("examples", lambda: self.task.examples(self._predict))
        if shown is None or not self._require_json("examples", shown):
            return
        if not self._seen:
            self._say("examples must call predict at least once: attention is drawn for the first sequence it is given")
        kind = shown.get("kind", "pairs" if "pairs" in shown else None)
        missing = [key for key in EXAMPLES.get(kind, ()) if key not in shown]
        missing += [
            f"{key} of each of '{many}'"
            for many, keys in ITEMS.items()
            for key in keys
            if many in EXAMPLES.get(kind, ()) and any(key not in one for one in shown.get(many, ()))
        ]
        if missing:
            self._say(f"examples of the kind '{kind}' lack {', '.join(missing)}")
        labels = shown.get("labels", [])
        if not all(isinstance(one, list) and all(isinstance(word, str) for word in one) for one in labels):
            self._say(
                "'labels' of examples must be a list, for each sequence that a model reads, of one text per position"
            )
        writes = getattr(codec_of(self.task), "kind", None)
        if writes in ("sentences", "trees") and "pairs" not in shown:
            self._say(f"a task whose codec is of the kind '{writes}' must show examples with 'pairs'")
