"""The page of one run, and of a module of a person's own; what their script asks for is answered by `inside`."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Mapping, MutableSet
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.status import HTTP_404_NOT_FOUND

from attnlab.core.errors import DataError, RunError, SpecError
from attnlab.core.files import read_json
from attnlab.core.processes.apart import own_code_in
from attnlab.inspection.drawing.assets import SCRIPT, pixel_script
from attnlab.studies.run.folder import INSIDE
from attnlab.studies.using.kept_task import KEPT
from attnlab.studies.using.parts import by_seed
from attnlab.tasks.codecs import NumbersCodec
from attnlab.training.keeping.checkpoints import STATE
from attnlab.training.keeping.runs import SPEC
from attnlab.viewer.inside.apart import LIMIT_S, AnsweringApart
from attnlab.viewer.inside.kept import KeptMaps
from attnlab.viewer.inside.looking import run_in_view
from attnlab.viewer.inside.own import OwnModule
from attnlab.viewer.inside.questions import MEASURED, QUESTIONS, Answering, Body, answering
from attnlab.viewer.known import is_study
from attnlab.viewer.pages import Crumbs, page
from attnlab.viewer.places import address, inside, path_below
from attnlab.viewer.states import state_of_run
from attnlab.viewer.streams import Streams
from attnlab.viewer.watched import FollowedLooks

Find = Callable[[Request, Body], Answering]
"""From a request to what answers it."""
MODELS = 2
"""Models that are kept in memory: as many as a page compares."""
EXAMPLES = 20
"""Texts that a page offers."""
MOST_RUNS = 200
"""Other runs that a page offers to compare with."""


Processes = MutableSet[AnsweringApart]
"""Those that answer now, which end with the server."""


def routes(folder: Path, streams: Streams, processes: Processes) -> list[Route]:
    """The pages of runs below a folder."""
    loads = (functools.partial(load, folder, processes) for load in (_load, _load_aside))
    looking, measuring = map(functools.lru_cache(MODELS), loads)

    def run(request: Request) -> Response:
        """Show a run; its script asks for the rest."""
        place = _run_folder(folder, request.path_params["path"])
        other = request.query_params.get("other")
        runs = [place] if other is None else [place, _run_folder(folder, other)]
        values = {"runs": [_told(folder, one) for one in runs], "others": _others(folder, place)}
        return page("run.html.j2", {**values, "examples": _examples(folder, place)}, crumbs=_crumbs(folder, place))

    def find(load: Callable[[Path, int], Answering], request: Request, body: Body) -> Answering:
        place = _run_folder(folder, request.path_params["path"])
        if _own_code(place) and body.get("trust") is not True:
            raise RunError(f"the model of {path_below(folder, place)} is code of a person's own; trust it first")
        return load(place, _written(place))

    async def watched(request: Request) -> Response:
        """Send what is watched in a run, as server-sent events."""
        return await streams.watch(FollowedLooks, _run_folder(folder, request.path_params["path"]))

    pages = [Route("/run/{path:path}/watched", watched), Route("/run/{path:path}", run)]
    found = (functools.partial(find, load) for load in (looking, measuring))
    return [*_questions("/run/{path:path}", *found), *pages, DRAWING]


def own_routes(own: OwnModule, processes: Processes) -> list[Route]:
    """The page of a module of a person's own, which runs in a process of its own, and in another where it is measured.

    Raises
    ------
    SpecError
        If it cannot be loaded or called.
    """
    asked = AnsweringApart(own)
    asked.open()
    measured = asked
    if asked.begin["measures"]:
        measured = AnsweringApart(own, aside=True)
        threading.Thread(target=_begin, args=(measured,), daemon=True).start()  # now: the file may change later
    processes |= {asked, measured}

    def module(_: Request) -> Response:
        """Show the module; its script asks for the rest."""
        told = {
            "path": own.shown or own.target,
            "address": "/module",
            "model": asked.begin["name"],
            "kind": asked.begin["kind"],
        }
        told |= {"task": "a module of your own", "state": "", "own_code": False, "step": None}
        told |= {"task": "a checkpoint"} if own.shown else {}
        told["measures"] = asked.begin["measures"]
        example = {"text": asked.begin["text"], "target": ""}
        return page("run.html.j2", {"runs": [told], "others": [], "examples": [example]})

    questions = _questions("/module", lambda _request, _body: asked, lambda _request, _body: measured)
    return [*questions, Route("/", module), DRAWING]


def _begin(process: AnsweringApart) -> None:
    with contextlib.suppress(SpecError):  # is told when it is asked
        process.open()


def _questions(path: str, look: Find, measure: Find) -> list[Route]:
    """What a page's script asks for: of looks, and of what is measured, which does not keep looks waiting.

    Notes
    -----
    One look is answered at a time: while a model is watched, torch's own fast path is switched off for the whole
    process.
    """
    turns = {look: threading.Lock(), measure: threading.Lock()}

    def answered(question: str) -> Callable[[Request], Any]:
        find = measure if question in MEASURED else look

        async def endpoint(request: Request) -> JSONResponse:
            body = await _body(request)

            def answer() -> dict[str, Any]:
                with turns[find]:
                    return find(request, body)(question, body)

            return JSONResponse(await run_in_threadpool(answer))

        return endpoint

    return [Route(f"{path}/{question}", answered(question), methods=["POST"]) for question in QUESTIONS]


def _pixel_script(_request: Request) -> Response:
    """What pages and static reports draw maps with."""
    return Response(pixel_script(), media_type="text/javascript")


DRAWING = Route(f"/static/{SCRIPT}", _pixel_script)


async def _body(request: Request) -> Body:
    try:
        body = await request.json()
    except (ValueError, RecursionError) as error:
        raise DataError(f"the body of a request must be JSON: {error}") from error
    if not isinstance(body, dict):
        raise DataError(f"the body of a request must be an object; got {type(body).__name__}")
    return body


def _load(folder: Path, processes: Processes, place: Path, _: int) -> Answering:
    """What answers for a run: its model, or the maps that its study kept where that reads nothing a person can give."""
    if _kind(folder, place) == "maps":
        return answering(KeptMaps.read(place / INSIDE))
    return _apart(processes, AnsweringApart(place)) if _own_code(place) else answering(run_in_view(place))


def _load_aside(folder: Path, processes: Processes, place: Path, written: int) -> Answering:
    """What measures a run: a process of its own; that of a person's own code may not take as long as it likes."""
    if _kind(folder, place) == "maps":
        return _load(folder, processes, place, written)
    limit_s = LIMIT_S if _own_code(place) else threading.TIMEOUT_MAX
    return _apart(processes, AnsweringApart(place, aside=True, limit_s=limit_s))


def _apart(processes: Processes, process: AnsweringApart) -> AnsweringApart:
    processes.add(process)
    return process


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


def _own_code(folder: Path) -> list[str]:
    """What a run has of a person's own: paths of its modules and of its task."""
    spec = _spec(folder)
    return own_code_in([spec["model"], spec["task"]])


def _spec(folder: Path) -> Mapping[str, Any]:
    spec = read_json(folder / SPEC)
    if not (isinstance(spec, dict) and {"task", "model"} <= spec.keys()):
        raise RunError(f"{folder / SPEC} is damaged: it names no task and model")
    return spec


def _told(folder: Path, place: Path) -> dict[str, Any]:
    """What a page says of a run before anything is computed."""
    spec, kind = _spec(place), _kind(folder, place)
    return {
        "path": path_below(folder, place),
        "address": address("run", path_below(folder, place)),
        "state": state_of_run(place),
        "model": _name(spec["model"]),
        "task": _name(spec["task"]),
        "own_code": _own_code(place),
        "kind": kind,
        "measures": kind != "maps",
        "step": _step(place),
    }


def _step(place: Path) -> int | None:
    """After how many updates weights were saved last; None before the first time."""
    state = place / "last" / STATE
    return read_json(state).get("step") if state.is_file() else None


def _kind(folder: Path, place: Path) -> str:
    """What a run reads: "sentences", "characters", a "series" of numbers; "maps" where those alone were kept."""
    kept = str(read_json(place / KEPT)["codec"]["kind"]) if (place / KEPT).is_file() else NumbersCodec.kind
    if kept != NumbersCodec.kind:
        return kept
    if _predictions(folder, place).get("kind") == "series":
        return "series"
    return "maps" if (place / INSIDE).is_file() else "characters"


def _name(spec: Any) -> str:
    return str(spec["name"] if isinstance(spec, dict) else spec)


def _others(folder: Path, place: Path) -> list[str]:
    """Other runs of the same task, of this study and of those beside it."""
    root, task = folder.resolve(), _name(_spec(place)["task"])
    study = place.parent.parent
    beside = study.glob(f"*/seed-*/{KEPT}") if study.is_relative_to(root) else ()
    every = (sorted((one.parent for one in some), key=by_seed) for some in (beside, root.glob(f"*/*/seed-*/{KEPT}")))
    found = dict.fromkeys(one.resolve() for some in every for one in some)
    others = [one for one in found if one != place and one.is_relative_to(root)][:MOST_RUNS]
    return [path_below(folder, one) for one in others if _task(one) == task]


def _task(place: Path) -> str | None:
    """The task of a run; None where it cannot be read."""
    try:
        return _name(_spec(place)["task"])
    except RunError:
        return None


def _examples(folder: Path, place: Path) -> list[dict[str, Any]]:
    """Held-out inputs that the study kept with one of its runs, with what is right where somebody knows that."""
    predictions = _predictions(folder, place)
    if predictions.get("kind") == "text":
        return [{"text": "".join(predictions["labels"][0]), "target": ""}]
    if predictions.get("kind") == "classes":
        return [{"text": one["text"], "target": ""} for one in predictions["items"] if "text" in one]
    if predictions.get("kind") == "series":
        return [{"values": one["input"], "wanted": one["target"]} for one in predictions["items"][:EXAMPLES]]
    return [{"text": pair["source"], "target": pair["target"]} for pair in predictions.get("pairs", [])[:EXAMPLES]]


def _predictions(folder: Path, place: Path) -> Mapping[str, Any]:
    """What a study kept of the predictions of a run, or else of another of its runs; empty where it kept none."""
    kept = [place / INSIDE, *sorted(place.parent.parent.glob(f"*/seed-*/{INSIDE}"))]
    path = next((one for one in kept if one.is_file() and one.resolve().is_relative_to(folder.resolve())), None)
    return read_json(path).get("predictions") or {} if path else {}


def _crumbs(folder: Path, place: Path) -> Crumbs:
    """The study that a run belongs to, and the run."""
    root, study, path = folder.resolve(), place.parent.parent, path_below(folder, place)
    if not (study.is_relative_to(root) and is_study(study)):
        return [(path or folder.name, address("run", path))]
    above = path_below(folder, study)
    return [(above or study.name, address("study", above)), (path.removeprefix(f"{above}/"), address("run", path))]
