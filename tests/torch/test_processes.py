"""Processes whose PyTorch has a limit: side by side, forked, and at their end."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torch_bits import bytes_left

import memcfg.torch as mt
from memcfg.errors import ResourceExhaustedError

MIB = 2**20


@pytest.fixture
def limit():
    assert bytes_left() == 0
    mt.limit_cpu("64MiB")
    yield 64 * MIB
    mt.limit_cpu(None)
    assert bytes_left() == 0


def run(script: str, *words: str) -> str:
    """What a program prints, which ends well and says nothing else."""
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


# Trains for some steps; the one that misbehaves keeps what it should drop.
TRAINS = """
import json, sys, torch, memcfg.torch as mt
limit, misbehaves = int(sys.argv[1]), sys.argv[2] == "misbehaves"
mt.limit_cpu(limit)
part = torch.empty(limit // 2, dtype=torch.uint8)
kept, outcome = [], "well"
try:
    for number in range(40):
        part = None
        part = torch.full((limit // 8,), number % 256, dtype=torch.uint8)
        assert part[-1] == number % 256
        if misbehaves:
            kept.append(part)
except MemoryError as error:
    outcome = [type(error).__name__, error.in_use_bytes, error.limit_bytes]
print(json.dumps({"outcome": outcome, "peak": mt.get_memory_info()["peak"]}))
"""


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(96 * MIB, id="96MiB"),
        pytest.param(3 * 2**30, id="3GiB", marks=pytest.mark.slow),
    ],
)
def test_of_six_processes_the_one_that_misbehaves_raises(size):
    kinds = ["behaves"] * 6
    kinds[4] = "misbehaves"
    with ThreadPoolExecutor(2) as executor:  # two at a time: processors, and memory
        told = [*executor.map(lambda kind: run(TRAINS, str(size), kind), kinds)]
    found = [json.loads(text) for text in told]
    assert all(each["peak"] <= size for each in found)
    outcomes = [each["outcome"] for each in found]
    assert outcomes.pop(4) == ["OutOfMemoryError", size, size]
    assert outcomes == ["well"] * 5


def test_a_process_ends_well_with_tensors_left():
    script = """
import threading, torch, memcfg.torch as mt
mt.limit_cpu("64MiB")
model = torch.nn.Linear(10, 10)
kept = [torch.ones(1000), model(torch.ones(1, 10))]
class Holder:
    x = torch.ones(2000)
threading.Thread(target=lambda: kept.append(torch.ones(5))).start()
torch.ones(5).kept = kept  # a cycle
kept.append(kept)
print("well")
"""
    assert run(script) == "well\n"


def test_a_child_of_a_fork_has_its_own_copy_of_the_pool(limit):
    x = torch.ones(MIB)
    before = mt.get_memory_info()["current"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, from 3.12 on
        child = os.fork()
    if child == 0:
        well = False
        try:
            y = [torch.full((MIB,), float(n)) for n in range(14)]
            assert x.sum() == MIB
            del x
            assert mt.get_memory_info()["current"] == 14 * 4 * MIB
            try:
                torch.empty(8 * MIB)
            except ResourceExhaustedError:
                y.clear()
                mt.limit_cpu("1MiB")
                well = mt.get_memory_info()["current"] == 0
        finally:
            os._exit(0 if well else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert mt.get_memory_info()["current"] == before
    assert mt.cpu_pool().limit == limit


class Numbers(Dataset):
    """Tensors of a million numbers; the one at `large` does not fit."""

    def __init__(self, large=None):
        self.large = large

    def __len__(self):
        return 8

    def __getitem__(self, index):
        size = 2**25 if index == self.large else 10_000
        return torch.full((size,), float(index))


def test_forked_workers_of_a_loader_give_batches(limit):
    loader = DataLoader(
        Numbers(), batch_size=2, num_workers=2, multiprocessing_context="fork"
    )
    found = [batch[:, 0].tolist() for batch in loader]
    assert found == [[0, 1], [2, 3], [4, 5], [6, 7]]
    gc.collect()
    assert mt.get_memory_info()["current"] == 0  # batches come in shared memory


def test_a_worker_that_exceeds_the_limit_is_told_of_in_the_parent(limit):
    loader = DataLoader(
        Numbers(large=5), batch_size=2, num_workers=2, multiprocessing_context="fork"
    )
    text = ""
    try:
        list(loader)
    except ResourceExhaustedError as error:  # what holds it holds up the workers' end
        text = str(error)
    assert "worker process" in text
    assert "Requested 134217728 B" in text
