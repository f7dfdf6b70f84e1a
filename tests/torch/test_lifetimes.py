"""What is left of budgeted models when they have died: nothing of memcfg's."""

from __future__ import annotations

import gc
import math
import os
import weakref
from collections import Counter

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

import memcfg.torch as mt
from memcfg.errors import InfeasiblePlanError
from memcfg.plan import out_of_core

pytestmark = pytest.mark.filterwarnings("ignore")

# PyTorch keeps guards on its own modules and functions for each graph that it has
# compiled, until the process ends, some 500 objects of a network such as this: less
# than `aot_eager` leaves behind, with a reset or without.
KEPT_BY_PYTORCH = 700


X = torch.ones(256, 32)


def network():
    rest = [(torch.nn.Tanh(), torch.nn.Linear(32, 32), torch.nn.Softmax(-1))] * 3
    layers = [each for part in rest for each in part]
    return torch.nn.Sequential(torch.nn.Linear(32, 32), *layers)


def leaving(folder, **options):
    """A budget whose tensors leave."""
    return mt.budget(
        network(),
        "300KiB",
        spill_to=folder,
        times="nominal",
        policy=out_of_core(),
        **options,
    )


def held():
    """Descriptors, threads, and bytes of files that have no names."""
    files = [
        os.path.join("/proc/self/fd", each) for each in os.listdir("/proc/self/fd")
    ]
    there = [os.stat(each) for each in files if os.path.exists(each)]
    nameless = sum(each.st_size for each in there if each.st_nlink == 0)
    return len(files), len(os.listdir("/proc/self/task")), nameless


def of_memcfg():
    """How many objects of each of memcfg's classes live."""
    classes = (type(each) for each in gc.get_objects())
    named = (each for each in classes if isinstance(each.__module__, str))
    return Counter(each for each in named if each.__module__.startswith("memcfg"))


def trained(folder):
    run = leaving(folder)
    run(X).sum().backward()
    assert mt.get_budget(run).spill_bytes > 0


def planned_for_an_example(folder):
    assert mt.get_budget(leaving(folder, example=(X,))).spill_bytes > 0


def refused(folder):
    with pytest.raises(InfeasiblePlanError):
        mt.budget(network(), 1, example=(X,), spill_to=folder, times="nominal")


def of_two_shapes_with_a_loss(_):
    run = mt.budget(network(), math.inf, times="nominal", loss=torch.mean)
    for x in (X, X[:9]):
        run(x).mean().backward()


def without_backward(folder):
    leaving(folder)(X)


KINDS = (
    trained,
    planned_for_an_example,
    refused,
    of_two_shapes_with_a_loss,
    without_backward,
)


@pytest.mark.parametrize("count", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_models_that_die_leave_no_descriptor_thread_file_or_object(count, tmp_path):
    for kind in KINDS:  # what is made once
        kind(tmp_path)
    gc.collect()
    before, known, objects = held(), of_memcfg(), len(gc.get_objects())
    for number in range(count):
        KINDS[number % len(KINDS)](tmp_path)
        gc.collect()
        assert held() == before
    assert of_memcfg() <= known  # what other tests left may die meanwhile
    assert len(gc.get_objects()) - objects <= count * KEPT_BY_PYTORCH


def test_a_backend_keeps_nothing_of_a_model_that_dies(tmp_path):
    backend = mt.backend(
        "300KiB", spill_to=tmp_path, times="nominal", policy=out_of_core()
    )

    def one():
        module = network()
        run = torch.compile(module, backend=backend, dynamic=False, fullgraph=True)
        run(X).sum().backward()
        return weakref.ref(module)

    one()
    torch._dynamo.reset()
    gc.collect()
    before, known = held(), of_memcfg()
    module = one()
    assert held() > before
    torch._dynamo.reset()
    gc.collect()
    assert module() is None
    assert held() == before
    assert of_memcfg() <= known  # what other tests left may die meanwhile


def test_outputs_of_a_first_step_die_with_their_variables():
    """Errors of limits that were tried do not keep the frames that returned them."""
    model = network()
    floor = mt.estimate(model, (X,), times="nominal").floor_bytes
    mt.budget(model, floor, times="nominal")
    gc.collect()
    gc.disable()
    try:
        made = model(X)
        held = StorageWeakRef(made.untyped_storage())
        made.sum().backward()
        del made
        assert held.expired()
    finally:
        gc.enable()


def test_backward_runs_when_what_was_budgeted_has_died(tmp_path):
    module = network()
    module(X).square().sum().backward()
    wanted = [each.grad.clone() for each in module.parameters()]
    module.zero_grad()
    loss = mt.budget(module, math.inf, times="nominal")(X).square().sum()
    gc.collect()
    loss.backward()
    for before, each in zip(wanted, module.parameters(), strict=True):
        torch.testing.assert_close(each.grad, before)
