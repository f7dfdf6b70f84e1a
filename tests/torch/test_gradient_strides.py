"""Gradients whose strides are not their parameters' are copied where they are made."""

from __future__ import annotations

import pytest
import torch
from torch_allocations import pool_peak

import memcfg.torch as mt

nn = torch.nn
pytestmark = [
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # PyTorch's own, of
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # its internals
]


class Patches(nn.Module):
    """A convolution of channels that come last, as after a layer normalisation."""

    def __init__(self):
        super().__init__()
        self.wide = nn.Sequential(nn.Linear(64, 1024), nn.Linear(1024, 64))
        self.norm, self.join = nn.LayerNorm(64), nn.Conv2d(64, 256, 2, 2)
        self.x = torch.randn(1, 4, 4, 64)

    def forward(self, x):
        return self.join(self.norm(self.wide(x)).permute(0, 3, 1, 2))


class Permuted(nn.Module):
    """An einsum, whose product has its axes in another order than the parameter."""

    def __init__(self):
        super().__init__()
        self.heads = nn.Parameter(torch.randn(64, 4, 64))
        self.x = torch.randn(2, 8, 4, 64)

    def forward(self, x):
        return torch.einsum("bqhd,ehd->bqe", x, self.heads)


class Expanded(nn.Module):
    """A sum over a parameter, whose gradient is one number."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 256))
        self.inner = nn.Linear(16, 16)
        self.x = torch.randn(2, 16)

    def forward(self, x):
        return self.inner(x) + self.weight.sum()


class Twice(nn.Module):
    """Two parameters with one gradient."""

    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.randn(64, 256))
        self.second = nn.Parameter(torch.randn(64, 256))
        self.x = torch.randn(64, 256)

    def forward(self, x):
        return (x * (self.first + self.second)).sin()


class Output(nn.Module):
    """A parameter whose gradient is that of the output."""

    def __init__(self):
        super().__init__()
        self.inner, self.place = nn.Linear(64, 64), nn.Parameter(torch.randn(128, 64))
        self.x = torch.randn(128, 64)

    def forward(self, x):
        return self.inner(x) + self.place


class Last(nn.Module):
    """A parameter whose own axes are not in the order of its memory."""

    def __init__(self):
        super().__init__()
        weight = torch.randn(64, 64, 3, 3).to(memory_format=torch.channels_last)
        self.weight = nn.Parameter(weight)
        self.x = torch.randn(1, 64, 4, 4)

    def forward(self, x):
        return nn.functional.conv2d(x, self.weight)


class Transposed(nn.Module):
    """A table that lies column by column; the gradient of another comes after it."""

    def __init__(self):
        super().__init__()
        self.plain = nn.Parameter(torch.randn(128, 256))
        self.table = nn.Parameter(torch.randn(256, 128).t())
        self.x = torch.tensor([3, 5])

    def forward(self, x):
        looked_up = nn.functional.embedding(x, self.plain)
        return looked_up + nn.functional.embedding(x, self.table)


class Swapped(nn.Module):
    """Tables that lie column by column; the gradient of another comes after theirs."""

    def __init__(self):
        super().__init__()
        self.plain = nn.Parameter(torch.randn(128, 256))
        self.tables = nn.Parameter(torch.randn(4, 256, 32).transpose(1, 2))
        self.x = torch.tensor([3, 50])

    def forward(self, x):
        looked_up = nn.functional.embedding(x, self.plain)
        return looked_up + nn.functional.embedding(x, self.tables.flatten(0, 1))


class TwiceLast(nn.Module):
    """Two parameters, both of channels that come last, with one gradient."""

    def __init__(self):
        super().__init__()
        first, second = torch.randn(2, 64, 64, 3, 3)
        kind = torch.channels_last
        self.first = nn.Parameter(first.to(memory_format=kind))
        self.second = nn.Parameter(second.to(memory_format=kind))
        self.x = torch.randn(1, 64, 4, 4)

    def forward(self, x):
        return nn.functional.conv2d(x, self.first + self.second)


class TwiceMixed(nn.Module):
    """Two parameters with one gradient, which has the strides of the second."""

    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.randn(256, 128).t())
        self.second = nn.Parameter(torch.randn(128, 256))
        self.x = torch.tensor([3, 5])

    def forward(self, x):
        return nn.functional.embedding(x, self.first + self.second)


class WithInput(nn.Module):
    """A parameter and an input with one gradient."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(128, 64))
        self.register_buffer("at", torch.tensor([3, 5]))
        self.x = torch.randn(128, 64, requires_grad=True)

    def forward(self, x):
        return nn.functional.embedding(self.at, self.table + x).sin()


def loss(out):
    return out.square().mean()


def clear(held):
    for each in held:
        each.grad = None


KINDS = [
    *(Patches, Permuted, Expanded, Twice, Output, Last, Transposed, Swapped),
    *(TwiceLast, TwiceMixed, WithInput),
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_of_other_strides_is_within_the_limit(kind):
    mt.limit_cpu("1GiB", tag_modules=False)
    try:
        module = kind()
        x = module.x
        held = [*module.parameters(), *([x] if x.requires_grad else [])]

        def step():
            out = module(x)  # which lives until the step ends
            loss(out).backward()

        step()
        wanted = [each.grad.clone() for each in held]
        clear(held)
        told = mt.estimate(module, (x,), loss=loss)
        mt.budget(module, told.floor_bytes, loss=loss)
        step()
        for each, gradient in zip(held, wanted, strict=True):
            assert torch.equal(each.grad, gradient)
            assert each.grad.stride() == each.stride()
        clear(held)
        peak = pool_peak(module, x, step)
    finally:
        mt.limit_cpu(None)
    assert 0.97 * told.floor_bytes <= peak <= told.floor_bytes
