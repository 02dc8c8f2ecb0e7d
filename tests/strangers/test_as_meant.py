"""What a person's module is given so that it is called as meant, and what is said where no such call was found."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attnlab.core.own_files import import_file
from attnlab.doctor.engine import doctor
from attnlab.strangers.calling.sources import SOURCES, Situation
from attnlab.strangers.calling.widths import widths_to_try
from attnlab.strangers.loading.parts import is_called
from attnlab.strangers.loading.sizes import usual
from attnlab.strangers.patient import Patient
from attnlab.strangers.said.phrases import phrases, sentence
from attnlab.strangers.trying.interview import interview

WIDTH = 16


def asked(module: nn.Module):
    return interview(Patient("it", module, None, {}, "", ""))


def errors(module: nn.Module, **how):
    return {one.check for one in doctor(module, **how).errors}


def test_a_file_that_bears_its_packages_name_imports_what_stands_beside_it(tmp_path):
    package = tmp_path / "former"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "tools.py").write_text("SIZE = 3\n")
    (package / "former.py").write_text("from former import tools\nSIZE = tools.SIZE\n")
    assert import_file(package / "former.py").SIZE == 3


def test_what_a_file_requires_on_a_command_line_has_its_default(tmp_path):
    text = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("action")
parser.add_argument("--size", type=int, default="3")
parser.add_argument("--path", required=True)
parser.set_defaults(kind="plain")
args = parser.parse_args()
files = argparse.ArgumentParser()
files.add_argument("files", nargs="*")
files = files.parse_args().files
said = parser.parse_args(["go", "--path", "here", "--size", "4"])
"""
    (tmp_path / "script.py").write_text(text)
    module = import_file(tmp_path / "script.py")
    assert vars(module.args) == {"action": None, "size": 3, "path": None, "kind": "plain"}
    assert module.files == []
    assert (module.said.action, module.said.path, module.said.size) == ("go", "here", 4)
    with pytest.raises(SystemExit):
        module.parser.parse_args([])


class WithProperty(nn.Module):
    def __init__(self, size, part):
        super().__init__()
        self._size = size
        self.part = part

    @property
    def size(self):
        return self._size

    def forward(self, x):
        return self.part(x)


def test_a_property_is_no_call_of_the_argument_it_is_named_after():
    assert not is_called(WithProperty, "size")
    assert is_called(WithProperty, "part")


def test_what_is_called_a_maximum_is_a_length_unless_something_is_counted():
    assert [usual(name, int) for name in ("max_n", "n_max", "n_parts", "max_num_heads", "max_depth")] == [
        48,
        48,
        4,
        4,
        4,
    ]


class Configured:
    def __init__(self):
        self.hidden_size, self.mel_bins = 32, 80


def test_channels_that_a_config_says_are_a_width_to_try():
    module = nn.Linear(96, 32)
    patient = Patient("it", module, None, {"config": Configured()}, "", "")
    assert widths_to_try(module, patient)[:3] == [32, 96, 80]


def test_a_choice_that_is_compared_is_not_what_a_class_says_it_is():
    post = phrases("post-norm")
    assert sentence("Pre-norm, which trains better than post-norm.", post) == ""
    assert sentence("Norms first instead of the usual post-norm.", post) == ""
    assert sentence("A post-norm block.", post)


class OfDistances(nn.Module):
    """Attention with a term for each pair of positions."""

    def __init__(self):
        super().__init__()
        self.maps, self.of_pairs = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x, relative_embeddings):
        query, key, value = self.maps(x).chunk(3, -1)
        length = x.size(1)
        pairs = self.of_pairs(relative_embeddings).view(length, length, WIDTH)
        scores = query @ key.mT + (query.unsqueeze(2) * pairs).sum(-1)
        return (scores / WIDTH**0.5).softmax(-1) @ value


def test_vectors_of_pairs_that_all_samples_share_hang_on_their_distance():
    at = Situation(torch.zeros(2, 5, 3), "batch-first", torch.float64)
    pairs = SOURCES["vectors of distances"](at, None)
    assert pairs.shape == (5, 5, 3)
    assert torch.equal(pairs[1, 3], pairs[2, 4])
    assert not torch.equal(pairs[1, 3], pairs[3, 1])
    assert asked(OfDistances()).arguments[1].source == "vectors of distances"
    assert "positions" not in errors(OfDistances())


class TimesMatrix(nn.Module):
    def __init__(self):
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, distance_matrix):
        return self.map(distance_matrix @ x)


def test_a_matrix_holds_a_number_for_every_pair():
    assert asked(TimesMatrix()).arguments[1].source == "numbers of pairs"


class NearOnes(nn.Module):
    """Attention that is told of how far positions lie apart. mask: True where real."""

    def __init__(self):
        super().__init__()
        self.maps = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x, distances, mask):
        query, key, value = self.maps(x + distances @ x).chunk(3, -1)
        scores = (query @ key.mT / WIDTH**0.5).masked_fill(~mask[:, None], float("-inf"))
        return scores.softmax(-1) @ value


def test_padding_that_pairs_bring_in_is_a_question():
    (found,) = [one for one in doctor(NearOnes()).findings if one.check == "padding"]
    assert found.severity == "warning"
    words = "; `distances` was given numbers for padded positions, too, and with zeros it is clean"
    assert found.evidence.endswith(words)


class Placed(nn.Module):
    """Positions are added to tokens at a length that is the width, where numbers of positions would fit too."""

    def __init__(self):
        super().__init__()
        self.table, self.mix = nn.Embedding(20, 12), nn.Conv1d(12, 12, 1)

    def forward(self, x, PE):
        return (self.table(x) + PE) @ torch.eye(12)


def test_what_is_called_as_an_encoding_of_positions_holds_vectors():
    assert asked(Placed()).arguments[1].source == "position vectors"


class Pair(nn.Module):
    """A decoder that looks at as many positions as it has, and adds to what it is given in place."""

    def __init__(self):
        super().__init__()
        self.place = nn.Parameter(torch.randn(64, WIDTH))
        self.looks = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x_enc, x_dec):
        x_enc += self.place[: x_enc.size(1)]
        hidden = torch.ones(x_dec.size(1), x_enc.size(1), dtype=torch.bool).triu(1)
        if hidden.size(0) != hidden.size(1):
            raise ValueError("as many positions on both sides")
        return x_dec + self.looks(x_dec, x_enc, x_enc, attn_mask=hidden, need_weights=False)[0]


def test_a_memory_of_the_inputs_length_is_another_sequence_that_may_be_written_into():
    convention = asked(Pair())
    assert {one.parameter: one.source for one in convention.arguments} == {"x_enc": "another sequence", "x_dec": "x"}


class Cross(nn.Module):
    """Decoder layer that must be told which positions of its memory are real, memory_mask: True where real."""

    def __init__(self):
        super().__init__()
        self.own, self.looks = (nn.MultiheadAttention(WIDTH, 2, batch_first=True) for _ in range(2))

    def forward(self, x, memory, memory_mask):
        later = torch.ones(x.size(1), x.size(1), dtype=torch.bool).triu(1)
        x = x + self.own(x, x, x, attn_mask=later, need_weights=False)[0]
        return x + self.looks(x, memory, memory, key_padding_mask=~memory_mask, need_weights=False)[0]


def test_a_mask_that_a_memory_must_have_is_over_the_memory():
    convention = asked(Cross())
    assert [one.source for one in convention.arguments] == ["x", "memory", "all of the memory"]
    assert convention.over_memory.key_mask.keeps
    assert "memory_mask: bool, True = may attend, (batch, k_len) over keys of the memory" in convention.in_words
    assert "padding" not in errors(Cross())


class CrossOfPairs(nn.Module):
    """Decoder layer. memory_mask: (batch, length, memory length), True where x may look."""

    def __init__(self):
        super().__init__()
        self.query, self.rest = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x, memory, memory_mask):
        key, value = self.rest(memory).chunk(2, -1)
        scores = self.query(x) @ key.mT / WIDTH**0.5
        assert memory_mask.shape == scores.shape
        return x + scores.masked_fill(~memory_mask, float("-inf")).softmax(-1) @ value


def test_a_mask_that_a_memory_must_have_may_be_over_pairs():
    given = {one.parameter: (one.source, one.value) for one in asked(CrossOfPairs()).arguments}
    assert given["memory"][0] == "memory"
    assert given["memory_mask"] == ("all of the memory", ("bool, True = may attend", "(batch, q_len, k_len)"))


class SaidOtherwise(nn.Module):
    """Attention over the first axis. x: (batch, length, d_model)."""

    def __init__(self, fixed):
        super().__init__()
        self.fixed, self.maps = fixed, nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        if self.fixed and x.size(0) < 8:
            raise ValueError("too few")
        query, key, value = self.maps(x.transpose(0, 1)).chunk(3, -1)
        return (x.transpose(0, 1) + (query @ key.mT / WIDTH**0.5).softmax(-1) @ value).transpose(0, 1).flip(1)


@pytest.mark.parametrize("fixed", [True, False])
def test_where_no_call_runs_in_the_layout_that_is_said_errors_are_questions(fixed):
    found = {one.check: one for one in doctor(SaidOtherwise(fixed)).findings}["batch-independence"]
    assert found.severity == ("warning" if fixed else "error")
    if fixed:
        assert "says batch first, and no call was found that runs so; as (length, batch, d_model):" in found.message
        assert found.remedy.startswith("say how it is called (--layout, --arg); if so: ")


class Counting(nn.Module):
    """An encoder that halves its input, and tells how many positions are left. x: (batch, length, d_model)."""

    def __init__(self, tells):
        super().__init__()
        self.tells, self.maps, self.out = tells, nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, lengths):
        query, key, value = self.maps(x).chunk(3, -1)
        y = self.out((query @ key.mT / WIDTH**0.5).softmax(-1) @ value)
        return (y, lengths // 2) if self.tells else (y, lengths * 0)


@pytest.mark.parametrize("tells", [True, False])
def test_lengths_that_are_handed_on_have_an_effect(tells):
    found = errors(Counting(tells))
    assert "padding" in found
    assert ("mask-polarity" in found) is not tells


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.looks = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.norm, self.ff = nn.LayerNorm(WIDTH), nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, WIDTH))

    def forward(self, x):
        x = x + self.looks(x, x, x, need_weights=False)[0]
        return self.norm(x + self.ff(x))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.place = nn.ModuleList([Layer(), Layer()]), nn.Parameter(torch.randn(64, WIDTH))

    def forward(self, x):
        x += self.place[: x.size(1)]
        for layer in self.layers:
            x = layer(x)
        return x


class EncoderFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.out = Encoder(), nn.Linear(WIDTH, 5)

    def forward(self, x):
        return self.out(self.encoder(x * 1.0))


def test_a_part_that_writes_into_what_it_is_given_is_seen_to_hand_it_on():
    assert errors(EncoderFirst()) == set()
