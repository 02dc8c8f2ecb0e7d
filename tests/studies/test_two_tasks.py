"""Two tasks share an encoder: what each step is of, what is one tensor, and that the first task alone counts."""

from __future__ import annotations

import pytest
import torch
from tests.studies.test_parsers import grown

from attnlab.core.draws import drawn_by_name
from attnlab.core.errors import SpecError
from attnlab.core.generators import generator_for
from attnlab.inspection.cost import cost
from attnlab.models import MODELS
from attnlab.studies import load_run, parse, parse_study, run_study
from attnlab.studies.define.assemble import build_model, build_task
from attnlab.studies.plan.plan import plan_study
from attnlab.studies.run.executor import InProcess
from attnlab.studies.using.attempting import attempts_of
from attnlab.tasks.next_tokens import IGNORED
from attnlab.training import train
from attnlab.training.recipe.recipe import Recipe
from attnlab.training.together.together import train_together

SHARE, STEPS = 0.3, 60
RNN = {"name": "rnn-additive", "d_model": 20, "hidden": 23, "dropout": 0.1}
TRANSFORMER = {
    "name": "encoder-decoder",
    "embeddings": "separate",
    "d_model": 24,
    "n_layers": 1,
    "norm": "pre",
    "dropout": 0.1,
    "mixer": {"name": "attention", "n_heads": 2},
}
SHARING = [
    name for name, kind in MODELS.items() if getattr(kind, "reading", ()) and not name.startswith("transformer-")
]  # presets are encoder-decoders
MODELS_OF_BOTH = {"RNN": RNN, "Transformer": TRANSFORMER}


@pytest.fixture(scope="module")
def specs(tmp_path_factory):
    """The task of trees alone, and with a translation beside it whose target is the sentence in capitals, reversed."""
    made = tmp_path_factory.mktemp("two")
    (made / "train.mrg").write_text("\n".join(f"( {tree} )" for tree in grown(200, 1)))
    (made / "held-out.mrg").write_text("\n".join(map(str, grown(20, 2))))
    for part, size in (("train", 150), ("val", 10)):
        sentences = [list(tree.words()) for tree in grown(size, 3 + size)]
        (made / f"{part}.en").write_text("".join(" ".join(words) + "\n" for words in sentences))
        (made / f"{part}.de").write_text("".join(" ".join(words[::-1]).upper() + "\n" for words in sentences))
    sizes = {"tokenizer": "words", "batch_tokens": 300, "max_length": 80}
    files = {"train": str(made / "train.mrg"), "validation": str(made / "held-out.mrg")}
    alone = {"name": "parsing", **files, **sizes}
    translation = {"name": "translation", "corpus": str(made), "beam": None, **sizes, "max_length": 31}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNLAB_CACHE", str(made / "cache"))
        yield alone, {**alone, "beside": {"task": translation, "share": SHARE}}


@pytest.fixture
def both(specs):
    return build_task(specs[1])


def drawn(spec, task, seed=0):
    return drawn_by_name(lambda: build_model(spec, task), seed)


@pytest.mark.parametrize("seed", [0, 1, 5])
def test_steps_are_shared_out_evenly_and_each_task_has_its_own_order(both, seed):
    batches = [both.train_batch(step, seed) for step in range(100)]
    of_second = [len(batch.inputs) == 3 for batch in batches]
    assert not of_second[0]
    assert all(abs(sum(of_second[:count]) - SHARE * count) <= 1 for count in range(1, 101))
    first, second = (
        [one for one, is_second in zip(batches, of_second, strict=True) if is_second is it] for it in (0, 1)
    )
    for step, batch in enumerate(first):
        assert all(map(torch.equal, batch.inputs, both.first.train_batch(step, seed).inputs))
    for step, batch in enumerate(second):
        expected = both.second.train_batch(step, seed)
        assert torch.equal(batch.targets, expected.targets)
        assert torch.equal(batch.inputs[2], expected.inputs[1])
        read, translated = (
            one.codec.tokenizer.decode(tokens.inputs[0].tolist())
            for one, tokens in ((both.first, batch), (both.second, expected))
        )
        assert read == translated  # the same words, in the tokens of the first


def test_where_the_second_begins_is_drawn_by_the_seed(both):
    def pattern(seed):
        return [len(both.train_batch(step, seed).inputs) for step in range(10)]

    assert pattern(3) == pattern(3)
    assert len({tuple(pattern(seed)) for seed in range(9)}) > 1


def test_losses_and_targets_are_those_of_the_task_a_batch_is_of(both):
    for _, batch in both.typical_batches():
        task = both.first if len(batch.inputs) == 2 else both.second
        outputs = torch.randn(*batch.targets.shape, task.model_arguments()["target_vocab_size"])
        torch.testing.assert_close(both.loss(outputs, batch, 0.1), task.loss(outputs, batch, 0.1))
        assert both.targets_of(batch) == (batch.targets != IGNORED).sum()
    tokens = (both.first.tokens_per_step, both.second.tokens_per_step)
    assert both.tokens_per_step == round((1 - SHARE) * tokens[0] + SHARE * tokens[1])
    assert both.steps_per_epoch == both.first.steps_per_epoch / (1 - SHARE)


@pytest.mark.parametrize("name", SHARING)
def test_what_reads_is_one_and_the_rest_is_each_ones_own(specs, both, name):
    spec = TRANSFORMER if name == "encoder-decoder" else {"name": name, "d_model": 16}
    alone, model = drawn(spec, build_task(specs[0])), drawn(spec, both)
    for weight, tensor in alone.state_dict().items():  # nothing of the first starts otherwise
        assert torch.equal(tensor, model.state_dict()[weight])
    for part in model.reading:
        assert model.get_submodule(part) is model.beside.get_submodule(part)
    seen = []
    for _, batch in both.typical_batches():
        model.zero_grad()
        both.loss(model(*batch.inputs), batch).backward()
        seen.append({key for key, one in model.named_parameters() if one.grad is not None})
    own = {key for key, _ in alone.named_parameters()}
    reading = {key for key in own if key.startswith(tuple(f"{part}." for part in model.reading))}
    assert seen[0] == own
    assert seen[0] & seen[1] == reading
    assert all(key.startswith("beside.") for key in seen[1] - reading)
    alone.load_state_dict(model.state_dict())
    batch = both.first.train_batch(1, 1)
    torch.testing.assert_close(alone.eval()(*batch.inputs), model.eval()(*batch.inputs))


@pytest.mark.parametrize("spec", MODELS_OF_BOTH.values(), ids=MODELS_OF_BOTH)
def test_a_run_that_was_killed_goes_on_to_the_same_numbers(both, spec, tmp_path):
    recipe = Recipe.parse({"budget": {"steps": 17}, "lr": 1e-2, "evaluate_every": 5, "checkpoint_every": 4})
    whole = train(drawn(spec, both), both, recipe, folder=tmp_path / "whole")

    class Killed(Exception):
        pass

    def kill(event):
        if event["kind"] == "evaluation" and event["step"] == 10:
            raise Killed

    with pytest.raises(Killed):
        train(drawn(spec, both), both, recipe, folder=tmp_path / "run", on_event=kill)
    gone_on = drawn(spec, both, seed=9)
    result = train(gone_on, both, recipe, folder=tmp_path / "run")
    assert result.resumed_at == [8]
    assert (result.metrics, result.train_loss) == (whole.metrics, whole.train_loss)
    again = drawn(spec, both, seed=7)
    train(again, both, recipe, folder=tmp_path / "whole")
    assert all(map(torch.equal, gone_on.parameters(), again.parameters()))


def test_a_reward_is_for_the_sentences_of_the_first_alone(specs):
    translation = specs[1]["beside"]["task"]
    task = build_task({**translation, "beside": {"task": specs[0], "share": 0.5}})
    first, second = (batch for _, batch in task.typical_batches())
    model = drawn(RNN, task).eval()
    assert attempts_of(task)(model, second, 2, generator_for(0)) is None
    assert attempts_of(task)(model, first, 2, generator_for(0)).rewards.shape == (len(first.targets), 3)
    objective = {"name": "expected-reward", "samples": 2, "after": 0.0}
    recipe = Recipe.parse({"budget": {"steps": 4}, "objective": objective})
    metrics = train(model, task, recipe, attempt=attempts_of(task)).metrics
    own = [task.first.train_batch(step, 0) for step in range(2)]
    assert metrics["train_accuracy"] == pytest.approx(task.first.accuracy(lambda one: model.eval()(*one.inputs), own))


@pytest.fixture(scope="module")
def study(specs):
    alone, two = specs
    return {
        "question": "Does translating help to parse?",
        "task": alone,
        "model": {**RNN, "dropout": 0.0},
        "baseline": "alone",
        "variants": {
            "alone": {},
            "beside": {"task": {"beside": two["beside"]}},
            "Transformer": {**TRANSFORMER, "dropout": 0.0, "task": {"beside": two["beside"]}},
        },
        "rules": {
            "metric": "val_f1",
            "tune_by": "val_loss",
            "budget": {"steps": STEPS},
            "seeds": 1,
            "smallest_effect": 1.0,
        },
        "training": {"lr": 1e-2},
    }


def test_a_plan_counts_both_decoders_and_the_mean_of_the_steps(study, both):
    planned = plan_study(parse_study(study), calibrate=True)
    alone, beside, _ = planned.variants
    assert [one.steps for one in planned.variants] == [STEPS] * 3
    assert beside.parameters == sum(one.numel() for one in drawn(RNN, both).parameters()) > alone.parameters
    assert "30% of its steps are those of the task translation" in beside.notes[0]
    assert not alone.notes
    each = [cost(lambda: build_model(RNN, both), batch.inputs).flops_per_token for _, batch in both.typical_batches()]
    assert min(each) < beside.flops_per_token < max(each)
    assert each[0] == pytest.approx(alone.flops_per_token)
    assert beside.seconds_per_seed > 0


def test_both_learn_and_the_first_alone_is_judged_kept_and_parsed_with(study, tmp_path):
    results = run_study(parse_study(study), tmp_path / "run", jobs=1, executor=InProcess())
    (simple,) = [floor.value for floor in results.floors if floor.metric == "val_f1"]
    for variant in results.variants:
        assert variant.values("val_f1")[0] > simple + 20, variant.name
    trained = load_run(tmp_path / "run" / "beside" / "seed-0")
    assert trained.model.beside is None
    assert trained.task.name == "parsing"
    (line,) = parse([trained], ["the dog sees the cat ."], words=True)
    assert line.startswith("(S (NP")


@pytest.mark.parametrize(
    ("beside", "message"),
    [
        ({"share": 1.0}, "share must be a fraction of the steps between 0 and 1; got 1.0"),
        ({"share": "much"}, "share must be a fraction of the steps between 0 and 1; got 'much'"),
        ({"task": {"name": "translating"}}, "unknown task 'translating'; did you mean 'translation'?"),
        ({"task": {"name": "shapes"}}, "models of the task 'shapes' have no encoder for two tasks to share"),
        (
            {"part": 0.2},
            "beside must be {task: ..., share: ...}, a task and its fraction of the steps; got part, share, task",
        ),
    ],
)
def test_what_cannot_be_beside_is_said(specs, beside, message):
    with pytest.raises(SpecError) as caught:
        build_task({**specs[1], "beside": {**specs[1]["beside"], **beside}})
    assert message in str(caught.value)


def test_neither_a_second_nor_a_model_without_an_encoder_can_share(specs, both):
    with pytest.raises(SpecError, match="cannot have one beside itself"):
        build_task({**specs[0], "beside": {"task": specs[1], "share": 0.5}})
    with pytest.raises(
        SpecError, match="'latent-pcfg' has no encoder for two tasks to share; these have: encoder-deco"
    ):
        build_model({"name": "latent-pcfg"}, both)


def test_rates_that_are_tried_together_give_what_each_gives_alone(both):
    spec, rates = {**TRANSFORMER, "dropout": 0.0}, (1e-2, 3e-3)
    recipes = [Recipe.parse({"budget": {"steps": 8}, "lr": rate, "precision": "float32"}) for rate in rates]
    together = train_together([drawn(spec, both) for _ in rates], both, recipes, seeds=[0, 0])
    for recipe, found in zip(recipes, together, strict=True):
        alone = train(drawn(spec, both), both, recipe)
        assert found.metrics["val_loss"] == pytest.approx(alone.metrics["val_loss"], rel=1e-4)
        assert (found.together, found.together_note) == (2, "")
