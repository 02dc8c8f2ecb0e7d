"""The page of one run, and what its script asks for: looks at a text, maps of heads, translations."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.status import HTTP_404_NOT_FOUND

from attnlab.core.apart import names_own_code
from attnlab.core.errors import DataError, RunError
from attnlab.core.files import read_json
from attnlab.inspection.interventions import How
from attnlab.studies import report as studies_report
from attnlab.studies.run.folder import INSIDE
from attnlab.studies.using.kept_task import KEPT
from attnlab.training.keeping.checkpoints import STATE
from attnlab.training.keeping.runs import SPEC
from attnlab.viewer.known import is_study
from attnlab.viewer.looking import Asked, KeptMaps, RunInView
from attnlab.viewer.pages import Crumbs, page
from attnlab.viewer.places import address, inside, path_below
from attnlab.viewer.states import state_of_run

DRAWING = Path(studies_report.__file__).parent / "templates" / "attention_pixels.js"
"""What this page and static reports draw maps with."""
MODELS = 2
"""Models that are kept in memory: as many as a page compares."""
EXAMPLES = 20
"""Texts that a page offers."""
MOST_RUNS = 200
"""Other runs that a page offers to compare with."""

Kind = TypeVar("Kind")
Viewed = RunInView | KeptMaps
Answer = Callable[[Viewed, Mapping[str, Any]], dict[str, Any]]


def routes(folder: Path) -> list[Route]:
    """The pages of runs below a folder.

    Notes
    -----
    One look is taken at a time: while a model is watched, torch's own fast path is switched off for the whole process.
    """
    one_at_a_time = threading.Lock()
    load = functools.lru_cache(MODELS)(_load)

    def run(request: Request) -> Response:
        """Show a run; its script asks for the rest."""
        place = _run_folder(folder, request.path_params["path"])
        other = request.query_params.get("other")
        runs = [place] if other is None else [place, _run_folder(folder, other)]
        path = path_below(folder, place)
        values = {"path": path, "runs": [_told(folder, one) for one in runs], "others": _others(folder, place)}
        return page("run.html.j2", {**values, "examples": _examples(folder, place)}, crumbs=_crumbs(folder, place))

    def answered(answer: Answer) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> JSONResponse:
            place, body = _run_folder(folder, request.path_params["path"]), await _body(request)

            def find() -> dict[str, Any]:
                if _is_own_code(place) and body.get("trust") is not True:
                    raise RunError(
                        f"the model of {path_below(folder, place)} is code of a person's own; trust it first"
                    )
                with one_at_a_time:
                    return answer(load(place, _written(place)), body)

            return JSONResponse(await run_in_threadpool(find))

        return endpoint

    asked = {"look": _look, "map": _map, "write": _write}
    posts = [Route(f"/run/{{path:path}}/{name}", answered(answer), methods=["POST"]) for name, answer in asked.items()]
    return [*posts, Route("/run/{path:path}", run), Route(f"/static/{DRAWING.name}", lambda _: FileResponse(DRAWING))]


def _look(viewed: Viewed, body: Mapping[str, Any]) -> dict[str, Any]:
    return viewed.look(_asked(body))


def _map(viewed: Viewed, body: Mapping[str, Any]) -> dict[str, Any]:
    layer, head = _field(body, "layer", str, ""), _field(body, "head", int, 0)
    return viewed.head_map(_asked(body), layer, head, shown=_field(body, "shown", str, "weights"))


def _write(viewed: Viewed, body: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(viewed, KeptMaps):
        raise RunError("the model of this run translates nothing")
    return viewed.write(_asked(body))


def _asked(body: Mapping[str, Any]) -> Asked:
    """What a body asks to see."""
    off = _field(body, "off", list, [])
    if not all(isinstance(one, str) for one in off):
        raise DataError(f"'off' must be a list of heads such as 'stack.blocks.0.mixer:2'; got {off}")
    text, target, how = (
        _field(body, name, str, usual) for name, usual in (("text", ""), ("target", ""), ("how", "zero"))
    )
    return Asked(text, target, tuple(sorted(off)), cast(How, how))


def _field(body: Mapping[str, Any], name: str, kind: type[Kind], usual: Kind) -> Kind:
    value = body.get(name, usual)
    if not isinstance(value, kind):
        raise DataError(f"'{name}' must be a {kind.__name__}; got {value!r}")
    return value


async def _body(request: Request) -> Mapping[str, Any]:
    try:
        body = await request.json()
    except ValueError as error:
        raise DataError(f"the body of a request must be JSON: {error}") from error
    if not isinstance(body, dict):
        raise DataError(f"the body of a request must be an object; got {type(body).__name__}")
    return body


def _load(folder: Path, _: int) -> Viewed:
    """What there is to look at in a run: its model, or the maps that its study kept where that writes no text."""
    if (folder / KEPT).is_file() or not (folder / INSIDE).is_file():
        return RunInView.load(folder)
    return KeptMaps.read(folder / INSIDE)


def _written(folder: Path) -> int:
    """What tells one state of a run's weights from the next."""
    paths = (folder / name for name in (f"last/{STATE}", KEPT, SPEC, INSIDE))
    return sum(path.stat().st_mtime_ns for path in paths if path.is_file())


def _run_folder(folder: Path, path: str) -> Path:
    place = inside(folder, path)
    if not (place / SPEC).is_file():
        raise HTTPException(
            HTTP_404_NOT_FOUND, f"{path or folder.name} is no run (no {SPEC} in it); see the start page"
        )
    return place


def _is_own_code(folder: Path) -> bool:
    spec = _spec(folder)
    return names_own_code([spec["model"], spec["task"]])


def _spec(folder: Path) -> Mapping[str, Any]:
    spec = read_json(folder / SPEC)
    if not (isinstance(spec, dict) and {"task", "model"} <= spec.keys()):
        raise RunError(f"{folder / SPEC} is damaged: it names no task and model")
    return spec


def _told(folder: Path, place: Path) -> dict[str, Any]:
    """What a page says of a run before anything is computed."""
    spec = _spec(place)
    return {
        "path": path_below(folder, place),
        "address": address("run", path_below(folder, place)),
        "state": state_of_run(place),
        "model": _name(spec["model"]),
        "task": _name(spec["task"]),
        "own_code": _is_own_code(place),
        "kind": _kind(place),
        "step": _step(place),
    }


def _step(place: Path) -> int | None:
    """After how many updates weights were saved last; None before the first time."""
    state = place / "last" / STATE
    return read_json(state).get("step") if state.is_file() else None


def _kind(place: Path) -> str:
    """Of what a run keeps: "sentences" that it translates, "characters" that it continues, or "maps" alone."""
    return str(read_json(place / KEPT)["codec"]["kind"]) if (place / KEPT).is_file() else "maps"


def _name(spec: Any) -> str:
    return str(spec["name"] if isinstance(spec, dict) else spec)


def _others(folder: Path, place: Path) -> list[str]:
    """Other runs of the same task, of this study and of those beside it."""
    root, task = folder.resolve(), _name(_spec(place)["task"])
    beside = place.parents[1].glob(f"*/seed-*/{KEPT}") if place.parents[1].is_relative_to(root) else ()
    found = dict.fromkeys(one.parent.resolve() for one in (*beside, *sorted(root.glob(f"*/*/seed-*/{KEPT}"))))
    others = [one for one in found if one != place and one.is_relative_to(root)][:MOST_RUNS]
    return [path_below(folder, one) for one in others if _task(one) == task]


def _task(place: Path) -> str | None:
    """The task of a run; None where it cannot be read."""
    try:
        return _name(_spec(place)["task"])
    except RunError:
        return None


def _examples(folder: Path, place: Path) -> list[dict[str, str]]:
    """Held-out texts that the study kept with one of its runs, with what a person made of them where they translate."""
    root = folder.resolve()
    kept = [place / INSIDE, *sorted(place.parent.parent.glob(f"*/seed-*/{INSIDE}"))]
    path = next((one for one in kept if one.is_file() and one.resolve().is_relative_to(root)), None)
    predictions = read_json(path).get("predictions", {}) if path else {}
    if predictions.get("kind") == "text":
        return [{"text": "".join(predictions["labels"][0]), "target": ""}]
    return [{"text": pair["source"], "target": pair["target"]} for pair in predictions.get("pairs", [])[:EXAMPLES]]


def _crumbs(folder: Path, place: Path) -> Crumbs:
    """The study that a run belongs to, and the run."""
    root, study, path = folder.resolve(), place.parent.parent, path_below(folder, place)
    if not (study.is_relative_to(root) and is_study(study)):
        return [(path or folder.name, address("run", path))]
    above = path_below(folder, study)
    return [(above or study.name, address("study", above)), (path.removeprefix(f"{above}/"), address("run", path))]
