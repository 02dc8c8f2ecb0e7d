"""What every entry of every table keeps. The cases come from the tables: a new entry is covered by being listed."""

from __future__ import annotations

import copy
import functools
import itertools
import random
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from attnlab.core.build import build
from attnlab.core.errors import SpecError
from attnlab.nn.attention import Attention, Path
from attnlab.nn.axes.combiners import COMBINERS, Convolution
from attnlab.nn.axes.heads import HEADS
from attnlab.nn.axes.masks import MASKS
from attnlab.nn.axes.normalizers import NORMALIZERS
from attnlab.nn.axes.positions import POSITIONS
from attnlab.nn.axes.scores import SCORES, AdditiveScore, BilinearScore
from attnlab.nn.block import BLOCKS, Block
from attnlab.nn.feedforward import FEEDFORWARDS
from attnlab.nn.init import INITS
from attnlab.nn.mixers import MIXERS, PositionWise
from attnlab.nn.norms import NORMS, LayerNorm

BATCH, LENGTH, D_MODEL, N_HEADS = 3, 7, 24, 4  # d_head 6: all sizes differ
HUGE = 1e4  # finite, and far from anything a layer has seen

NEEDED: dict[str, dict[str, Any]] = {
    "window": {"width": 3},
    "dilated": {"width": 2, "dilation": 2},
    "linear-attention": {"chunk_size": 3},  # so that a sequence has several chunks
}
"""Arguments that an entry cannot be built without, or that make a test reach all of it."""

BATCHED_OVER_SEEDS: dict[str, dict[str, Any]] = {
    "lstm": {"path": "readable"},  # torch has no batching rule for its LSTM kernel
    "mixture-of-experts": {"path": "readable"},  # where an expert is chosen differs from seed to seed
    "noisy-mixture-of-experts": {"path": "readable"},
}
"""Arguments with which an entry runs under vmap."""

AXES = {
    "heads": HEADS,
    "positions": {name: entry for name, entry in POSITIONS.items() if entry.level == "scores"},
    "scores": SCORES,
    "masks": MASKS,
    "normalizers": NORMALIZERS,
    "combiners": COMBINERS,
}


@dataclass(frozen=True)
class Case:
    """One layer under test."""

    kind: str
    spec: dict[str, Any]
    causal: bool = False

    def __str__(self) -> str:
        inner = [f"{key}={value['name'] if isinstance(value, dict) else value}" for key, value in self.spec.items()]
        return f"{self.kind} {' '.join(inner)}{' causal' if self.causal else ''}"

    @property
    def is_attention(self) -> bool:
        return self.kind == "mixer" and self.spec["name"] == "attention"

    @property
    def blocks_future(self) -> bool:
        return self.causal or (self.is_attention and "causal" in str(self.spec.get("masks")))

    def make(self, seed: int = 0, dtype: torch.dtype = torch.float64, **changes: Any) -> nn.Module:
        """Build the layer with parameters that are nowhere special, not even where they start as zero or identity."""
        table = {"mixer": MIXERS, "block": BLOCKS, "feed-forward": FEEDFORWARDS, "norm": NORMS, "positions": POSITIONS}
        offered = {"d_model": D_MODEL, "n_heads": N_HEADS, "max_length": 13, "causal": self.causal}
        if self.kind == "block":
            offered["context"] = {name: offered[name] for name in ("causal", "max_length", "n_heads")}
        with torch.random.fork_rng():
            torch.default_generator.manual_seed(seed)  # `torch.manual_seed` writes down the stack for other devices
            module = build(self.spec | changes, table[self.kind], axis=self.kind, offered=offered).to(dtype).eval()
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.add_(0.1 * torch.randn_like(parameter))
        return module

    def call(self, module: nn.Module, x: Tensor, padding: Tensor | None = None) -> Tensor:
        return module(x, padding=padding) if self.kind in ("mixer", "block") else module(x)


def spec_of(name: str) -> dict[str, Any]:
    return {"name": name, **NEEDED.get(name, {})}


def compositions() -> list[dict[str, Any]]:
    """Return attention layers in which every entry meets every entry of every other axis, drawn with a fixed seed."""
    draw = random.Random(11)
    names = {axis: sorted(table) for axis, table in AXES.items()}
    open_pairs = {
        frozenset(((a, left), (b, right)))
        for a, b in itertools.combinations(names, 2)
        for left, right in itertools.product(names[a], names[b])
    } - {CONTRADICTION}
    chosen = []
    while open_pairs:
        tries = [{axis: draw.choice(options) for axis, options in names.items()} for _ in range(60)]
        tries = [one for one in tries if CONTRADICTION not in pairs_of(one)]
        best = max(tries, key=lambda one: len(open_pairs & pairs_of(one)))
        open_pairs -= pairs_of(best)
        chosen.append({"name": "attention"} | {axis: spec_of(name) for axis, name in best.items()})
    return chosen


def pairs_of(composition: dict[str, str]) -> set[frozenset]:
    return {frozenset(pair) for pair in itertools.combinations(composition.items(), 2)}


CONTRADICTION = frozenset((("heads", "full-width"), ("combiners", "concatenate")))
"""Wide heads side by side are wider than the model, which the constructor refuses."""

BOTH = (False, True)
SINGLE_AXIS = [
    Case("mixer", {"name": "attention", axis: spec_of(name)}, causal)
    for axis, table in AXES.items()
    for name in table
    for causal in BOTH
    if name != "full-width" or axis == "heads"
]
ATTENTIONS = SINGLE_AXIS + [Case("mixer", spec, index % 2 == 1) for index, spec in enumerate(compositions())]
MIXES = [Case("mixer", spec_of(name), causal) for name in MIXERS for causal in BOTH if name != "attention"]
WIRED = [
    Case("block", {"name": block, "mixer": mixer, "norm": norm}, causal)
    for block in BLOCKS
    for mixer, norm, causal in (("none", "none", True), ("attention", "pre", True), ("attention", "post", False))
]
POINTWISE = [Case("feed-forward", spec_of(name)) for name in FEEDFORWARDS]
POINTWISE += [Case("norm", spec_of(name)) for name in NORMS]
POINTWISE += [Case("positions", spec_of(name)) for name, entry in POSITIONS.items() if entry.level == "input"]

PADDED = ATTENTIONS + MIXES + WIRED
EVERY = PADDED + POINTWISE
ENTRIES = SINGLE_AXIS[::2] + MIXES + WIRED + POINTWISE
"""Every entry once: for what does not depend on which entries meet."""
MADE = [(case, case.make()) for case in ATTENTIONS]
PATHS = [
    (path, case)
    for path in get_args(Path)
    if path not in ("auto", "readable")
    for case, module in MADE
    if module.obstacle(path) is None
]


def each(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=str)


def in_turn(cases: list[Any], *options: Any) -> list[tuple[Any, ...]]:
    """Every case with one of the options: dealt out in turn, each round from another one, as cases come in pairs."""
    count = len(options)
    return [(case, options[(index + index // count) % count]) for index, case in enumerate(cases)]


def activations(seed: int = 1, dtype: torch.dtype = torch.float64, length: int = LENGTH) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, length, D_MODEL, generator=generator, dtype=torch.float64).to(dtype)


def padding_of(lengths: list[int], length: int = LENGTH) -> Tensor:
    return torch.arange(length) < torch.tensor(lengths)[:, None]


@each(ENTRIES)
def test_shape_is_kept_also_by_a_copy_and_all_prints(case: Case) -> None:
    module, x = case.make(), activations()
    output = case.call(module, x)
    assert output.shape == x.shape
    assert torch.equal(case.call(copy.deepcopy(module), x), output)
    assert type(module).__name__ in repr(module)


@each([case for case in PADDED if case.blocks_future])
def test_no_gradient_comes_from_the_future_which_can_be_changed(case: Case) -> None:
    module, x, here = case.make(), activations().requires_grad_(), 3
    (gradient,) = torch.autograd.grad(case.call(module, x)[:, here].pow(2).sum(), x)
    assert torch.all(gradient[:, here + 1 :] == 0)
    assert torch.any(gradient[:, here] != 0)
    changed = x.detach().clone()
    changed[:, here + 1 :] = HUGE * activations(seed=2)[:, here + 1 :]
    before, after = case.call(module, x), case.call(module, changed)
    torch.testing.assert_close(after[:, : here + 1], before[:, : here + 1])
    unmoved = case.spec.get("mixer", case.spec["name"]) == "none"
    assert unmoved or not torch.allclose(after[:, here + 1 :], before[:, here + 1 :])


@each(ATTENTIONS)
def test_forbidden_weights_are_zero_and_heads_that_may_see_nothing_give_zeros(case: Case) -> None:
    module, x, padding = case.make(), activations(), padding_of([LENGTH, 5, 0])
    trace = module.trace(x, padding=padding)
    allowed = module.mask.allowed(LENGTH, LENGTH) & padding[:, None, None, :]
    assert torch.all(trace.weights.masked_select(~allowed) == 0)
    assert torch.any(trace.weights.masked_select(allowed) != 0)
    assert torch.all(trace.head_outputs[2] == 0)
    torch.testing.assert_close(module(x, padding=padding), trace.output)


@each(PADDED)
def test_padding_changes_nothing_and_padding_of_nothing_is_no_padding(case: Case) -> None:
    module, x, lengths = case.make(), activations(), [LENGTH, 5, 2]
    torch.testing.assert_close(case.call(module, x, padding_of([LENGTH] * BATCH)), case.call(module, x))
    x = torch.where(padding_of(lengths)[..., None], x, HUGE * x)
    together = case.call(module, x, padding_of(lengths))
    for row, length in enumerate(lengths):
        alone = case.call(module, x[row : row + 1, :length])
        torch.testing.assert_close(together[row : row + 1, :length], alone)


@each(PADDED)
def test_a_sequence_of_padding_stays_finite(case: Case) -> None:
    module, x = case.make(), activations().requires_grad_()
    output = case.call(module, x, padding_of([LENGTH, 5, 0]))
    gradients = torch.autograd.grad(output.pow(2).sum(), [x, *module.parameters()], allow_unused=True)
    assert torch.isfinite(output).all()
    assert all(torch.isfinite(gradient).all() for gradient in gradients if gradient is not None)


@pytest.mark.parametrize(("case", "k_len"), in_turn(ATTENTIONS, LENGTH, 5, 11), ids=str)
def test_trace_ends_in_the_output(case: Case, k_len: int) -> None:
    module, x, memory = case.make(), activations(), activations(seed=3, length=k_len)
    memory = None if k_len == LENGTH else memory
    trace = module.trace(x, memory)
    torch.testing.assert_close(module(x, memory), trace.output)
    assert trace.weights.shape == trace.scores.shape == (BATCH, N_HEADS, LENGTH, k_len)
    assert trace.head_outputs.shape == (BATCH, N_HEADS, LENGTH, module.heads.d_v)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let paths that cut the score matrix cut even a small one."""
    monkeypatch.setattr("attnlab.nn.kernels.cutting.SMALLEST_BLOCK", 2)
    monkeypatch.setattr("attnlab.nn.kernels.recomputed.BLOCK_NUMBERS", 100)
    monkeypatch.setattr("attnlab.nn.attention.LARGEST_BYTES", 2000)


TOLERANCES = {
    torch.float64: {"rtol": 1e-9, "atol": 1e-10},
    torch.float32: {"rtol": 1e-4, "atol": 1e-5},  # rounding of sums in another order, through two matrices
}


@pytest.mark.parametrize(
    ("path", "case", "dtype", "padded"),
    [(*path, *given) for path, given in in_turn(PATHS, *itertools.product(TOLERANCES, BOTH))],
    ids=str,
)
@pytest.mark.usefixtures("small_pieces")
def test_every_path_is_readable_forward_and_backward(path: str, case: Case, dtype: torch.dtype, padded: bool) -> None:
    padding = padding_of([LENGTH, 5, 0]) if padded else None
    results = []
    for module in (case.make(dtype=dtype, path=path), case.make(dtype=dtype, path="readable")):
        x = activations(dtype=dtype).requires_grad_()
        output = module(x, padding=padding)
        gradients = torch.autograd.grad(output.pow(2).mean(), [x, *module.parameters()])
        results.append((output, *gradients))
    for fast, readable in zip(*results, strict=True):
        torch.testing.assert_close(fast, readable, **TOLERANCES[dtype])


@pytest.mark.parametrize(("path", "case", "k_len"), [(*path, k_len) for path, k_len in in_turn(PATHS, 5, 11)], ids=str)
@pytest.mark.usefixtures("small_pieces")
def test_every_path_looks_at_another_sequence(path: str, case: Case, k_len: int) -> None:
    x, memory = activations(), activations(seed=3, length=k_len)
    torch.testing.assert_close(case.make(path=path)(x, memory), case.make(path="readable")(x, memory))


@each(EVERY)
def test_batched_over_seeds_is_one_by_one(case: Case) -> None:
    changes = BATCHED_OVER_SEEDS.get(case.spec["name"], {})
    modules = [case.make(seed, **changes) for seed in range(2)]
    x, padding = activations(), padding_of([LENGTH, 5, 2])
    parameters, buffers = stack_module_state(modules)
    skeleton = copy.deepcopy(modules[0]).to("meta")
    arguments = (x, None, padding) if case.kind == "mixer" else (x, padding) if case.kind == "block" else (x,)

    def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
        return functional_call(skeleton, (parameters, buffers), arguments)

    if parameters:
        together = vmap(one)(parameters, buffers)
        for result, module in zip(together, modules, strict=True):
            torch.testing.assert_close(result, case.call(module, x, padding))


@each(ENTRIES)
def test_saved_and_loaded_is_the_same(case: Case, tmp_path: FilePath) -> None:
    module, other, x = case.make(seed=0), case.make(seed=1), activations()
    save_model(module, str(tmp_path / "model.safetensors"))
    load_model(other, str(tmp_path / "model.safetensors"))
    assert torch.equal(case.call(other, x), case.call(module, x))


@pytest.mark.parametrize(("case", "dtype"), in_turn(EVERY, torch.bfloat16, torch.float32), ids=str)
def test_types_are_kept_and_near_float64(case: Case, dtype: torch.dtype) -> None:
    x = activations(dtype=dtype)
    output = case.call(case.make(dtype=dtype), x, padding_of([LENGTH, 5, 2]) if case in PADDED else None)
    assert output.dtype == dtype
    assert torch.isfinite(output).all()


@each(ENTRIES)
def test_equal_seeds_give_equal_numbers(case: Case) -> None:
    changes = {"dropout": 0.3} if case.is_attention or case.kind in ("block", "feed-forward") else {}
    changes = {} if case.spec["name"] == "none" else changes
    results = []
    for _ in range(2):
        module = case.make(seed=5, **changes).train()
        with torch.random.fork_rng():
            torch.manual_seed(7)
            results.append(case.call(module, activations()))
    assert torch.equal(*results)


@each(ENTRIES)
def test_builds_and_runs_on_the_meta_device(case: Case) -> None:
    with torch.device("meta"):
        module = case.make()
        output = case.call(module, torch.empty(BATCH, LENGTH, D_MODEL, dtype=torch.float64))
    assert output.is_meta
    assert output.shape == (BATCH, LENGTH, D_MODEL)


@each(ENTRIES)
def test_forward_leaves_nothing_behind(case: Case) -> None:
    module = case.make().train()
    before = {name: dict(vars(part)) for name, part in module.named_modules()}
    weights = {name: value.clone() for name, value in module.state_dict().items()}
    case.call(module, activations())
    after = {name: dict(vars(part)) for name, part in module.named_modules()}
    assert {name: list(state) for name, state in before.items()} == {name: list(s) for name, s in after.items()}
    assert all(after[name][key] is value for name, state in before.items() for key, value in state.items())
    assert all(torch.equal(value, weights[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize("table", [*AXES.values(), POSITIONS, MIXERS, FEEDFORWARDS, NORMS, BLOCKS])
def test_an_argument_that_no_entry_has(table: dict[str, Any]) -> None:
    for name in table:
        with pytest.raises(SpecError, match=f"part '{name}': .*unknown argument 'colour'"):
            build({"name": name, "colour": 1}, table, axis="part")


@pytest.mark.parametrize("name", INITS)
def test_inits_leave_a_working_layer(name: str) -> None:
    for block in BLOCKS:
        module = Case("block", {"name": block}, causal=True).make()
        INITS[name](module, 3)
        assert torch.isfinite(module(activations())).all()


def test_every_entry_is_documented() -> None:
    tables = [*AXES.values(), POSITIONS, MIXERS, FEEDFORWARDS, NORMS, BLOCKS, INITS]
    entries = {entry for table in tables for entry in table.values()}
    assert all(entry.__doc__ and entry.__module__.startswith("attnlab.nn.") for entry in entries)


def test_the_cases_reach_every_pair_of_entries() -> None:
    seen = [{axis: part["name"] for axis, part in spec.items() if axis != "name"} for spec in compositions()]
    for a, b in itertools.combinations(AXES, 2):
        met = {(one[a], one[b]) for one in seen}
        missing = set(itertools.product(AXES[a], AXES[b])) - met
        assert missing <= {("full-width", "concatenate")}


# Python objects and names are two spellings of one thing.

SPELLED = [(axis, name) for axis, table in AXES.items() if axis != "masks" for name in table]
SIZES = {"d_model": D_MODEL, "n_heads": N_HEADS, "d_head": D_MODEL // N_HEADS, "d_v": D_MODEL // N_HEADS}
PLACE = SIZES | {"max_length": 13, "causal": True}
IN_ORDER = ("heads", "positions", "scores", "normalizers", "combiners")  # in which a layer makes its parts


def part_of(axis: str, name: str) -> Any:
    """Call the constructor of a part as a person would, with the sizes of the layer it is meant for."""
    return build(spec_of(name), AXES[axis], axis=axis, offered=PLACE)


def layer_of(seed: int = 0, **parts: Any) -> Attention:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        given = {axis: part() if axis in IN_ORDER and callable(part) else part for axis, part in parts.items()}
        return Attention(D_MODEL, N_HEADS, causal=True, max_length=13, **given).double().eval()


@pytest.mark.parametrize(("axis", "name"), SPELLED)
def test_an_object_is_a_part_like_its_name(axis: str, name: str) -> None:
    named, other = layer_of(**{axis: spec_of(name)}), layer_of(**{axis: lambda: part_of(axis, name)}, seed=1)
    other.load_state_dict(named.state_dict())
    assert torch.equal(other(activations()), named(activations()))
    assert {path: other.obstacle(path) for path in get_args(Path)} == {
        path: named.obstacle(path) for path in get_args(Path)
    }


@pytest.mark.parametrize(("axis", "name"), SPELLED)
def test_a_class_is_a_part_like_its_name_with_the_same_numbers_under_a_seed(axis: str, name: str) -> None:
    recipe = functools.partial(AXES[axis][name], **NEEDED.get(name, {}))
    with torch.random.fork_rng():
        torch.manual_seed(3)
        by_class = Attention(D_MODEL, N_HEADS, causal=True, max_length=13, **{axis: recipe}).double().eval()
    by_name = layer_of(seed=3, **{axis: spec_of(name)})
    assert torch.equal(by_class(activations()), by_name(activations()))


@pytest.mark.parametrize("index", range(8))
def test_objects_on_every_axis_start_like_their_names_under_a_seed(index: int) -> None:
    names = {axis: list(AXES[axis])[index % len(AXES[axis])] for axis in IN_ORDER}
    if names["heads"] == "full-width":
        names["heads"] = "split"
    objects = layer_of(**{axis: functools.partial(part_of, axis, names[axis]) for axis in IN_ORDER})
    named = layer_of(**{axis: spec_of(names[axis]) for axis in IN_ORDER})
    assert torch.equal(objects(activations()), named(activations()))


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_object_is_a_mask_like_its_name(name: str) -> None:
    mask = MASKS[name](**NEEDED.get(name, {}))
    for masks in (mask, [mask]):
        assert torch.equal(layer_of(masks=masks)(activations()), layer_of(masks=spec_of(name))(activations()))


@pytest.mark.parametrize("mixer", [name for name in MIXERS if name != "none"])
def test_a_mixer_is_an_object_a_class_or_a_name_of_a_block(mixer: str) -> None:
    context = {"causal": True, "n_heads": N_HEADS, "max_length": 13}
    blocks = []
    for spell in (
        lambda: spec_of(mixer),
        lambda: functools.partial(MIXERS[mixer], **NEEDED.get(mixer, {})),
        lambda: build(spec_of(mixer), MIXERS, axis="mixer", offered=context | {"d_model": D_MODEL}),
    ):
        with torch.random.fork_rng():
            torch.manual_seed(4)
            blocks.append(Block(D_MODEL, spell(), context=context).double().eval())
    named, *others = (block(activations()) for block in blocks)
    assert all(torch.equal(named, other) for other in others)


@pytest.mark.parametrize("name", FEEDFORWARDS)
def test_a_feed_forward_part_is_an_object_a_class_or_a_name_of_a_block(name: str) -> None:
    entry = FEEDFORWARDS[name]
    blocks = []
    for spell in (
        lambda: name,
        lambda: entry,
        lambda: build(name, FEEDFORWARDS, axis="x", offered={"d_model": D_MODEL}),
    ):
        with torch.random.fork_rng():
            torch.manual_seed(5)
            blocks.append(Block(D_MODEL, "none", feedforward=spell()).double().eval())
    named, *others = (block(activations()) for block in blocks)
    assert all(torch.equal(named, other) for other in others)


def test_an_object_that_does_not_fit_is_refused_where_it_is_given() -> None:
    for score in (AdditiveScore(5), BilinearScore(5, n_heads=N_HEADS)):
        with pytest.raises(SpecError, match="Attention does not fit a width of 24"):
            Attention(D_MODEL, N_HEADS, scores=score)
    with pytest.raises(SpecError, match="see later ones, which this place forbids; give it causal=True"):
        Attention(D_MODEL, N_HEADS, causal=True, combiners=Convolution(D_MODEL, n_heads=N_HEADS, d_v=6))
    with pytest.raises(SpecError, match="Attention lets a position see later ones"):
        Block(D_MODEL, Attention(D_MODEL, N_HEADS), context={"causal": True})
    with pytest.raises(SpecError, match="PositionWise does not fit a width of 24"):
        Block(D_MODEL, PositionWise(D_MODEL - 1))


def test_one_object_with_weights_does_not_serve_two_places() -> None:
    with pytest.raises(
        SpecError, match="one LayerNorm stands in several places, which would share its weights; give its class"
    ):
        Block(D_MODEL, norm_kind=LayerNorm(D_MODEL))
    Block(D_MODEL, norm_kind=LayerNorm)
