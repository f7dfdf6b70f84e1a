"""Budgets of `nn.LSTM`: oneDNN's layers with eager's bits, and steps below them."""

from __future__ import annotations

import copy
import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_allocations import allocated_peak, rounded
from torch_steps import LSTM, last_step, problem, same_bits, step

import memcfg.torch as mt
from memcfg.errors import InfeasiblePlanError

pytestmark = [
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # PyTorch's own, of its internals
]
F = nn.functional
STEPS = "nn.LSTM runs as the ops of its steps"


class Layers(nn.Module):
    """An LSTM whose sequence and last states are all read."""

    def __init__(self, given_state, **how):
        super().__init__()
        self.inner, self.given_state = nn.LSTM(12, 16, **how), given_state
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        batch = x.shape[0 if self.inner.batch_first else 1]
        count = self.inner.num_layers * (1 + self.inner.bidirectional)
        state = (self.scale * 0.3).expand(count, batch, 16)
        out, (h, c) = self.inner(x, (state, 2 * state) if self.given_state else None)
        return torch.cat([out.mean((0, 1)), h.mean((0, 1)), c.mean((0, 1))])


def one_step(module, run, x):
    torch.manual_seed(1)
    for each in module.parameters():
        each.grad = None
    loss = run(x).square().sum()
    loss.backward()
    return loss.detach()


def same_gradients(one, other):
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(
        (a.grad is None and b.grad is None) or torch.equal(a.grad, b.grad)
        for a, b in pairs
    )


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    st.fixed_dictionaries(
        {
            "num_layers": st.integers(1, 3),
            "bias": st.booleans(),
            "batch_first": st.booleans(),
            "dropout": st.sampled_from([0.0, 0.4]),
            "bidirectional": st.booleans(),
        }
    ),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_all_that_a_layer_can_be_has_eagers_bits(how, given_state, train, input_learns):
    torch._dynamo.reset()
    eager = Layers(given_state, **how).train(train)
    module = copy.deepcopy(eager)
    x = torch.randn(5, 3, 12)
    ours = x.clone().requires_grad_(input_learns)
    x.requires_grad_(input_learns)
    wanted = one_step(eager, eager, x)
    run = mt.budget(module, math.inf)
    assert torch.equal(one_step(module, run, ours), wanted)
    assert same_gradients(module, eager)
    assert not input_learns or torch.equal(ours.grad, x.grad)
    kinds = {op.type for op in last_step(run).traced.graph.ops}
    assert "aten.mkldnn_rnn_layer" in kinds
    assert "aten.mkldnn_rnn_layer_backward" in kinds


def measured_bytes(module, run, x, y):
    step(module, run, x, y)
    for each in module.parameters():
        each.grad = None
    used = allocated_peak(lambda: step(module, run, x, y))
    return used + sum(rounded(each.nbytes) for each in (*module.parameters(), x))


def least(module, x):
    """The smallest limit, of layers or of steps."""
    with pytest.raises(InfeasiblePlanError) as refused:
        mt.budget(copy.deepcopy(module), 1, example=(x,))
    return refused.value.smallest_limit_bytes


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.LSTM(32, 32, 2, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.inner(x)[0][:, -1])


def test_bytes_are_as_predicted_down_to_the_last_layer_and_below():
    original = Deep()
    x, y = torch.randn(64, 3, 32), torch.randint(10, (64,))
    eager, steps = copy.deepcopy(original), copy.deepcopy(original)
    wanted = step(eager, eager, x, y)
    with torch.backends.mkldnn.flags(enabled=False):
        wanted_of_steps = step(steps, steps, x, y)
    told = mt.estimate(copy.deepcopy(original), (x,))
    floor = least(original, x)
    assert floor < told.floor_bytes < told.peak_bytes
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mt.budget(copy.deepcopy(original), floor, example=(x,))
    (text,) = (str(each.message) for each in caught if STEPS in str(each.message))
    layers = int(text.rpartition("raise the limit to ")[2].partition(" B")[0])
    assert layers == pytest.approx(told.floor_bytes, rel=0.01)
    for limit in (told.peak_bytes, layers, layers - 64, floor):
        torch._dynamo.reset()
        module = copy.deepcopy(original)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run = mt.budget(module, limit, example=(x,))
            measured = measured_bytes(module, run, x, y)
        assert measured <= limit
        assert 0.98 <= mt.get_budget(run).predicted_peak_bytes / measured <= 1.02
        warned = any(STEPS in str(each.message) for each in caught)
        assert warned == (limit < layers)
        loss = step(module, run, x, y)
        assert torch.equal(loss, wanted_of_steps if warned else wanted)
        assert same_bits(module, steps if warned else eager)
    with pytest.raises(InfeasiblePlanError) as refused:
        mt.budget(copy.deepcopy(original), floor - 64, example=(x,))
    assert refused.value.smallest_limit_bytes == floor


def test_tensors_of_layers_leave_and_come_back(tmp_path):
    original = Deep()
    x, y = torch.randn(64, 5, 32), torch.randint(10, (64,))
    eager = copy.deepcopy(original)
    wanted = step(eager, eager, x, y)
    roomy = mt.budget(copy.deepcopy(original), math.inf, example=(x,))
    limit = mt.get_budget(roomy).predicted_peak_bytes * 4 // 5
    run = mt.budget(original, limit, spill_to=tmp_path)
    assert torch.equal(step(original, run, x, y), wanted)
    assert same_bits(original, eager)


def test_nominal_costs_know_no_workspace_and_have_steps():
    original, x, y = problem(LSTM)
    steps = copy.deepcopy(original)
    with torch.backends.mkldnn.flags(enabled=False):
        wanted = step(steps, steps, x, y)
    run = mt.budget(original, math.inf, times="nominal")
    with pytest.warns(RuntimeWarning, match=f"^without measured costs {STEPS}"):
        assert torch.equal(step(original, run, x, y), wanted)
    assert same_bits(original, steps)


@pytest.mark.parametrize("way", ["in bfloat16", "with inductor"])
def test_a_warning_says_where_eagers_layers_are_steps(way):
    original, x, _ = problem(LSTM)
    if way == "in bfloat16":
        original, x = original.bfloat16(), x.bfloat16()
    run = mt.budget(original, math.inf, inductor=way == "with inductor")
    with pytest.warns(RuntimeWarning, match=f"^{way} {STEPS}"):
        run(x).float().sum().backward()
    assert original.inner.weight_ih_l0.grad.isfinite().all()


@pytest.mark.filterwarnings("error:.*the ops of its steps")
def test_nothing_is_said_where_eager_has_steps_too():
    original, x, y = problem(LSTM)
    original.inner = nn.LSTM(32, 64, batch_first=True, proj_size=16)
    original.head = nn.Linear(16, 10)
    run = mt.budget(original, math.inf, times="nominal")
    step(original, run, x, y)


class Mixed(nn.Module):
    """An LSTM by any way to call it, in front of a layer that is trained."""

    def __init__(self, way):
        super().__init__()
        self.inner, self.way = nn.LSTM(32, 32), way
        self.head = nn.Linear(32, 10)
        if way == "frozen":
            self.inner.requires_grad_(False)

    def called(self, x):
        if self.way != "by name":
            return self.inner(x)[0]
        zeros = x.new_zeros(1, x.shape[1], 32)
        return torch.lstm(
            x,
            (zeros, zeros),
            list(self.inner._flat_weights),
            has_biases=True,
            num_layers=1,
            dropout=0.0,
            train=self.training,
            bidirectional=False,
            batch_first=False,
        )[0]

    def forward(self, x):
        if self.way == "checkpointed":
            made = checkpoint(self.called, x, use_reentrant=False)
        elif self.way == "no_grad":
            with torch.no_grad():
                made = self.called(x)
        else:
            made = self.called(x)
        return self.head(made[-1])


@pytest.mark.parametrize(
    "way", ["plain", "frozen", "no_grad", "checkpointed", "by name"]
)
def test_gradient_mode_and_the_way_of_calling_have_eagers_bits(way):
    original = Mixed(way)
    x, y = torch.randn(5, 3, 32), torch.randint(10, (3,))
    eager = copy.deepcopy(original)
    loss = F.cross_entropy(eager(x), y)
    loss.backward()
    run = mt.budget(original, "1GiB")
    found = F.cross_entropy(run(x), y)
    found.backward()
    assert torch.equal(found, loss)
    assert same_gradients(original, eager)
    kinds = {op.type for op in last_step(run).traced.graph.ops}
    layer = "memcfg.lstm_inference" if way == "no_grad" else "aten.mkldnn_rnn_layer"
    assert layer in kinds


def test_all_frozen_runs_as_eager_does():
    module = nn.LSTM(32, 32).requires_grad_(False)
    x = torch.randn(5, 3, 32)
    wanted = module(x)[0]
    assert torch.equal(mt.budget(module, math.inf)(x)[0], wanted)


def test_a_layer_without_room_to_be_tried_is_refused_and_steps_run():
    class Last(nn.LSTM):
        def forward(self, x):
            return super().forward(x)[0][-1]

    module, x = Last(64, 64), torch.randn(6, 256, 64)
    limit = least(module, x) * 6 // 5
    run = mt.budget(module, limit)
    state = sum(rounded(each.nbytes) for each in (*module.parameters(), x))
    mt.limit_cpu(limit - state + 2**20, tag_modules=False)  # a layer alone has 6.3 MiB
    try:
        with pytest.warns(RuntimeWarning, match=STEPS):
            run(x).sum().backward()
    finally:
        for each in module.parameters():
            each.grad = None
        mt.limit_cpu(None)


def test_layers_without_gradients_have_no_workspace():
    module, x, _ = problem(LSTM)
    run = mt.budget(module, "1GiB")
    with torch.no_grad():
        wanted = module(x)
        assert torch.equal(run(x), wanted)
        used = allocated_peak(lambda: run(x))
    state = sum(rounded(each.nbytes) for each in (*module.parameters(), x))
    assert used + state <= mt.get_budget(run).predicted_peak_bytes
    assert mt.get_budget(run).predicted_peak_bytes <= 1.02 * (used + state)


@pytest.mark.parametrize("how", [{"proj_size": 8}, {"dtype": torch.float64}])
def test_what_onednn_has_not_is_eagers_too(how):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.LSTM(12, 16, **how)

        def forward(self, x):
            return self.inner(x)[0].mean((0, 1))

    eager = Net()
    module = copy.deepcopy(eager)
    x = torch.randn(5, 3, 12, dtype=how.get("dtype"))
    wanted = one_step(eager, eager, x)
    run = mt.budget(module, math.inf)
    assert torch.equal(one_step(module, run, x), wanted)
    assert same_gradients(module, eager)
