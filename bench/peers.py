"""The networks that are timed, once for memcfg and once for PyTorch."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn as tn

import memcfg as mc
from memcfg.commands._digits import residual_network

__all__ = ["NETWORKS"]


def lenet5() -> mc.nn.Model:
    return mc.nn.Sequential(
        [
            mc.nn.Conv2D(6, 5, padding="same", activation="relu"),
            mc.nn.MaxPool2D(2),
            mc.nn.Conv2D(16, 5, activation="relu"),
            mc.nn.MaxPool2D(2),
            mc.nn.Flatten(),
            mc.nn.Dense(120, activation="relu"),
            mc.nn.Dense(84, activation="relu"),
            mc.nn.Dense(10),
        ]
    )


def torch_lenet5() -> tn.Module:
    return tn.Sequential(
        tn.Conv2d(1, 6, 5, padding=2),
        tn.ReLU(),
        tn.MaxPool2d(2),
        tn.Conv2d(6, 16, 5),
        tn.ReLU(),
        tn.MaxPool2d(2),
        tn.Flatten(),
        tn.Linear(400, 120),
        tn.ReLU(),
        tn.Linear(120, 84),
        tn.ReLU(),
        tn.Linear(84, 10),
    )


class _Convolution(tn.Sequential):
    def __init__(self, inputs: int, filters: int, *, relu: bool = True) -> None:
        layers = [
            tn.Conv2d(inputs, filters, 3, padding=1, bias=False),
            tn.BatchNorm2d(filters),
        ]
        super().__init__(*layers, *([tn.ReLU()] if relu else []))


class _ResidualBlock(tn.Module):
    def __init__(self, filters: int) -> None:
        super().__init__()
        self.branch = tn.Sequential(
            _Convolution(filters, filters), _Convolution(filters, filters, relu=False)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.branch(x))


def torch_residual_network() -> tn.Module:
    """Mirror `memcfg.commands._digits.residual_network`."""
    return tn.Sequential(
        _Convolution(1, 32),
        _ResidualBlock(32),
        _ResidualBlock(32),
        tn.MaxPool2d(2),
        _Convolution(32, 64),
        _ResidualBlock(64),
        tn.AdaptiveAvgPool2d(1),
        tn.Flatten(),
        tn.Linear(64, 10),
    )


# Name -> input shape (height, width, channels), memcfg's network, PyTorch's.
NETWORKS = {
    "residual digits": ((8, 8, 1), residual_network, torch_residual_network),
    "LeNet-5": ((28, 28, 1), lenet5, torch_lenet5),
}


def random_batch(
    shape: tuple[int, int, int], batch_size: int
) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    x = generator.random((batch_size, *shape), np.float32)
    return x, generator.integers(0, 10, batch_size).astype(np.int32)
