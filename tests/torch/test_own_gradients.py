"""Resizing and losses keep the ops of eager mode, and with them its bits."""

from __future__ import annotations

import copy
import math
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg.torch as mt

F = torch.nn.functional
TARGETS = torch.tensor([1, 2, 0, 4])
LABELS = torch.tensor([[1, 2, -1, -1, -1]] * 4)
MODES = {  # by the number of axes that are resized
    1: ("nearest", "nearest-exact", "linear"),
    2: ("nearest", "nearest-exact", "bilinear", "bicubic"),
    3: ("nearest", "nearest-exact", "trilinear"),
}
FUNCTIONS = {
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "multi_margin_loss": lambda h: F.multi_margin_loss(h, TARGETS),
    "multilabel_margin_loss": lambda h: F.multilabel_margin_loss(h, LABELS),
    "antialias": lambda h: F.interpolate(
        h[None, None], size=(3, 4), mode="bicubic", antialias=True
    ),
}


class Apply(torch.nn.Module):
    """A layer, a function of its output, and a loss."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.function = torch.nn.Linear(5, 5), function

    def forward(self, x):
        return self.function(torch.tanh(self.layer(x))).square().mean()


def step(model, x):
    """Return the bits of a loss and of all gradients."""
    for each in model.parameters():
        each.grad = None
    loss = model(x)
    loss.backward()
    return [loss.detach(), *(each.grad for each in model.parameters())]


def has_bits_of_eager(model, plain, x):
    return all(map(torch.equal, step(model, x), step(plain, x)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_the_bits_of_eager_mode(name):
    model = Apply(FUNCTIONS[name])
    plain = copy.deepcopy(model)
    mt.budget(model, math.inf, times="nominal")
    assert has_bits_of_eager(model, plain, torch.randn(4, 5))
    assert mt.get_budget(model).memory_plan is not None


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_resizing_has_the_bits_of_eager_mode_within_any_limit(data):
    axes = data.draw(st.sampled_from([*MODES]))
    mode = data.draw(st.sampled_from(MODES[axes]))
    options = {}
    if not mode.startswith("nearest"):
        options["align_corners"] = data.draw(st.booleans())
    size = data.draw(st.tuples(*[st.integers(2, 9)] * axes))
    scale = data.draw(st.sampled_from([0.5, 1.7, 2.0]))

    def resize(h):
        h = h.reshape(1, 2, *[1] * (axes - 1), 10).expand(1, 2, *[4] * (axes - 1), 10)
        h = torch.sigmoid(F.interpolate(h, size=size, mode=mode, **options))
        return F.interpolate(h, scale_factor=scale, mode=mode, **options)

    model = Apply(resize)
    plain, smaller = copy.deepcopy(model), copy.deepcopy(model)
    x = torch.randn(4, 5)
    mt.budget(model, math.inf, times="nominal")
    assert has_bits_of_eager(model, plain, x)
    floor = mt.estimate(smaller, (x,), times="nominal").floor_bytes
    mt.budget(smaller, floor, times="nominal")
    assert has_bits_of_eager(smaller, plain, x)
    assert mt.get_budget(smaller).memory_plan.peak_bytes <= floor


def test_lengths_of_a_range_share_a_plan():
    def resize(h):
        return F.interpolate(h[None], scale_factor=1.5, mode="linear")

    model = Apply(resize)
    plain = copy.deepcopy(model)
    mt.budget(model, math.inf, times="nominal")
    plans = set()
    for length in (40, 33, 48, 45, 36):
        x = torch.randn(length, 5)
        torch.testing.assert_close(step(model, x), step(plain, x))
        plans.add(mt.get_budget(model).memory_plan.peak_bytes)
    assert len(plans) == 2  # of the first length, and of the range


def test_an_interrupt_leaves_the_functions_of_pytorch(monkeypatch):
    op = torch.ops.aten.upsample_bilinear2d.vec
    before = dict(op.py_kernels)

    class Interrupted(dict):
        def __delitem__(self, key):
            raise KeyboardInterrupt

    last = torch.ops.aten.upsample_trilinear3d.vec
    monkeypatch.setattr(last, "py_kernels", Interrupted(last.py_kernels))
    model = Apply(lambda h: F.interpolate(h[None], size=7))
    plain = copy.deepcopy(model)
    mt.budget(model, math.inf, times="nominal")
    x = torch.randn(4, 5)
    with pytest.raises(KeyboardInterrupt):
        model(x)
    assert dict(op.py_kernels) == before
    monkeypatch.undo()
    assert has_bits_of_eager(model, plain, x)
    assert dict(op.py_kernels) == before


def test_other_traces_are_as_before():
    op = torch.ops.aten.upsample_bilinear2d.vec
    before = dict(op.py_kernels)
    assert before
    failed = []

    def train(seed):
        model = Apply(lambda h: F.interpolate(h[None, None], size=(7, seed)))
        plain = copy.deepcopy(model)
        mt.budget(model, math.inf, times="nominal")
        if not has_bits_of_eager(model, plain, torch.randn(4, 5)):
            failed.append(seed)

    threads = [threading.Thread(target=train, args=(3 + i,)) for i in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failed
    assert dict(op.py_kernels) == before
