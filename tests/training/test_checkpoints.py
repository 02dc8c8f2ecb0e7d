"""Checkpoints are whole or refused; tied weights and shared folders come back as they were."""

from __future__ import annotations

import pytest
import torch
from tests.training.tiny import tiny_model
from torch import nn

from attnlab.core.errors import RunError
from attnlab.training.keeping.checkpoints import (
    MODEL,
    load_model_weights,
    read_state,
    read_tensors,
    save_checkpoint,
    weights_of,
)


class Tied(nn.Module):
    def __init__(self, tied=True):
        super().__init__()
        self.embedding = nn.Embedding(7, 3)
        self.head = nn.Linear(3, 7, bias=False)
        self.head.weight = self.embedding.weight if tied else nn.Parameter(torch.zeros(7, 3))
        self.register_buffer("table", torch.arange(5))


def save(folder, model, step=3, tensors=None):
    save_checkpoint(folder / "last", weights_of(model), {"step": step}, tensors=tensors)


def test_round_trip_with_tied_weights(tmp_path):
    model, other = Tied(), Tied()
    save(tmp_path, model, tensors={"adamw.0.step": torch.tensor(3.0)})
    assert load_model_weights(other, tmp_path) == 3
    assert torch.equal(other.head.weight, model.embedding.weight)
    assert other.head.weight is other.embedding.weight
    assert torch.equal(read_tensors(tmp_path / "last")["adamw.0.step"], torch.tensor(3.0))


def test_files_are_as_readable_as_their_folder(tmp_path):
    save(tmp_path, Tied())
    folder = tmp_path / "last"
    assert (folder / MODEL).stat().st_mode & 0o777 == folder.stat().st_mode & 0o666


@pytest.mark.parametrize("damage", ["cut", "flip", "remove"])
def test_damage_is_noticed(tmp_path, damage):
    save(tmp_path, Tied())
    path = tmp_path / "last" / MODEL
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    if damage == "remove":
        path.unlink()
    else:
        path.write_bytes(content if damage == "flip" else content[:-2])
    expected = "is missing" if damage == "remove" else r"is damaged or cut off \(.*sha256"
    with pytest.raises(RunError, match=rf"model\.safetensors {expected}"):
        load_model_weights(Tied(), tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [("[]", r"state\.json cannot be read: it must hold a JSON object"), ("{}", r"state\.json is damaged: it names no")],
)
def test_damaged_state(tmp_path, text, said):
    save(tmp_path, Tied())
    (tmp_path / "last" / "state.json").write_text(text)
    with pytest.raises(RunError, match=said):
        read_state(tmp_path / "last")


def test_another_model_and_no_checkpoint(tmp_path):
    with pytest.raises(RunError, match="no checkpoint 'best'"):
        load_model_weights(Tied(), tmp_path, which="best")
    save(tmp_path, Tied())
    with pytest.raises(RunError, match="does not fit Sequential") as raised:
        load_model_weights(tiny_model(), tmp_path)
    assert len(str(raised.value)) < len(str(tmp_path)) + 400


def test_weights_while_the_folder_is_replaced(tmp_path):
    save(tmp_path, Tied())
    (tmp_path / "last").rename(tmp_path / "last.old")
    assert load_model_weights(Tied(), tmp_path) == 3


def test_full_disk_keeps_the_checkpoint_before(tmp_path, monkeypatch):
    save(tmp_path, Tied(), step=3)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("attnlab.training.keeping.checkpoints.file_sha256", full)
    with pytest.raises(RunError, match="no room left to write in"):
        save(tmp_path, Tied(), step=5)
    monkeypatch.undo()
    assert load_model_weights(Tied(), tmp_path) == 3
    assert [one.name for one in tmp_path.iterdir()] == ["last"]


def test_a_real_limit_of_the_system_keeps_the_last_checkpoint(tmp_path):
    resource = pytest.importorskip("resource")
    model = torch.nn.Linear(71, 73)
    save_checkpoint(tmp_path / "last", weights_of(model), {"step": 3})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4099, hard))
    try:
        with pytest.raises(RunError, match="no room left to write in"):
            save_checkpoint(tmp_path / "last", weights_of(model), {"step": 5})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert load_model_weights(model, tmp_path) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["last"]
