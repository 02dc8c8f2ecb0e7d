"""``attnlab generate``: a text continued by a trained language model."""

from __future__ import annotations

from pathlib import Path

from attnlab.cli.words import Device, Weights, Whole


def generate(
    run: Path,
    /,
    *,
    prompt: str | None = None,
    length: Whole = 500,
    samples: Whole = 1,
    temperature: float = 0.8,
    top_k: Whole | None = None,
    top_p: float | None = None,
    seed: Whole = 0,
    weights: Weights = "last",
    device: Device = "cpu",
) -> int:
    """Let a language model of a study write.

    Parameters
    ----------
    run : Path
        Folder of a run, such as ``runs/STUDY/VARIANT/seed-0``, or of a checkpoint of transformers.
    prompt : str, optional
        What the text begins with; a line break by default, where the training text has one.
    length : int
        Tokens to write: characters, or those of the run's tokenizer.
    samples : int
        Number of texts.
    temperature : float
        0 takes the likeliest token each time, 1 draws by the model's probabilities.
    top_k : int, optional
        Draw among so many of the likeliest only.
    top_p : float, optional
        Draw among the likeliest that together have this probability only.
    seed : int
        Equal seeds give equal texts.
    weights : {"last", "best"}
        ``last``, which the study judged, or ``best`` (those of the best evaluation).
    device : {"cpu", "cuda"}
        Where it is computed.

    Returns
    -------
    int
        0.
    """
    from attnlab.studies.using.pretrained import load_trained
    from attnlab.studies.using.trained import generate as generated

    trained = load_trained(run, which=weights, device=device)
    texts = generated(
        trained,
        prompt,
        length=length,
        samples=samples,
        seed=seed,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
    )
    print("\n\n".join(texts))
    return 0
