"""A step that needs more than planned is planned again with the difference."""

from __future__ import annotations

import copy
import gc
import warnings
from weakref import ref

import pytest
import torch
from torch_steps import ResNet, image

import memcfg.torch as mt

Dropout, F = torch.nn.Dropout, torch.nn.functional
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
MIB = 1 << 20


def loss_with(extra_bytes):
    """Cross entropy, beside so many bytes that nobody has planned."""

    def loss(logits, labels):
        found = F.cross_entropy(logits, labels)
        torch.empty(extra_bytes, dtype=torch.uint8).fill_(1)
        return found

    return loss


def steps(module, run, x, y, loss, count):
    """Run steps without updates: what each adds at most, and its loss."""
    peaks, losses = [], []
    for _ in range(count):
        for each in module.parameters():
            each.grad = None
        torch.manual_seed(1)
        before = mt.get_memory_info()["current"]
        mt.reset_memory_stats()
        found = loss(run(x), y)
        found.backward()
        peaks.append(mt.get_memory_info()["peak"] - before)
        losses.append(found.item())
        del found
    return peaks, losses


def problem():
    module, x = ResNet(), image()
    state = sum(
        -(-each.untyped_storage().nbytes() // 64) * 64
        for each in (*module.parameters(), *module.buffers(), x)
    )
    return module, x, torch.randint(0, 10, (len(x),)), state


def test_scratch_that_nominal_costs_do_not_know_is_found_by_the_second_step(pool):
    module, x, y, state = problem()
    told = mt.estimate(copy.deepcopy(module), (x,), times="nominal")
    limit = (told.peak_bytes + told.floor_bytes) // 2
    run = mt.budget(module, limit, times="nominal")
    extra = limit // 4
    peaks, losses = steps(module, run, x, y, loss_with(extra), 5)
    assert state + peaks[1] > limit  # as planned, and what nobody knew
    assert all(state + peak <= limit for peak in peaks[3:])
    assert len(set(losses)) == 1
    assert mt.get_budget(run).predicted_peak_bytes <= limit
    assert "not planned" in mt.get_budget(run).memory_report()


def test_a_step_that_is_as_planned_is_not_planned_again(pool):
    module, x, y, _ = problem()
    told = mt.estimate(copy.deepcopy(module), (x,))
    run = mt.budget(module, told.floor_bytes)
    steps(module, run, x, y, F.cross_entropy, 2)
    first = mt.get_budget(run).memory_plan
    steps(module, run, x, y, F.cross_entropy, 2)
    assert mt.get_budget(run).memory_plan is first


def test_what_no_plan_has_room_for_is_said_once_and_training_goes_on(pool):
    module, x, y, _ = problem()
    told = mt.estimate(copy.deepcopy(module), (x,))
    run = mt.budget(module, told.floor_bytes)
    loss = loss_with(told.peak_bytes)
    _, losses = steps(module, run, x, y, loss, 2)
    with pytest.warns(RuntimeWarning, match=r"more in use than planned.*raise the"):
        losses += steps(module, run, x, y, loss, 1)[1]
    with warnings.catch_warnings(action="error"):
        losses += steps(module, run, x, y, loss, 2)[1]
    assert len(set(losses)) == 1


def narrow(width=64):
    """A network whose step needs most in its backward phase."""
    layers = [
        each
        for _ in range(4)
        for each in (torch.nn.Linear(width, width), torch.nn.GELU(), Dropout(0.3))
    ]
    return torch.nn.Sequential(*layers, torch.nn.Linear(width, 1))


def test_a_refusal_leaves_nothing_of_what_was_traced_for_it(pool):
    module, x = narrow(), torch.randn(512, 64)
    y = torch.zeros(len(x), dtype=torch.long)
    told = mt.estimate(copy.deepcopy(module), (x,), times="nominal")
    run = mt.budget(module, told.floor_bytes, times="nominal")
    loss = loss_with(told.peak_bytes)
    steps(module, run, x, y, loss, 2)
    gc.collect()
    before = mt.get_memory_info()["current"]
    gc.disable()
    try:
        with pytest.warns(RuntimeWarning, match="more in use than planned"):
            peaks, _ = steps(module, run, x, y, loss, 3)
    finally:
        gc.enable()
    assert mt.get_memory_info()["current"] == before
    assert len(set(peaks)) == 1


@pytest.mark.parametrize("held", [False, True])
def test_the_users_loss_and_its_gradient_are_planned(pool, held):
    layers = *narrow()[:-1], torch.nn.Softplus()
    module, x = torch.nn.Sequential(*layers), torch.randn(512, 64)
    told = mt.estimate(module, (x,), loss=torch.mean, times="nominal")
    tensors = (*module.parameters(), x)
    state = sum(-(-each.untyped_storage().nbytes() // 64) * 64 for each in tensors)
    run = mt.budget(module, told.floor_bytes, loss=torch.mean, times="nominal")
    gc.collect()  # as the first step does
    before, peaks, found = mt.get_memory_info()["current"] - state, [], None
    with warnings.catch_warnings(action="error"):
        for _ in range(4):
            module.zero_grad()
            mt.reset_memory_stats()
            found = run(x).mean()
            found.backward()
            peaks.append(mt.get_memory_info()["peak"] - before)
            found = found if held else None
    assert peaks[1:] == [told.floor_bytes] * 3
    assert mt.get_budget(run).predicted_peak_bytes == told.floor_bytes


def test_a_shape_that_needs_more_is_seen_though_another_was_planned_last(pool):
    module, x, y, state = problem()
    told = mt.estimate(copy.deepcopy(module), (x,))
    limit = told.peak_bytes + told.peak_bytes // 8
    run = mt.budget(module, limit)
    few = x[:2].clone()  # whose step is far below the limit
    loss = loss_with(told.peak_bytes // 2)
    steps(module, run, x, y, loss, 1)
    with pytest.warns(RuntimeWarning, match="planned anew"):
        steps(module, run, few, y[:2], loss, 1)
    peaks, _ = steps(module, run, x, y, loss, 4)
    assert state + peaks[0] > limit  # the second, which is watched
    assert all(state + peak <= limit for peak in peaks[2:])


def test_what_is_planned_again_is_not_planned_a_third_time(pool):
    module, x, y, state = problem()
    told = mt.estimate(copy.deepcopy(module), (x,))
    extra = told.peak_bytes
    limit = extra + (told.peak_bytes + told.floor_bytes) // 2
    run = mt.budget(module, limit)
    with warnings.catch_warnings(action="error"):
        steps(module, run, x, y, loss_with(extra), 3)
        second = mt.get_budget(run).memory_plan
        peaks, _ = steps(module, run, x, y, loss_with(extra), 3)
    assert second.limit_bytes == limit
    assert mt.get_budget(run).memory_plan is second
    assert all(state + peak <= limit for peak in peaks)


def test_the_inputs_of_the_first_step_are_freed(pool):
    module = torch.nn.Linear(4, 1)
    run = mt.budget(module, "1MiB", loss=torch.mean, times="nominal")
    x = torch.randn(8, 4)
    there = ref(x)
    run(x).mean().backward()
    del x
    gc.collect()
    assert there() is None
