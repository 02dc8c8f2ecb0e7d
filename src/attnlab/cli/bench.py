"""``attnlab bench``: pairs measured in turn within one run."""

from __future__ import annotations

from pathlib import Path


def bench(what: str = "loop", /, *, out: Path | None = None, json: bool = False) -> int:
    """Measure attnlab beside its alternatives, in one run.

    Parameters
    ----------
    what : str
        ``loop``: the training loop against the bare forward-backward-step of the same model.
    out : Path, optional
        Folder for the result as JSON.
    json : bool
        Print the result as JSON.

    Returns
    -------
    int
        0.
    """
    from attnlab.benchmarks import BENCHMARKS
    from attnlab.build import look_up
    from attnlab.cli.run import print_json
    from attnlab.training.atomic import write_json

    result = look_up(what, BENCHMARKS, "benchmark")()
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / f"bench-{what}.json", result.to_json())
    if json:
        print_json(result.to_json())
    else:
        print(result)
    return 0
