"""A budgeted model runs as planned, or not at all, whatever else compiles."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from torch_allocations import pool_peak

import memcfg.torch as mt
from memcfg.errors import InfeasiblePlanError

nn = torch.nn
pytestmark = [
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # PyTorch's own, of its internals
]
compiled = partial(torch.compile, backend="aot_eager")


class Outer(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x).sum()


def network():
    layers = [each for _ in range(6) for each in (nn.Linear(32, 32), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(32, 1))


@pytest.fixture
def pooled(pool):
    """A model at its floor, an input, and its limit; all in a pool that counts."""
    module, x = network(), torch.randn(512, 32)
    told = mt.estimate(module, (x,), times="nominal")
    assert told.floor_bytes < told.eager_bytes / 2
    return mt.budget(module, told.floor_bytes, times="nominal"), x, told.floor_bytes


def of_itself(run, x):
    run.compile(backend="aot_eager")
    return lambda: run(x).sum().backward()


def of_a_function(run, x):
    function = compiled(lambda x: run(x).sum())
    return lambda: function(x).backward()


def of_a_whole_step(run, x):
    return compiled(lambda: run(x).sum().backward())


def of_an_outer_module(run, x):
    outer = compiled(Outer(run))
    return lambda: outer(x).backward()


def of_the_module(run, x):
    other = compiled(run)
    return lambda: other(x).sum().backward()


def below_autocast(run, x):
    """As `accelerate` wraps a model before it compiles it."""
    run.forward = torch.autocast("cpu", enabled=False)(run.forward)
    return of_the_module(run, x)


@pytest.mark.parametrize(
    "way",
    [
        of_the_module,
        of_itself,
        of_a_function,
        of_a_whole_step,
        of_an_outer_module,
        below_autocast,
    ],
)
def test_an_outer_compiler_leaves_the_plan_and_its_peak_alone(pooled, way):
    run, x, limit = pooled
    run(x).sum().backward()
    wanted = [each.grad for each in run.parameters()]
    step = way(run, x)
    peaks = [pool_peak(run, x, step) for _ in range(2)]
    assert max(peaks) <= limit
    assert mt.get_budget(run).predicted_peak_bytes == limit
    assert all(map(torch.equal, (each.grad for each in run.parameters()), wanted))


def test_one_graph_around_a_budgeted_model_is_refused(pooled):
    run, x, _ = pooled
    with pytest.raises(torch._dynamo.exc.Unsupported, match="compiled by memcfg"):
        compiled(run, fullgraph=True)(x)


def stance(*args, **kwargs):
    return torch.compiler.set_stance(*args, **kwargs)


@pytest.mark.parametrize(
    "switched_off",
    [
        partial(stance, "force_eager"),
        partial(stance, "eager_then_compile"),
        partial(torch._dynamo.config.patch, disable=True),
    ],
)
def test_a_model_without_its_plan_is_an_error_before_it_runs(switched_off):
    """Outside of the pool, since PyTorch keeps what "eager_then_compile" has run."""
    module, x = network(), torch.randn(512, 32)
    told = mt.estimate(module, (x,), times="nominal")
    run = mt.budget(module, told.floor_bytes, times="nominal")
    called = []
    run[0].register_forward_hook(lambda *_: called.append(1))
    with switched_off(), pytest.raises(RuntimeError, match="runs only as planned"):
        run(x)
    assert not called
    run(x).sum().backward()  # as planned


def test_the_environments_switch_is_an_error(pooled, monkeypatch):
    run, x, _ = pooled
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    with pytest.raises(RuntimeError, match="TORCHDYNAMO_DISABLE"):
        run(x)
    with pytest.raises(RuntimeError, match="TORCHDYNAMO_DISABLE"):
        mt.budget(network(), "1GiB", example=(x,), times="nominal")


def test_a_mode_under_which_pytorch_traces_nothing_is_named(pooled):
    run, x, _ = pooled
    with (
        FlopCounterMode(display=False),
        pytest.raises(
            RuntimeError, match=r"under FlopCounterMode; take the budget off"
        ),
    ):
        run(x)
    run(x).sum().backward()
    with FlopCounterMode(display=False) as counted:
        mt.budget(run, None)(x)
    assert counted.get_total_flops() > 0


def test_another_backend_is_an_error(pooled):
    run, x, _ = pooled
    with (
        stance("default", force_backend="eager"),
        pytest.raises(RuntimeError, match="ran without its plan"),
    ):
        run(x)


def test_what_is_compiled_is_run_as_planned_or_not_at_all(pooled):
    run, x, _ = pooled
    with torch.no_grad():
        run(x)
    no_plan = pytest.raises(RuntimeError, match="runs only as planned")
    with torch.no_grad(), stance("force_eager"), no_plan:
        run(x)
    with torch.no_grad():
        run(x)
    with torch.no_grad(), stance("eager_on_recompile"):
        run(x)
        with pytest.raises(RuntimeError, match="runs only as planned"):
            run(x[:7])


def test_a_refusal_is_one_where_pytorch_would_go_on_eagerly(pooled):
    run, x, limit = pooled
    low = mt.budget(run, limit - 64, times="nominal")
    goes_on = torch._dynamo.config.patch(suppress_errors=True)
    with goes_on, pytest.raises(InfeasiblePlanError):
        low(x)


def test_a_backward_phase_is_memcfgs_or_an_error(pooled):
    run, x, _ = pooled
    loss = run(x).sum()
    other = torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager"))
    with (
        other,
        pytest.raises(RuntimeError, match="replaced the planned backward phase"),
    ):
        loss.backward()
    assert all(each.grad is None for each in run.parameters())


@pytest.mark.parametrize("kind", [nn.Identity, nn.Flatten])
def test_a_model_that_computes_nothing_is_no_error(pooled, kind):
    x = torch.ones(2, 3)
    for context in (nullcontext(), torch.no_grad()):
        with context:
            assert torch.equal(mt.budget(kind(), "1MiB", times="nominal")(x), x)
