"""Merges, layers that move elements, embeddings and operators beside Keras 3."""

from __future__ import annotations

import inspect
import os
from math import prod
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras", reason="needs Keras: tox run -e parity")

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(keras.backend.backend() != "torch", reason="not on PyTorch"),
]
OURS = SimpleNamespace(layers=mc.nn, Model=mc.nn.Model, Input=mc.nn.Input)
NAMES = (
    *("Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum", "Concatenate"),
    *("Dot", "Reshape", "Permute", "RepeatVector", "ZeroPadding1D", "ZeroPadding2D"),
    *("Cropping1D", "Cropping2D", "UpSampling1D", "UpSampling2D", "Rescaling"),
    *("Embedding", "Flatten", "Normalization"),
)
MERGES = NAMES[:6]
BATCH = 4


@pytest.mark.parametrize("name", [*NAMES, *map(str.lower, MERGES), "dot"])
def test_arguments_order_and_defaults(name):
    found = []
    for room in (mc.nn, keras.layers):
        call = getattr(room, name)
        parameters = inspect.signature(
            call.__init__ if inspect.isclass(call) else call
        ).parameters
        found.append(
            [
                (each.name, each.default)
                for each in parameters.values()
                if each.kind is each.POSITIONAL_OR_KEYWORD and each.name != "name"
            ]
        )
    assert found[0] == found[1]


def model(k, shapes, function):
    """Dense layers make tensors of these shapes, from which the function makes one."""
    x = k.Input((5,))
    tensors = [
        k.layers.Reshape(shape)(k.layers.Dense(prod(shape), name=f"d{i}")(x))
        for i, shape in enumerate(shapes)
    ]
    y = k.layers.Flatten()(function(k.layers, *tensors))
    return k.Model(x, k.layers.Dense(3, name="head")(y))


def check(shapes, function, make=model, draw=np.random.Generator.normal):
    """Outputs, and weights after ten steps."""
    rng = np.random.default_rng(7)
    both = [make(k, shapes, function) for k in (OURS, keras)]
    weights = [
        rng.normal(size=w.shape, scale=0.3).astype(np.float32)
        for w in both[1].get_weights()
    ]
    x, y = draw(rng, size=(BATCH, 5)).astype(np.float32), rng.integers(0, 3, BATCH)
    outputs = []
    for each in both:
        each.set_weights(weights)
        outputs.append(each.predict(x, verbose=0))
    np.testing.assert_allclose(*outputs, rtol=1e-4, atol=1e-5)
    for each, room in zip(both, (mc.nn, keras), strict=True):
        losses = getattr(room, "losses", room)
        loss = getattr(losses, "SparseCategoricalCrossentropy", None)
        loss = loss or room.SparseCategoricalCrossentropy
        optimizer = getattr(room, "optimizers", room).SGD(0.05)
        each.compile(optimizer, loss(from_logits=True))
        for _ in range(10):
            each.train_on_batch(x, y)
    for ours, theirs in zip(*(each.get_weights() for each in both), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    both[0].close()


LENGTH = st.integers(1, 4)


@given(
    name=st.sampled_from(MERGES),
    wide=st.lists(LENGTH, min_size=1, max_size=3),
    data=st.data(),
)
@settings(max_examples=12, deadline=None)
def test_merges(name, wide, data):
    count = 2 if name == "Subtract" else data.draw(st.integers(2, 3))
    shapes = [tuple(wide)]
    for _ in range(count - 1):
        sample = [data.draw(st.sampled_from([1, n])) for n in wide]
        shapes.append(tuple(sample[data.draw(st.integers(0, len(wide) - 1)) :]))
    check(shapes, lambda layers, *ts: getattr(layers, name)()(list(ts)))


@given(data=st.data(), normalize=st.booleans())
@settings(max_examples=8, deadline=None)
def test_dot(data, normalize):
    length, axes, shapes = data.draw(LENGTH), [], []
    for _ in range(2):
        rest = data.draw(st.lists(LENGTH, max_size=1))  # Keras takes no more
        place = data.draw(st.integers(0, len(rest)))
        shapes.append((*rest[:place], length, *rest[place:]))
        axes.append(place + 1)
    check(
        shapes,
        lambda layers, *ts: layers.Dot(tuple(axes), normalize=normalize)(list(ts)),
    )


@st.composite
def moves(draw):
    """A shape, and a layer that moves its elements."""
    name = draw(st.sampled_from([*NAMES[8:18]]))
    rank = 3 if name.endswith("2D") else 2 if name.endswith("1D") else 0
    shape = tuple(draw(st.lists(LENGTH, min_size=rank or 1, max_size=rank or 3)))
    some = st.integers(0, 2)
    match name:
        case "Reshape":
            lengths = [draw(st.permutations(shape)), (-1,), (shape[0], -1)]
            arguments = {"target_shape": tuple(draw(st.sampled_from(lengths)))}
        case "Permute":
            dims = range(1, len(shape) + 1)
            arguments = {"dims": tuple(draw(st.permutations(dims)))}
        case "RepeatVector":
            shape, arguments = shape[:1], {"n": draw(LENGTH)}
        case "ZeroPadding1D":
            arguments = {"padding": draw(st.one_of(some, st.tuples(some, some)))}
        case "ZeroPadding2D":
            pair = st.tuples(some, some)
            sides = st.one_of(some, pair, st.tuples(pair, pair))
            arguments = {"padding": draw(sides)}
        case "Cropping1D" | "Cropping2D":
            pair = st.tuples(some, some)
            sides = pair if rank == 2 else st.one_of(pair, st.tuples(pair, pair))
            shape = tuple(length + 4 for length in shape)
            arguments = {"cropping": draw(sides)}
        case "UpSampling1D":
            arguments = {"size": draw(LENGTH)}
        case "UpSampling2D":
            arguments = {
                "size": draw(st.one_of(LENGTH, st.tuples(LENGTH, LENGTH))),
                "interpolation": draw(st.sampled_from(["nearest", "bilinear"])),
            }
        case "Rescaling":
            number = st.floats(-2, 2, width=32)
            several = st.lists(number, min_size=shape[-1], max_size=shape[-1])
            either = number | several.map(np.float32)
            arguments = {"scale": draw(either), "offset": draw(either)}
    return name, shape, arguments


@given(drawn=moves())
@settings(max_examples=25, deadline=None)
def test_layers_that_move_elements(drawn):
    name, shape, arguments = drawn
    check([shape], lambda layers, t: getattr(layers, name)(**arguments)(t))


@pytest.mark.parametrize(
    "function",
    [
        lambda _, a, b: (a + b) * (a - 2 * b) - a * a / 3,
        lambda _, a, b: (-a) ** 2 / (abs(b) + 1) + 1 / (b**2 + 2),
        lambda _, a, b: a[:, -1] - b[:, 0, 1:2] + 1,
        lambda _, a, b: a[..., None] * b[:, :, None, :],
        lambda _, a, b: a[:, ::2, 1:] @ b[:, :2, 1:],
        lambda layers, a, b: layers.concatenate([a, b[:, :2], a], axis=1),
        lambda layers, a, b: layers.Concatenate(-1)([a, b[..., 1:]]),
    ],
)
def test_operators(function):
    check([(3, 3), (3, 3)], function)


@given(data=st.data())
@settings(max_examples=5, deadline=None)
def test_embeddings(data):
    rows, columns = data.draw(st.integers(1, 9)), data.draw(LENGTH)
    dtype = data.draw(st.sampled_from([None, "float32"]))

    def make(k, _, function):
        x = k.Input((5,), dtype=dtype)
        y = k.layers.Flatten()(k.layers.Embedding(rows, columns, name="table")(x))
        return k.Model(x, k.layers.Dense(3, name="head")(y))

    def draw(rng, size):
        return rng.integers(0, rows, size)

    check([], None, make, draw)


@pytest.mark.parametrize("axis", [-1, None, (1, 2)])
@pytest.mark.parametrize("invert", [False, True])
def test_normalization(axis, invert):
    data = np.random.default_rng(0).normal(2, 3, (50, 4, 3)).astype(np.float32)
    found = []
    for k in (OURS, keras):
        layer = k.layers.Normalization(axis, invert=invert)
        layer.adapt(data)
        x = k.Input((4, 3))
        each = k.Model(x, layer(x))
        found.append((each.predict(data, verbose=0), *each.get_weights()[:2]))
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
