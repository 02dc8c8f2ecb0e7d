"""What a run that writes keeps of its task: its model is built again and used without the task's data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from attnlab.core.contracts import StudyTask
from attnlab.core.errors import RunError
from attnlab.core.files import read_json, write_json, writing
from attnlab.tasks.codecs import Codec, codec_from_json, codec_of

KEPT = "task.json"
"""File of a run."""
WRITING = ("translation", "char-lm")
"""Tasks whose runs keep it."""


@final
@dataclass(frozen=True)
class KeptTask:
    """Hold what a run kept of its task."""

    name: str  # of the task
    model_arguments: Mapping[str, Any]  # what the task offers to models
    data: Mapping[str, Any]  # what identifies its data
    codec: Codec  # what tokens mean


def keep_task(folder: Path, task: StudyTask) -> None:
    """Write down what will be needed of a task whose models write; of others nothing is."""
    codec = codec_of(task)
    if codec is None:
        return
    if (folder / KEPT).is_file():
        if read_json(folder / KEPT)["codec"] != codec.to_json():
            raise RunError(f"{folder} was begun with another tokenizer than there is now; remove it to begin again")
        return
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    arguments, data = dict(task.model_arguments()), task.describe()
    content = {"name": task.name, "model_arguments": arguments, "data": data, "codec": codec.to_json()}
    write_json(folder / KEPT, content)


def kept_task(folder: Path) -> KeptTask:
    """What a run kept of its task."""
    if not (folder / KEPT).is_file():
        name = read_json(folder / "spec.json")["task"]["name"]
        if name not in WRITING:
            raise RunError(f"{folder} is a run of the task '{name}'; models write in {' and '.join(WRITING)} alone")
        raise RunError(
            f"{folder} does not say what its tokens mean (no {KEPT} in it); an older attnlab made it: remove it and "
            "run its study again"
        )
    content = read_json(folder / KEPT)
    return KeptTask(content["name"], content["model_arguments"], content["data"], codec_from_json(content["codec"]))
