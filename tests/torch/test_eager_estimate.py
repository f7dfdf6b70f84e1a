"""What `estimate` tells of an eager step, beside what eager PyTorch allocates."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_allocations import allocated_peak, rounded
from torch_steps import NETWORKS, problem

import memcfg.torch as mt

F = nn.functional
pytestmark = [
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # PyTorch's own, of its internals
]


def sizes(tensors):
    found = {}
    for each in tensors:
        storage = each.untyped_storage()
        found[storage._cdata] = rounded(storage.nbytes())
    return sum(found.values())


def measured(module, x, loss, optimizer=None, gradients=False):
    """The bytes of the second step of a loop whose variables live on."""
    variables = []

    def run():
        variables.clear()
        if not gradients:
            module.zero_grad(set_to_none=True)
        out = module(x)
        value = loss(out)
        variables.extend((out, value))
        value.backward()
        if optimizer is not None:
            optimizer.step()

    run()
    variables.clear()
    if not gradients:
        module.zero_grad(set_to_none=True)
    there = [*module.parameters(), *module.buffers(), x]
    there += [each.grad for each in there if each.grad is not None]
    if optimizer is not None:
        for held in optimizer.state.values():
            there += [each for each in held.values() if isinstance(each, torch.Tensor)]
    before = sizes(there)
    return before + allocated_peak(run)


def check(module, x, loss, least=1, **options):
    told = mt.estimate(module, (x,), loss=loss, **options).eager_bytes
    found = measured(module, x, loss, **options)
    assert least <= told / found <= 1.01


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_estimate_is_what_eager_allocates(kind):
    module, x, y = problem(kind)
    check(module, x, partial(F.cross_entropy, target=y))


class Shared(nn.Module):
    """Gradients are summed: of a weight read twice, of branches, of an expansion."""

    def __init__(self, width=96):
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.ones(width, width))
        self.turned = nn.Parameter(torch.ones(width, 2 * width))

    def forward(self, x):
        once = torch.tanh(self.inner(x))
        twice = torch.sigmoid(self.inner(once)) + once
        spread = twice + x.mean(0, keepdim=True).expand_as(twice)
        both = self.scale + self.scale.t()
        return (spread @ both) @ self.turned.view(2 * x.shape[1], -1).t()


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
            for _ in range(4)
        )
        self.reentrant = reentrant

    def forward(self, x):
        for each in self.layers:
            x = checkpoint(each, x, use_reentrant=self.reentrant)
        return x


@pytest.mark.parametrize("rows", [4, 512])
def test_gradients_that_are_summed_are_in_place_as_in_eager(rows):
    check(Shared(), torch.randn(rows, 96), lambda out: out.square().mean())


def test_checkpoints_are_run_again_within_backward():
    module = Checkpointed(reentrant=False)
    x = torch.randn(512, 64)
    check(module, x, lambda out: out.square().mean(), least=0.99)  # generator's states
    plain = nn.Sequential(*copy.deepcopy(module).layers)
    told = [
        mt.estimate(each, (x,), loss=lambda out: out.square().mean()).eager_bytes
        for each in (module, plain)
    ]
    assert told[0] < 0.8 * told[1]


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_of_both_kinds_are_known(reentrant):
    module = nn.Sequential(nn.Linear(64, 64), Checkpointed(reentrant))
    x = torch.randn(512, 64)
    check(module, x, lambda out: out.square().mean(), least=0.98)


class Selected(nn.Module):
    """Parts of one tensor, whose gradients autograd adds in place."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(96, 3 * 96)

    def forward(self, x):
        parts = self.inner(x).view(len(x), 3, -1).transpose(0, 1).contiguous()
        return parts[0] * parts[1] + parts[2]


@pytest.mark.parametrize("kind", ["selected", "attention"])
def test_gradients_of_parts_are_added_in_place(kind):
    module, x = Selected(), torch.randn(256, 96)
    if kind == "attention":
        module, x = Attention(), torch.randn(8, 12, 128)
    check(module, x, lambda out: out.square().mean(), least=0.999)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(128, 4, batch_first=True)

    def forward(self, x):
        return self.inner(x, x, x)[0]


def test_a_loss_may_read_the_models_parameters():
    module = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128))

    def loss(out):
        decay = torch.stack([each.square().sum() for each in module.parameters()])
        return out.square().mean() + 1e-3 * decay.sum()

    x = torch.randn(16, 128)
    check(module, x, loss)
    module.zero_grad()
    mt.estimate(module, (x,), loss=loss)
    assert all(each.grad is None for each in module.parameters())


@pytest.mark.parametrize("times", ["nominal", "measured"])
def test_random_numbers_are_left_as_they_were(times):
    module, x = Dropped(), torch.randn(8, 5, 16)
    before = torch.get_rng_state()
    mt.estimate(module, (x,), loss=torch.sum, times=times)
    assert torch.equal(torch.get_rng_state(), before)


class Dropped(nn.Module):
    """Draws in recurrent layers, which do so in no op of their own."""

    def __init__(self):
        super().__init__()
        self.inner = nn.LSTM(16, 16, 2, dropout=0.2)

    def forward(self, x):
        return self.inner(x)[0]


@pytest.mark.parametrize("foreach", [False, True])
def test_the_optimizer_is_part_of_the_step(foreach):
    module = nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 300))
    adam = torch.optim.Adam(module.parameters(), foreach=foreach)
    x = torch.randn(16, 256)
    check(module, x, lambda out: out.square().mean(), optimizer=adam)


def test_gradients_that_are_there_are_added_to():
    module, x = nn.Sequential(nn.Linear(64, 256), nn.ReLU()), torch.randn(32, 64)
    loss = torch.sum
    without = mt.estimate(module, (x,), loss=loss).eager_bytes
    loss(module(x)).backward()
    told = mt.estimate(module, (x,), loss=loss).eager_bytes
    found = measured(module, x, loss, gradients=True)
    assert 1 <= told / found <= 1.01
    assert told > without


def test_without_a_loss_three_times_the_outputs_are_counted_for_it():
    module, x = nn.Linear(16, 1024), torch.randn(64, 16)
    told = mt.estimate(module, (x,)).eager_bytes
    outputs = rounded(64 * 1024 * 4)
    assert told >= sizes([*module.parameters(), x]) + 4 * outputs


def test_a_model_in_inference_has_an_estimate():
    module, x = nn.Linear(16, 8).requires_grad_(False), torch.randn(4, 16)
    told = mt.estimate(module, (x,), times="nominal")
    assert told.eager_bytes >= sizes([*module.parameters(), x]) + rounded(4 * 8 * 4)


class Counting(nn.Module):
    """Keeps what it has seen, as position tables and statistics do."""

    def __init__(self):
        super().__init__()
        self.inner, self.calls, self.table = nn.Linear(8, 8), 0, None
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        if self.table is None or len(self.table) < len(x):
            self.table = torch.arange(len(x), dtype=x.dtype)[:, None]
        self.calls += 1
        self.mean.mul_(0.9).add_(x.detach().mean(0))
        return self.inner(x + self.table)


def test_the_model_is_left_as_it_was():
    module, x = Counting(), torch.randn(4, 8)
    random = torch.get_rng_state()
    mt.estimate(module, (x,), loss=torch.sum, times="nominal")
    assert module.calls == 0
    assert module.table is None
    assert torch.equal(module.mean, torch.zeros(8))
    assert all(each.grad is None for each in module.parameters())
    assert torch.equal(torch.get_rng_state(), random)
    module(x).sum().backward()
    assert type(module.table) is torch.Tensor


def test_both_peaks_are_printed():
    told = mt.estimate(nn.Linear(8, 8), (torch.ones(2, 8),), times="nominal")
    head, floor = str(told).splitlines()[:2]
    assert head.startswith("Peak of a step: ")
    assert "in PyTorch" in head
    assert floor.startswith("Smallest limit: ")
    assert len(head) <= 80


class Closing(nn.Module):
    """Runs a function that closes over the module, which no copy of it does."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(64, 64), nn.BatchNorm1d(64)
        self.second = nn.Linear(64, 64)
        self.rest = lambda x: self.second(self.norm(x)).relu()

    def forward(self, x):
        return self.rest(self.first(x))


class ClosingAgain(Closing):
    def forward(self, x):
        return checkpoint(self.rest, self.first(x), use_reentrant=True)


@pytest.mark.parametrize("kind", [Closing, ClosingAgain])
def test_functions_that_close_over_a_module_leave_it_as_it_was(kind):
    module, x = kind(), torch.randn(128, 64)
    before = [each.clone() for each in module.buffers()]
    told = mt.estimate(module, (x,), loss=lambda out: out.square().mean())
    assert all(each.grad is None for each in module.parameters())
    assert all(map(torch.equal, module.buffers(), before))
    if kind is Closing:
        found = measured(module, x, lambda out: out.square().mean())
        assert 1 <= told.eager_bytes / found <= 1.01
