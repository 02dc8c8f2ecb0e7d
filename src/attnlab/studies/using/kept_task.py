"""What a run says of its task: its model is built again, that of a run that writes without the task's data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from attnlab.core.contracts import StudyTask
from attnlab.core.errors import RunError
from attnlab.core.files import read_json, write_json, writing
from attnlab.studies.define.assemble import build_task
from attnlab.tasks.codecs import Codec, codec_from_json, codec_of

KEPT = "task.json"
"""File of a run."""
WRITING = ("translation", "char-lm", "lm", "parsing")
"""Tasks whose runs keep it."""


@final
@dataclass(frozen=True)
class KeptTask:
    """Hold what a run says of its task."""

    folder: Path  # of the run
    name: str  # of the task
    model_arguments: Mapping[str, Any]  # what the task offers to models
    data: Mapping[str, Any]  # what identifies its data
    kept: Codec | None = None  # what tokens mean; None where models do not write

    @property
    def codec(self) -> Codec:
        """What tokens mean; raise `RunError` where models do not write."""
        if self.kept is None:
            tasks = f"{', '.join(WRITING[:-1])} and {WRITING[-1]}"
            raise RunError(
                f"{self.folder} is a run of the task '{self.name}'; models write in tasks with a codec: {tasks}"
            )
        return self.kept


def keep_task(folder: Path, task: StudyTask) -> None:
    """Write down what will be needed of a task whose models write; of others nothing is."""
    codec = codec_of(task)
    if codec is None:
        return
    if (folder / KEPT).is_file():
        if read_json(folder / KEPT)["codec"] != codec.to_json():
            raise RunError(
                f"{folder} was begun with another tokenizer or other units than there are now; remove it to begin again"
            )
        return
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    arguments, data = dict(task.model_arguments()), task.describe()
    content = {"name": task.name, "model_arguments": arguments, "data": data, "codec": codec.to_json()}
    write_json(folder / KEPT, content)


def kept_task(folder: Path) -> KeptTask:
    """What a run says of its task; one whose models do not write is built again, as the run's specification has it."""
    if (folder / KEPT).is_file():
        content = read_json(folder / KEPT)
        codec = codec_from_json(content["codec"])
        return KeptTask(folder, content["name"], content["model_arguments"], content["data"], codec)
    spec = read_json(folder / "spec.json")["task"]
    if spec["name"] in WRITING:
        raise RunError(
            f"{folder} does not say what its tokens mean (no {KEPT} in it); an older attnlab made it: remove it and "
            "run its study again"
        )
    task = build_task(spec)
    return KeptTask(folder, task.name, task.model_arguments(), task.describe())
