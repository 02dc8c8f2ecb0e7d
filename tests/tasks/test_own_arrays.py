"""A person's own arrays and tables: cut, scaled, judged; what does not fit is said in one sentence."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from attnlab.core.errors import DataError, ModuleError, SpecError
from attnlab.models.stacks import Encoder
from attnlab.studies.define.assemble import build_model, measured_reach
from attnlab.tasks import scale
from attnlab.tasks.arrays.classify import Classify
from attnlab.tasks.arrays.overlapping import overlapping
from attnlab.tasks.arrays.reading import read_table
from attnlab.tasks.arrays.sequences import Sequences
from attnlab.tasks.epochs import in_epochs

pa, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))

LENGTH, FEATURES = 7, 3
ENCODER = {"name": "encoder", "d_model": 8, "n_layers": 1, "mixer": {"name": "attention", "n_heads": 2}}


@pytest.fixture
def save(tmp_path):
    """Write an array; the path to name."""

    def saved(name, array):
        np.save(tmp_path / name, array)
        return str(tmp_path / f"{name}.npy")

    return saved


@pytest.fixture
def numbers(save):
    """Inputs and labels, of three classes."""
    draw = np.random.default_rng(0)
    labels = np.repeat([4, 7, 9], [50, 30, 20])
    return save("x", draw.normal(5, 3, (100, LENGTH, FEATURES))), save("y", labels)


ROWS = [
    {"text": f"{'gut' if number % 3 else 'schlecht'} {number} {'x' * (number % 4)}", "label": number % 3 > 0}
    for number in range(90)
]


def write_table(folder, ending, rows):
    folder.mkdir(exist_ok=True)
    path = folder / f"rows.{ending}"
    if ending == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif ending == "parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    else:
        lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
        path.write_text("\n".join(lines).replace(",", "\t" if ending == "tsv" else ",") + "\n")
    return str(path)


def test_every_item_comes_once_in_an_epoch():
    seen = [number for step in range(26) for number in in_epochs(13, 5, step, 3).tolist()]
    epochs = [seen[place : place + 13] for place in range(0, 130, 13)]
    assert all(sorted(epoch) == list(range(13)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


def test_classes_are_held_out_in_equal_shares_and_every_item_is_in_one_part(numbers):
    task = Classify(*numbers, validation=0.2, test=0.1)
    parts = task._items.parts
    assert [np.bincount(one.targets[one.chosen]).tolist() for one in parts.values()] == [
        [35, 21, 14],
        [10, 6, 4],
        [5, 3, 2],
    ]
    assert sorted(np.concatenate([one.chosen for one in parts.values()])) == list(range(100))
    other = Classify(*numbers, validation=0.2, test=0.1, data_seed=1)
    assert other.describe()["sha256"] != task.describe()["sha256"]


def test_what_a_model_is_surest_of_is_judged_by_itself(numbers):
    task = Classify(*numbers, batch=11, validation=0.5)

    def answers(batch):  # right where the class is the first one, and surer there; wrong elsewhere
        right = torch.nn.functional.one_hot(batch.targets, 3).float()
        return torch.where((batch.targets == 0)[:, None], 9 * right, -right)

    measured = task.evaluate(answers, "validation")
    assert measured["val_accuracy"] == 0.5
    assert measured["val_accuracy_surest"] == 1.0
    alike = task.evaluate(lambda batch: torch.tensor([[90.0, 0.0, 0.0]]).expand(len(batch.targets), 3), "validation")
    assert alike["val_accuracy_surest"] == alike["val_accuracy"] == 0.5  # of items that stand by class


@pytest.mark.parametrize("pooled", [True, False])
def test_an_encoder_classifies_numbers_out_of_the_box(numbers, pooled):
    task = Classify(*numbers, batch=11)
    assert task.model_arguments() == {
        "d_in": FEATURES, "d_out": 3, "n_classes": 3, "max_length": LENGTH, "length": LENGTH,
    }  # fmt: skip
    model = build_model(ENCODER, task).eval()
    whole = (lambda x: model(x).mean(1)) if pooled else model
    batch = task.train_batch(0, 0)
    assert batch.inputs[0].shape == (11, LENGTH, FEATURES)
    wanted = torch.nn.functional.cross_entropy(model(batch.inputs[0]).mean(1), batch.targets)
    assert torch.allclose(task.loss(whole(*batch.inputs), batch), wanted)
    measured = task.evaluate(lambda batch: whole(*batch.inputs).detach(), "validation")
    assert 0 <= measured["val_accuracy"] <= 1
    assert measured_reach(model, task)["past"] == LENGTH
    assert len(task.examples(lambda batch: whole(*batch.inputs).detach())["items"]) == 4


def test_a_model_that_answers_once_has_a_reach(numbers):
    class Once(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(FEATURES, 3)

        def forward(self, x):
            return self.layer(x[:, 2:].sum(1))

    assert measured_reach(Once(), Classify(*numbers))["past"] == LENGTH - 2


def test_numbers_are_scaled_by_the_training_part_alone(numbers, save):
    task = Classify(*numbers)
    train = task._items.parts["train"]
    known = train.inputs[train.chosen]
    assert np.allclose(task._scale.mean, known.mean((0, 1)))
    assert np.allclose(task._scale.std, known.std((0, 1)))
    taken = np.concatenate([task.train_batch(step, 0).inputs[0].numpy() for step in range(0, 200, 7)])
    assert abs(taken.mean()) < 0.1
    assert abs(taken.std() - 1) < 0.1
    flat = save("flat", np.load(numbers[0])[..., 0])
    assert Classify(flat, numbers[1]).train_batch(0, 0).inputs[0].shape == (64, LENGTH, 1)
    assert np.allclose(Classify(flat, numbers[1])._scale.mean, task._scale.mean[:1])
    raw = Classify(*numbers, normalize=False).train_batch(0, 0).inputs[0]
    assert abs(raw.mean() - 5) < 0.5


def test_floors_are_chance_and_the_frequencies_of_the_training_part(numbers):
    task = Classify(*numbers, validation=0.2)
    frequencies = torch.tensor([0.5, 0.3, 0.2]).log()
    measured = task.evaluate(lambda batch: frequencies.expand(len(batch.targets), 3), "validation")
    floors = {(floor.name, floor.metric): floor.value for floor in task.floors()}
    assert measured["val_loss"] == pytest.approx(floors["frequencies", "val_loss"], rel=1e-5)
    assert measured["val_accuracy"] == floors["majority class", "val_accuracy"] == 0.5
    assert floors["chance", "val_loss"] == math.log(3)
    assert not task.alarms()


@pytest.mark.parametrize("ending", ["jsonl", "csv", "tsv", "parquet"])
def test_texts_of_a_table_become_the_same_tokens(tmp_path, ending):
    usual = Classify(write_table(tmp_path / "a", "jsonl", ROWS), tokenizer="characters", validation=0.2)
    task = Classify(write_table(tmp_path / "b", ending, ROWS), tokenizer="characters", validation=0.2)
    assert torch.equal(task.train_batch(1, 2).inputs[0], usual.train_batch(1, 2).inputs[0])
    assert torch.equal(task.train_batch(1, 2).targets, usual.train_batch(1, 2).targets)


def test_tokens_are_padded_and_padding_is_not_averaged(tmp_path):
    task = Classify(write_table(tmp_path / "a", "jsonl", ROWS), tokenizer="characters", batch=30)
    batch = task.train_batch(0, 0)
    inputs = batch.inputs[0]
    assert (inputs == 0).any()
    outputs = torch.randn(*inputs.shape, 2)
    changed = torch.where((inputs == 0)[..., None], 7.0, outputs)
    assert torch.equal(task.loss(outputs, batch), task.loss(changed, batch))
    model = build_model(ENCODER, task)
    assert model(inputs).shape == (*inputs.shape, 2)
    assert measured_reach(model, task)["past"] == task.length


def test_a_token_is_a_vector_of_one_one():
    model = Encoder(5, 2, LENGTH, d_model=8, n_layers=1)
    tokens = torch.randint(5, (3, LENGTH))
    assert torch.allclose(model(tokens), model(torch.nn.functional.one_hot(tokens, 5).float()), atol=1e-6)


def test_the_tokenizer_learns_of_the_training_part_alone(tmp_path):
    rows = [{"text": f"{number} {chr(0x4E00 + number)}", "label": number % 2} for number in range(60)]
    task = Classify(write_table(tmp_path / "a", "jsonl", rows), tokenizer="characters", validation=0.5)
    train = task._items.parts["train"]
    seen = {character for number in train.chosen for character in rows[number]["text"]}
    assert task.codec.tokenizer.size == 3 + 256 + len(seen)


def test_lists_and_columns_are_read_too(tmp_path):
    tokens = [{"ids": [number % 5] * (1 + number % 3), "label": "ab"[number % 2]} for number in range(40)]
    task = Classify(write_table(tmp_path / "a", "jsonl", tokens), field="ids")
    assert (task.vocab_size, task.length) == (6, 3)
    series = [{"values": [[number / 2, 1], [0.5, 2], [1, 3]], "label": number % 2} for number in range(40)]
    assert Classify(write_table(tmp_path / "b", "jsonl", series), field="values").model_arguments()["d_in"] == 2
    wide = [{"a": number, "b": 0.5, "c": -1, "label": "yn"[number % 2]} for number in range(40)]
    task = Classify(write_table(tmp_path / "c", "csv", wide), normalize=False)
    batch = task.train_batch(0, 0)
    assert batch.inputs[0].shape[1:] == (3, 1)
    assert set(batch.inputs[0][:, 2].flatten().tolist()) == {-1.0}


def test_what_is_suspicious_is_said(save, tmp_path):
    inputs = np.random.default_rng(1).normal(size=(60, LENGTH))
    task = Classify(
        save("x", inputs),
        save("y", np.repeat([0, 1], [54, 6])),
        validation=[save("vx", np.concatenate((inputs[:9], inputs[:1] + 1))), save("vy", np.zeros(10, dtype=int))],
    )
    copied, balance, part, missing = task.alarms()
    assert copied.startswith("90.0% of the validation part's inputs are among the training inputs")
    assert balance.startswith("90.0% of the train part are of the class '0': an accuracy near that may be no skill")
    assert part.startswith("100.0% of the validation part are of the class '0'")
    assert missing == "the validation part has no item of 1 classes: 1"
    cut = Classify(write_table(tmp_path / "a", "jsonl", ROWS), tokenizer="characters", length=9)
    assert any(alarm.endswith("items are longer than 9 tokens and were cut") for alarm in cut.alarms())
    assert cut.train_batch(0, 0).inputs[0].shape[1] == 9


@pytest.mark.parametrize("task", [Classify, Sequences])
def test_what_is_held_out_too_is_left_out_of_training(task, save):
    inputs = np.repeat(np.random.default_rng(1).normal(size=(30, LENGTH)), 2, axis=0)
    files = save("x", inputs), save("y", np.repeat(np.arange(30) % 2, 2))
    held = {"validation": 0.2, "normalize": False}
    if task is Sequences:
        files = files[0], files[0]
    copied, clean = (task(*files, **held, drop_copies=drop) for drop in (False, True))
    assert copied.overlaps["validation"] > 0.5
    assert clean.overlaps["validation"] == 0.0
    parts = [one.describe()["parts"] for one in (copied, clean)]
    assert parts[0]["validation"] == parts[1]["validation"] == 12
    assert parts[0]["train"] - parts[1]["train"] == round(12 * copied.overlaps["validation"])


@pytest.mark.parametrize("task", [Classify, Sequences])
@pytest.mark.parametrize("dimensions", [4, 16])
def test_copies_with_noise_are_told_from_items_of_their_own(task, dimensions, save):
    draw = np.random.default_rng(0)
    honest = draw.normal(size=(300, dimensions, 1)).astype(np.float32)
    several = (np.repeat(honest[:30], 10, axis=0) + draw.normal(size=(300, dimensions, 1)) * 1e-4).astype(np.float32)
    targets = save("y", np.arange(300) // 10 % 3 if task is Classify else several)
    said = "of the validation part's inputs have near copies among the training inputs"
    honest, several = (save(name, one) for name, one in {"honest": honest, "several": several}.items())
    assert said not in " ".join(task(honest, targets).alarms())
    assert said in " ".join(task(several, targets).alarms())
    apart = task(several, targets, drop_copies="near")
    assert said not in " ".join(apart.alarms())
    held_out = task(several, targets)._items.parts["validation"].chosen
    assert not {one // 10 for one in apart._items.parts["train"].chosen} & {one // 10 for one in held_out}


def test_training_parts_of_nothing_but_copies_are_refused(save):
    files = save("x", np.zeros((20, LENGTH))), save("y", np.arange(20) % 2)
    with pytest.raises(DataError, match="with drop_copies nothing is left to train on: every training input is held"):
        Classify(*files, drop_copies=True)
    inputs = np.abs(np.random.default_rng(1).normal(size=(40, LENGTH))) * (np.arange(40) < 30)[:, None]
    files = save("z", inputs), save("c", np.repeat([0, 1], [30, 10]))
    with pytest.raises(DataError, match="with drop_copies nothing of the class 1 is left to train on: its inputs are"):
        Classify(*files, drop_copies=True)


X, Y = np.zeros((20, LENGTH, 2)), np.arange(20) % 2


@pytest.mark.parametrize(
    ("inputs", "labels", "error", "text"),
    [
        (X, Y[:-1], DataError, "inputs and labels must be as many; got 20 inputs and 19 labels"),
        (X[:, 0, 0], Y, DataError, r"inputs must be \(items, length\) or \(items, length, features\); got"),
        (X, Y / 2, DataError, r"must hold one whole number an item; got shape \(20,\), float64"),
        (X, np.stack((Y, Y)), DataError, r"must hold one whole number an item; got shape \(2, 20\)"),
        (
            np.where(np.arange(20)[:, None, None] == 3, np.nan, X),
            Y,
            DataError,
            r"finite numbers; got nan at \[3, 0, 0\]",
        ),
        (X.astype(complex), Y, DataError, "must hold numbers; got complex128"),
        (X[:0], Y[:0], DataError, r"holds no items: its shape is \(0, 7, 2\)"),
        (np.full((20, 5), -1), Y, DataError, "tokens must be whole numbers from 0 on; got a negative one"),
        (
            np.array([{}] * 20, dtype=object),
            Y,
            DataError,
            r"x.npy cannot be read: .*; an array of numbers is needed, whose rows are of one length",
        ),
        (X, Y[:, None] * 0.0, DataError, "must hold one whole number an item"),
    ],
)
def test_arrays_that_are_no_items_are_refused(save, inputs, labels, error, text):
    with pytest.raises(error, match=text):
        Classify(save("x", inputs), save("y", labels))


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([{"text": "a", "label": 0.5}] * 9, r"must hold a class, a word or a whole number; got 0.5 in row 1"),
        ([{"text": "a", "label": ""}] * 9, r"must hold a class, a word or a whole number; got '' in row 1"),
        ([{"text": "a", "class": 1}] * 9, "has no column 'label'; it has text, class"),
        ([{"text": [1.0, 2.0], "label": 1}, {"text": [1.0], "label": 1}], "lists of numbers all of one length"),
        ([{"text": None, "label": 1}] * 9, "must hold texts, lists of whole numbers"),
        ([{"text": "a", "label": 1}, {"label": 1}], r"line 2: a JSON object with text, label; got"),
        ([{"text": "a", "label": 1}] * 9, r"all 9 items are of the class 1 \(label\): there is nothing to tell apart"),
        (
            [{"text": "a", "label": str(n / 7)} for n in range(30)],
            "has 30 classes for 30 items, .* take the task 'sequences'",
        ),
        ([{"text": [float("nan")], "label": 1}] * 9, r"must hold finite numbers; got nan at \[0, 0\]"),
    ],
)
def test_tables_that_are_no_items_are_refused(tmp_path, rows, text):
    with pytest.raises(DataError, match=text):
        Classify(write_table(tmp_path / "a", "jsonl", rows))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (
            "text;label\nschön;ja\n".encode(),
            "a.csv has semicolons between its columns; commas are needed, or tabs in a",
        ),
        ("text,label\nschön,ja\n".encode("cp1252"), "a.csv cannot be read: .*; save it as UTF-8"),
        (
            b"text,label\n" + b"a" * 2**17 + b" long document,1\nb,1\nc,2\nd,2\n",
            "the validation part is empty: .* 4 items",
        ),
    ],
)
def test_tables_as_spreadsheets_save_them_say_what_to_change(tmp_path, content, text):
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(DataError, match=text):
        Classify(str(tmp_path / "a.csv"))


@pytest.fixture
def folders(tmp_path):
    for name, words in (("bad", "schlecht"), ("good", "gut und besser")):
        (tmp_path / "texts" / name).mkdir(parents=True)
        for number in range(20):
            (tmp_path / "texts" / name / f"{number}.txt").write_text(f"{words} {number}\n")
    return tmp_path / "texts"


def test_folders_of_texts_are_classes(folders):
    (folders / "urls.txt").write_text("of no class")
    task = Classify(str(folders), tokenizer="words", validation=0.2)
    assert task.classes == ["bad", "good"]
    assert task.describe()["parts"] == {"train": 32, "validation": 8}
    batch = task.train_batch(0, 0)
    longest = (batch.inputs[0] > 0).sum(dim=1)
    assert {(int(label), int(words)) for label, words in zip(batch.targets.flatten(), longest, strict=True)} == {
        (0, 2), (1, 4),
    }  # fmt: skip


def test_texts_lie_in_the_folder_of_their_class(folders):
    (folders / ".cache").mkdir()
    (folders / ".cache" / "a.txt").write_text("of no class")
    assert Classify(str(folders), tokenizer="words", validation=0.2).classes == ["bad", "good"]
    (folders / "good" / "more").mkdir()
    (folders / "good" / "more" / "a.txt").write_text("deeper")
    with pytest.raises(DataError, match=r"more/a.txt must lie in the folder of its class in .*, and no deeper"):
        Classify(str(folders))


def test_labels_that_contradict_each_other_are_an_alarm(save):
    """Ten inputs are there three times each; two of the 30 have another class than the two that are equal to them."""
    rng = np.random.default_rng(0)
    inputs = np.repeat(rng.normal(size=(10, 6)), 3, axis=0)
    classes = np.repeat(np.arange(10) % 2, 3)
    noisy = classes.copy()
    noisy[[0, 10]] = 1 - noisy[[0, 10]]
    found = [
        Classify(save("x", inputs), save(name, of)).alarms() for name, of in {"right": classes, "noisy": noisy}.items()
    ]
    said = "6.7% of the items have another class than most with the same input"
    assert [any(said in alarm for alarm in alarms) for alarms in found] == [False, True]


def test_empty_texts_are_an_alarm(folders):
    (folders / "good" / "nothing.txt").write_text(" \n")
    assert Classify(str(folders), tokenizer="words", validation=0.2).alarms()[-1].startswith("items that are empty: 1;")


def test_quotes_in_tables_of_lines(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text('text,label\n"a, b",x\n"c\nd,y\n' + "e,x\n" * 5)
    with pytest.raises(DataError, match=r"rows.csv, line 3: the row that begins here is no CSV: unexpected end"):
        Classify(str(path))
    path = tmp_path / "rows.tsv"
    path.write_text('text\tlabel\n"a" he said\tx\n"say ""b"""\ty\n"c\tx\n"d," e, "f"\ty\n')
    said = ['"a" he said', 'say "b"', '"c', '"d," e, "f"']
    assert read_table(str(path)) == {"text": said, "label": ["x", "y", "x", "y"]}
    path.write_text('text\tlabel\n"a\nb"\tx\n')
    with pytest.raises(DataError, match="line 2: 2 columns are needed; got 1; tabs and line breaks within quotes are"):
        read_table(str(path))


def test_several_tables_are_one(folders, tmp_path):
    for name, rows in (("one", ROWS[:40]), ("two", ROWS[40:])):
        write_table(tmp_path / name, "jsonl", rows)
    found = Classify(str(tmp_path / "*" / "rows.jsonl")).describe()["parts"]
    assert found == Classify(write_table(tmp_path / "all", "jsonl", ROWS)).describe()["parts"]
    write_table(tmp_path / "two", "jsonl", [{"text": "a", "class": 1}])
    with pytest.raises(
        DataError,
        match="same columns; got text, label in the first, and text, class in a later one",
    ):
        Classify(str(tmp_path / "*" / "rows.jsonl"))


def test_texts_without_folders_are_no_items(folders):
    with pytest.raises(DataError, match="must be a table, or hold a folder of texts for each class; got 20 texts"):
        Classify(str(folders / "good"))


def test_a_line_that_is_nested_too_deeply_is_named(tmp_path):
    (tmp_path / "a.jsonl").write_text("[" * 10**5)
    with pytest.raises(DataError, match=r"a.jsonl, line 1: a JSON object is needed; got "):
        Classify(str(tmp_path / "a.jsonl"))


def test_arguments_that_fit_nothing_are_refused(numbers, save, tmp_path):
    inputs, labels = numbers
    with pytest.raises(SpecError, match=r"labels must be an .npy file beside inputs of that kind; got 'label'"):
        Classify(inputs)
    with pytest.raises(SpecError, match="a share between 0 and 1 of the items, together below 1, or files; got valid"):
        Classify(inputs, labels, validation=1.5)
    with pytest.raises(SpecError, match=r"validation must be a share, a table, or two files, of inputs and labels"):
        Classify(inputs, labels, validation=[inputs])
    with pytest.raises(DataError, match="the validation part has the class 5, which the training part lacks"):
        Classify(inputs, labels, validation=[inputs, save("z", np.full(100, 5))])
    with pytest.raises(
        DataError, match=r"inputs of the validation part must be as in training: items of shape \(7, 3\)"
    ):
        Classify(inputs, labels, validation=[save("q", np.zeros((9, 8, 3))), save("z", np.full(9, 4))])
    with pytest.raises(DataError, match="the validation part is empty: there are 3 items"):
        Classify(save("few", np.zeros((3, 5))), save("z", np.arange(3)))
    path = tmp_path / "ragged.csv"
    path.write_text("a,b,label\n1,2,x\n1,y\n")
    with pytest.raises(DataError, match="line 3: 3 columns are needed; got 2"):
        Classify(str(path))
    path.write_text("a,b,label\n1,2,x\n1,what,y\n")
    with pytest.raises(DataError, match="must hold numbers; got 'what' in row 2"):
        Classify(str(path))
    task = Classify(inputs, labels)
    with pytest.raises(
        ModuleError, match=r"outputs must have shape \(64, 3\) \(batch, classes\), or \(batch, length, cl"
    ):
        task.loss(torch.zeros(64, LENGTH, 4), task.train_batch(0, 0))


def pairs(save, outputs=2, each=True):
    draw = np.random.default_rng(3)
    inputs = draw.normal(2, 3, (50, LENGTH, FEATURES))
    targets = inputs[..., :outputs] * 2 + 30 if each else inputs.mean(1)[:, :outputs]
    return save("x", inputs), save("y", targets)


@pytest.mark.parametrize("each", [True, False])
def test_numbers_from_numbers(save, each):
    task = Sequences(*pairs(save, each=each), batch=7, test=0.2)
    assert task.model_arguments() == {"d_in": FEATURES, "d_out": 2, "max_length": LENGTH, "length": LENGTH}
    batch = task.train_batch(0, 0)
    assert batch.targets.shape == ((7, LENGTH, 2) if each else (7, 2))
    model = build_model(ENCODER, task).eval()
    outputs = model(*batch.inputs)
    answer = outputs if each else outputs.mean(1)
    assert torch.allclose(task.loss(outputs, batch), (answer - batch.targets).square().mean())
    measured = task.evaluate(lambda batch: torch.zeros_like(batch.targets), "test")
    assert measured["test_mse"] == pytest.approx(1, abs=0.5)
    assert task.examples(lambda batch: model(*batch.inputs).detach())["kind"] == "arrays"
    assert not task.alarms()


def test_floors_are_the_mean_and_the_last_value(save):
    inputs = np.random.default_rng(3).normal(2, 3, (50, LENGTH))
    task = Sequences(save("x", inputs), save("y", inputs + 4), normalize=False)
    floors = {floor.name: floor for floor in task.floors()}
    assert floors["last value"].value == pytest.approx(16)
    train, held_out = (task._items.parts[part].chosen for part in ("train", "validation"))
    constant = ((inputs[held_out] - inputs[train].mean(0)) ** 2).mean()
    assert floors["constant predictor"].value == pytest.approx(constant)
    measured = task.evaluate(lambda batch: batch.inputs[0], "validation")
    assert measured["val_mse"] == pytest.approx(16, rel=1e-5)
    scaled = Sequences(save("x", inputs), save("y", inputs + 4))
    assert {floor.name: floor.value for floor in scaled.floors()}["last value"] == pytest.approx(
        16 / inputs[train].var(), rel=1e-6
    )
    shown = scaled.examples(lambda batch: batch.inputs[0])
    assert shown["kind"] == "series"
    assert len(shown["items"][0]["prediction"]) == LENGTH


def test_numbers_may_be_normalized_for_the_model_alone(save):
    draw = np.random.default_rng(3)
    inputs, targets = draw.normal(2, 3, (50, LENGTH)), draw.normal(40, 7, (50, LENGTH, 2)) * [1, 100]
    own, inside = (Sequences(save("x", inputs), save("y", targets), normalize=how) for how in (False, "internally"))
    scale = torch.tensor(inside._scales[1].std)
    model = lambda batch: torch.zeros_like(batch.targets)  # noqa: E731
    assert abs(inside.train_batch(0, 0).targets).max() < 10
    mean = torch.tensor(inside._scales[1].mean)
    outside = own.evaluate(lambda batch: (model(batch) + mean).float(), "validation")
    assert inside.evaluate(model, "validation")["val_mse"] == pytest.approx(outside["val_mse"], rel=1e-4)
    assert outside["val_mse"] > scale.square().mean() / 3
    assert [floor.value for floor in inside.floors()] == pytest.approx([floor.value for floor in own.floors()])
    units = {task.metrics[0].unit for task in (own, inside)}
    assert units == {"squared error in units of the data"}
    usual = Sequences(save("x", inputs), save("y", inputs))
    assert usual.deviation == pytest.approx(3, rel=0.2)
    assert own.deviation is inside.deviation is None  # errors are in these units already


def test_classes_at_every_position(save):
    inputs = np.random.default_rng(3).normal(size=(50, LENGTH, FEATURES))
    task = Sequences(save("x", inputs), save("y", (inputs[..., 0] > 0).astype(int)))
    assert task.model_arguments()["d_out"] == 2
    right = torch.tensor([-5.0, 5.0])
    measured = task.evaluate(lambda batch: (batch.inputs[0][..., :1] - right).abs().neg(), "validation")
    assert measured["val_accuracy"] > 0.85
    assert task.answers == {"validation": 5 * LENGTH}
    floors = {floor.name: floor.value for floor in task.floors() if floor.metric == "val_accuracy"}
    assert 0.4 < floors["majority class"] < 0.7
    assert task.examples(lambda batch: torch.zeros(*batch.targets.shape, 2))["items"]


def test_rows_of_csv_are_items(tmp_path):
    for name, row in (("x", "{0},{1},2.5"), ("y", "{1},{0},1.5")):
        (tmp_path / f"{name}.csv").write_text("\n".join(row.format(n, n + 1) for n in range(30)) + "\n")
    task = Sequences(str(tmp_path / "x.csv"), str(tmp_path / "y.csv"), normalize=False)
    batch = task.train_batch(0, 0)
    assert batch.inputs[0].shape[1:] == batch.targets.shape[1:] == (3, 1)
    assert torch.equal(batch.inputs[0][:, 0], batch.targets[:, 1])


def test_large_parts_are_read_some_at_a_time(save, monkeypatch):
    usual = Sequences(*pairs(save), test=0.2)
    monkeypatch.setattr(scale, "SUMMED", 7)
    again = Sequences(*pairs(save), test=0.2)
    assert np.allclose(usual._scales[0].std, again._scales[0].std)
    assert usual.describe()["sha256"] == again.describe()["sha256"]


def test_a_constant_feature_stays_near_zero(save):
    inputs = np.ones((20, LENGTH, 1)) * 1e4
    batch = Sequences(save("x", inputs), save("y", inputs)).train_batch(0, 0)
    assert batch.inputs[0].abs().max() == 0


@pytest.mark.parametrize(
    ("inputs", "targets", "text"),
    [
        (X, X[:-1], "inputs and targets must be as many; got 20 in .* and 19 in"),
        (X[:, 0, 0], X, r"must be \(items, length\) or \(items, length, features\); got \(20,\)"),
        (X, X[:, 1:], r"with the length 7 of .*; got \(20, 6, 2\)"),
        (X, X[..., None], r"got \(20, 7, 2, 1\)"),
        (X, Y, r"at each of the 7 positions; got shape \(20, 1\), .* take the task 'classify'"),
        (X, X[..., 0].astype(int) - 1, "smallest -1; for numbers save them as floats"),
        (X, np.where(X == 0, np.inf, X), r"finite numbers; got inf at \[0, 0, 0\]"),
    ],
)
def test_pairs_that_do_not_fit_are_refused(save, inputs, targets, text):
    with pytest.raises(DataError, match=text):
        Sequences(save("x", inputs), save("y", targets))


def test_what_else_is_refused(save, tmp_path):
    files = pairs(save)
    task = Sequences(*files)
    with pytest.raises(SpecError, match="validation must be a share, or two files, of inputs and of targets; got x"):
        Sequences(*files, validation="x")
    with pytest.raises(DataError, match=r"must be an array \(.npy\) or a table of numbers"):
        Sequences(files[0], "targets.txt")
    (tmp_path / "empty.csv").write_text("\n")
    with pytest.raises(DataError, match=r"empty.csv holds no items: it has no row of numbers"):
        Sequences(files[0], str(tmp_path / "empty.csv"))
    with pytest.raises(SpecError, match="label smoothing needs classes"):
        task.loss(torch.zeros(64, LENGTH, 2), task.train_batch(0, 0), 0.1)
    with pytest.raises(ModuleError, match=r"outputs must have shape \(64, 7, 2\) \(batch, length, outputs\); got"):
        task.loss(torch.zeros(64, LENGTH, 3), task.train_batch(0, 0))


@pytest.mark.parametrize("name", ["classify", "sequences"])
def test_numbers_of_very_different_sizes_that_are_given_as_they_are_raise_an_alarm(tmp_path, name):
    inputs = np.random.default_rng(0).normal(size=(60, 5, 2)) * [0.2, 1e5]
    np.save(tmp_path / "x.npy", inputs)
    np.save(tmp_path / "y.npy", np.arange(60) % 3 if name == "classify" else inputs[..., :1])
    make = Classify if name == "classify" else Sequences
    files = str(tmp_path / "x.npy"), str(tmp_path / "y.npy")
    said = [alarm for alarm in make(*files, normalize=False).alarms() if "(normalize: false), of sizes from" in alarm]
    assert len(said) == 1
    assert not any("normalize" in alarm for alarm in make(*files).alarms())
    np.save(tmp_path / "x.npy", inputs / [0.2, 1e5])
    assert not any("normalize" in alarm for alarm in make(*files, normalize=False).alarms())


def test_targets_that_stand_in_later_inputs_raise_an_alarm(tmp_path):
    walk = np.random.default_rng(0).normal(size=(70, 12, 2)).cumsum(axis=1)
    np.save(tmp_path / "x.npy", walk[:, :9])
    for later, shown in (
        (1, walk[:, 1:10, 1:]),
        (3, walk[:, 3:, 1:]),
        (0, walk[:, :9, :1]),
        (0, 2 * walk[:, 1:10, 1:]),
    ):
        np.save(tmp_path / "y.npy", shown)
        task = Sequences(str(tmp_path / "x.npy"), str(tmp_path / "y.npy"))
        assert task.shown_later == later
        said = f"targets are the inputs of positions {later} later: a model that sees what comes after"
        assert any(said in alarm for alarm in task.alarms()) == (later > 0)


@pytest.mark.parametrize("task", [Classify, Sequences])
def test_windows_of_one_series_are_told_and_held_out_as_they_stand(task, save):
    series = np.random.default_rng(0).normal(size=400)
    windows = np.lib.stride_tricks.sliding_window_view(series, 24)
    targets = save("y", np.arange(len(windows)) // 10 % 2 if task is Classify else windows)
    apart = np.random.default_rng(1).normal(size=windows.shape)
    said = "of the validation part's inputs stand for the most part in a training input"
    windows, apart = save("windows", windows), save("apart", apart)
    assert said in " ".join(task(windows, targets).alarms())
    assert said not in " ".join(task(apart, targets).alarms())
    last = task(windows, targets, split="contiguous", test=0.1)
    train, validation, test = (last._items.parts[part].chosen for part in ("train", "validation", "test"))
    assert (validation.tolist(), test.tolist()) == (list(range(301, 339)), list(range(339, 377)))
    assert last.overlapping == {"validation": 0.0, "test": 0.0}
    assert train.tolist() == list(range(295))  # of 24 positions six more would share 18
    with pytest.raises(SpecError, match="split must be one of random, contiguous; got 'ordered'"):
        task(windows, targets, split="ordered")


@pytest.mark.parametrize("sorted_by_class", [False, True])
def test_rows_of_one_source_that_stand_together_are_told(sorted_by_class, save):
    draw = np.random.default_rng(0)
    sources = np.repeat(draw.normal(size=(60, 1)), 10, axis=0)
    classes = np.repeat(np.arange(60) % 2, 10)
    shift = draw.integers(0, LENGTH, 600)
    waves = np.stack([np.roll(np.sin(np.arange(LENGTH)), one) for one in shift])  # which begin anywhere
    pieces = sources * waves + 0.1 * draw.normal(size=(600, LENGTH))
    order = np.argsort(classes, kind="stable") if sorted_by_class else np.arange(600)
    labels = save("labels", classes[order])
    said = "of rows are more like the row after them"
    task = Classify(save("pieces", pieces[order]), labels)
    assert task.alike_beside > 0.75
    assert said in " ".join(task.alarms())
    mixed = [draw.permutation(np.flatnonzero(classes[order] == one)) for one in range(2)]
    shuffled = order[np.concatenate(mixed)] if sorted_by_class else draw.permutation(600)
    others = Classify(save("others", pieces[shuffled]), save("of", classes[shuffled]))
    assert 0.4 < others.alike_beside < 0.6  # what one class has in common is no leak
    assert said not in " ".join(others.alarms())
    regression = Sequences(save("pieces", pieces[order]), save("wanted", pieces[order]), split="contiguous")
    assert regression.alike_beside == 0.0


def test_items_of_one_source_go_into_one_part(save, tmp_path):
    draw = np.random.default_rng(0)
    sources = np.sort(draw.integers(0, 40, 400))
    x, groups = draw.normal(size=(400, LENGTH)), save("sources", sources)
    labels, inputs = save("labels", draw.integers(0, 2, 400)), save("x", x)
    lines = [
        f"{a:.3f},{b:.3f},person {source},{number % 2}"
        for number, (a, b, source) in enumerate(zip(x[:, 0], x[:, 1], sources, strict=True))
    ]
    (tmp_path / "rows.csv").write_text("\n".join(["a,b,who,label", *lines]))
    tasks = [
        Classify(inputs, labels, groups=groups, validation=0.2, test=0.1),
        Sequences(inputs, inputs, groups=groups, validation=0.2, test=0.1),
        Classify(str(tmp_path / "rows.csv"), groups="who", validation=0.2, test=0.1),
    ]
    for task in tasks:
        parts = {part: items.chosen for part, items in task._items.parts.items()}
        found = [set(sources[chosen]) for chosen in parts.values()]
        assert sum(map(len, found)) == len(set(sources))  # no source stands in two parts
        assert [abs(len(parts[part]) / 400 - share) < 0.06 for part, share in (("validation", 0.2), ("test", 0.1))] == [
            True,
            True,
        ]
        assert sorted(np.concatenate([*parts.values()])) == list(range(400))
    assert tasks[2].model_arguments()["d_in"] == 1  # what tells the source is not read
    assert tasks[2].length == 2
    assert tasks[0].alike_beside == 0.0
    assert tasks[0].describe()["groups"] == groups
    for wrong, said in (
        ({"groups": groups, "split": "contiguous"}, "groups are drawn; got split 'contiguous' beside them"),
        ({"groups": save("few", sources[:9])}, r"groups must be one value an item; got shape \(9,\) for 400 items"),
        ({"groups": "who"}, r"has no column 'who' of groups; beside arrays it must be an \.npy file"),
    ):
        with pytest.raises((DataError, SpecError), match=said):
            Sequences(inputs, inputs, **wrong)
    with pytest.raises(DataError, match="has no column 'whose'; it has a, b, who, label"):
        Classify(str(tmp_path / "rows.csv"), groups="whose")
    halves = save("halves", np.arange(400) // 200)
    with pytest.raises(
        DataError, match=r"with groups nothing of the class \d is left to train on: all of it is of groups"
    ):
        Classify(inputs, halves, groups=halves)


def test_a_class_that_stands_last_is_refused(save):
    files = save("x", np.random.default_rng(0).normal(size=(100, LENGTH))), save("y", np.arange(100) // 95)
    with pytest.raises(DataError, match="with split: contiguous nothing of the class 1 is left to train on"):
        Classify(*files, split="contiguous")


def test_few_values_that_come_again_by_chance_are_no_windows():
    draw = np.random.default_rng(0)
    bits = draw.integers(0, 2, size=(3000, 16))
    assert not overlapping(bits[:100], bits[100:]).any()
    assert not overlapping(bits[:100, :7], bits[100:, :7]).any()  # too short
    tokens = draw.integers(0, 30, size=3000)
    windows = np.lib.stride_tricks.sliding_window_view(tokens, 16)[:, :, None]
    assert overlapping(windows[::50], np.delete(windows, np.s_[::50], axis=0)).all()
