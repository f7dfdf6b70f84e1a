"""Models on a GPU whose driver has memory in blocks only, on its stand-in."""

from __future__ import annotations

import gc

import cuda_stand_in
import gpus
import numpy as np
import pytest
from interpreter import random_values
from networks import chain
from swapping import Swapping

from memcfg import plan as planning
from memcfg.errors import KernelError, ResourceExhaustedError
from memcfg.runtime import Executor

MIB = 1 << 20
SMALL, LARGE = (chain(batch=batch, depth=1) for batch in (1, 5))  # in other arenas
POLICIES = {
    "keep_all": planning.keep_all(),
    "share": planning.share(),
    "sqrt_checkpoint": planning.sqrt_checkpoint(),
    "swapping": Swapping(("host", "file")),
}


@pytest.fixture(autouse=True)
def _as_it_was():
    yield
    cuda_stand_in.reset()


@pytest.fixture
def device():
    return gpus.made(gpus.stand_in(pages=False))


def state_of(executor):
    return {name: executor.read_state(name).tobytes() for name in executor.state}


def train(executor, graph, values, policy, steps=3):
    """Load a graph and train; gives the losses."""
    executor.load({"train": graph}, policy, values)
    losses = []
    for step in range(steps):
        for i, tensor in enumerate(graph.tensors):
            if tensor.role == "input" and graph.producer[i] is None:
                value = step if tensor.name == "step" else values[tensor.name]
                executor.feed("train", tensor.name)[...] = value
        assert executor.run("train", guard=True)
        losses.append(executor.fetch("train", "loss").tobytes())
        executor.finish("train")
    return losses


@pytest.mark.parametrize(
    "policy",
    [
        "share",
        "swapping",
        pytest.param("keep_all", marks=pytest.mark.slow),
        pytest.param("sqrt_checkpoint", marks=pytest.mark.slow),
    ],
)
def test_every_policy_gives_the_bits_that_pages_give(policy):
    """With batches of several sizes, so that larger arenas replace smaller ones."""
    found = []
    for pages in (True, False):
        device = gpus.made(gpus.stand_in(pages=pages))
        executor, losses = Executor(device, name="model"), []
        for batch in (1, 3, 2, 5):
            graph = chain(batch=batch, depth=2)
            values = random_values(graph)
            losses.append(train(executor, graph, values, POLICIES[policy], 2))
        found.append((losses, state_of(executor)))
        executor.close()
        assert device.pool.stats().current_bytes == 0
        device.pool.trim()
        assert device.pool.stats().reserved_bytes == 0
    assert found[0] == found[1]


def test_there_are_never_two_arenas(device):
    """The limit is the larger one's size: the smaller went before."""
    probe = Executor(device, name="probe")
    train(probe, LARGE, random_values(LARGE), planning.share())
    needed = device.pool.stats().peak_reserved_bytes
    probe.close()
    tight = gpus.made(gpus.stand_in(pages=False), needed)
    executor = Executor(tight, name="model")
    for graph in (SMALL, LARGE):
        train(executor, graph, random_values(graph), planning.share())
    assert tight.pool.stats().peak_reserved_bytes == needed
    executor.close()


def test_what_cannot_grow_stays_as_it_was(device):
    executor = Executor(device, name="model")
    train(executor, SMALL, random_values(SMALL), planning.share(), 1)
    before, nbytes = state_of(executor), executor.nbytes
    device.pool.trim()
    cuda_stand_in.machine(memory=cuda_stand_in.used() + 4096)
    with pytest.raises(ResourceExhaustedError):
        executor.load({"train": LARGE}, planning.share(), random_values(LARGE))
    assert (state_of(executor), executor.nbytes) == (before, nbytes)
    train(executor, SMALL, random_values(SMALL), planning.share(), 1)
    executor.close()


def test_a_state_whose_arena_another_took_waits_on_the_host(device, monkeypatch):
    executor = Executor(device, name="model")
    train(executor, SMALL, random_values(SMALL), planning.share(), 1)
    before = state_of(executor)
    with monkeypatch.context() as patch:
        replace = type(executor._arena).replace

        def refused(arena, nbytes):
            cuda_stand_in.machine(memory=1, virtual_memory=True)
            replace(arena, nbytes)

        patch.setattr(type(executor._arena), "replace", refused)
        with pytest.raises(ResourceExhaustedError):
            executor.load({"train": LARGE}, planning.share(), random_values(LARGE))
    assert executor.nbytes == 0
    with pytest.raises(ResourceExhaustedError):
        state_of(executor)
    cuda_stand_in.machine()
    assert state_of(executor) == before
    executor.close()


def test_a_call_that_fails_while_it_is_replaced_loses_nothing(device, tenths):
    values = random_values(LARGE)
    executor = Executor(device, name="model")
    train(executor, SMALL, random_values(SMALL), planning.share(), 1)
    before, told = state_of(executor), 0
    for number in range(0, 200, 10 // tenths):
        cuda_stand_in.fail_calls(number)
        try:
            executor.load({"train": LARGE}, planning.share(), values)
        except (KernelError, ResourceExhaustedError):
            told += 1
        finally:
            cuda_stand_in.fail_calls(None)
        assert state_of(executor) == before
        if "train" in executor.graphs and executor.graphs["train"] == LARGE:
            break
        executor.load({"train": SMALL}, planning.share(), values)
    assert told > 1
    executor.close()
    gc.collect()
    assert device.pool.stats().current_bytes == 0


def test_a_limit_and_memory_at_once(device):
    whole = gpus.made(gpus.stand_in(pages=False), 64 * MIB, growth=False)
    assert whole.pool.stats().reserved_bytes == 64 * MIB
    executor, graph = Executor(whole, name="model"), chain()
    train(executor, graph, random_values(graph), planning.share())
    assert whole.pool.stats().reserved_bytes <= 64 * MIB
    executor.close()


def test_an_arena_is_a_block(device):
    arena = device.pool.arena(4096, tag="test")
    assert (arena.address, arena.nbytes, arena.reserved_addresses) == (0, 0, 4096)
    assert device.pool.stats().reserved_bytes == 0
    arena.grow(100)
    assert device.pool.stats().current_bytes == 128
    assert device.pool.stats().reserved_bytes == 4096
    address = arena.address
    device.write(arena, 0, np.full(128, 7, np.uint8))
    arena.grow(4096)
    arena.check()
    found = np.empty(4096, np.uint8)
    device.read(arena, 0, found)
    assert (found[:128] == 7).all()
    assert not found[128:].any()
    with pytest.raises(ResourceExhaustedError):
        arena.grow(4097)
    arena.shrink(64)
    assert (arena.nbytes, arena.address) == (64, address)
    assert device.pool.stats().reserved_bytes == 4096
    arena.grow(128)
    device.read(arena, 0, found)
    assert not found[64:].any()
    arena.check()
    arena.free()
    assert device.pool.stats().reserved_bytes == 0
    arena.check()
