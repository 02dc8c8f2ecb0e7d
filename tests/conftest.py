"""What tests share: a cache of their own, a small text, real text where it lies."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import random
from pathlib import Path

import hypothesis
import pytest

from attnlab.studies.run.executor import InProcess
from attnlab.tasks.datasets import TEXTS, VARIABLE

hypothesis.settings.register_profile(
    "any load",  # what else a machine does is no property of the code
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("any load")

if "ATTNLAB_TEST_CUDA" not in os.environ:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the suite compares numbers of the CPU; `make test-gpu` is about CUDA


_caches = itertools.count()


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Look for no garbage while ten thousand tests are collected, which all stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()  # they are looked at no more
        gc.enable()


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory, monkeypatch):
    """Keep the person's cache out of the tests, and the tests out of it."""
    folder = tmp_path_factory.getbasetemp() / f"cache-{next(_caches)}"  # most tests never make it, nor a `tmp_path`
    monkeypatch.setenv("ATTNLAB_CACHE", str(folder))
    monkeypatch.delenv("ATTNLAB_SHARED_CACHE", raising=False)
    return folder


@pytest.fixture(autouse=True, scope="session")
def steady_power():
    """Wait for no disk: every process sees at once what is written, and the power is not cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda _: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def small_pictures():
    """Draw pictures of reports with few pixels, which take most of the time in which one is written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attnlab.studies.report.style.PNG_SCALE", 0.5)
        yield


@contextlib.contextmanager
def in_this_process():
    """Compute cells in the test's own process, which has torch already: for tests of all but the processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attnlab.studies.execute.LocalProcesses", lambda *_: contextlib.nullcontext(InProcess()))
        yield


@pytest.fixture
def in_process():
    """As `in_this_process`, for one test."""
    with in_this_process():
        yield


@pytest.fixture
def words() -> str:
    """Return 4001 characters with some structure: words of a small lexicon in random order."""
    draw = random.Random(7)
    lexicon = ["".join(draw.choices("abcde", k=draw.randint(1, 5))) for _ in range(23)]
    return " ".join(draw.choices(lexicon, k=2003))[:4001]


@pytest.fixture
def text_file(tmp_path, words) -> str:
    """Return the path of a small text."""
    path = tmp_path / "words.txt"
    path.write_text(words, encoding="utf-8")
    return str(path)


@pytest.fixture
def tinyshakespeare() -> str:
    """Return the name of a real text, or skip where it does not lie."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        pytest.skip(f"{VARIABLE} names no folder with real text")
    if not (Path(folder) / TEXTS["tinyshakespeare"].file).is_file():
        pytest.skip(f"no {TEXTS['tinyshakespeare'].file} in {folder}")
    return "tinyshakespeare"
