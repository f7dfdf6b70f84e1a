"""What planned steps of PyTorch say of arguments that are none."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import memcfg.torch as mt
from memcfg.errors import InfeasiblePlanError, PlanError
from memcfg.plan import Free, auto, gist, out_of_core, share

pytestmark = pytest.mark.filterwarnings("ignore")


def _positional(graph, limit):
    raise AssertionError("it is not called")


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (gist, r"policy is a policy: call plan\.gist\(\)"),
        (auto, r"call plan\.auto\(\)"),
        (out_of_core, r"call plan\.out_of_core\(\)"),
        ("auto", r"such as plan\.auto\(\), not 'auto'"),
        (dict, "such as plan"),
        (0, "not 0"),
        (_positional, r"called as policy\(graph, limit_bytes=\.\.\.\)"),
    ],
)
def test_a_policy_that_is_none_is_told_at_the_call(policy, words):
    with pytest.raises(TypeError, match=words):
        mt.budget(torch.nn.Linear(4, 2), "1MiB", policy=policy)
    with pytest.raises(TypeError, match=words):
        mt.backend("1MiB", policy=policy)


def test_policies_and_functions_that_plan_are_taken():
    model, x = torch.nn.Linear(4, 2), torch.ones(3, 4)

    def planned(graph, *, limit_bytes=None):
        return share()(graph, limit_bytes=limit_bytes)

    for policy in (None, auto(), planned):
        with pytest.raises(InfeasiblePlanError) as caught:
            mt.budget(model, 64, example=(x,), policy=policy, times="nominal")
        assert 64 < caught.value.smallest_limit_bytes < 2**20
        run = mt.budget(model, "1MiB", example=(x,), policy=policy, times="nominal")
        assert 0 < mt.get_budget(run).predicted_peak_bytes <= 2**20
        assert "1.00 MiB" in repr(mt.backend("1MiB", policy=policy, times="nominal"))


@pytest.mark.parametrize(
    "loss", [torch.nn.CrossEntropyLoss(), torch.nn.functional.mse_loss]
)
def test_a_loss_of_targets_is_told_how_to_take_the_outputs_alone(loss):
    model, x, targets = torch.nn.Linear(4, 2), torch.ones(3, 4), torch.ones(3, 2)
    words = r"takes the outputs alone: loss=lambda out: cross_entropy\(out, targets\)"
    with pytest.raises(ValueError, match=words):
        mt.estimate(model, (x,), loss=loss, times="nominal")
    with pytest.raises(ValueError, match=words):
        mt.budget(model, math.inf, example=(x,), loss=loss, times="nominal")
    as_told = mt.estimate(
        model, (x,), loss=lambda out: loss(out, targets), times="nominal"
    )
    assert as_told.peak_bytes > 0


def test_inputs_of_a_wrong_shape_are_told_in_a_line(caplog):
    model, x = torch.nn.Linear(4, 2), torch.ones(3, 5)
    words = r"^the model cannot be traced with these inputs: .*\[3, 5\] X \[4, 2\]\.$"
    for call in (
        lambda: mt.budget(model, math.inf, example=(x,), times="nominal"),
        lambda: mt.budget(model, math.inf, times="nominal")(x),
        lambda: mt.estimate(model, (x,), times="nominal"),
        lambda: mt.estimate(model, (x,), loss=torch.sum, times="nominal"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    assert not caplog.records  # of PyTorch, with tracebacks of its own
    mode = torch._subclasses.FakeTensorMode()
    with mode, pytest.raises(RuntimeError):  # a user's own, of which it does tell
        torch.empty(3, 5) @ torch.empty(4, 2)
    assert caplog.records


def test_another_error_of_a_loss_is_told_as_it_is():
    with pytest.raises(ValueError, match="no scalar") as caught:
        mt.estimate(torch.nn.Linear(4, 2), (torch.ones(3, 4),), loss=lambda out: out)
    assert "alone" not in str(caught.value)


def test_what_is_sparse_or_lazy_is_refused():
    sparse = torch.nn.Embedding(100, 16, sparse=True)
    words = (torch.zeros(8, dtype=torch.long),)
    lazy, x = torch.nn.LazyLinear(4), (torch.ones(2, 3),)
    for call in (mt.estimate, lambda m, x: mt.budget(m, "1MiB", example=x)):
        with pytest.raises(ValueError, match=r"sparse_coo .*sparse=False"):
            call(sparse, words)
        with pytest.raises(ValueError, match=r"lazy layers .* run it once"):
            call(lazy, x)


def _frees_early(graph, *, limit_bytes=None):
    """A plan that frees all that it frees before anything runs."""
    made = share()(graph, limit_bytes=limit_bytes)
    first = [each for each in made.actions if isinstance(each, Free)]
    rest = [each for each in made.actions if not isinstance(each, Free)]
    return replace(made, actions=(*first, *rest))


def _keeps_no_limit(graph, *, limit_bytes=None):
    return replace(share()(graph), limit_bytes=limit_bytes)


@pytest.mark.parametrize(
    ("policy", "words"),
    [(_frees_early, "the plan is invalid: "), (_keeps_no_limit, "was asked for")],
)
def test_a_plan_is_judged_before_anything_runs(policy, words):
    model, x = torch.nn.Linear(64, 64), torch.ones(64, 64)
    before = model.weight.clone()
    floor = mt.estimate(model, (x,), times="nominal").floor_bytes
    run = mt.budget(model, floor - 64, policy=policy, times="nominal")
    for call in (lambda: run(x), lambda: mt.get_budget(run).plan((x,), {})):
        with pytest.raises(PlanError, match=words):
            call()
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda m: mt.budget(m, limit_bytes="1MiB"),
            r"budget\(\) has no argument 'limit_bytes': did you mean 'limit'\?; it "
            "takes model, limit, example, ",
        ),
        (lambda m: mt.budget(m), "budget.* missing a required argument: 'limit'"),
        (lambda m: mt.budget(m, 1, 2), "budget.* too many positional arguments"),
        (lambda m: mt.estimate(m, inputs=()), "estimate.* no argument 'inputs'; it"),
        (lambda m: mt.backend("1MiB", spill="host"), "backend.* no argument 'spill'"),
        (lambda m: mt.saved_tensors("1MiB", codec=[]), "did you mean 'codecs'"),
        (lambda m: mt.estimate(len, (1,)), "torch.nn.Module, not builtin_function"),
        (
            lambda m: mt.budget(m, math.inf, loss="mse"),
            "such as lambda out: .*, not 'mse'",
        ),
    ],
)
def test_a_wrong_call_is_told_what_arguments_are_called(call, words):
    with pytest.raises(TypeError, match=words):
        call(torch.nn.Linear(4, 2))


def test_a_nested_tensor_runs_or_is_refused_in_a_sentence(fresh_torch):
    parts = [torch.ones(2, 4), torch.ones(3, 4)]
    for layout in (torch.strided, torch.jagged):
        model = mt.budget(nn.Linear(4, 4), "1MiB", times="nominal")
        nested = torch.nested.nested_tensor(parts, layout=layout)
        if layout is torch.jagged:
            model(nested).values().sum().backward()
            assert model.weight.grad is not None
        else:
            with pytest.raises(ValueError, match=r"layout=torch\.jagged, or pad it"):
                model(nested)
            with torch.no_grad():
                assert model(nested).is_nested
