"""``attnlab export``: a trained model in a form that is used without attnlab."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from attnlab.cli.terminal import Terminal
from attnlab.cli.words import Weights

To = Literal["torch-export", "onnx", "huggingface"]
"""What a model can be written as."""


def export(run: Path, /, *, to: To, out: Path, weights: Weights = "last") -> int:
    """Write a trained model as a program of torch or ONNX, or as a checkpoint of transformers.

    Parameters
    ----------
    run : Path
        Folder of a run, such as ``runs/STUDY/VARIANT/seed-0``, or of a checkpoint of transformers.
    to : {"torch-export", "onnx", "huggingface"}
        ``torch-export``, ``onnx`` or ``huggingface``.
    out : Path
        Folder to write to; not there yet, or empty.
    weights : {"last", "best"}
        ``last``, which the study judged, or ``best`` (those of the best evaluation).

    Returns
    -------
    int
        0.
    """
    from attnlab.studies.exporting.export import export as exported
    from attnlab.studies.using.pretrained import load_trained

    console = Terminal()
    with console.status(f"exporting to {to}"):
        done = exported(load_trained(run, which=weights), to=to, out=out)
    for size, difference in done.differences.items():
        console.print(f"{size}: largest difference from the model {difference:.2g}", highlight=False)
    console.print(f"{done.folder}", markup=False, highlight=False, soft_wrap=True)
    return 0
