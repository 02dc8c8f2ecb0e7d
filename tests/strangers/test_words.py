"""Which axis is which, as classes say it: attribute, names, comments, docstrings; and what says nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from attnlab.strangers.loading.loading import load
from attnlab.strangers.said.layout import layout_said
from attnlab.strangers.trying.interview import interview

CLASS = """
import torch
from torch import nn

{above}
class Mine(nn.Module):
    {docstring}
    def __init__(self):
        super().__init__()
        self.map = nn.Linear(8, 8)

    def forward(self, {parameter}, mask=None):{beside}
        {body}
        return self.map({parameter})
"""


def said(
    folder: Path, *, docstring: str = "", above: str = "", beside: str = "", body: str = "pass", parameter: str = "x"
) -> str | None:
    path = folder / "mine.py"
    docstring = f'"""{docstring}"""' if docstring else "attribute = 1"
    path.write_text(CLASS.format(docstring=docstring, above=above, beside=beside, body=body, parameter=parameter))
    patient = load(f"{path}:Mine")
    found = layout_said(patient.module, parameter, patient.text)
    return None if found is None else found.what


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("(T, B, C)", "sequence-first"),
        ("(L, N, E)", "sequence-first"),
        ("[seq_len, batch_size, embedding_dim]", "sequence-first"),
        ("(N, L, E)", "batch-first"),
        ("(b n d)", "batch-first"),
        ("[bs x seq_len x dim]", "batch-first"),
        ("[bs x in_channels x seq_len]", "channels-first"),
        ("(batch, channels, length)", "channels-first"),
        ("(N, C, L)", "channels-first"),
        ("(T, B)", "sequence-first"),
        ("(..., seq_len_q, d_model)", "batch-first"),
        ("(n, n)", None),
        ("(q, k, v)", None),
        ("(heads, q_len, k_len)", None),
        ("(one, or, two)", None),
    ],
)
def test_shapes_are_understood_wherever_they_stand(tmp_path, text, layout):
    assert said(tmp_path, beside=f"  # x: {text}") == layout
    assert said(tmp_path, docstring=f"Attend to x of shape {text}.") == layout
    assert said(tmp_path, body=f"# x is {text}\n        pass") == layout
    assert said(tmp_path, above=f"# takes {text}") == layout


@pytest.mark.parametrize(
    ("body", "layout"),
    [
        ("B, T, C = x.shape", "batch-first"),
        ("T, B, C = x.size()", "sequence-first"),
        ("seq_len, batch, _ = x.shape", "sequence-first"),
        ("b, n, _, h = *x.shape, 4", "batch-first"),
        ("b, c, t = x.shape", "channels-first"),
        ("seq_len = x.size(0)", "sequence-first"),
        ("seq_len = x.shape[1]", "batch-first"),
        ("batch_size, length = x.size(0), x.size(1)", "batch-first"),
        ("length, bsz = x.shape[:2]", "sequence-first"),
        ("x = x.transpose(0, 1)\n        seq_len = x.size(0)", None),
        ("y = x.transpose(0, 1)\n        seq_len = y.size(0)", None),
        ("n = x.size(-1)", None),
        ("y = x + 1  # seq, bs, embed", "sequence-first"),
        ("y = x.permute(1, 0, 2)  # seq, bs, embed", None),
        ("y = x.permute(1, 0, 2)  # x: (seq, bs, embed)", "sequence-first"),
        ("y = x / self.T  # (seq, bs, embed)", "sequence-first"),
    ],
)
def test_names_of_axes_count_until_the_input_is_another(tmp_path, body, layout):
    assert said(tmp_path, body=body) == layout


@pytest.mark.parametrize(
    ("docstring", "layout"),
    [
        ("Sequence-first attention.", "sequence-first"),
        ("Inputs are batch first.", "batch-first"),
        ("Takes channels-first tensors.", "channels-first"),
        ("For (batch, length, d); inside, a time-first layer.", "batch-first"),
        ("Attention.\n\nmask: (T, B), True = ignore.", None),
        ("Attention.\n\nArgs:\n    x: (L, N, E)\n    mask: (N, L)", "sequence-first"),
        ("Attention.", None),
    ],
)
def test_docstrings_count(tmp_path, docstring, layout):
    assert said(tmp_path, docstring=docstring) == layout


class Usual(nn.Module):
    def forward(self, states: torch.Tensor) -> torch.Tensor:
        length, batch, _ = states.shape
        return states.sum() * length * batch


class Doubled(Usual):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


class DoubledBefore(Usual):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(2 * x)


class OfAnyInputs(nn.Module):
    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return inputs[0]


class OfOne(OfAnyInputs):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


def test_names_of_axes_count_where_the_input_is_handed_on_to_an_inherited_forward():
    assert layout_said(OfOne(), "x") is None
    found = layout_said(Doubled(), "x")
    assert found is not None
    assert found.what == "sequence-first"
    assert layout_said(DoubledBefore(), "x") is None


def test_a_part_says_nothing_about_what_is_around_it(tmp_path):
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn = nn.MultiheadAttention(8, 2, batch_first=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.attn(x, x, x)[0]

    assert layout_said(Around(), "x") is None
    own = Around()
    own.batch_first = False  # which words of the class are believed before
    found = layout_said(own, "x")
    assert found is not None
    assert (found.what, found.by) == ("sequence-first", "its attribute batch_first=False")


TURNED = (
    """
import torch
from torch import nn


class Turned(nn.Module):
    """
    + '"""{docstring}"""'
    + """

    def __init__(self, d_model=8):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, 2)

    def forward(self, x):
        # {comment}
        t = {turned}
        return {back}
"""
)


@pytest.mark.parametrize(
    ("docstring", "comment", "layout"),
    [
        ("A layer.", "torch's attention wants (L, N, E)", "batch-first"),
        ("Sequence-first inside.", "", "batch-first"),
        ("Attention is given (T, B, C).", "", "batch-first"),
        ("Takes x of shape (T, B, C).", "", "sequence-first"),  # what is claimed of the input stays a claim
        ("A layer.", "x: (L, N, E)", "sequence-first"),
    ],
)
def test_words_in_passing_do_not_overrule_that_samples_are_apart(tmp_path, docstring, comment, layout):
    (tmp_path / "mine.py").write_text(
        TURNED.format(
            docstring=docstring,
            comment=comment,
            turned="x.transpose(0, 1)",
            back="self.attn(t, t, t)[0].transpose(0, 1)",
        )
    )
    assert interview(load(f"{tmp_path / 'mine.py'}:Turned")).layout == layout
    kept = tmp_path / "kept.py"
    kept.write_text(TURNED.format(docstring=docstring, comment=comment, turned="x", back="self.attn(t, t, t)[0]"))
    assert interview(load(f"{kept}:Turned")).layout == "sequence-first"


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("make", [
    lambda b: nn.MultiheadAttention(8, 2, batch_first=b),
    lambda b: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, batch_first=b), 1, enable_nested_tensor=False),
    lambda b: nn.GRU(8, 8, batch_first=b),
])  # fmt: skip
def test_torchs_own_layers_say_it_by_an_attribute(make, batch_first):
    found = layout_said(make(batch_first), "src")
    assert found is not None
    assert found.what == ("batch-first" if batch_first else "sequence-first")
