"""Networks to be trained by memcfg and by PyTorch on the same GPU: one recipe for both.

A recipe is a sequence of steps: ``conv`` with filters (normalized, and without a bias,
where it says so), ``block``, two of these around which the input is added, ``pool``,
``average``, ``flatten``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from memcfg import nn


class Recipe(NamedTuple):
    """A network that ends with ten logits."""

    shape: tuple[int, int, int]  # of a sample: height, width, channels
    batch: int
    steps: tuple[tuple, ...]


def stage(filters, convolutions, *, last="pool"):
    return (*[("conv", filters, False)] * convolutions, (last,))


def residual_stage(filters, blocks, *, last="pool"):
    return (("conv", filters, True), *[("block", filters)] * blocks, (last,))


RECIPES = {
    "one convolution": Recipe((8, 8, 1), 64, (*stage(32, 1), ("flatten",))),
    # `memcfg demo` trains it, on images of 8 x 8
    "demo": Recipe(
        (8, 8, 1),
        1024,
        (*residual_stage(32, 2), *residual_stage(64, 1, last="average")),
    ),
    "VGG-like": Recipe(
        (32, 32, 3),
        512,
        (*stage(64, 2), *stage(128, 2), *stage(256, 3), *stage(512, 3), ("flatten",)),
    ),
    "ResNet-like": Recipe(
        (32, 32, 3),
        512,
        (
            *residual_stage(64, 2),
            *residual_stage(128, 2),
            *residual_stage(256, 2, last="average"),
        ),
    ),
}


def tiny(recipe):
    """One like it that a stand-in for a GPU trains in a moment."""
    return Recipe((4, 4, recipe.shape[2]), 2, recipe.steps[:1] + recipe.steps[-1:])


def data(recipe, samples=None):
    """Images and labels: float32 and int64."""
    generator = np.random.default_rng(0)
    count = samples or recipe.batch
    x = generator.standard_normal((count, *recipe.shape)).astype(np.float32)
    return x, generator.integers(0, 10, count)


def ours(recipe):
    """The network in memcfg; not compiled."""

    def convolution(h, filters, normalized, relu=True):
        if not normalized:
            return nn.Conv2D(filters, 3, padding="same", activation="relu")(h)
        h = nn.Conv2D(filters, 3, padding="same", use_bias=False)(h)
        h = nn.BatchNormalization(momentum=0.9, epsilon=1e-5)(h)
        return nn.ReLU()(h) if relu else h

    x = h = nn.Input(recipe.shape)
    for kind, *sizes in recipe.steps:
        if kind == "conv":
            h = convolution(h, *sizes)
        elif kind == "block":
            inner = convolution(convolution(h, *sizes, True), *sizes, True, relu=False)
            h = nn.ReLU()(nn.Add()([h, inner]))
        else:
            layers = {
                "pool": nn.MaxPool2D(2),
                "average": nn.GlobalAveragePooling2D(),
                "flatten": nn.Flatten(),
            }
            h = layers[kind](h)
    return nn.Model(x, nn.Dense(10)(h))


def theirs(recipe):
    """The network in PyTorch, channels last."""
    import torch
    from torch import nn as tn

    def convolution(channels, filters, normalized, relu=True):
        layers = [tn.Conv2d(channels, filters, 3, padding=1, bias=not normalized)]
        if normalized:
            layers.append(tn.BatchNorm2d(filters))
        return [*layers, tn.ReLU(inplace=True)] if relu else layers

    class Block(tn.Module):
        def __init__(self, filters):
            super().__init__()
            layers = convolution(filters, filters, True)
            layers += convolution(filters, filters, True, relu=False)
            self.inner, self.relu = tn.Sequential(*layers), tn.ReLU(inplace=True)

        def forward(self, x):
            return self.relu(x + self.inner(x))

    layers, (height, width, channels) = [], recipe.shape
    for kind, *sizes in recipe.steps:
        if kind == "conv":
            layers += convolution(channels, *sizes)
            channels = sizes[0]
        elif kind == "block":
            layers.append(Block(*sizes))
        elif kind == "pool":
            layers.append(tn.MaxPool2d(2))
            height, width = height // 2, width // 2
        elif kind == "average":
            layers.append(tn.AdaptiveAvgPool2d(1))
            height = width = 1
    layers += [tn.Flatten(), tn.Linear(channels * height * width, 10)]
    return tn.Sequential(*layers).to(memory_format=torch.channels_last)


def torch_step(torch, net, x, y):
    """A training step on a batch of the host: as fast as PyTorch uploads it."""
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
    loss = torch.nn.CrossEntropyLoss()
    rows, labels = (torch.empty_like(torch.from_numpy(a)).pin_memory() for a in (x, y))

    def step():
        rows.copy_(torch.from_numpy(x))
        labels.copy_(torch.from_numpy(y))
        images = rows.cuda(non_blocking=True).permute(0, 3, 1, 2)
        optimizer.zero_grad()
        found = loss(net(images), labels.cuda(non_blocking=True))
        found.backward()
        optimizer.step()
        return found.item()

    return step
