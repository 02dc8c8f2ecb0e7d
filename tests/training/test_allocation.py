from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest
import torch

from attnlab.training.speed import allocation
from attnlab.training.speed.allocation import kept_memory

glibc_only = pytest.mark.skipif(allocation._glibc() is None, reason="the system's C library is not glibc")

MEASURE = """
import os, resource, torch
from attnlab.training.speed.allocation import kept_memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def faults_of_a_second_block():
    torch.ones(16 * 2**20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(15 * 2**20)  # smaller than what was freed, so that it fits in whatever its alignment
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with kept_memory(torch.device("cpu")) as kept:
    faults = faults_of_a_second_block()
    inside = resident()
print(kept, faults, inside - resident())
"""


@glibc_only
def test_freed_memory_is_taken_again_without_the_system_and_goes_back_at_the_end():
    """In a process of its own: pytest-xdist runs tests in a thread, which has another heap."""
    found = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
    kept, faults, given_back = found.stdout.split()
    assert kept == "True"
    assert int(faults) < 100  # the block has 15,360 pages
    assert int(given_back) > 50 * 2**20


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
