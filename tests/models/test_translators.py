"""What every rival of the Transformer keeps that translates: what it sees, and padding that is not read."""

from __future__ import annotations

import pytest
import torch

from attnlab.models import AdditiveRnn, ByteNet, ConvS2S, DeepAtt, Gnmt, MultiplicativeRnn
from attnlab.models.decoding.generation import EndMarks, beam_search
from attnlab.models.decoding.writers import RecomputingWriter, RecurrentWriter, writer_for

VOCAB, LONGEST = 19, 12
KINDS = {
    "additive": lambda: AdditiveRnn(VOCAB, VOCAB, d_model=6, hidden=5, dropout=0.0),
    "general": lambda: MultiplicativeRnn(VOCAB, VOCAB, d_model=6, dropout=0.0),
    "dot": lambda: MultiplicativeRnn(VOCAB, VOCAB, d_model=6, n_layers=1, score="dot", dropout=0.0),
    "deep": lambda: DeepAtt(VOCAB, VOCAB, d_model=6, n_layers=3, n_decoder_layers=2, dropout=0.0),
    "residual": lambda: Gnmt(VOCAB, VOCAB, d_model=6, n_layers=4, n_decoder_layers=3, dropout=0.0),
    "convs2s": lambda: ConvS2S(VOCAB, VOCAB, LONGEST, d_model=6, n_layers=2, dropout=0.0),
    "bytenet": lambda: ByteNet(VOCAB, VOCAB, d_model=6, n_sets=1, dilations=(1, 2, 4), dropout=0.0),
}
CONVOLVES = {ConvS2S, ByteNet}


@pytest.fixture(params=KINDS)
def model(request):
    torch.manual_seed(0)
    return KINDS[request.param]().double()


def tokens(length, seed, rows=3):
    return torch.randint(3, VOCAB, (rows, length), generator=torch.Generator().manual_seed(seed))


def test_padding_is_not_read(model):
    source, target = tokens(7, 1), tokens(9, 2)
    source[0, 4:] = source[2, 6:] = 0
    together = model(source, target)
    torch.testing.assert_close(together[:1], model(source[:1, :4], target[:1]))
    torch.testing.assert_close(together[2:], model(source[2:, :6], target[2:]))


def test_no_logit_depends_on_what_is_written_later(model):
    source, target = tokens(7, 1), tokens(6, 2)
    changed = target.clone()
    changed[:, 4:] = 3
    torch.testing.assert_close(model(source, changed)[:, :4], model(source, target)[:, :4])
    torch.testing.assert_close(model(source, target[:, :4]), model(source, target)[:, :4])
    assert not torch.allclose(model(source, changed)[:, 4:], model(source, target)[:, 4:])


def test_every_logit_depends_on_the_whole_source(model):
    source, target = tokens(7, 1), tokens(6, 2)
    for place in range(7):
        changed = source.clone()
        changed[:, place] = (source[:, place] - 2) % (VOCAB - 3) + 3
        assert (model(changed, target) != model(source, target)).any(-1).all()


def test_a_source_of_padding_alone_stays_finite(model):
    assert torch.isfinite(model(torch.zeros(2, 4, dtype=torch.long), tokens(3, 2, rows=2))).all()


def test_it_writes_the_same_with_and_without_what_is_kept(model):
    source = tokens(7, 1)
    source[0, 4:] = source[2, 6:] = 0
    written = []
    for cached in (True, False):
        writer = writer_for(model.eval(), source, cached=cached)
        assert isinstance(writer, RecurrentWriter if cached and not CONVOLVES & {type(model)} else RecomputingWriter)
        written.append(beam_search(writer, 3, EndMarks(1, 2), beam=2, max_length=6))
    for one, other in zip(*written, strict=True):
        assert [each.tokens for each in one] == [each.tokens for each in other]
        assert [each.score for each in one] == pytest.approx([each.score for each in other])
