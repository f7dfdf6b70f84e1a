"""Gradients that find a rectifier's mask in what went in, or in a wider array."""

from __future__ import annotations

import numpy as np
import pytest
from family_cases import case
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import execute, normal

from memcfg.devices.cpu import kernel_table
from memcfg.errors import GraphError, KernelError, MissingDependencyError
from memcfg.ops import Spec, op_type

EPSILON = {"epsilon": 1e-3}


@pytest.fixture(scope="module")
def table():
    try:
        return kernel_table("onednn")
    except MissingDependencyError as error:
        pytest.skip(str(error))


def run(table, kind, inputs, attributes=None):
    made = case(kind, inputs, attributes or {})
    return [
        np.frombuffer(result, dtype).reshape(shape)
        for result, (shape, dtype) in zip(
            execute(table, made, 0xFF, 64), made.outputs, strict=True
        )
    ]


def wide(array, before, after):
    pads = [(0, 0)] * (array.ndim - 1) + [(before, after)]
    return np.pad(array, pads, constant_values=np.nan)


shapes = st.tuples(
    st.lists(st.integers(1, 30), min_size=1, max_size=3), st.integers(1, 80)
).map(lambda pair: (*pair[0], pair[1]))


@settings(max_examples=40, deadline=None)
@given(
    shape=shapes,
    seed=st.integers(0, 99),
    forward=st.sampled_from(["batch_normalization_relu", "batch_normalization_relu6"]),
    before=st.integers(0, 5),
    after=st.integers(0, 70),
)
def test_the_mask_is_that_of_the_result(table, shape, seed, forward, before, after):
    """The same bits as one after the other, forward and gradient."""
    x, dy = 3 * normal(*shape, seed=seed), normal(*shape, seed=seed + 1)
    gamma, beta = (2 * normal(shape[-1], seed=seed + i) for i in (2, 3))
    mean, variance = run(table, "batch_moments", [x])
    (y,) = run(table, forward, [x, gamma, beta, mean, variance], EPSILON)
    activation = forward.rsplit("_", 1)[1]
    (dz,) = run(table, f"{activation}_gradient", [y, dy])
    plain = [x, dz, gamma, mean, variance]
    wanted = run(table, "batch_normalization_gradient", plain, EPSILON)
    rest = [dy, gamma, beta, mean, variance]
    found = run(table, f"{forward}_gradient", [x, *rest], EPSILON)
    for a, b in zip(found, wanted, strict=True):
        assert a.tobytes() == b.tobytes()
    attributes = {**EPSILON, "first": before}
    inputs = [wide(x, before, after), *rest]
    part = run(table, f"{forward}_gradient", inputs, attributes)
    for a, b in zip(part, wanted, strict=True):
        if shape[-1] >= 64 or before == after == 0:
            assert a.tobytes() == b.tobytes()
        else:  # few channels are summed in another order
            scale = np.abs(b).max() + 1
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * scale)


@settings(max_examples=40, deadline=None)
@given(
    shape=shapes,
    seed=st.integers(0, 99),
    before=st.integers(0, 5),
    after=st.integers(0, 70),
)
def test_a_part_is_masked_as_the_whole(table, shape, seed, before, after):
    y, dy = normal(*shape, seed=seed), normal(*shape, seed=seed + 1)
    inputs, attributes = [wide(y, before, after), dy], {"first": before}
    (wanted,) = run(table, "relu_gradient", [y, dy])
    (found,) = run(table, "relu_gradient_at", inputs, attributes)
    assert found.tobytes() == wanted.tobytes()
    dz, bias = run(table, "bias_relu_gradient_at", inputs, attributes)
    assert dz.tobytes() == wanted.tobytes()
    exact = wanted.astype(np.float64).reshape(-1, shape[-1]).sum(axis=0)
    np.testing.assert_allclose(bias, exact, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    "kind",
    ["relu_gradient_at", "bias_relu_gradient_at", "batch_normalization_relu_gradient"],
)
def test_channels_that_are_not_there_are_refused(table, kind):
    x, each = normal(4, 6), normal(5)
    rest = [each] * 4 if kind.startswith("batch") else []
    attributes = {"first": 2, **(EPSILON if rest else {})}
    specs = [Spec(a.shape, "float32") for a in (x, x[:, :5], *rest)]
    with pytest.raises(GraphError, match=r"channels 2 to 7 of \(4, 6\)"):
        op_type(kind).infer(specs, attributes)
    fits = case(kind, [x, x[:, :5].copy(), *rest], {**attributes, "first": 1})
    fits.attributes = attributes
    with pytest.raises(KernelError, match="channels that are not there"):
        execute(table, fits, 0, 0)
