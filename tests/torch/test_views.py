"""What ops need for views that are conjugate, negative or not contiguous is planned."""

from __future__ import annotations

import pytest
import torch
from torch_allocations import pool_peak

import memcfg.torch as mt

nn = torch.nn
pytestmark = [
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # PyTorch's own, of its internals
]


class Gram(nn.Module):
    """Products of conjugate views, which have to be resolved for them."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(128, 128, dtype=torch.complex64)
        self.second = nn.Linear(128, 128, dtype=torch.complex64)
        self.x = torch.randn(256, 128, dtype=torch.complex64)

    def forward(self, x):
        z = self.first(x)
        w = self.second(z)
        return (z.mH @ w).abs() + (w.mH @ z).abs()


class Negative(nn.Module):
    """Sums of what is a negative view, and a product of what is one in steps."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(128, 128, dtype=torch.complex64)
        self.x = torch.randn(256, 128, dtype=torch.complex64)

    def forward(self, x):
        z = self.first(x).conj().imag
        return (z.mT @ z) + (z.mT[::2] @ z.sin()).repeat(2, 1)


class Spectral(nn.Module):
    """A layer of a Fourier neural operator: the lowest waves of an image."""

    def __init__(self, channels, waves):
        super().__init__()
        shape = (channels, channels, waves, waves)
        self.waves = waves
        self.low = nn.Parameter(torch.randn(shape, dtype=torch.cfloat) / channels)
        self.high = nn.Parameter(torch.randn(shape, dtype=torch.cfloat) / channels)

    def forward(self, x):
        n, product = self.waves, "bixy,ioxy->boxy"
        found = torch.fft.rfft2(x)
        made = torch.zeros_like(found)
        made[:, :, :n, :n] = torch.einsum(product, found[:, :, :n, :n], self.low)
        made[:, :, -n:, :n] = torch.einsum(product, found[:, :, -n:, :n], self.high)
        return torch.fft.irfft2(made, s=x.shape[-2:])


class Fourier(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift, self.project = nn.Linear(1, 16), nn.Linear(16, 1)
        self.waves = nn.ModuleList(Spectral(16, 8) for _ in range(2))
        self.direct = nn.ModuleList(nn.Conv2d(16, 16, 1) for _ in range(2))
        self.x = torch.randn(4, 30, 36, 1)

    def forward(self, x):
        x = self.lift(x).permute(0, 3, 1, 2)
        for wave, direct in zip(self.waves, self.direct, strict=True):
            x = nn.functional.gelu(wave(x) + direct(x))
        return self.project(x.permute(0, 2, 3, 1))


class Exponential(nn.Module):
    """Rotations, whose scratch depends on how large their numbers are."""

    def __init__(self, size):
        super().__init__()
        self.angles = nn.Parameter(torch.randn(64, 64) * size)
        self.x = torch.randn(8, 64)

    def forward(self, x):
        return x @ torch.matrix_exp(self.angles - self.angles.mT)


def loss(out):
    return out.abs().square().mean()


@pytest.mark.parametrize("kind", [Gram, Negative, Fourier])
def test_the_peak_at_the_floor_is_within_the_limit_and_near_it(kind):
    mt.limit_cpu("1GiB", tag_modules=False)
    try:
        module = kind()
        told = mt.estimate(module, (module.x,), loss=loss)
        run = mt.budget(module, told.floor_bytes, loss=loss)
        x = module.x

        def step():
            loss(run(x)).backward()

        step()
        peak = pool_peak(module, x, step)
        eager = pool_peak(module, x, lambda: loss(module(x)).backward())
    finally:
        mt.limit_cpu(None)
    assert 0.94 * told.floor_bytes <= peak <= told.floor_bytes
    assert eager <= told.eager_bytes <= 1.06 * eager
    assert told.floor_bytes < eager


def test_scratch_that_depends_on_numbers_is_the_most_of_any():
    """`matrix_exp` of large numbers needs more than of small ones: both fit."""

    def step():
        loss(run(module.x)).backward()

    mt.limit_cpu("1GiB", tag_modules=False)
    peaks = []
    try:
        for size in (1e-4, 10.0):
            module = Exponential(size)
            limit = mt.estimate(module, (module.x,), loss=loss).floor_bytes
            run = mt.budget(module, limit, loss=loss)
            peaks.append(pool_peak(module, module.x, step))
    finally:
        mt.limit_cpu(None)
    small, large = peaks
    assert small < large <= limit
    assert large >= 0.99 * limit
