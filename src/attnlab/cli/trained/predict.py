"""``attnlab predict``: what a trained model makes of sequences of numbers or tokens."""

from __future__ import annotations

from pathlib import Path

from attnlab.cli.words import Device, Weights
from attnlab.core.errors import SpecError


def predict(
    run: Path,
    inputs: str,
    /,
    *,
    out: Path,
    also: tuple[Path, ...] = (),
    weights: Weights = "last",
    device: Device = "cpu",
) -> int:
    """Let a run of ``sequences``, or of ``classify`` on numbers or tokens, answer for arrays of them.

    Parameters
    ----------
    run : Path
        Folder of a run, such as ``runs/STUDY/VARIANT/seed-0``.
    inputs : str
        As the task has them, in the units of the training data, or its tokens as whole numbers: an ``.npy`` file or a
        CSV file with a row an item.
    out : Path
        The ``.npy`` file to write: numbers in the units of the targets, or on the last axis the probability of each
        class.
    also : tuple of Path
        One more run of the same task, whose answers are averaged with those of the first. Once for each.
    weights : {"last", "best"}
        ``last``, which the study judged, or ``best`` (those of the best evaluation).
    device : {"cpu", "cuda"}
        Where it is computed.

    Returns
    -------
    int
        0.
    """
    import numpy as np

    from attnlab.studies.using.predicting import predict as answers_for
    from attnlab.studies.using.trained import load_run
    from attnlab.tasks.arrays.reading import ARRAY, read_array

    if out.suffix != ARRAY:
        raise SpecError(f"--out must be an {ARRAY} file; got {out}")
    if not out.parent.is_dir():
        raise SpecError(f"--out {out}: there is no folder {out.parent}; make it, or choose another")
    trained = [load_run(folder, which=weights, device=device) for folder in (run, *also)]
    found = answers_for(trained, read_array(inputs))
    np.save(out, found)
    classes = trained[0].task.codec.classes  # pyrefly: ignore
    print(f"{out}: {found.shape}, {'the probability of ' + ', '.join(classes) if classes else 'numbers'}")
    return 0
