"""Layers trained here and by PyTorch's own modules, from the same weights."""

from __future__ import annotations

import numpy as np
import pytest

import memcfg as mc

torch = pytest.importorskip("torch", reason="needs PyTorch: tox run -e parity")

nn = mc.nn
MARKS = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]
CLASSES, RATE, STEPS = 3, 0.05, 10


def close(ours, theirs, scale=1.0):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-5 * scale)


def array(tensor):
    return tensor.detach().numpy()


def dense(module):
    """Kernel and bias of a Linear in Keras's layout."""
    return [array(module.weight).T, array(module.bias)]


def swapped(tensor):
    """Channels from the second place to the last, or back by `unswapped`."""
    return tensor.movedim(1, -1)


def unswapped(tensor):
    return tensor.movedim(-1, 1)


def channels_first(module):
    """A module of PyTorch's as a function of a channels-last tensor."""
    return lambda x: swapped(module(unswapped(x)))


def shaken(module, seed=7):
    """The module with parameters that no initialiser would give."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for each in module.parameters():
            each += 0.3 * torch.randn(each.shape, generator=generator)
    return module


def agree(layer, module, weights, shape, *, call=None, samples=3, steps=STEPS):
    """Train Dense, the layer, Flatten and Dense on both sides, and compare.

    Parameters
    ----------
    layer : Layer or callable
        Ours, of one symbolic tensor.
    module : torch.nn.Module
        PyTorch's, whose parameters are trained.
    weights : callable
        Gives the module's parameters as arrays, in our layer's order and layout.
    shape : tuple of int
        Of one sample, channels last.
    call : callable, optional
        The module of a channels-last tensor; the module itself by default.

    Outputs of the same weights, every gradient of the first step, losses, and weights
    after each step agree.
    """
    call = call or module
    rng = np.random.default_rng(11)
    x = rng.normal(size=(samples, *shape)).astype(np.float32)
    labels = rng.integers(0, CLASSES, samples)
    first = shaken(torch.nn.Linear(shape[-1], shape[-1]))
    shaken(module)

    def run(values):
        return call(first(torch.from_numpy(values))).flatten(1)

    with torch.no_grad():
        head = shaken(torch.nn.Linear(run(x).shape[1], CLASSES))
    parameters = [
        each
        for every in (first, module, head)
        for each in every.parameters()
        if each.requires_grad
    ]

    inputs = nn.Input(shape)
    hidden = layer(nn.Dense(shape[-1], name="first")(inputs))
    ours = nn.Model(inputs, nn.Dense(CLASSES, name="head")(nn.Flatten()(hidden)))

    def theirs():
        return [*dense(first), *weights(module), *dense(head)]

    start = [each.copy() for each in theirs()]
    assert [each.shape for each in ours.get_weights()] == [e.shape for e in start]
    ours.set_weights(start)
    loss = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(parameters, RATE)
    ours.compile(nn.SGD(RATE), nn.SparseCategoricalCrossentropy(from_logits=True))
    if not any(isinstance(e, torch.nn.modules.batchnorm._BatchNorm) for e in [module]):
        close(ours.predict(x, verbose=0), array(head(run(x))))
    for step in range(steps):
        optimizer.zero_grad()
        wanted = loss(head(run(x)), torch.from_numpy(labels))
        wanted.backward()
        optimizer.step()
        close(ours.train_on_batch(x, labels), wanted.item())
        now = ours.get_weights()
        if step == 0:  # what one step took away is the rate times the gradient
            for a, b, begin in zip(now, theirs(), start, strict=True):
                close((begin - a) / RATE, (begin - b) / RATE)
        for a, b in zip(now, theirs(), strict=True):
            close(a, b)
    ours.close()
