"""Control flow of functions beside Keras's, which runs it eagerly on PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from beside_keras import MARKS, keras

import memcfg as mc

pytestmark = MARKS
X = np.random.default_rng(5).normal(size=(4, 3)).astype(np.float32)

# Each is called with the ops of a library, and an array or a tensor.
PROGRAMS = {
    "cond": lambda o, x: o.cond(o.sum(x) > 0, lambda: x * 2, lambda: o.exp(x)),
    "cond of pairs": lambda o, x: o.cond(
        x[0, 0] < 0, lambda: (x, o.sum(x)), lambda: (-x, o.max(x))
    ),
    "switch": lambda o, x: o.switch(
        o.cast(o.round(o.sum(o.abs(x)) / 9), "int32"),
        [lambda v: v, lambda v: v + 1, lambda v: v * 3],
        x,
    ),
    "while_loop": lambda o, x: o.while_loop(
        lambda v, n: o.sum(v * v) > 1,
        lambda v, n: (v * 0.5, n + 1.0),
        (x, o.zeros(())),
        maximum_iterations=5,
    ),
    "while_loop of python": lambda o, x: o.while_loop(
        lambda n, v: n < 3, lambda n, v: (n + 1, v * v), (0, x)
    )[1],
    "fori_loop": lambda o, x: o.fori_loop(0, 4, lambda i, v: o.sin(v) + i, x),
    "map": lambda o, x: o.map(lambda row: o.cumsum(row), x),
    "vectorized_map": lambda o, x: o.vectorized_map(lambda row: o.softmax(row), x),
    "vectorize": lambda o, x: o.vectorize(o.softmax, signature="(n)->(n)")(x),
    "vectorize of numbers": lambda o, x: o.vectorize(lambda a, b: a * b)(x, x[:1]),
    "jvp": lambda o, x: o.jvp(lambda y: o.exp(y) * y, (x,), (x * 2,))[1],
    "scan": lambda o, x: o.scan(lambda c, v: (c * v, c + v), x[0] * 0 + 1, x),
    "scan back": lambda o, x: o.scan(
        lambda c, v: (c + v, c * 2), x[0] * 0, x, reverse=True
    ),
    "associative_scan": lambda o, x: o.associative_scan(o.add, x, axis=1),
    "associative_scan back": lambda o, x: o.associative_scan(
        lambda a, b: a * b, x, reverse=True
    ),
}


def arrays(made):
    if isinstance(made, list | tuple):
        return [array for each in made for array in arrays(each)]
    return [np.asarray(keras.ops.convert_to_numpy(made))]


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_gradients(name):
    import torch

    program = PROGRAMS[name]
    for x in (X, -2 * X, 0.1 * X):
        tensor = torch.tensor(x, requires_grad=True)
        with keras.device("cpu"):
            theirs = program(keras.ops, tensor)
        ours = mc.function(lambda x: program(mc.nn.ops, x))(x)
        for a, b in zip(arrays(ours), arrays(theirs), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)

        def total(x):
            leaves = arrays_of(program(mc.nn.ops, x))
            return sum(mc.nn.ops.sum(each) for each in leaves)

        sum(each.sum() for each in arrays_of(theirs)).backward()
        np.testing.assert_allclose(mc.grad(total)(x), tensor.grad, rtol=1e-4, atol=1e-5)


def arrays_of(made):
    if isinstance(made, list | tuple):
        return [leaf for each in made for leaf in arrays_of(each)]
    return [made]
