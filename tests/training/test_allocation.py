from __future__ import annotations

import ctypes
import os
import resource
import sys

import pytest
import torch

from attnlab.training import allocation
from attnlab.training.allocation import kept_memory

MEGABYTE = 2**20
glibc_only = pytest.mark.skipif(allocation._glibc() is None, reason="the system's C library is not glibc")


def page_faults_of_a_large_block() -> int:
    torch.ones(16 * MEGABYTE)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(16 * MEGABYTE)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@glibc_only
def test_a_block_that_was_freed_is_taken_again_without_the_system():
    pages = 64 * MEGABYTE // os.sysconf("SC_PAGE_SIZE")
    with kept_memory(torch.device("cpu")) as kept:
        inside = page_faults_of_a_large_block()
    assert kept
    assert inside < pages / 10 or inside < 32  # huge pages: a few faults for the whole block


@glibc_only
def test_memory_goes_back_at_the_end():
    with kept_memory(torch.device("cpu")):
        torch.ones(64 * MEGABYTE)
        inside = resident_bytes()
    assert resident_bytes() < inside - 200 * MEGABYTE


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_an_accelerator_is_left_alone():
    with kept_memory(torch.device("cuda")) as kept:
        assert not kept


@pytest.mark.parametrize("obstacle", ["platform", "library"])
def test_another_system_is_left_alone(monkeypatch, obstacle):
    if obstacle == "platform":
        monkeypatch.setattr(sys, "platform", "darwin")
    else:
        monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    with kept_memory(torch.device("cpu")) as kept:
        assert not kept
