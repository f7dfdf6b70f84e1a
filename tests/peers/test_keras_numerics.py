"""Linear algebra, signals, integers and alignments beside Keras 3, with gradients."""

from __future__ import annotations

from functools import partial

import beside_keras
import numpy as np
import pytest
from beside_keras import keras
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc

pytestmark = beside_keras.MARKS
ops = mc.nn.ops


def theirs_of(value):
    """Arrays as Keras's tensors."""
    if isinstance(value, tuple) and any(isinstance(x, np.ndarray) for x in value):
        return tuple(map(theirs_of, value))
    is_array = isinstance(value, np.ndarray)
    return keras.ops.convert_to_tensor(value) if is_array else value


def both(name, *args, **options):
    """What both give of arrays, as lists of arrays."""
    found = getattr(ops, name)(*args, **options)
    wanted = getattr(keras.ops, name)(*map(theirs_of, args), **options)
    results = []
    for each in (found, wanted):
        several = each if isinstance(each, tuple | list) else [each]
        results.append([keras.ops.convert_to_numpy(part) for part in several])
    assert [x.shape for x in results[0]] == [x.shape for x in results[1]]
    return results


def slopes(call, arrays, numbers):
    """The gradients of a sum of the results times numbers, of ours and of Keras's."""

    def total(k, *xs):
        made = call(k, *xs)
        several = made if isinstance(made, tuple | list) else [made]
        parts = [k.sum(k.multiply(y, w)) for y, w in zip(several, numbers, strict=True)]
        return sum(parts[1:], parts[0])

    places = tuple(range(len(arrays)))
    own = mc.function(
        lambda *xs: mc.value_and_grad(partial(total, ops), argnums=places)(*xs)
    )
    found = own(*arrays)[1]
    own.close()
    tensors = [keras.ops.convert_to_tensor(x).requires_grad_() for x in arrays]
    total(keras.ops, *tensors).backward()
    return found, [x.grad.numpy() for x in tensors]


def check_slopes(call, arrays, seed, rtol=2e-4, atol=2e-4):
    made = call(ops, *arrays)
    several = made if isinstance(made, tuple | list) else [made]
    random = np.random.default_rng(seed)
    numbers = [random.normal(size=np.shape(x)).astype("f4") for x in several]
    for ours, theirs in zip(*slopes(call, arrays, numbers), strict=True):
        scale = max(1.0, np.abs(theirs).max())
        np.testing.assert_allclose(ours, theirs, rtol, atol * scale)


@st.composite
def matrices(draw, square=False, most=5):
    lead = draw(st.lists(st.integers(1, 3), max_size=1))
    rows = draw(st.integers(1, most))
    columns = rows if square else draw(st.integers(1, most))
    random = np.random.default_rng(draw(st.integers(0, 999)))
    return random.normal(size=(*lead, rows, columns)).astype("f4")


def away_from_singular(x):
    return x + np.float32(3) * np.eye(x.shape[-1], dtype="f4")


@given(x=matrices(True), seed=st.integers(0, 99))
@settings(max_examples=3, deadline=None)
def test_of_square_matrices(x, seed):
    x = away_from_singular(x)
    b = np.random.default_rng(seed).normal(size=(*x.shape[:-1], 2)).astype("f4")
    for name in ("inv", "det", "slogdet", "logdet"):
        for found, wanted in zip(*both(name, x), strict=True):
            np.testing.assert_allclose(found, wanted, 2e-4, 1e-4)
        if name == "slogdet":
            check_slopes(lambda k, x: k.slogdet(x)[1], [x], seed)
        elif name != "logdet" or (np.linalg.det(x) > 0).all():
            check_slopes(lambda k, x, name=name: getattr(k, name)(x), [x], seed)
    for right in (b, b[..., 0]):
        for found, wanted in zip(*both("solve", x, right), strict=True):
            np.testing.assert_allclose(found, wanted, 2e-4, 1e-4)
        for lower in (False, True):
            found, wanted = both("solve_triangular", x, right, lower=lower)
            np.testing.assert_allclose(found[0], wanted[0], 2e-3, 2e-4)
    check_slopes(lambda k, a, b: k.solve(a, b), [x, b], seed)
    check_slopes(lambda k, a, b: k.solve_triangular(a, b, lower=True), [x, b], seed)
    found, wanted = both("lu_factor", x)
    np.testing.assert_allclose(found[0], wanted[0], 2e-4, 1e-4)
    np.testing.assert_array_equal(found[1], wanted[1])


@given(x=matrices(True), seed=st.integers(0, 99), upper=st.booleans())
@settings(max_examples=3, deadline=None)
def test_of_symmetric_matrices(x, seed, upper):
    x = x @ np.swapaxes(x, -1, -2) + np.diag(1 + np.arange(x.shape[-1], dtype="f4"))
    ((found,), (wanted,)) = both("cholesky", x, upper=upper)
    np.testing.assert_allclose(found, wanted, 1e-4, 1e-5)
    ((found,), (wanted,)) = both("cholesky_inverse", wanted, upper=upper)
    np.testing.assert_allclose(found, wanted, 1e-3, 1e-4)

    def symmetric(k, x):
        return x + k.swapaxes(x, -1, -2)

    check_slopes(lambda k, x: k.cholesky(symmetric(k, x), upper=upper), [x], seed)
    check_slopes(lambda k, x: k.eigh(symmetric(k, x))[0], [x], seed, 1e-3, 1e-3)
    (values, vectors), (theirs, others) = both("eigh", x)
    np.testing.assert_allclose(values, theirs, 1e-4, 1e-4)
    # Vectors are so but for their signs.
    products = np.abs(np.swapaxes(vectors, -1, -2) @ others)
    np.testing.assert_allclose(products, np.eye(x.shape[-1]) + 0 * products, atol=2e-2)


@given(x=matrices(), seed=st.integers(0, 99), full=st.booleans())
@settings(max_examples=3, deadline=None)
def test_of_any_matrices(x, seed, full):
    mode = "complete" if full else "reduced"
    for found, wanted in zip(*both("qr", x, mode=mode), strict=True):
        least = min(x.shape[-2:])
        rest = (..., slice(least)) if found.shape[-2:] != wanted.shape[-2:] else ...
        np.testing.assert_allclose(found[rest], wanted[rest], 1e-3, 1e-4)
    (u, s, v), (_, theirs, _) = both("svd", x, full_matrices=full)
    np.testing.assert_allclose(s, theirs, 1e-4, 1e-5)
    inner = s.shape[-1]
    made = (u[..., :inner] * s[..., None, :]) @ v[..., :inner, :]
    np.testing.assert_allclose(made, x, atol=1e-5)
    for each in (u, np.swapaxes(v, -1, -2)):
        turned = np.swapaxes(each, -1, -2) @ each
        np.testing.assert_allclose(
            turned, np.eye(turned.shape[-1]) + 0 * turned, atol=1e-5
        )
    check_slopes(lambda k, x: k.svd(x, compute_uv=False), [x], seed, 1e-3, 1e-3)
    if x.shape[-2] >= x.shape[-1] and s.min() > 0.1:
        check_slopes(lambda k, x: k.qr(x), [x], seed, 2e-3, 2e-3)
    if s.min() > 0.1:
        for found, wanted in zip(*both("pinv", x), strict=True):
            np.testing.assert_allclose(found, wanted, 1e-3, 1e-4)
        check_slopes(lambda k, x: k.pinv(x), [x], seed, 2e-3, 2e-3)
    for tol in (None, 0.5):
        for found, wanted in zip(*both("matrix_rank", x, tol=tol), strict=True):
            np.testing.assert_array_equal(found, wanted)
    low = np.concatenate([x, x], -2)
    for found, wanted in zip(*both("matrix_rank", low), strict=True):
        np.testing.assert_array_equal(found, wanted)


@given(rows=st.integers(3, 6), columns=st.integers(1, 3), seed=st.integers(0, 99))
@settings(max_examples=3, deadline=None)
def test_least_squares(rows, columns, seed):
    random = np.random.default_rng(seed)
    a = random.normal(size=(rows, columns)).astype("f4")
    for shape in ((rows, 2), (rows,)):
        b = random.normal(size=shape).astype("f4")
        for options in ({}, {"rcond": 1e-3}):
            for found, wanted in zip(*both("lstsq", a, b, **options), strict=True):
                np.testing.assert_allclose(found, wanted, 2e-2, 2e-3)


def test_singular_matrices():
    x = np.float32([[1, 2], [2, 4]])
    for name in ("det", "slogdet", "logdet"):
        for found, wanted in zip(*both(name, x), strict=True):
            np.testing.assert_array_equal(found, wanted)
    x = np.float32([[0, 1], [1, 0]])
    for name in ("det", "slogdet", "logdet"):
        for found, wanted in zip(*both(name, x), strict=True):
            np.testing.assert_array_equal(found, wanted)


SIZES = st.integers(1, 12)


@given(rows=st.integers(1, 3), length=SIZES, size=SIZES, seed=st.integers(0, 99))
@settings(max_examples=3, deadline=None)
def test_fourier_transforms(rows, length, size, seed):
    random = np.random.default_rng(seed)
    parts = tuple(random.normal(size=(2, rows, length)).astype("f4"))
    calls = [("fft", {}), ("fft2", {}), ("ifft2", {})]
    for name, options in calls:
        for found, wanted in zip(*both(name, parts, **options), strict=True):
            np.testing.assert_allclose(found, wanted, 1e-4, 1e-5)
        check_slopes(lambda k, a, b, n=name: getattr(k, n)((a, b)), parts, seed)
    for cut in (None, size):
        for found, wanted in zip(*both("rfft", parts[0], cut), strict=True):
            np.testing.assert_allclose(found, wanted, 1e-4, 1e-5)
        check_slopes(lambda k, x, n=cut: k.rfft(x, n), parts[:1], seed)
        if cut or length > 1:
            for found, wanted in zip(*both("irfft", parts, cut), strict=True):
                np.testing.assert_allclose(found, wanted, 1e-4, 1e-5)
            check_slopes(lambda k, a, b, n=cut: k.irfft((a, b), n), parts, seed)


@given(
    length=st.integers(2, 8),
    stride=st.integers(1, 4),
    more=st.integers(0, 3),
    window=st.sampled_from(["hann", "hamming", None, "own"]),
    center=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=3, deadline=None)
def test_windows_of_signals(length, stride, more, window, center, seed):
    random = np.random.default_rng(seed)
    stride, size = min(stride, length), length + more
    x = random.normal(size=(2, 30)).astype("f4")
    if window == "own":
        window = random.uniform(0.5, 1, length).tolist()
    given = (length, stride, size)
    options = {"window": window, "center": center}
    found, wanted = both("stft", x, *given, **options)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, 1e-4, 1e-4)
    check_slopes(lambda k, x: k.stft(x, *given, **options), [x], seed)
    for one, other in zip(*both("extract_sequences", x, length, stride), strict=True):
        np.testing.assert_array_equal(one, other)
    plain = isinstance(window, str) and window == "hann"
    if plain and stride * 2 > length:  # elements at which all windows are 0
        return
    for wanted_length in (None, 20):
        parts = tuple(found)
        more_options = {**options, "length": wanted_length}
        ours, theirs = both("istft", parts, *given, **more_options)
        np.testing.assert_allclose(ours[0], theirs[0], 1e-3, 1e-3)
    check_slopes(lambda k, a, b: k.istft((a, b), *given, **options), found, seed)


@given(
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dilation=st.integers(1, 2),
    padding=st.tuples(st.integers(0, 1), st.integers(0, 1)),
    stride=st.integers(1, 3),
    seed=st.integers(0, 99),
)
@settings(max_examples=3, deadline=None)
def test_windows_of_images(kernel, dilation, padding, stride, seed):
    x = np.random.default_rng(seed).normal(size=(2, 3, 6, 7)).astype("f4")
    a = {"dilation": dilation, "padding": padding, "stride": stride}
    ((found,), (wanted,)) = both("unfold", x, kernel, **a)
    np.testing.assert_array_equal(found, wanted)
    ((one,), (other,)) = both("fold", found, (6, 7), kernel, **a)
    np.testing.assert_allclose(one, other, 1e-5, 1e-5)
    check_slopes(lambda k, x: k.unfold(x, kernel, **a), [x], seed)
    check_slopes(lambda k, x: k.fold(x, (6, 7), kernel, **a), [found], seed)


ENDS = [0, 1, -1, 12, 18, 31, 40, -7, 2**31 - 1, -(2**31) + 1]
INTEGERS = st.lists(
    st.one_of(st.sampled_from(ENDS), st.integers(-(2**31) + 1, 2**31 - 1)),
    min_size=4,
    max_size=4,
)


@given(a=INTEGERS, b=INTEGERS)
@settings(max_examples=8, deadline=None)
def test_integers(a, b):
    a, b = np.array(a, np.int32), np.array(b, np.int32)
    names = ["bitwise_and", "bitwise_or", "bitwise_xor", "gcd"]
    for name in names:
        ((found,), (wanted,)) = both(name, a, b)
        np.testing.assert_array_equal(found, wanted)
    small = a % 1000 - 500, b % 1000 - 500
    ((found,), (wanted,)) = both("lcm", *small)
    np.testing.assert_array_equal(found, wanted)
    for name in ("left_shift", "right_shift", "bitwise_left_shift"):
        ((found,), (wanted,)) = both(name, a, b % 32)
        np.testing.assert_array_equal(found, wanted)
    for name in ("bitwise_not", "bitwise_invert"):
        ((found,), (wanted,)) = both(name, a)
        np.testing.assert_array_equal(found, wanted)


@st.composite
def sequences(draw):
    steps, classes = draw(st.integers(2, 8)), draw(st.integers(2, 5))
    blank = draw(st.integers(0, classes - 1))
    random = np.random.default_rng(draw(st.integers(0, 999)))
    x = (2 * random.normal(size=(3, steps, classes))).astype("f4")
    others = [c for c in range(classes) if c != blank]
    labels = random.choice(others, (3, 4)).astype(np.int32)
    counts = random.integers(0, 5, 3).astype(np.int32)
    lengths = random.integers(1, steps + 1, 3).astype(np.int32)
    return x, labels, counts, lengths, blank


@given(drawn=sequences(), seed=st.integers(0, 99))
@settings(max_examples=8, deadline=None)
def test_alignments(drawn, seed):
    x, labels, counts, lengths, blank = drawn
    given = (labels, x, counts, lengths)
    ((found,), (wanted,)) = both("ctc_loss", *given, mask_index=blank)
    np.testing.assert_allclose(found, wanted, 1e-4, 1e-5)
    finite = np.isfinite(wanted)
    counts = np.where(finite, counts, 0).astype(np.int32)
    check_slopes(
        lambda k, x: k.ctc_loss(labels, x, counts, lengths, mask_index=blank), [x], seed
    )


@given(drawn=sequences(), merge=st.booleans())
@settings(max_examples=8, deadline=None)
def test_the_most_probable_classes(drawn, merge):
    x, _, _, lengths, blank = drawn
    (labels, scores), (theirs, others) = both(
        "ctc_decode", x, lengths, merge_repeated=merge, mask_index=blank
    )
    np.testing.assert_array_equal(labels, theirs)
    np.testing.assert_allclose(scores, others, 1e-5, 1e-5)


@given(drawn=sequences(), width=st.integers(2, 12), top=st.integers(1, 2))
@settings(max_examples=8, deadline=None)
def test_the_most_probable_labels(drawn, width, top):
    x, _, _, lengths, blank = drawn
    (labels, scores), (theirs, others) = both(
        "ctc_decode",
        x,
        lengths,
        "beam_search",
        beam_width=width,
        top_paths=top,
        mask_index=blank,
    )
    np.testing.assert_allclose(scores, others, 1e-4, 1e-4)
    known = np.isfinite(others).T  # what is after the last path is anything
    np.testing.assert_array_equal(labels[known], theirs[known])


@pytest.mark.parametrize("name", ["gamma", "beta", "binomial"])
def test_draws_have_the_moments_of_keras(name):
    given = {"gamma": (2.5,), "beta": (0.5, 2.0), "binomial": (20, 0.3)}[name]
    draws = [
        np.asarray(getattr(k.random, name)((40000,), *given, seed=1))
        for k in (mc.nn, keras)
    ]
    assert draws[0].dtype == draws[1].dtype
    for moment in (np.mean, np.std):
        np.testing.assert_allclose(*map(moment, draws), rtol=0.02)
