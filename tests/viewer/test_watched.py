"""What a run saw while it trained is told by quantity, layer and head, whatever its file looks like."""

from __future__ import annotations

import json

from attnlab.viewer.watched import LOOKS, watched


def look(step, **seen):
    return json.dumps({"step": step, "tokens": step, "seconds": 1.0, "watch": seen})


def test_looks_are_curves_by_layer_and_head(tmp_path):
    records = [
        look(1, entropy={"a": [1.0, 0.9], "b": [0.8]}, gradient_norm={"a": 2.123456789}),
        '{"step": 2, "train_loss": 1.0}',
        look(76, entropy={"a": [0.5, None], "b": [0.7]}, gradient_norm={"a": 3.0}, note="ReLUs were not seen"),
        look(151, entropy={"a": [0.1]})[:-9],
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(records))
    found = watched(tmp_path)
    entropy, gradient = found["quantities"]
    assert [one["title"] for one in found["quantities"]] == ["entropy", "gradient"]
    assert entropy["layers"][0] == {"name": "a", "curves": [[[1, 1.0], [76, 0.5]], [[1, 0.9], [76, None]]]}
    assert gradient["layers"] == [{"name": "a", "curves": [[[1, 2.1235], [76, 3.0]]]}]
    assert found["note"] == "ReLUs were not seen"


def test_many_looks_are_thinned_and_none_are_nothing(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("\n".join(look(step, entropy={"a": [0.5]}) for step in range(1, 200)))
    ((layer,),) = [one["layers"] for one in watched(tmp_path)["quantities"]]
    (curve,) = layer["curves"]
    assert (len(curve), curve[0][0], curve[-1][0]) == (LOOKS, 1, 199)
    assert watched(tmp_path / "none") == {"quantities": [], "note": ""}
