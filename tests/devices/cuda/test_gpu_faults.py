"""A driver that fails, on its stand-in: an error each time, and nothing is lost."""

from __future__ import annotations

import gc

import cuda_stand_in
import gpus
import numpy as np
import pytest
from interpreter import random_values
from networks import NETWORKS
from swapping import Swapping

from memcfg import plan as planning
from memcfg.errors import KernelError, MemcfgError
from memcfg.runtime import Executor

POLICIES = {"share": planning.share(), "swapping": Swapping(("host", "zvc"))}


@pytest.fixture(autouse=True)
def _as_it_was():
    yield
    cuda_stand_in.reset()


@pytest.fixture(params=["pages", "blocks"])
def device(request):
    return gpus.made(gpus.stand_in(pages=request.param == "pages"))


def inputs_of(graph):
    return [
        tensor.name
        for i, tensor in enumerate(graph.tensors)
        if tensor.role == "input" and graph.producer[i] is None
    ]


def step(executor, values):
    """Loss and state of one step."""
    graph = executor.graphs["train"]
    for name in inputs_of(graph):
        executor.feed("train", name)[...] = 0 if name == "step" else values[name]
    assert executor.run("train", guard=True)
    found = executor.fetch("train", "loss").tobytes()
    executor.finish("train")
    return [found, *(executor.read_state(name).tobytes() for name in executor.state)]


def begun(device, graph, policy, values):
    executor = Executor(device, name="model")
    executor.load({"train": graph}, policy, values)
    return executor


def nothing_is_left(device):
    gc.collect()
    assert device.pool.stats().current_bytes == 0
    assert device.host_pool.stats().current_bytes == 0


@pytest.mark.strength(1)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_call_that_fails_anywhere_is_an_error_and_the_next_try_works(
    device, policy, tenths
):
    graph = NETWORKS["branches"]()
    values = random_values(graph)

    def everything():
        executor = begun(device, graph, POLICIES[policy], values)
        try:
            found = [step(executor, values) for _ in range(3)]
        finally:
            executor.close()
        return found

    expected = everything()
    before = cuda_stand_in.calls()
    everything()
    count = cuda_stand_in.calls() - before
    assert count > 50
    told = 0
    for number in range(0, count, 20 // tenths):
        cuda_stand_in.fail_calls(number)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("warnings.warn", lambda *text, **how: None)
            try:
                found = everything()
            except (MemcfgError, RuntimeError, MemoryError):
                told += 1
            else:  # a graph that was not to be had, or what is tried again
                assert found == expected
        cuda_stand_in.fail_calls(None)
        nothing_is_left(device)
    assert told > 5
    assert everything() == expected


def test_work_that_fails_amid_a_step_is_told(device):
    graph = NETWORKS["branches"]()
    values = random_values(graph)
    executor = begun(device, graph, planning.share(), values)
    for _ in range(3):
        step(executor, values)
    for after in (0, 3, 20):
        cuda_stand_in.fail_work(after)
        with pytest.raises(KernelError, match=r"memory is lost|CUDA_ERROR"):
            executor.run("train")
        cuda_stand_in.fail_work(None)
    executor.close()
    nothing_is_left(device)


def test_work_in_any_order_gives_the_same_bits(device):
    graph = NETWORKS["branches"]()
    values = random_values(graph)
    found = []
    for seed in (None, 1, 2, 3):
        cuda_stand_in.late(seed)
        executor = begun(device, graph, POLICIES["swapping"], values)
        found.append([step(executor, values) for _ in range(4)])
        executor.close()
    assert all(each == found[0] for each in found)
    assert np.isfinite(np.frombuffer(found[0][0][0], np.float32)).all()
