"""Documents of any form become the same tokens; each is predicted once, none across an end, and losses compare."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from attnlab.core.errors import DataError, SpecError
from attnlab.tasks.char_lm.char_lm import CharLM
from attnlab.tasks.lm import corpus as corpus_module
from attnlab.tasks.lm import tokenized
from attnlab.tasks.lm.lm import LM
from attnlab.tasks.next_tokens import IGNORED
from attnlab.text.tokenizers import END_TOKEN, Bpe

pa, ipc, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.ipc", "pyarrow.parquet"))

CONTEXT = 7
DOCUMENTS = [f"{'word ' * (number % 5)}Äpfel {number}\nund Birnen {number * 7}" for number in range(61)]


def write_documents(folder, form, documents=DOCUMENTS, field="text"):
    """Documents in one of the forms that are read; the path to name."""
    folder.mkdir(parents=True, exist_ok=True)
    if form.endswith(".gz"):
        path = Path(write_documents(folder, form.removesuffix(".gz"), documents, field))
        (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
        return str(folder)
    if form == "folder":
        for number, text in enumerate(documents):
            (folder / f"{number:03d}.txt").write_text(text, encoding="utf-8")
        return str(folder)
    path = folder / f"rows.{form.replace('stream', 'arrow')}"
    if form == "jsonl":
        path.write_text("".join(json.dumps({field: text}) + "\n" for text in documents))
        return str(path)
    table = pa.table({field: documents, "other": list(range(len(documents)))})
    if form == "parquet":
        parquet.write_table(table, path, row_group_size=13)
    else:
        with (ipc.new_file if form == "arrow" else ipc.new_stream)(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=17)
    return str(path)


def uniform(task):
    return lambda batch: torch.zeros(*batch.targets.shape, task.vocab_size)


def spoken(task, part="validation"):
    """The documents that are predicted over a whole part, put together from its windows, in any order."""
    found = []
    for inputs, targets in task._data.parts[part].whole(task.context, 5):
        for read, wanted in zip(inputs.tolist(), targets.tolist(), strict=True):
            found.append((read[0], [token for token in wanted if token != IGNORED]))
    return found


@pytest.mark.parametrize("form", ["folder", "parquet", "arrow", "stream", "parquet.gz", "arrow.gz", "stream.gz"])
def test_documents_are_the_same_in_every_form(tmp_path, form):
    usual, other = (
        LM(write_documents(tmp_path / one, one), {"name": "bpe", "vocab_size": 300}, context=CONTEXT, test=0.2)
        for one in ("jsonl", form)
    )
    assert usual.describe()["parts"] == other.describe()["parts"]
    assert usual.describe()["sha256"] == other.describe()["sha256"]
    assert torch.equal(usual.train_batch(3, 5).targets, other.train_batch(3, 5).targets)


@pytest.mark.parametrize("tokenizer", ["characters", "words", {"name": "bpe", "vocab_size": 280}])
def test_every_token_of_every_document_is_predicted_once_and_no_window_spans_two(tmp_path, tokenizer):
    task = LM(write_documents(tmp_path, "jsonl"), tokenizer, context=CONTEXT, batch=4)
    known = task.describe()["parts"]["validation"]
    windows = spoken(task)
    assert sum(len(wanted) for _, wanted in windows) == known["tokens"]
    assert all(END_TOKEN not in wanted[:-1] for _, wanted in windows)
    assert sum(first == END_TOKEN for first, _ in windows) == known["documents"]
    held_out = DOCUMENTS[-known["documents"] :]
    assert known["characters"] == sum(map(len, held_out)) >= 0.1 * sum(map(len, DOCUMENTS))
    assert known["bytes"] == len("".join(held_out).encode())
    assert known["words"] == len(" ".join(held_out).split())
    for step in range(20):
        batch = task.train_batch(step, 1)
        ended = (batch.inputs[0][:, 1:] == END_TOKEN).cummax(dim=1).values
        assert (batch.targets[:, 1:][ended] == IGNORED).all()
        assert task.targets_of(batch) == int((batch.targets != IGNORED).sum())


def test_training_windows_are_full_or_whole_documents(tmp_path):
    task = LM(write_documents(tmp_path, "jsonl"), "characters", context=23, batch=50)
    seen = set()
    for step in range(40):
        batch = task.train_batch(step, 0)
        for read, wanted in zip(batch.inputs[0].tolist(), batch.targets.tolist(), strict=True):
            kept = [token for token in wanted if token != IGNORED]
            seen |= {tuple(kept)}
            assert len(kept) == 23 or (read[0] == END_TOKEN and kept[-1] == END_TOKEN)
    assert sum(one[-1] == END_TOKEN for one in seen) > 40  # ends of nearly all documents are trained on


def test_joined_windows_span_documents(tmp_path):
    task = LM(write_documents(tmp_path, "jsonl"), "characters", context=40, join=True)
    windows = spoken(task)
    assert any(END_TOKEN in wanted[:-1] for _, wanted in windows)
    assert sum(len(wanted) for _, wanted in windows) == task.describe()["parts"]["validation"]["tokens"]


def test_one_running_text_has_no_ends_and_is_cut_as_char_lm_cuts(text_file):
    task, usual = LM(text_file, "characters", context=CONTEXT), CharLM(text_file, CONTEXT)
    assert not task.codec.marked
    known = task.describe()["parts"]
    assert {part: one["characters"] for part, one in known.items()} == usual.describe()["parts"]
    predicted = sum(len(wanted) for _, wanted in spoken(task))
    assert predicted == known["validation"]["tokens"] - 1
    assert task.evaluate(uniform(task), "validation")["val_loss"] == pytest.approx(math.log(task.vocab_size))


def test_the_loss_per_character_byte_and_word_is_that_of_the_whole_text(tmp_path):
    held_out = ["Äpfel und Birnen", "ein Wort"]
    source = write_documents(tmp_path / "t", "jsonl")
    task = LM(source, {"name": "bpe", "vocab_size": 290}, validation=write_documents(tmp_path / "v", "jsonl", held_out))
    measured = task.evaluate(uniform(task), "validation")
    known = task.describe()["parts"]["validation"]
    nats = math.log(task.vocab_size) * known["tokens"]
    assert measured["val_bits_per_character"] == pytest.approx(nats / 24 / math.log(2))
    assert measured["val_bits_per_byte"] == pytest.approx(nats / 25 / math.log(2))
    assert measured["val_perplexity_per_word"] == pytest.approx(math.exp(nats / 5), rel=1e-4)
    chance = {floor.metric: floor.value for floor in task.floors() if floor.name == "chance"}
    assert {name: pytest.approx(value, rel=1e-4) for name, value in chance.items() if "accuracy" not in name} == {
        name: value for name, value in measured.items() if "accuracy" not in name
    }
    assert [metric.name for metric in task.metrics] == list(measured)


def test_a_bigram_reaches_its_floor(tmp_path):
    task = LM(write_documents(tmp_path, "jsonl", DOCUMENTS * 4), "characters", context=50, test=0.3)
    counts = torch.full((task.vocab_size, task.vocab_size), 1e-3)
    tokens = torch.from_numpy(task._data.parts["test"].tokens.astype(np.int64))
    counts.index_put_((tokens[:-1], tokens[1:]), torch.ones(len(tokens) - 1), accumulate=True)
    logits = (counts / counts.sum(1, keepdim=True)).log()
    measured = task.evaluate(lambda batch: logits[batch.inputs[0]], "test")
    floors = {floor.metric: floor for floor in task.floors() if floor.reach == 1}
    for name in ("test_loss", "test_bits_per_character", "test_perplexity_per_word"):
        assert floors[name].value - floors[name].tolerance <= measured[name] <= floors[name].value


def test_parts_may_be_given_or_cut_and_a_seed_moves_them(tmp_path):
    text = write_documents(tmp_path / "t", "jsonl")
    exam = write_documents(tmp_path / "e", "folder", ["an exam", "another"])
    usual, seeded = (LM(text, "characters", validation=0.25, test=exam, data_seed=seed) for seed in (None, 3))
    assert usual.parts == ("validation", "test")
    assert usual.describe()["parts"]["test"]["documents"] == 2
    characters = sum(map(len, DOCUMENTS))
    for task in (usual, seeded):
        parts = task.describe()["parts"]
        assert parts["train"]["documents"] + parts["validation"]["documents"] == len(DOCUMENTS)
        assert 0.25 * characters <= parts["validation"]["characters"] < 0.25 * characters + 60
    assert usual.describe()["sha256"] != seeded.describe()["sha256"]


def test_a_running_text_may_be_held_out_anywhere(text_file):
    tasks = [LM(text_file, "characters", context=CONTEXT, test=0.05, data_seed=seed) for seed in (None, 1)]
    parts = [
        [task.describe()["parts"][part]["characters"] for part in ("train", "validation", "test")] for task in tasks
    ]
    assert parts[0] == parts[1]
    assert len({task.describe()["sha256"] for task in tasks}) == 2


def test_a_long_document_is_cut_before_blanks_and_loses_nothing(tmp_path, monkeypatch, words):
    text = words
    whole = LM(write_documents(tmp_path / "a", "jsonl", [text, text]), "characters", context=CONTEXT, validation=0.5)
    monkeypatch.setattr(corpus_module, "CHUNK", 100)
    pieces = list(corpus_module.chunks(iter([(text + "x" * 200, True)])))
    assert "".join(piece for piece, _ in pieces) == text + "x" * 200
    assert [last for _, last in pieces] == [False] * (len(pieces) - 1) + [True]
    assert all(piece[0] == " " for piece, _ in pieces[1:-3])
    cut = LM(write_documents(tmp_path / "c", "jsonl", [text, text]), "characters", context=CONTEXT, validation=0.5)
    assert cut.describe()["parts"] == whole.describe()["parts"]
    assert np.array_equal(cut._train.tokens, whole._train.tokens)


def test_somebody_elses_tokenizer_gets_an_end(tmp_path):
    made = Bpe(300).train(DOCUMENTS)
    content = made.to_json()
    content["added_tokens"] = [one for one in content["added_tokens"] if one["content"] != "<end>"]
    del content["model"]["vocab"]["<end>"]
    content["model"]["vocab"]["<|endoftext|>"] = 2
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "tokenizer.json").write_text(json.dumps(content))
    source = write_documents(tmp_path / "t", "jsonl")
    task = LM(source, str(tmp_path / "mine"), context=CONTEXT)
    assert task.codec.end == task.vocab_size - 1 == made.size
    assert task.codec.encode("Äpfel") == [task.codec.end, *made.encode(["Äpfel"])[0]]
    assert task.codec.decode([*task.codec.encode("Äpfel 12"), task.codec.end]) == "Äpfel 12"
    again = type(task.codec).from_json(json.loads(json.dumps(task.codec.to_json())))
    assert again.encode("Birnen") == task.codec.encode("Birnen")


def test_copies_and_unknown_words_raise_alarms(tmp_path):
    source, copied = write_documents(tmp_path / "t", "jsonl"), [DOCUMENTS[3], DOCUMENTS[5], "neu " * 40 + "ganz"]
    task = LM(source, "words", validation=write_documents(tmp_path / "v", "jsonl", copied), context=CONTEXT)
    documents, *_ = (alarm for alarm in task.alarms() if "documents" in alarm)
    assert documents.startswith("66.7% of the validation part's documents stand word for word in the training part")
    assert any("does not give the validation part back as it was" in alarm for alarm in task.alarms())
    copied = write_documents(tmp_path / "w", "jsonl", [DOCUMENTS[60] + " " + DOCUMENTS[59]])
    joined = write_documents(tmp_path / "x", "jsonl", [*DOCUMENTS, DOCUMENTS[60] + " " + DOCUMENTS[59] + "."])
    (passages,) = LM(joined, "characters", validation=copied).alarms()
    assert "% of the validation part's passages of 51 tokens stand word for word in the training part" in passages
    assert not LM(source, "characters").alarms()


def test_a_text_without_blanks_has_no_perplexity_per_word(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("漢字仮名交じり文" * 300, encoding="utf-8")
    names = [metric.name for metric in LM(str(path), "characters").metrics]
    assert names == ["val_loss", "val_bits_per_character", "val_bits_per_byte", "val_accuracy"]


def test_at_most_so_many_tokens_are_judged(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenized, "JUDGED", 30)
    task = LM(write_documents(tmp_path, "jsonl"), "characters", context=CONTEXT, validation=0.5)
    assert 30 <= sum(len(wanted) for _, wanted in spoken(task)) < 30 + CONTEXT


def test_text_is_tokenized_once_and_again_where_a_file_changed(tmp_path, monkeypatch):
    path = write_documents(tmp_path, "jsonl")
    first = LM(path, "characters", context=CONTEXT)
    with monkeypatch.context() as patch:
        patch.setattr(tokenized, "_write", None)
        assert LM(path, "characters", context=CONTEXT).describe() == first.describe()
    write_documents(tmp_path, "jsonl", [*DOCUMENTS, "one more"])
    assert LM(path, "characters", context=CONTEXT).describe()["sha256"] != first.describe()["sha256"]


def test_what_was_changed_on_disk_is_noticed(tmp_path, private_cache):
    path = write_documents(tmp_path, "jsonl")
    LM(path, "characters", context=CONTEXT)
    (tokens,) = private_cache.glob("tokens/lm-*/train/tokens.bin")
    tokens.write_bytes(tokens.read_bytes()[:-4] + b"\1\0\0\0")
    with pytest.raises(DataError, match=r"was changed after it was written; .*; remove .* to have the text read again"):
        LM(path, "characters", context=CONTEXT)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"validation": 1.5}, SpecError, r"a share between 0 and 1 of the text, together below 1, or files; got valid"),
        ({"validation": 0.6, "test": 0.6}, SpecError, "together below 1, or files; got validation: 0.6, test: 0.6"),
        ({"tokenizer": "bppe"}, SpecError, "unknown tokenizer 'bppe'; did you mean 'bpe'"),
        ({"tokenizer": {"name": "bpe", "dropout": 0.1}}, SpecError, "leave the tokenizer's dropout out"),
        ({"context": 0}, SpecError, "context must be at least 1"),
        ({"field": "body"}, DataError, "line 1: a JSON object with a text in 'body' is needed"),
        ({"validation": "nowhere.txt"}, DataError, "no file .*nowhere.txt"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, arguments, error, text):
    with pytest.raises(error, match=text):
        LM(write_documents(tmp_path, "jsonl"), **arguments)


def test_what_is_wrong_with_files_is_said(tmp_path):
    with pytest.raises(DataError, match=r"has no column 'body'; it has text, other"):
        LM(write_documents(tmp_path / "p", "parquet"), field="body")
    with pytest.raises(DataError, match=r"row 1: a text in 'other' is needed; got 0"):
        LM(write_documents(tmp_path / "p", "parquet"), field="other")
    (tmp_path / "bad.parquet").write_bytes(b"no table at all")
    with pytest.raises(DataError, match=r"bad.parquet cannot be read"):
        LM(str(tmp_path / "bad.parquet"))
    parquet.write_table(pa.table({"text": pa.array([b"\xff"]).view(pa.string())}), tmp_path / "bad.parquet")
    with pytest.raises(DataError, match=r"bad.parquet cannot be read as a table: .* invalid start byte$"):
        LM(str(tmp_path / "bad.parquet"))
    with pytest.raises(DataError, match="the text is too short: it has 1 characters for 2 parts; take a longer one"):
        LM(write_documents(tmp_path / "s", "jsonl", ["a"]))
    with pytest.raises(
        DataError, match=r"the text has 2 documents, and every part \(train, validation, test\) needs one \(.*/"
    ):
        LM(write_documents(tmp_path / "two", "jsonl", ["ab", "cd"]), test=0.1)
    with pytest.raises(DataError, match=r"the text has 0 documents"):
        LM(write_documents(tmp_path / "none", "jsonl", []))
    (tmp_path / "parted").mkdir()
    (tmp_path / "parted" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(DataError, match=r"holds several parts of a dataset; name one of its folders, such as .*/train"):
        LM(str(tmp_path / "parted"))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"tokenizer\.json: this is no tokenizer that can be read"):
        LM(write_documents(tmp_path / "j", "jsonl"), str(tmp_path))
