"""Composites: kernels against the ops that they stand for, bit for bit."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from family_cases import (
    biased_cases,
    case,
    convolution_cases,
    following_cases,
    fused_cases,
    product_cases,
    window,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import ROWS, check, convolutions, depthwise, execute, normal

from memcfg import ops
from memcfg.devices import OperandSpec
from memcfg.devices.cpu import kernel_table
from memcfg.errors import GraphError, KernelError, MissingDependencyError
from memcfg.ops import Spec, Value

COMPOSITES = {kind.name: kind for kind in ops.op_types() if kind.composite is not None}


@pytest.fixture(scope="module")
def table():
    try:
        return kernel_table("onednn")
    except MissingDependencyError as error:
        pytest.skip(str(error))


def cases(shape, seed=0):
    gamma, beta = (normal(shape[-1], seed=seed + place) for place in (1, 2))
    x, dy = normal(*shape, seed=seed) + 3, normal(*shape, seed=seed + 3)
    return list(fused_cases(x, dy, gamma, beta))


def one_by_one(table, made):
    """What the native kernels of the parts give, each on its own."""
    found = COMPOSITES[made.op_type].composite
    arrays = {Value(-1, i): x for i, x in enumerate(made.inputs)}
    for index, part in enumerate(found.parts):
        attributes = found.attributes_of(index, made.attributes)
        each = case(part.type, [arrays[v] for v in part.inputs], attributes)
        results = execute(table, each, 0xFF, 64)
        for place, (shape, dtype) in enumerate(each.outputs):
            array = np.frombuffer(results[place], dtype).reshape(shape)
            arrays[Value(index, place)] = array
    return [arrays[value].tobytes() for value in found.outputs]


def check_all(table, made):
    """Against the parts, with and without each in-place pair, and NumPy's meaning."""
    wanted = one_by_one(table, made)
    assert [bytes(each) for each in execute(table, made, 0xFF, 64)] == wanted
    for given_, out in COMPOSITES[made.op_type].in_place:
        made.pairs = {out: given_}
        check(table, made)
        assert [bytes(each) for each in execute(table, made, 0x5A, 0)] == wanted
    made.pairs = {}
    check(table, made)


def test_both_gradients_of_a_sum_take_places_at_once(table):
    """dz that of dy or of y, and dx that of x: no bytes but these three."""
    (made,) = (
        each
        for each in cases((130, 520))
        if each.op_type == "batch_normalization_add_relu_gradient"
    )
    wanted = [bytes(each) for each in execute(table, made, 0xFF, 64)]
    for taken in (1, 2):
        made.pairs = {0: 0, 3: taken}
        assert [bytes(each) for each in execute(table, made, 0x5A, 0)] == wanted


@pytest.mark.parametrize(
    "shape", [(2, 3), *ROWS[1:], (130, 520), (3, 5, 7, 65)], ids=str
)
def test_a_composite_is_its_parts(table, shape):
    for made in cases(shape):
        check_all(table, made)


@given(
    lead=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    channels=st.integers(1, 80),
    seed=st.integers(0, 99),
)
@settings(max_examples=25, deadline=None)
def test_composites_of_any_shape_are_their_parts(table, lead, channels, seed):
    if np.prod(lead) > 1:  # the mean of one value is itself, with any slope
        for made in cases((*lead, channels), seed):
            check_all(table, made)


def test_every_composite_is_tested():
    tested = {
        made.op_type for made in (*cases((4, 3)), *biased_cases(), *all_following())
    }
    assert tested == set(COMPOSITES)


def all_following():
    for made in (*convolution_cases(), *product_cases()):
        if made.op_type in ("conv2d", "dense"):
            yield from following_cases(made)


# -- products with a bias: oneDNN may add it first, and round otherwise --------


def check_biased(table, made):
    """Against NumPy's meaning, and the native kernels of the parts."""
    check(table, made)
    (wanted,) = one_by_one(table, made)
    (found,) = execute(table, made, 0xFF, 64)
    wanted, found = (np.frombuffer(each, np.float32) for each in (wanted, found))
    scale = np.abs(wanted).max()
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6 * scale)


@pytest.mark.parametrize("made", [*biased_cases()], ids=lambda made: made.op_type)
def test_a_product_with_a_bias_is_both(table, made):
    check_biased(table, made)


@given(
    rows=st.integers(1, 70),
    inputs=st.integers(1, 70),
    units=st.integers(1, 70),
    seed=st.integers(0, 99),
)
@settings(max_examples=25, deadline=None)
def test_dense_of_any_shape_with_a_bias(table, rows, inputs, units, seed):
    operands = (normal(rows, inputs, seed=seed), normal(inputs, units, seed=seed + 1))
    bias = normal(units, seed=seed + 2)
    check_biased(table, case("dense_bias", [*operands, bias]))


def test_dense_in_blocks_of_rows_with_a_bias(table):
    """More rows and units than one product takes at once."""
    operands = (normal(600, 20), normal(20, 300, seed=1), normal(300, seed=2))
    check_biased(table, case("dense_bias", operands))


@given(drawn=convolutions() | depthwise(), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_any_convolution_with_a_bias(table, drawn, seed):
    a, x, kernel, y = drawn
    operands = [normal(*x, seed=seed), normal(*kernel, seed=1), normal(y[3], seed=2)]
    made = case("conv2d_bias", operands, a)
    check_biased(table, made)
    op = _op_of(made)
    for name, scratch, _ in table.algorithms(*op)[:-1]:
        assert table.make(*op, name).scratch_bytes == scratch
        check(_Naming(table, name), made)


def _op_of(made):
    inputs = [OperandSpec(x.shape, x.dtype.name) for x in made.inputs]
    outputs = [OperandSpec(shape, dtype) for shape, dtype in made.outputs]
    return made.op_type, made.attributes, inputs, outputs


class _Naming:
    """A table that makes one algorithm."""

    def __init__(self, table, algorithm):
        self._table = table
        self._algorithm = algorithm

    def make(self, *op):
        return self._table.make(*op, self._algorithm)


def test_a_convolution_with_a_bias_has_the_algorithms_of_one_without(table):
    made = next(each for each in biased_cases() if each.op_type == "conv2d_bias")
    name, attributes, inputs, outputs = _op_of(made)
    with_bias = table.algorithms(name, attributes, inputs, outputs)
    assert with_bias == table.algorithms("conv2d", attributes, inputs[:2], outputs)
    assert with_bias[0][0] == "onednn"


@pytest.mark.parametrize("name", ["dense_bias", "conv2d_bias"])
def test_a_bias_that_is_not_finite_reaches_its_channel_alone(table, name):
    made = next(each for each in biased_cases() if each.op_type == name)
    x, kernel, _ = made.inputs
    special = np.float32([np.nan, np.inf, -np.inf, -0.0])
    bias = np.resize(special, kernel.shape[-1])
    made = case(name, [x, kernel, bias], made.attributes)
    (found,) = execute(table, made, 0xFF, 64)
    found = np.frombuffer(found, np.float32).reshape(made.outputs[0][0])
    for channel, value in enumerate(bias):
        column = found[..., channel]
        if value == 0:
            assert np.isfinite(column).all()
        else:
            np.testing.assert_array_equal(column, np.full_like(column, value))


# -- products with what follows in inference -----------------------------------


@pytest.mark.parametrize("made", [*all_following()], ids=lambda made: made.op_type)
def test_a_product_takes_along_what_follows(table, made):
    check_biased(table, made)


@given(drawn=convolutions() | depthwise())
@settings(max_examples=30, deadline=None)
def test_any_convolution_takes_along_what_follows(table, drawn):
    a, x, kernel, _ = drawn
    convolution = case("conv2d", [normal(*x), normal(*kernel, seed=1)], a)
    for made in following_cases(convolution):
        check_biased(table, made)
        op = _op_of(made)
        for name, scratch, _ in table.algorithms(*op)[:-1]:
            assert table.make(*op, name).scratch_bytes == scratch
            check(_Naming(table, name), made)


@given(rows=st.integers(1, 70), inputs=st.integers(1, 70), units=st.integers(1, 70))
@settings(max_examples=25, deadline=None)
def test_any_dense_takes_along_what_follows(table, rows, inputs, units):
    dense = case("dense", [normal(rows, inputs), normal(inputs, units, seed=1)])
    for made in following_cases(dense):
        check_biased(table, made)


def test_dense_in_blocks_of_rows_takes_along_what_follows(table):
    for rows in (512, 600):
        dense = case("dense", [normal(rows, 20), normal(20, 300, seed=1)])
        for made in following_cases(dense):
            check_biased(table, made)


def test_nan_goes_through_a_product_with_a_relu(table):
    """Wherever it comes from; of what is infinite only -inf may become NaN, not 0."""
    for kind in ("dense", "conv2d"):
        shape = (2, 3) if kind == "dense" else (2, 1, 1, 3)
        window_ = {} if kind == "dense" else window()
        product = case(kind, [normal(*shape), normal(*shape[1:], 4, seed=1)], window_)
        for made in following_cases(product):
            if not made.op_type.endswith("_relu"):
                continue
            added = [0, 2] if "_bias_" in made.op_type else [0]  # no factors
            if "_add_" in made.op_type:
                added.append(len(made.inputs) - 1)
            for place in range(len(made.inputs)):
                infinite = (np.inf, -np.inf) if place in added else ()
                for value in (np.nan, *infinite):
                    inputs = [each.copy() for each in made.inputs]
                    inputs[place].flat[0] = value
                    each = case(made.op_type, inputs, made.attributes)
                    with np.errstate(invalid="ignore"):
                        (wanted,) = each.reference()
                        (before,) = _without_relu(each).reference()
                    (found,) = execute(table, each, 0xFF, 64)
                    found = np.frombuffer(found, np.float32).reshape(wanted.shape)
                    as_it_is = ~np.isneginf(before)
                    np.testing.assert_array_equal(
                        np.isnan(found)[as_it_is], np.isnan(wanted)[as_it_is]
                    )
                    left = found[~as_it_is]
                    assert (np.isnan(left) | (left == 0)).all()


def _without_relu(made):
    name = made.op_type.removesuffix("_relu")
    return case(name, made.inputs, made.attributes)


def test_a_vector_of_another_length_is_refused(table):
    for made in all_following():
        name, attributes, inputs, outputs = _op_of(made)
        for place in range(2, len(inputs)):
            wrong = list(inputs)
            wrong[place] = OperandSpec((inputs[place].shape[0] + 1,), "float32")
            with pytest.raises(KernelError, match=r"of other|by other|of another"):
                table.make(name, attributes, wrong, outputs)


# -- sums: in the place of what is added, or of a copy -------------------------


# Products whose sums take more than 4 MiB, with the bytes of what is made at a time: as
# many images as divide the batch, 256 rows, or 4 MiB of rows of few units.
LARGE = {
    (6, 40, 40, 128): 3 * 40 * 40 * 128 * 4,
    (2, 60, 60, 160): 60 * 60 * 160 * 4,
    (4300, 256): 4096 * 256 * 4,
    (3600, 300): 256 * 300 * 4,
    (200, 6000): 0,  # of few rows at once, in its place, where oneDNN adds as it goes
}


def large_product(shape):
    *lead, units = shape
    x = normal(*lead, 3)
    if len(shape) == 2:
        return case("dense", [x, normal(3, units, seed=1)])
    return case("conv2d", [x, normal(1, 1, 3, units, seed=1)], window())


def sums(products):
    return [
        made
        for product in products
        for made in following_cases(product)
        if "_add" in made.op_type
    ]


def all_sums():
    small = [*convolution_cases(), *product_cases()]
    small = [made for made in small if made.op_type in ("conv2d", "dense")]
    return sums([*small, *map(large_product, LARGE)])


@pytest.mark.parametrize("shape", LARGE, ids=str)
def test_large_sums_are_made_in_parts(table, shape):
    for made in sums([large_product(shape)]):
        check_biased(table, made)
        kernel = table.make(*_op_of(made))
        if kernel.algorithm == "native":  # as with AVX2: on the stack
            assert kernel.scratch_bytes == 0
            continue
        sizes = {LARGE[shape], LARGE[shape] or math.prod(shape) * 4}
        assert any(size <= kernel.scratch_bytes < size + 65536 for size in sizes)


@pytest.mark.parametrize("made", all_sums(), ids=lambda made: made.op_type)
def test_a_sum_in_the_place_of_what_is_added_has_the_same_bits(table, made):
    assert COMPOSITES[made.op_type].in_place == ((len(made.inputs) - 1, 0),)
    in_place = replace(made, pairs={0: len(made.inputs) - 1})
    found = execute(table, made, 0xFF, 64)
    assert execute(table, in_place, 0xFF, 64) == found
    assert execute(table, in_place, 0x5A, 0) == found


def test_a_bias_of_another_length_is_refused(table):
    x, image = OperandSpec((4, 5), "float32"), OperandSpec((1, 4, 4, 5), "float32")
    bias = OperandSpec((4,), "float32")
    kernels = {
        "dense_bias": (x, OperandSpec((5, 3), "float32"), (4, 3), {}),
        "conv2d_bias": (
            *(image, OperandSpec((1, 1, 5, 3), "float32"), (1, 4, 4, 3)),
            window(),
        ),
    }
    for name, (first, kernel, out, attributes) in kernels.items():
        outputs = [OperandSpec(out, "float32")]
        with pytest.raises(KernelError, match="has a bias of other"):
            table.make(name, attributes, [first, kernel, bias], outputs)


def test_what_is_not_finite_stays_so(table):
    """A ReLU of NaN is NaN: a loss that is not finite must be seen."""
    x = normal(6, 3)
    x[2, 1], x[3, 2] = np.nan, np.inf
    ones = np.ones(3, np.float32)
    for name, inputs in (
        ("bias_relu", [x, ones]),
        ("batch_normalization_inference_relu", [x, ones, ones, ones, ones]),
        ("batch_normalization_inference_relu6", [x, ones, ones, ones, ones]),
        ("batch_normalization_relu", [x, ones, ones, ones, ones]),
        ("batch_normalization_add_relu", [x, ones, ones, ones, ones, x]),
    ):
        made = case(name, inputs, {"epsilon": 1e-3} if "norm" in name else {})
        found = np.frombuffer(execute(table, made, 0xFF, 64)[0], np.float32)
        assert np.isnan(found.reshape(x.shape)[2, 1])
        assert execute(table, made, 0xFF, 64) == one_by_one(table, made)


def test_variance_is_that_of_columns_that_drift(table):
    """Blocks far apart are joined, not rounded away; rows come in several blocks."""
    for rows, channels in ((70_000, 3), (9000, 70), (20_000, 300)):
        drift = np.linspace(-1e4, 1e4, rows)[:, None] + np.zeros(channels)
        x = (drift + normal(rows, channels)).astype(np.float32)
        mean, variance = execute(table, case("batch_moments", [x]), 0xFF, 64)
        exact = x.astype(np.float64)
        np.testing.assert_allclose(
            np.frombuffer(variance, np.float32), exact.var(axis=0), rtol=1e-5
        )
        np.testing.assert_allclose(
            np.frombuffer(mean, np.float32), exact.mean(axis=0), atol=0.05
        )


def test_shapes_cost_and_names_come_from_the_parts():
    kind = COMPOSITES["batch_normalization_add_relu_gradient"]
    all_, each = Spec((6, 3), "float32"), Spec((3,), "float32")
    inputs = [all_, all_, all_, each, each, each]
    made = kind.infer(inputs, {"epsilon": 0.1})
    assert [spec.shape for spec in made] == [(6, 3), (3,), (3,), (6, 3)]
    assert len({spec.suffix for spec in made}) == 4
    parts = ("relu_gradient", "batch_normalization_gradient")
    assert kind.composite.main == 1
    assert [part.type for part in kind.composite.parts] == list(parts)
    alone = ops.op_type(parts[0]).flops([all_, all_], [all_], {})
    rest = ops.op_type(parts[1]).flops([all_, all_, each, each, each], made[:3], {})
    assert kind.flops(inputs, made, {"epsilon": 0.1}) == alone + rest
    with pytest.raises(GraphError, match="takes 6 inputs"):
        kind.infer(inputs[:5], {"epsilon": 0.1})
