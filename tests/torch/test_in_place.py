"""A budget is put on a model, which stays what it is, and is taken off again."""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import math
import sys
import time
import warnings

import pytest
import torch
from torch import nn

import memcfg.torch as mt
from memcfg.errors import InfeasiblePlanError

pytestmark = [
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # PyTorch's own, of its internals
]
X = torch.linspace(0, 1, 64).reshape(8, 8)


class Net(nn.Module):
    """A model with an attribute, a keyword argument, and an output by name."""

    def __init__(self):
        super().__init__()
        self.width = 8
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x, labels=None):
        out = self.layers(x)
        return {"logits": out, "loss": (out - (0 if labels is None else labels)).sum()}


def test_the_model_stays_what_it_is():
    model, plain = Net(), Net()
    assert mt.budget(model, "1MiB", times="nominal") is model
    assert type(model) is Net
    assert inspect.signature(model.forward) == inspect.signature(plain.forward)
    assert [*dict(model.named_modules())] == [*dict(plain.named_modules())]
    assert [*model.state_dict()] == [*plain.state_dict()]
    assert repr(model) == repr(plain)
    assert model.width == 8
    assert isinstance(model.layers[1], nn.Tanh)
    assert nn.Sequential(model)[0] is model
    outer = nn.Sequential(model)  # whose names go through the model
    outer.load_state_dict({f"0.{k}": v for k, v in plain.state_dict().items()})
    assert torch.equal(model(X, labels=1)["loss"], plain(X, labels=1)["loss"])
    assert mt.get_budget(model).predicted_peak_bytes > 0


def test_hooks_of_the_model_run_in_each_call():
    model, seen = Net(), []
    model.register_forward_hook(lambda *_: seen.append(len(seen)))
    mt.budget(model, "1MiB", times="nominal")
    for _ in range(3):
        model(X)["loss"].backward()
    assert seen == [0, 1, 2]


def test_none_takes_the_budget_off():
    model = Net()
    forward = type(model).forward
    mt.budget(model, "1MiB", times="nominal")
    model(X)
    for options in ({"example": (X,)}, {"inductor": True}, {"times": "nominal"}):
        with pytest.raises(TypeError, match=r"pass math\.inf to plan without a limit"):
            mt.budget(model, None, **options)
    assert "forward" in vars(model)  # as before
    assert mt.budget(model, None) is model
    assert "forward" not in vars(model)
    assert model.forward.__func__ is forward
    assert mt.budget(model, None) is model  # there is none
    with pytest.raises(ValueError, match="the Net has no budget"):
        mt.get_budget(model)
    for call in (mt.get_budget, lambda given: mt.budget(given, None)):
        with pytest.raises(TypeError, match=r"torch\.nn\.Module, not int"):
            call(3)


def test_another_budget_replaces_the_first():
    model = mt.budget(Net(), "1MiB", times="nominal")
    with pytest.raises(InfeasiblePlanError):
        mt.budget(model, 64, example=(X,), times="nominal")
    assert mt.get_budget(model).limit_bytes == 2**20  # as before
    mt.auto_checkpoint(model, memory_budget="2MiB", example=(X,), times="nominal")
    assert mt.get_budget(model).limit_bytes == 2 * 2**20
    mt.budget(model, math.inf, times="nominal")
    assert mt.get_budget(model).limit_bytes is None
    mt.budget(model, None)
    assert "forward" not in vars(model)


def test_an_estimate_is_of_the_model_without_its_budget():
    model = Net()
    told = mt.estimate(model, (X,), times="nominal")
    mt.budget(model, told.floor_bytes, times="nominal")
    assert mt.estimate(model, (X,), times="nominal") == told


def test_a_forward_that_others_wrap_keeps_its_budget_until_it_is_taken_off():
    model, plain, calls = Net(), Net(), []
    plain.load_state_dict(model.state_dict())
    mt.budget(model, "1MiB", times="nominal")
    inner = model.forward

    @functools.wraps(inner)
    def wrapped(*args, **kwargs):
        calls.append(1)
        return inner(*args, **kwargs)

    model.forward = wrapped
    wanted = plain(X)["loss"]
    assert torch.equal(model(X)["loss"], wanted)
    budget = mt.get_budget(model)
    assert budget.predicted_peak_bytes > 0
    mt.budget(model, None)
    with pytest.raises(ValueError, match="has no budget"):
        mt.get_budget(model)
    assert torch.equal(model(X)["loss"], wanted)
    assert len(calls) == 2
    mt.budget(model, "1MiB", times="nominal")  # of what was wrapped, with its wrapper
    assert torch.equal(model(X)["loss"], wanted)


def test_a_forward_that_the_model_has_of_its_own_is_planned_and_comes_back():
    model = Net()
    own = functools.partial(Net.forward, model, labels=2)
    model.forward = own
    wanted = model(X)["loss"]
    mt.budget(model, "1MiB", times="nominal")
    assert torch.equal(model(X)["loss"], wanted)
    assert mt.get_budget(model).predicted_peak_bytes > 0
    mt.budget(model, None)
    assert model.forward is own


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_model_has_no_plan(strict):
    model = mt.budget(Net(), "1MiB", times="nominal")
    program = torch.export.export(model, (X,), strict=strict)
    with torch.no_grad():
        wanted = model(X)["loss"]
    assert torch.equal(program.module()(X)["loss"], wanted)


def test_a_copy_has_a_budget_of_its_own():
    model = mt.budget(Net(), "1MiB", times="nominal")
    twin = copy.deepcopy(model)
    mt.budget(model, None)
    assert mt.get_budget(twin).module is twin
    assert torch.equal(twin(X)["loss"], model(X)["loss"])
    assert mt.get_budget(twin).predicted_peak_bytes > 0


class Tells(Net):
    """A model that prints, logs, warns and waits."""

    def forward(self, x):
        out = self.layers(x)
        print("seen", tuple(x.shape), f"{x.dtype}", out)
        warnings.warn("beware", FutureWarning, stacklevel=2)
        _LOG.warning_once("%s of these", 3)
        if _LOG.isEnabledFor(logging.DEBUG):
            raise ValueError("it is not")
        time.sleep(0)
        return out.square().sum()


_LOG = logging.getLogger("of a test")


def test_a_forward_that_tells_something_is_planned_and_tells_it(monkeypatch, capsys):
    once = functools.lru_cache(None)(lambda self, *args: self.warning(*args))
    monkeypatch.setattr(logging.Logger, "warning_once", once, raising=False)
    said = []
    monkeypatch.setattr(_LOG, "warning", lambda *args: said.append(args))
    model, plain = Tells(), Tells()
    plain.load_state_dict(model.state_dict())
    mt.budget(model, "1MiB", example=(X,), times="nominal")
    assert capsys.readouterr().out == ""
    for _ in range(2):
        with pytest.warns(FutureWarning, match="beware"):
            loss = model(X)
        loss.backward()
    told = "seen (8, 8) torch.float32 <tensor of shape (8, 1)>\n"
    assert capsys.readouterr().out == 2 * told
    assert said == [("%s of these", 3)]
    assert torch.equal(loss, plain(X))


class Counts(Net):
    """A model with a number that each call changes, as the sequence length may."""

    count = 0

    def forward(self, x):
        self.count += 1
        return self.layers(x).square().sum() * float(f"{self.count}.5")


def test_numbers_that_change_in_each_step_end_nothing(monkeypatch):
    for name in ("_budgeted", "_planned_call"):  # of 64, which take their time
        module = sys.modules[f"memcfg.torch.budget.{name}"]
        monkeypatch.setattr(module, "TRACES", 3)
    model, plain = Counts(), Counts()
    plain.load_state_dict(model.state_dict())
    mt.budget(model, "1MiB", times="nominal")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(9):
            model.zero_grad(), plain.zero_grad()
            loss, wanted = model(X), plain(X)
            loss.backward(), wanted.backward()
            assert torch.equal(loss, wanted)
    told = [str(each.message) for each in caught]
    assert len([each for each in told if "dropped to trace others" in each]) == 1
    assert model.count == plain.count == 9
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
