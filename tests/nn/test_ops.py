"""Ops on symbolic tensors beside NumPy."""

from __future__ import annotations

import copy
import inspect
import operator
import re

import numpy as np
import pytest
from op_cases import CASES as MORE
from op_cases import WHOLE

import memcfg as mc
from memcfg.nn import ops

nn = mc.nn
ERF = np.vectorize(__import__("math").erf)

CASES = {  # op -> of two tensors of 3 x 4 a sample, above 0
    "add": (lambda k, x, y: k.add(x, y), lambda x, y: x + y),
    "subtract": (lambda k, x, y: k.subtract(1.5, x), lambda x, y: 1.5 - x),
    "multiply": (lambda k, x, y: k.multiply(x, 3), lambda x, y: x * 3),
    "divide": (lambda k, x, y: k.divide(x, y), lambda x, y: x / y),
    "matmul": (
        lambda k, x, y: k.matmul(x, k.swapaxes(y, 1, 2)),
        lambda x, y: x @ y.transpose(0, 2, 1),
    ),
    "power": (lambda k, x, y: k.power(x, 1.5), lambda x, y: x**1.5),
    "negative": (lambda k, x, y: k.negative(x), lambda x, y: -x),
    "abs": (lambda k, x, y: k.abs(x - 1.0), lambda x, y: abs(x - 1)),
    "maximum": (lambda k, x, y: k.maximum(x, 1.0), lambda x, y: np.maximum(x, 1)),
    "minimum": (lambda k, x, y: k.minimum(x, y), np.minimum),
    "clip": (lambda k, x, y: k.clip(x, 0.8, 1.2), lambda x, y: x.clip(0.8, 1.2)),
    "square": (lambda k, x, y: k.square(x), lambda x, y: x * x),
    "sqrt": (lambda k, x, y: k.sqrt(x), lambda x, y: np.sqrt(x)),
    "rsqrt": (lambda k, x, y: k.rsqrt(x), lambda x, y: 1 / np.sqrt(x)),
    "reciprocal": (lambda k, x, y: k.reciprocal(x), lambda x, y: 1 / x),
    "exp": (lambda k, x, y: k.exp(x), lambda x, y: np.exp(x)),
    "log": (lambda k, x, y: k.log(x), lambda x, y: np.log(x)),
    "log1p": (lambda k, x, y: k.log1p(x), lambda x, y: np.log1p(x)),
    "gelu": (
        lambda k, x, y: k.gelu(x, approximate=False),
        lambda x, y: x * (1 + ERF(x / np.sqrt(2))) / 2,
    ),
    "sum": (lambda k, x, y: k.sum(x, axis=1), lambda x, y: x.sum(1)),
    "mean": (
        lambda k, x, y: k.mean(x, axis=(1, 2), keepdims=True),
        lambda x, y: x.mean((1, 2), keepdims=True),
    ),
    "max": (lambda k, x, y: k.max(x, axis=-1), lambda x, y: x.max(-1)),
    "min": (lambda k, x, y: k.amin(x, axis=2), lambda x, y: x.min(2)),
    "var": (lambda k, x, y: k.var(x, axis=-1), lambda x, y: x.var(-1)),
    "std": (lambda k, x, y: k.std(x, axis=1), lambda x, y: x.std(1)),
    "reshape": (
        lambda k, x, y: k.reshape(x, (-1, 2, 6)),
        lambda x, y: x.reshape(-1, 2, 6),
    ),
    "expand_dims": (
        lambda k, x, y: k.expand_dims(x, -1) * k.expand_dims(y, axis=3),
        lambda x, y: (x * y)[..., None],
    ),
    "squeeze": (
        lambda k, x, y: k.squeeze(k.expand_dims(x, 2), axis=2),
        lambda x, y: x,
    ),
    "transpose": (
        lambda k, x, y: k.transpose(x, (0, 2, 1)),
        lambda x, y: x.transpose(0, 2, 1),
    ),
    "moveaxis": (
        lambda k, x, y: k.moveaxis(x, 1, -1),
        lambda x, y: np.moveaxis(x, 1, -1),
    ),
    "flip": (lambda k, x, y: k.flip(x, axis=1), lambda x, y: x[:, ::-1]),
    "concatenate": (
        lambda k, x, y: k.concatenate([x, y], axis=-1),
        lambda x, y: np.concatenate([x, y], -1),
    ),
    "stack": (
        lambda k, x, y: k.stack([x, y], axis=1),
        lambda x, y: np.stack([x, y], 1),
    ),
    "split": (
        lambda k, x, y: k.multiply(*k.split(x, 2, axis=-1)),
        lambda x, y: x[..., :2] * x[..., 2:],
    ),
    "take": (lambda k, x, y: k.take(x, 2, axis=1), lambda x, y: x[:, 2]),
    "where": (
        lambda k, x, y: k.where(k.greater(x, y), x, 0.5),
        lambda x, y: np.where(x > y, x, 0.5),
    ),
    "less_equal": (
        lambda k, x, y: k.where(k.less_equal(x, y), y, x),
        lambda x, y: np.where(x <= y, y, x),
    ),
    "less": (
        lambda k, x, y: k.where(k.less(x, y), 1.0, x),
        lambda x, y: np.where(x < y, 1.0, x),
    ),
    "greater_equal": (
        lambda k, x, y: k.where(k.greater_equal(x, y), y, 2.0),
        lambda x, y: np.where(x >= y, y, 2.0),
    ),
    "not_equal": (
        lambda k, x, y: k.where(k.not_equal(x, k.maximum(x, y)), x, -y),
        lambda x, y: np.where(x < y, x, -y),
    ),
    "clip between": (
        lambda k, x, y: k.clip(x, 0.75, y),
        lambda x, y: np.minimum(np.maximum(x, 0.75), y),
    ),
    "split at": (
        lambda k, x, y: k.split(x, [1, 3], axis=-1)[1] * y[..., :1],
        lambda x, y: x[..., 1:3] * y[..., :1],
    ),
    "equal": (
        lambda k, x, y: k.where(k.equal(x, k.maximum(x, y)), x, y),
        lambda x, y: np.maximum(x, y),
    ),
    "max of at least": (
        lambda k, x, y: k.max(x, axis=-1, initial=0.75) * y[..., 0],
        lambda x, y: x.max(-1, initial=0.75) * y[..., 0],
    ),
    "min of at most": (
        lambda k, x, y: k.min(x, axis=-1, initial=0.5) * y[..., 0],
        lambda x, y: x.min(-1, initial=0.5) * y[..., 0],
    ),
    "get_item": (
        lambda k, x, y: k.get_item(x, (slice(None), 1)),
        lambda x, y: x[:, 1],
    ),
}


CASES |= MORE


@pytest.mark.parametrize("name", CASES)
def test_values_are_numpys(name):
    symbolic, numpys = CASES[name]
    starts = [nn.Input((3, 4)) for _ in range(2)]
    y = symbolic(ops, *starts)
    x = np.random.default_rng(2).uniform(0.5, 1.5, (2, 5, 3, 4)).astype("f4")
    expected = numpys(*x)
    model = nn.Model(starts, [y, starts[1] * 1.0])  # whichever it depends on
    assert y.shape[1:] == expected.shape[1:]
    if not any(node.layer is starts[0].node.layer for node in model._network.nodes):
        pytest.fail("x is not read")
    np.testing.assert_allclose(model.predict([*x], verbose=0)[0], expected, 1e-5, 1e-6)


@pytest.mark.parametrize("name", WHOLE)
def test_arrays_have_no_batch(name):
    symbolic, numpys = WHOLE[name]
    x = np.random.default_rng(2).uniform(0.5, 1.5, (3, 4)).astype("f4")
    found, expected = symbolic(ops, x), numpys(x)
    assert np.shape(found) == np.shape(expected)
    np.testing.assert_allclose(found, expected, 1e-5, 1e-6)


MADE = {  # arrays, as NumPy makes them
    "arange": (1, 9, 2),
    "linspace": (0, 1, 7),
    "logspace": (0, 1, 7),
    "geomspace": (1, 8, 4),
    "eye": (3, 4, 1),
    "identity": (3,),
    "tri": (3, 4, -1),
    "zeros": ((2, 3),),
    "ones": ((2, 3),),
    "full": ((2, 3), 4),
    "array": ([1, 2],),
    "bartlett": (7,),
    "blackman": (7,),
    "hamming": (7,),
    "hanning": (7,),
    "kaiser": (7, 3.0),
}


@pytest.mark.parametrize("name", MADE)
def test_arrays_are_made_as_by_numpy(name):
    found, expected = (getattr(k, name)(*MADE[name]) for k in (ops, np))
    assert found.dtype == (np.int32 if expected.dtype.kind == "i" else np.float32)
    np.testing.assert_allclose(found, expected, 1e-6, 1e-7)


def test_places_of_flat_indices_and_grids():
    for found, expected in zip(
        ops.unravel_index(np.arange(6), (2, 3)),
        np.unravel_index(np.arange(6), (2, 3)),
        strict=True,
    ):
        np.testing.assert_array_equal(found, expected)
    for indexing in ("xy", "ij"):
        for found, expected in zip(
            ops.meshgrid(np.arange(3), np.arange(2), indexing=indexing),
            np.meshgrid(np.arange(3), np.arange(2), indexing=indexing),
            strict=True,
        ):
            np.testing.assert_array_equal(found, expected)


@mc.function
def _scattered(x, y):
    put = ops.scatter(np.array([[1, 0], [2, 3], [1, 0]]), y, (3, 4))
    other = ops.scatter_update(x, np.array([[0], [2]]), y[:1] + 0 * x[:2])
    more = ops.scatter_update(x, np.array([[0, 1], [0, 1], [2, 2]]), y, "add")
    most = ops.scatter_update(x, np.array([[0, 1], [2, 2], [1, 1]]), y, "max")
    return put, other, more, most


def test_elements_are_put_at_indices():
    x = np.random.default_rng(0).uniform(0.5, 1.5, (3, 4)).astype("f4")
    y = np.float32([0.25, 3, 1])
    put, other, more, most = _scattered(x, y)
    wanted = np.zeros((3, 4), "f4")
    wanted[1, 0], wanted[2, 3] = 1.25, 3
    np.testing.assert_allclose(put, wanted)
    wanted = x.copy()
    wanted[[0, 2]] = 0.25
    np.testing.assert_allclose(other, wanted)
    wanted = x.copy()
    np.add.at(wanted, ([0, 0, 2], [1, 1, 2]), y)
    np.testing.assert_allclose(more, wanted, 1e-6)
    wanted = x.copy()
    np.maximum.at(wanted, ([0, 2, 1], [1, 2, 1]), y)
    np.testing.assert_allclose(most, wanted)
    _scattered.close()


def test_arrays_beside_a_batch_are_of_a_sample():
    x = nn.Input((2, 3, 4))
    for shape in ((), (4,), (3, 1), (2, 3, 4), (1, 2, 3, 4)):
        assert (x * np.ones(shape, "f4")).shape == (None, 2, 3, 4)
        assert ops.where(np.ones(shape, "f4"), x, 0.0).shape == (None, 2, 3, 4)
    for shape in ((2, 2, 3, 4), (1, 1, 2, 3, 4)):
        with pytest.raises(ValueError, match="has no batch and would be combined"):
            _ = x * np.ones(shape, "f4")
    with pytest.raises(ValueError, match="constants have at most"):
        _ = x * np.ones((2**19,), "f4")
    with pytest.raises(TypeError, match="must be a symbolic tensor, a number"):
        ops.where(x, np.array(["a"]), x)


def test_a_model_with_constants_is_saved_and_copied(tmp_path):
    x = nn.Input((3, 4))
    y = ops.einsum("bij,jk->bik", x, np.tri(4, 2, dtype="f4")) + ops.arange(2)
    model = nn.Model(x, ops.top_k(y, 1)[0])
    data = np.random.default_rng(0).normal(size=(5, 3, 4)).astype("f4")
    wanted = model.predict(data, verbose=0)
    exact = (data @ np.tri(4, 2) + np.arange(2)).max(-1, keepdims=True)
    np.testing.assert_allclose(wanted, exact, 1e-5, 1e-5)
    model.save(tmp_path / "constants.memcfg")
    loaded = nn.models.load_model(tmp_path / "constants.memcfg")
    for other in (copy.deepcopy(model), loaded):
        np.testing.assert_array_equal(other.predict(data, verbose=0), wanted)


def test_a_chain_that_is_too_long_for_one_loop_gives_the_same():
    x = start = nn.Input((7,))
    for number in range(300):  # in seconds, since the length of a loop is bisected
        x = ops.tanh(x) * (1.5 + number / 300)
    data = np.random.default_rng(0).normal(size=(4, 7)).astype("f4")
    model = nn.Model(start, x)
    wanted = data
    for number in range(300):
        wanted = np.tanh(wanted) * np.float32(1.5 + number / 300)
    np.testing.assert_allclose(model.predict(data, verbose=0), wanted, 1e-5)
    model.compile("sgd", "mse")
    chains = [op for op in model.graph(4).ops if op.type == "chain"]
    assert 1 < len(chains) < 20  # of 600 ops, at most 256 in one


def test_integers_and_weights():
    class Table(nn.Layer):
        def build(self, input_shape):
            self.rows = self.add_weight((5, 2), "glorot_uniform", name="rows")

        def call(self, x):
            hot = ops.one_hot(ops.cast(x, "int32"), 5)
            return ops.concatenate([ops.take(self.rows, x, axis=0), hot], axis=-1)

    start, layer = nn.Input((3,), dtype="int32"), Table()
    model = nn.Model(start, layer(start))
    x = np.array([[0, 4, 2], [1, 1, 3]])
    found = model.predict(x, verbose=0)
    np.testing.assert_array_equal(found[..., :2], layer.get_weights()[0][x])
    np.testing.assert_array_equal(found[..., 2:], np.eye(5)[x])
    model.compile(nn.SGD(0.1), "mse")
    before = layer.get_weights()[0]
    model.fit(x, found + 1, verbose=0)
    assert (layer.get_weights()[0] > before).all()


def test_what_cannot_be_is_told():
    x = nn.Input((3, 4))
    assert ops.shape(x) == (None, 3, 4)
    assert ops.ndim(x) == 3
    for use, words in (
        (lambda: ops.prod(x), "cannot be reduced along all axes"),
        (lambda: ops.mean(x, axis=0), "axes are 1 to 2"),
        (lambda: ops.concatenate([x, x]), "axis 0 is the batch"),
        (lambda: ops.reshape(x, (3, 4)), "must start with -1"),
        (lambda: ops.reshape(x, (-1, 5)), "the numbers of elements differ"),
        (lambda: ops.transpose(x), r"pass axes=\(0, ...\)"),
        (lambda: ops.squeeze(x, 1), "does not have length 1"),
        (lambda: ops.split(x, 3, axis=2), "equal parts"),
        (lambda: ops.one_hot(x, 3, axis=0), "axes are 1 to 3"),
        (lambda: ops.cast(x, "float16"), "float32, bfloat16, int32 or bool"),
    ):
        with pytest.raises(ValueError, match=words):
            use()
    with pytest.raises(TypeError, match="add needs symbolic tensors or numbers"):
        ops.add(None, 2.0)
    with pytest.raises(TypeError, match="symbolic indices can only select rows"):
        ops.take(x, x, axis=1)
    with pytest.raises(AttributeError, match=r"eig.*: numbers are real: use eigh"):
        _ = ops.eig


HOLDS = ("eq", "ne", "lt", "le", "gt", "ge")


@pytest.mark.parametrize("name", HOLDS)
def test_comparisons_are_of_elements(name):
    x, y = nn.Input((3,)), nn.Input((3,))
    holds = getattr(operator, name)
    made = [holds(x, 1), holds(1, x), holds(x, y), holds(np.float32(1), x)]
    a, b = np.random.default_rng(0).integers(0, 3, (2, 5, 3)).astype("f4")
    made.append(holds(x, True))
    found = nn.Model([x, y], made).predict([a, b], verbose=0)
    expected = [holds(a, 1), holds(1, a), holds(a, b), holds(1, a), holds(a, 1)]
    np.testing.assert_array_equal(found, expected)


def test_tensors_are_no_conditions_and_stay_keys():
    x, y = nn.Input((3,)), nn.Input((3,))
    for test in (lambda: bool(x), lambda: x in [y], lambda: 0 < x < 1):
        with pytest.raises(TypeError, match=r"has no truth value.*ops\.where"):
            test()
    with pytest.raises(ValueError, match="no batch and would be combined with each"):
        _ = x == np.ones((4, 3))
    assert x in [x]
    assert {x: 1, y: 2}[y] == 2
    assert (x == None) is False  # noqa: E711


LOSSES = {  # of a whole batch
    "mse": lambda k, t, p: k.mean(k.square(t - p)),
    "rmse": lambda k, t, p: k.sqrt(k.mean(k.square(t - p), keepdims=True)),
    "ratio": lambda k, t, p: k.sum(k.square(t - p)) / k.sum(t) + 0.1 * k.max(abs(p)),
    "weighted": lambda k, t, p: k.mean(k.square(t - p) * (1 + 9 * (t == 1))),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_a_batch(name):
    loss = LOSSES[name]
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 3)).astype("f4"), rng.integers(0, 2, (8, 2))
    model = nn.Sequential([nn.Input((3,)), nn.Dense(2)])
    model.compile(nn.SGD(0.01), lambda t, p: loss(ops, t, p))
    expected = loss(np, y, model.predict(x, verbose=0))
    assert model.evaluate(x, y, verbose=0) == pytest.approx(expected.item(), rel=1e-5)
    losses = model.fit(x, y, epochs=3, verbose=0).history["loss"]
    assert losses[2] < losses[0]
    with pytest.raises(ValueError, match="cannot use sample weights"):
        model.fit(x, y, sample_weight=np.ones(8), verbose=0)


def test_a_number_of_a_batch_is_combined_with_its_samples():
    model = nn.Sequential([nn.Input((3,)), nn.Dense(2)])
    model.compile("sgd", lambda t, p: t - ops.mean(p, keepdims=True))
    x, y = np.random.default_rng(0).random((4, 3)), np.ones((4, 2))
    expected = 1 - model.predict(x, verbose=0).mean()
    history = model.fit(x, y, verbose=0).history
    np.testing.assert_allclose(history["loss"], [expected], rtol=1e-5)


def test_a_model_of_ops_is_saved_and_trains_alike(tmp_path):
    x = nn.Input((3, 4))
    y = ops.maximum(ops.log1p(ops.square(nn.Dense(4)(x))), 0.1)
    y = ops.where(ops.greater(y, 0.2), ops.sqrt(y), 0.0) / ops.std(y, -1, keepdims=True)
    model = nn.Model(x, nn.Dense(2)(ops.max(y, axis=1)))
    model.compile(nn.SGD(0.01), "mse")
    data = np.random.default_rng(0).normal(size=(8, 3, 4)).astype("f4")
    model.save(tmp_path / "ops.memcfg")
    other = nn.models.load_model(tmp_path / "ops.memcfg")
    one, two = (
        each.fit(data, np.ones((8, 2)), epochs=3, shuffle=False, verbose=0).history
        for each in (model, other)
    )
    assert one == two
    assert one["loss"][2] < one["loss"][0]


@pytest.mark.parametrize("name", sorted(ops.__all__))
def test_the_documentation_says_what_each_parameter_is(name):
    function = getattr(ops, name)
    if not callable(function):
        return
    text = inspect.getdoc(function) or ""
    for parameter in inspect.signature(function).parameters:
        assert re.search(
            rf"^(?:.*, )?\**{parameter}\b.* : .+\n +\S", text, re.MULTILINE
        ), name


def test_attention_in_blocks_is_refused_as_an_op():
    x = nn.Input((3, 2, 4))
    with pytest.raises(ValueError, match="flash_attention must be None or False"):
        ops.dot_product_attention(x, x, x, flash_attention=True)


def test_functions_of_arrays_alone():
    ops, x = mc.nn.ops, np.array([[3, 1, 1], [0, 3, 2], [3, 1, 1]])
    places = ops.nonzero(x)
    assert (x[places] == x[x != 0]).all()
    assert places[0].dtype == np.int32
    values, index, inverse, counts = ops.unique(
        x, return_index=True, return_inverse=True, return_counts=True
    )
    assert values.tolist() == [0, 1, 2, 3]
    assert (x.ravel()[index] == values).all()
    assert (values[inverse].reshape(x.shape) == x).all()
    assert [(x == each).sum() for each in values] == counts.tolist()
    assert ops.unique(x, axis=0).tolist() == [[0, 3, 2], [3, 1, 1]]
    assert ops.unique(x, size=3).tolist() == [0, 1, 2]
    longer = ops.unique(x, size=6, fill_value=9, return_counts=True)
    assert [each.tolist() for each in longer] == [
        [0, 1, 2, 3, 9, 9],
        [1, 4, 1, 3, 0, 0],
    ]
    assert ops.unique(x, axis=1, size=4)[0].tolist() == [1, 1, 3, 0]
    bits = ops.view(np.float32([1, -2]), "int32")
    assert bits.tolist() == [0x3F800000, 0xC0000000 - 2**32]
    assert ops.view(bits).tolist() == bits.tolist()
    for name in ("nonzero", "unique", "view"):
        with pytest.raises(TypeError, match=f"{name}: x must be an array"):
            getattr(ops, name)(mc.nn.Input((3,)))
