"""What the report on a GPU compares is the same network: it learns the same in both."""

from __future__ import annotations

import gpu_networks
import numpy as np
import pytest

from memcfg import nn

pytestmark = pytest.mark.parity


def as_torch(shape, weight, first_dense):
    """A weight of memcfg's as PyTorch has it; its images come channels first."""
    if weight.ndim == 4:
        return weight.transpose(3, 2, 0, 1)
    if weight.ndim == 2 and first_dense:
        height, width, channels = first_dense
        rows = weight.reshape(height, width, channels, -1)
        return rows.transpose(3, 2, 0, 1).reshape(shape)
    return weight.T if weight.ndim == 2 else weight


def flattened(recipe):
    """The shape in front of `flatten`, if there is one."""
    height, width, channels = recipe.shape
    for kind, *sizes in recipe.steps:
        if kind in ("conv", "block"):
            channels = sizes[0]
        elif kind == "pool":
            height, width = height // 2, width // 2
        elif kind == "average":
            return None
    return height, width, channels


@pytest.mark.parametrize("name", gpu_networks.RECIPES)
def test_losses_are_the_same(name):
    torch = pytest.importorskip("torch")
    recipe = gpu_networks.RECIPES[name]._replace(batch=8)
    x, y = gpu_networks.data(recipe)
    nn.set_random_seed(0)
    model, net = gpu_networks.ours(recipe), gpu_networks.theirs(recipe)
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(0.001, momentum=0.9), loss)
    weights = [np.asarray(w) for w in model.trainable_weights]
    with torch.no_grad():
        for parameter, weight in zip(net.parameters(), weights, strict=True):
            found = as_torch(tuple(parameter.shape), weight, flattened(recipe))
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(found)))
    optimizer = torch.optim.SGD(net.parameters(), 0.001, momentum=0.9)
    images, labels = torch.from_numpy(x).permute(0, 3, 1, 2), torch.from_numpy(y)
    for _ in range(3):
        optimizer.zero_grad()
        theirs = torch.nn.functional.cross_entropy(net(images), labels)
        theirs.backward()
        optimizer.step()
        np.testing.assert_allclose(
            model.train_on_batch(x, y), theirs.item(), rtol=1e-3, atol=1e-5
        )
    model.close()
