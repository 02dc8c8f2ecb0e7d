"""The encoder-decoder: what it sees and what not, its size beside the paper's, and writing with and without a cache."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attnlab.core.errors import ModuleError, SpecError
from attnlab.inspection import count_parameters
from attnlab.models.decoding.generation import EndMarks, beam_search
from attnlab.models.decoding.writers import CachedWriter, Ensemble, RecomputingWriter, writer_for
from attnlab.models.encoder_decoder import EncoderDecoder
from attnlab.nn.axes.heads import SplitHeads

VOCAB, BEGIN, END = 23, 1, 2
MARKS = EndMarks(BEGIN, END)


def make(seed=0, **changes):
    torch.manual_seed(seed)
    sizes = {"d_model": 16, "n_layers": 2, "mixer": {"name": "attention", "n_heads": 2}}
    return EncoderDecoder(VOCAB, VOCAB, 40, **sizes | changes).double().eval()


def tokens(rows=3, length=7, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB, (rows, length), generator=generator)


def padded_source():
    source = tokens()
    source[0, 4:] = source[2, 6:] = 0
    return source


def test_no_logit_depends_on_what_is_written_later():
    model, source, target = make(), tokens(), tokens(length=6, seed=2)
    changed = target.clone()
    changed[:, 4:] = 3
    torch.testing.assert_close(model(source, changed)[:, :4], model(source, target)[:, :4])
    assert not torch.allclose(model(source, changed)[:, 4:], model(source, target)[:, 4:])


def test_every_logit_depends_on_the_whole_source():
    model, source, target = make(), tokens(), tokens(length=6, seed=2)
    for place in range(7):
        changed = source.clone()
        changed[:, place] = (source[:, place] - 2) % (VOCAB - 3) + 3
        assert (model(changed, target) != model(source, target)).any(-1).all()


def test_padding_of_the_source_changes_nothing():
    model, source, target = make(), padded_source(), tokens(length=6, seed=2)
    together = model(source, target)
    torch.testing.assert_close(together[:1], model(source[:1, :4], target[:1]))
    torch.testing.assert_close(together[2:], model(source[2:, :6], target[2:]))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "pre"},
        {"positions": "learned"},
        {"positions": "rotary"},
        {"positions": "relative-bias"},
        {"embeddings": "separate", "tied": False},
        {"mixer": {"name": "attention", "n_heads": 4, "heads": "multi-query"}},
        {"cross": {"name": "attention", "n_heads": 2, "scores": "additive"}},
        {"mixer": {"name": "attention", "n_heads": 2, "masks": {"name": "window", "width": 3}}},
        {"mixer": "none", "cross": {"name": "attention", "n_heads": 2}},
    ],
    ids=str,
)
def test_a_cache_changes_nothing(changes):
    model, source, target = make(**changes), padded_source(), tokens(length=9, seed=2)
    expected = model(source, target)
    cached, again = CachedWriter(model, source), RecomputingWriter(model, source)
    rows = torch.tensor([0, 1, 2])
    for place in range(9):
        column = target[rows, place]
        logits = cached.advance(column)
        torch.testing.assert_close(logits, again.advance(column))
        torch.testing.assert_close(logits, expected[rows, place])
        if place == 4:
            rows = torch.tensor([2, 0, 0, 1])
            for writer in (cached, again):
                writer.select(rows)


def test_keys_of_the_source_are_computed_once(monkeypatch):
    asked = []
    project = SplitHeads.project

    def counting(self, x, memory=None):
        asked.append(0 if memory is None else memory.shape[1])
        return project(self, x, memory)

    monkeypatch.setattr(SplitHeads, "project", counting)
    model, source = make(), padded_source()
    writer = CachedWriter(model, source)
    length, layers = source.shape[1], 2
    assert asked.count(length) == layers
    for token in (BEGIN, 4, 5):
        writer.advance(torch.full((3,), token))
    assert asked.count(length) == layers
    assert len(asked) > 2 * layers


@pytest.mark.parametrize("beam", [1, 4])
def test_beam_search_with_and_without_a_cache(beam):
    model, source = make(), padded_source()
    results = [
        beam_search(writer_for(model, source, cached=cached), 3, MARKS, beam=beam, max_length=12)
        for cached in (True, False)
    ]
    assert [[one.tokens for one in found] for found in results[0]] == [
        [one.tokens for one in found] for found in results[1]
    ]


def test_what_keeps_no_keys_is_computed_again():
    for mixer, reason in (
        ("lstm", "LstmMixer keeps no keys and values"),
        ({"name": "attention", "n_heads": 2, "combiners": "convolution"}, "Convolution mixes positions"),
    ):
        model = make(mixer=mixer)
        with pytest.raises(ModuleError, match=reason):
            CachedWriter(model, padded_source())
        assert isinstance(writer_for(model, padded_source()), RecomputingWriter)


def test_an_ensemble_averages_probabilities():
    models, source = [make(seed) for seed in range(3)], padded_source()
    ensemble = Ensemble([writer_for(model, source) for model in models])
    begin = torch.full((3,), BEGIN)
    expected = torch.stack([model(source, begin[:, None])[:, -1].softmax(-1) for model in models]).mean(0)
    torch.testing.assert_close(ensemble.advance(begin).exp(), expected.float())
    assert len(beam_search(Ensemble([writer_for(models[0], source)]), 3, MARKS, max_length=5)) == 3
    with pytest.raises(SpecError, match="at least one model"):
        Ensemble([])


def test_equal_to_torchs_transformer():
    """The same weights in ``torch.nn.Transformer`` give the same numbers."""
    model = make(dropout=0.0)
    twin = nn.Transformer(16, 2, 2, 2, 64, dropout=0.0, batch_first=True, dtype=torch.float64)
    twin.encoder.norm = twin.decoder.norm = nn.Identity()
    with torch.no_grad():
        for stack, layers in ((model.encoder, twin.encoder.layers), (model.decoder, twin.decoder.layers)):
            for block, layer in zip(stack.blocks, layers, strict=True):
                parts = [(block.mixer, layer.self_attn)]
                if block.cross is not None:
                    parts.append((block.cross, layer.multihead_attn))
                for ours, theirs in parts:
                    theirs.in_proj_weight.copy_(ours.heads.packed.linear.weight)
                    theirs.in_proj_bias.copy_(ours.heads.packed.linear.bias)
                    theirs.out_proj.load_state_dict(ours.combiner.to_residual.state_dict())
                layer.linear1.load_state_dict(block.feedforward.widen.state_dict())
                layer.linear2.load_state_dict(block.feedforward.to_residual.state_dict())
    source, target = padded_source(), tokens(length=6, seed=2)
    embed = lambda table, one: model.encoder.positions(table(one) * model.scale)  # noqa: E731
    found = twin.eval()(
        embed(model.source_embedding, source),
        embed(model.target_embedding, target),
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(6, dtype=torch.float64),
        src_key_padding_mask=source == 0,
        memory_key_padding_mask=source == 0,
    )
    torch.testing.assert_close(model(source, target), model.logits(found))


def test_embeddings_are_one_table_or_three():
    shared, separate = make(), make(embeddings="separate", tied=False)
    assert shared.source_embedding is shared.target_embedding
    assert shared.logits.weight is shared.target_embedding.weight
    extra = 2 * VOCAB * 16 + VOCAB
    assert count_parameters(separate) - count_parameters(shared) == extra
    with pytest.raises(SpecError, match="shared embeddings need one vocabulary; got 10 tokens to read and 12 to write"):
        EncoderDecoder(10, 12, 40)
    EncoderDecoder(10, 12, 40, d_model=16, n_layers=1, embeddings="separate")


@pytest.mark.parametrize(
    "given", [{"positions": "rotary"}, {"masks": {"name": "window", "width": 3}}, {"causal": True}]
)
def test_attention_to_the_source_compares_no_places(given):
    with pytest.raises(SpecError, match=f"'cross' cannot have {next(iter(given))}: it compares places"):
        make(cross={"name": "attention", "n_heads": 2} | given)


def test_a_list_of_mixers_says_how_the_source_is_read():
    wide = {"name": "attention", "n_heads": 8}
    alike = [wide | {"masks": {"name": "window", "width": 3}}, wide]
    for mixers in (alike, ["none", wide]):
        assert [block.cross.heads.n_heads for block in make(mixer=mixers).decoder.blocks] == [8, 8]
    differing = [wide, {"name": "attention", "n_heads": 2}]
    with pytest.raises(SpecError, match="differ from layer to layer; say by 'cross' how the source is read"):
        make(mixer=differing)
    make(mixer=differing, cross="attention")


def test_logits_start_small():
    """Tables start from N(0, 1 / d_model), so that tied logits of normalized vectors have a spread near 1."""
    logits = make(d_model=64)(tokens(), tokens(length=6, seed=2))
    assert 0.5 < logits.std().item() < 2.0


def test_a_decoder_that_is_given_no_source_says_so():
    with pytest.raises(ModuleError, match="needs the sequence that it looks at"):
        make().decoder.keep()


@pytest.mark.parametrize("cross", [None, {"name": "attention", "n_heads": 2, "combiners": "convolution"}])
def test_a_combiner_that_mixes_positions_does_not_see_what_follows_in_the_target(cross):
    torch.manual_seed(0)
    mixer = {"name": "attention", "n_heads": 2, "combiners": "convolution"}
    model = EncoderDecoder(9, 9, 16, d_model=8, n_layers=1, mixer=mixer, cross=cross).eval()
    source, target = torch.tensor([[3, 4, 5]]), torch.tensor([[1, 3, 4, 5, 6]])
    other = target.clone()
    other[0, 3:] = 8
    before, after = model(source, target), model(source, other)
    torch.testing.assert_close(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3:], after[:, 3:])
