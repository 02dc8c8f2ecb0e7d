"""Made-up results in the shape of real ones, for the tests of the report."""

from __future__ import annotations

import base64
import math

import numpy as np

from attnlab.core.contracts import Floor, Metric
from attnlab.studies.judge.results import Alarm, CellResults, StudyResults, VariantResults

TEXT = "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n\n" * 3
ENVIRONMENT = {
    "attnlab": "0.1.0",
    "python": "3.11.9",
    "torch": "2.13.0+cpu",
    "hardware": {"cpu": "AMD EPYC 7543", "cores": 2, "memory_bytes": 8_000_000_000},
    "started": "2026-11-20T21:00:00Z",
}
LOSS = Metric("val_loss", "nats/character", "lower", "validation loss")
ACCURACY = Metric("val_accuracy", "%", "higher", "validation accuracy")
TEST_MSE = Metric("test_mse", "normalized squared error", "lower", "test MSE")
VAL_MSE = Metric("val_mse", "normalized squared error", "lower", "validation MSE")
LADDER = (("n-gram that sees 0 characters", 3.347, 0), ("bigram (sees 1)", 2.486, 1), ("trigram (sees 2)", 2.049, 2))


def against(baseline, variants):
    return tuple((variant.name, baseline) for variant in variants if variant.name != baseline)


def attention(rng, layers=2, heads=3, length=37, labels=()):
    out = []
    for index in range(layers):
        distance = np.abs(np.subtract.outer(range(length), range(length)))
        scores = rng.normal(0, 2, (heads, length, length)) - 0.2 * distance
        scores = np.where(np.tri(length, dtype=bool), scores, -np.inf) if labels else scores
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        levels = np.round(weights / weights.max() * 255).astype(np.uint8)
        text = base64.b64encode(levels.tobytes()).decode()
        shape = list(weights.shape)
        rank = {"scores": [4.0] * (heads - 1) + [None], "weights": [length / 2] * heads, "d_head": 16, "length": length}
        layer = {"name": f"layers.{index}.mixer", "shape": shape, "max": weights.max(), "weights": text}
        out.append(layer | ({"rank": rank} if labels else {}))
    return {"labels": labels, "layers": out}


def text_predictions(rng, final):
    losses = np.clip(rng.exponential(final, len(TEXT)), 0, 8)
    return {"kind": "text", "text": TEXT, "loss": losses.tolist(), "predicted": ["e"] * len(TEXT)}


def text_cell(rng, final, seed, shared, *, kept, looks, steps=300):
    final = final + shared + rng.normal(0, 0.004)
    marks = np.linspace(0, steps, 11).astype(int)
    curve = [
        {
            "step": int(step),
            "tokens": int(step) * 8192,
            "seconds": step / 10,
            "lr": 1e-3,
            "train_loss": final,
            "val_loss": final + (4.17 - final) * math.exp(-step / 40) + rng.normal(0, 0.01),
        }
        for step in marks
    ]
    return CellResults(
        seed,
        "done",
        {"val_loss": final, "val_accuracy": 100 * math.exp(-final / 2)},
        seconds=31 + rng.normal(),
        curve=curve,
        predictions=text_predictions(rng, final) if kept else None,
        attention=attention(rng, labels=[list(TEXT[:37])]) if kept and looks else None,
        surface=surface(rng, final) if kept and looks else None,
    )


def surface(rng, final):
    """Three lines, one of which leaves the range of numbers."""
    at = np.linspace(-0.5, 0.5, 15)
    loss = [(final + steep * at**2).tolist() for steep in rng.uniform(2, 30, 3)]
    loss[2][0] = None
    return {"at": at.tolist(), "loss": loss}


def text_variant(name, final, rng, shared, *, looks=True, parameters=812_345, flops=1.6e6, edge=False):
    cells = tuple(text_cell(rng, final, seed, shared[seed], kept=seed == 0, looks=looks) for seed in range(len(shared)))
    scores = {"0.0003": final + 0.1, "0.001": final, "0.003": None}
    tuning = {"setting": "lr", "scores": scores, "metric": "val_loss", "chosen": "0.001", "at_edge": edge}
    spec = {
        "task": {"name": "char-lm", "text": "shakespeare"},
        "model": {"name": "decoder", "d_model": 64, "mixer": {"name": "attention", "n_heads": 4} if looks else "none"},
        "training": {"optimizer": "adamw", "lr": 1e-3, "budget": {"steps": 500}},
    }
    return VariantResults(name, spec, parameters, flops, 41_000_000, (), tuning, cells)


def parts(seeds=5, variants=7, *, name="attention only <script>alert(1)</script>"):
    """A study of text with a failed cell, an alarm, an untuned variant and a name that is markup."""
    rng = np.random.default_rng(7)
    shared = rng.normal(0, 0.02, seeds)
    rows = [
        text_variant("no attention", 2.492, rng, shared, looks=False, parameters=398_000, flops=7.9e5),
        text_variant(name, 1.99, rng, shared, parameters=500_000),
        text_variant("attention + residual + norm", 1.712, rng, shared),
        text_variant("attention + residual + norm + dropout 0.1", 1.714, rng, shared),
        text_variant("attention + residual + norm, 4 heads", 1.665, rng, shared),
        text_variant("literal wiring: relu(linear(norm(x + mix(x))))", 1.85, rng, shared, edge=True),
        text_variant("leaky", 1.21, rng, shared, flops=2.1e6),
    ]
    rows += [text_variant(f"extra {index}", 1.7 + 0.01 * index, rng, shared) for index in range(variants - len(rows))]
    if seeds > 1:
        broken = list(rows[1].cells)
        broken[1] = CellResults(1, "failed", error="the loss was not a number at step 213; first in layers.3.mixer")
        rows[1] = VariantResults(**(vars(rows[1]) | {"cells": tuple(broken)}))
    floors = [
        Floor("chance", 4.174, "nats", "val_loss", "chance"),
        *(
            Floor(title, value, "nats", "val_loss", "floor", reach, 0.01, "Witten-Bell")
            for title, value, reach in LADDER
        ),
        Floor("best known", 1.4697, "nats", "val_loss", "best"),
    ]
    rules = {"metric": "val_loss", "budget": {"steps": 300}, "seeds": seeds, "smallest_effect": 0.01}
    return StudyResults(
        study="parts",
        question="Which part of the Transformer block carries the result?",
        task={"name": "char-lm", "text": "tinyshakespeare", "characters": 1_115_394, "sha256": "86c4e6aa9db7c042"},
        metric=LOSS,
        metrics=(LOSS, ACCURACY),
        floors=tuple(floors),
        rules=rules | {"hash": "9f2c" * 16},
        baseline="attention + residual + norm",
        contrasts=against("attention + residual + norm", rows),
        scale="small",
        variants=tuple(rows),
        alarms=(Alarm("floor", "leaky", "1.21 nats lies below what its reach allows: leak or mixing suspected."),),
        environment=ENVIRONMENT,
        complete=True,
        answer=None,
    )


def shapes_cell(rng, final, seed, *, looks):
    final *= math.exp(rng.normal(0, 0.05))
    curve = [
        {"step": step, "val_mse": final + 0.9 * math.exp(-step / 150) * math.exp(rng.normal(0, 0.1))}
        for step in range(0, 1300, 100)
    ]
    items = []
    shape_rng = np.random.default_rng(3)
    for _ in range(3):
        left, right = shape_rng.normal(0, 1, 2)
        target = np.zeros(101)
        target[10:30], target[50:75] = left, right
        noisy = target + shape_rng.normal(0, 0.05, 101)
        guess = target + rng.normal(0, math.sqrt(final), 101)
        items.append({"input": noisy.tolist(), "target": target.tolist(), "prediction": guess.tolist()})
    return CellResults(
        seed,
        "done",
        {"test_mse": final, "val_mse": final * 1.01},
        seconds=42.0 + seed,
        curve=curve,
        predictions={"kind": "series", "items": items} if seed == 0 else None,
        attention=attention(rng, 1, 1, 101) if looks and seed == 0 else None,
    )


def shapes(seeds=3):
    """A study of sequences whose metric spans orders of magnitude."""
    rng = np.random.default_rng(11)
    rows = (
        ("CNN", 0.067, 62_337, False),
        ("CNN + attention", 0.0013, 54_081, True),
        ("dilated CNN (sees all 100 positions)", 0.0101, 62_337, False),
        ("LSTM, positions as time", 0.0052, 130_660, False),
        ("LSTM, batch read as time (a mistake, kept on purpose)", 0.88, 130_660, False),
    )
    variants = tuple(
        VariantResults(
            name,
            {"task": {"name": "shapes"}, "model": {"name": "cnn", "channels": 64}, "training": {"lr": 1e-3}},
            parameters,
            2.0 * parameters,
            9_000_000,
            cells=tuple(shapes_cell(rng, final, seed, looks=looks) for seed in range(seeds)),
        )
        for name, final, parameters, looks in rows
    )
    return StudyResults(
        study="shapes",
        question="Does one attention layer solve what a convolutional network cannot?",
        task={"name": "shapes", "group": "shape", "n_train": 25_000, "n_test": 1000},
        metric=TEST_MSE,
        metrics=(VAL_MSE, TEST_MSE),
        floors=(
            Floor("constant predictor", 0.91, TEST_MSE.unit, "val_mse", "chance"),
            Floor("noise", 0.00021, TEST_MSE.unit, "val_mse", "floor"),
        ),
        rules={"budget": {"steps": 1200}, "seeds": seeds, "smallest_effect": 0.001, "hash": "ab12" * 16},
        baseline="CNN",
        contrasts=against("CNN", variants),
        scale=None,
        variants=variants,
        alarms=(),
        environment=ENVIRONMENT,
        complete=True,
        answer="Yes: averaging heights per kind of shape needs values from anywhere in the sequence.",
    )


SOURCE = ["Two", " men", " are", " stand", "ing", " in", " a", " <b>", "park", "."]
TARGET = ["[begin]", "Zwei", " M\u00e4nner", " stehen", " in", " einem", " Park", "."]


def across(rng, q_len, k_len, name):
    """Attention from one sequence to another, one head."""
    weights = rng.dirichlet(np.full(k_len, 0.3), (1, q_len))
    levels = np.round(weights / weights.max() * 255).astype(np.uint8)
    encoded = base64.b64encode(levels.tobytes()).decode()
    return {"name": name, "shape": list(weights.shape), "max": weights.max(), "weights": encoded}


def translations():
    """A study of translation: two variants, their sentences, attention between two sequences."""
    rng = np.random.default_rng(5)
    read, written = len(SOURCE), len(TARGET)
    layers = [
        across(rng, read, read, "encoder.blocks.0.mixer"),
        across(rng, written, written, "decoder.blocks.0.mixer"),
        across(rng, written, read, "decoder.blocks.0.cross"),
    ]
    found = parts(seeds=2, variants=7)
    rows = []
    for place, variant in enumerate(found.variants[1:3]):
        pair = {"source": "Two men are standing in a <b>park.", "target": "Zwei M\u00e4nner stehen in einem Park."}
        pairs = [{**pair, "predicted": "Zwei", "translation": f"Zwei M\u00e4nner {place}"}]
        looked = {
            "predictions": {"kind": "pairs", "pairs": pairs},
            "attention": {"labels": [SOURCE, TARGET], "layers": layers},
        }
        cells = tuple(CellResults(**(vars(cell) | looked)) for cell in variant.cells)
        rows.append(VariantResults(**(vars(variant) | {"cells": cells})))
    changed = {
        "variants": tuple(rows),
        "baseline": rows[1].name,
        "contrasts": against(rows[1].name, rows),
        "alarms": (),
    }
    return StudyResults(**(vars(found) | changed))
