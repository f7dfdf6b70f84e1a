"""Distributions of first values, and what a seed decides."""

from __future__ import annotations

import contextlib
import math
import signal
import tracemalloc
from statistics import NormalDist

import numpy as np
import pytest

import memcfg as mc
from memcfg.nn.initializers import get_initializer

nn = mc.nn
SHAPE = (3, 3, 40, 60)  # fan in 360, fan out 540
SIZE = math.prod(SHAPE)


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("glorot_uniform", math.sqrt(6 / (360 + 540))),
        ("he_uniform", math.sqrt(6 / 360)),
        ("lecun_uniform", math.sqrt(3 / 360)),
        ("random_uniform", 0.05),
        (nn.VarianceScaling(2.0, "fan_out", "uniform"), math.sqrt(6 / 540)),
    ],
)
def test_uniform_limits(name, limit):
    values = get_initializer(name).draw(SHAPE, 3)
    assert values.dtype == np.float32
    assert values.shape == SHAPE
    assert abs(values).max() <= limit
    assert abs(values).max() > 0.999 * limit
    deviation = limit / math.sqrt(3)
    assert values.std() == pytest.approx(deviation, rel=0.01)
    assert abs(values.mean()) < 5 * deviation / math.sqrt(SIZE)


@pytest.mark.parametrize(
    ("name", "variance"),
    [
        ("he_normal", 2 / 360),
        ("glorot_normal", 2 / (360 + 540)),
        ("lecun_normal", 1 / 360),
        ("variance_scaling", 1 / 360),
        (nn.VarianceScaling(3.0, "fan_avg", "normal"), 3 / 450),
    ],
)
def test_truncated_normals_have_their_variance_and_are_cut(name, variance):
    values = get_initializer(name).draw(SHAPE, 3)
    deviation = math.sqrt(variance)
    assert values.std() == pytest.approx(deviation, rel=0.01)
    assert abs(values).max() <= 2 * deviation / 0.8796256610342398 * (1 + 1e-6)


def test_other_normals():
    values = nn.TruncatedNormal(1.0, 0.2).draw(SHAPE, 3)
    assert abs(values - 1).max() <= 0.4 * (1 + 1e-6)
    assert values.std() == pytest.approx(0.2 * 0.8796256610342398, rel=0.01)
    plain = nn.VarianceScaling(1.0, "fan_in", "untruncated_normal").draw(SHAPE, 3)
    assert plain.std() == pytest.approx(math.sqrt(1 / 360), rel=0.01)
    assert abs(plain).max() > 3 * math.sqrt(1 / 360)


@pytest.mark.parametrize("shape", [(40, 40), (8, 32), (32, 8), (2, 3, 5, 4)])
def test_orthogonal(shape):
    values = nn.Orthogonal(gain=2.0).draw(shape, 3)
    assert (values.shape, values.dtype) == (shape, np.float32)
    flat = values.reshape(-1, shape[-1])
    short = flat if flat.shape[0] <= flat.shape[1] else flat.T
    np.testing.assert_allclose(short @ short.T, 4 * np.eye(len(short)), atol=1e-5)
    with pytest.raises(ValueError, match="two or more axes"):
        nn.Orthogonal().draw((3,), 0)


def test_numbers_and_the_identity():
    np.testing.assert_array_equal(
        nn.Constant(2.5).draw((2, 3), 0), np.full((2, 3), 2.5)
    )
    np.testing.assert_array_equal(nn.Identity(3).draw((2, 3), 0), 3 * np.eye(2, 3))
    for call, words in (
        (lambda: nn.Identity().draw((3,), 0), "matrices"),
        (lambda: nn.RandomUniform(1, 0), "must not exceed maxval"),
        (lambda: nn.VarianceScaling(0), "positive"),
        (lambda: nn.VarianceScaling(mode="fan"), "got 'fan'"),
        (lambda: nn.VarianceScaling(distribution="cauchy"), "got 'cauchy'"),
    ):
        with pytest.raises(ValueError, match=words):
            call()


def test_random_normal():
    values = nn.RandomNormal(mean=1.0, stddev=0.2).draw(SHAPE, 3)
    assert values.mean() == pytest.approx(1.0, abs=0.005)
    assert values.std() == pytest.approx(0.2, rel=0.01)
    assert get_initializer("random_normal").draw(SHAPE, 3).std() == pytest.approx(
        0.05, rel=0.01
    )


@pytest.mark.parametrize(
    "name",
    ["glorot_uniform", "he_normal", "he_uniform", "ones", "random_normal", "zeros"],
)
def test_values_are_drawn_in_place(name):
    """A weight takes its own bytes and bounded temporaries, however large it is."""
    initializer, shape = get_initializer(name), (1000, 1500)
    tracemalloc.start()
    try:
        values = initializer.draw(shape, 3)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert values.dtype == np.float32
    assert peak < values.nbytes + 2**20


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (2**16 + 1, 2)])
@pytest.mark.parametrize("name", ["glorot_uniform", "he_normal", "random_normal"])
def test_any_shape(name, shape):
    values = get_initializer(name).draw(shape, 3)
    assert isinstance(values, np.ndarray)
    assert (values.shape, values.dtype) == (shape, np.float32)
    assert np.isfinite(values).all()
    assert values.size == 1 or len(np.unique(values)) > 0.9 * min(values.size, 2**12)


def test_he_normal_follows_the_truncated_distribution():
    """Against its distribution function, by Kolmogorov's statistic."""
    values = np.sort(nn.HeNormal().draw(SHAPE, 5).ravel().astype(np.float64))
    scaled = values / (math.sqrt(2 / 360) / 0.8796256610342398)
    normal = NormalDist()
    tail = normal.cdf(-2)
    expected = [(normal.cdf(v) - tail) / (1 - 2 * tail) for v in scaled]
    found = np.arange(1, SIZE + 1) / SIZE
    assert abs(found - expected).max() < 1.95 / math.sqrt(SIZE)  # p = 0.001


def test_constants():
    assert (get_initializer("zeros").draw((2, 3), 1) == 0).all()
    assert (get_initializer("ones").draw((2, 3), 1) == 1).all()


def kernel_of(**options):
    model = nn.Sequential([nn.Input((5,)), nn.Dense(4, **options)])
    return model.get_weights()[0]


def test_constants_of_an_array_and_names_of_classes():
    values = np.arange(6.0).reshape(2, 3)
    for made in (nn.initializers.Constant(values), nn.initializers.get(values)):
        np.testing.assert_array_equal(made((2, 3)), values)
        np.testing.assert_array_equal(made((4, 2, 3)), [values] * 4)
        again = type(made).from_config(made.get_config())
        np.testing.assert_array_equal(again((2, 3)), values)
        with pytest.raises(ValueError, match=r"values of shape \(2, 3\) do not fit"):
            made((3, 2))
    with pytest.raises(TypeError, match="value must be numbers"):
        nn.initializers.Constant(["a"])
    layer = nn.Dense(3, use_bias=False, kernel_initializer=values)
    np.testing.assert_array_equal(layer(np.eye(2, dtype="f4")), values)
    for name in ("HeNormal", "OrthogonalInitializer"):
        found = nn.initializers.get(name)
        assert name.startswith(type(found).__name__)


def test_the_process_seed_decides():
    nn.set_random_seed(9)
    first = kernel_of()
    other = kernel_of()
    nn.set_random_seed(9)
    assert np.array_equal(kernel_of(), first)
    assert not np.array_equal(other, first)


def test_a_layer_made_in_between_changes_no_other_layers_values():
    """A layer draws one seed however many weights it has."""
    nn.set_random_seed(9)
    nn.Dense(3)
    first = kernel_of()
    nn.set_random_seed(9)
    nn.BatchNormalization()
    assert np.array_equal(kernel_of(), first)


def test_an_initializers_own_seed_wins():
    fixed = nn.GlorotUniform(seed=4)
    first = kernel_of(kernel_initializer=fixed)
    assert np.array_equal(kernel_of(kernel_initializer=fixed), first)
    assert np.array_equal(first, fixed.draw((5, 4), 4))


def test_kernels_of_one_shape_differ():
    model = nn.Sequential([nn.Input((4,)), nn.Dense(4), nn.Dense(4)])
    first, _, second, _ = model.get_weights()
    assert not np.array_equal(first, second)


def test_a_custom_initializer_is_checked():
    class Wrong:
        seed = None

        def draw(self, shape, seed):
            return np.zeros(shape)

    with pytest.raises(ValueError, match="returned float64"):
        kernel_of(kernel_initializer=Wrong())


@pytest.mark.parametrize("factor", [2, 8])
def test_bilinear_kernels_interpolate(factor):
    """A plane stays a plane, behind the border; classes do not mix."""
    rows, columns = np.mgrid[:5, :6].astype(np.float32)
    x = np.stack([2 * rows - columns, 3 * columns + 1], -1)[None]
    start = nn.Input((5, 6, 2))
    layer = nn.Conv2DTranspose(
        2, 2 * factor, factor, use_bias=False, kernel_initializer="bilinear"
    )
    model = nn.Model(start, layer(start))
    found = model.predict(x, verbose=0)[0]
    model.close()
    down, right = ((np.mgrid[: 6 * factor, : 7 * factor] + 0.5) / factor) - 1
    wanted = np.stack([2 * down - right, 3 * right + 1], -1)
    inner = slice(factor, -factor)
    np.testing.assert_allclose(found[inner, inner], wanted[inner, inner], atol=1e-4)


def test_bilinear_kernels_of_other_shapes_are_refused():
    for shape in ((4, 4, 2, 3), (4, 2, 2, 2), (4, 4)):
        with pytest.raises(ValueError, match="Bilinear can only initialize kernels"):
            nn.initializers.Bilinear().draw(shape, 0)


def test_functions_and_classes_of_ones_own():
    class Halves(mc.nn.Initializer):
        def __call__(self, shape, dtype=None):
            return mc.nn.ops.full(shape, 0.5)

    class Nothing(mc.nn.Initializer):
        pass

    def rising(shape, dtype=None):
        return np.arange(np.prod(shape), dtype=dtype).reshape(shape)

    for initializer, values in ((Halves(), 0.5), (rising, np.arange(6).reshape(2, 3))):
        layer = mc.nn.Dense(3, kernel_initializer=initializer)
        model = mc.nn.Sequential([mc.nn.Input((2,)), layer])
        assert np.all(model.get_weights()[0] == values)
    with pytest.raises(NotImplementedError, match="Nothing must define __call__ or"):
        mc.nn.Dense(3, kernel_initializer=Nothing())(np.ones((1, 2)))
    layer = mc.nn.Dense(3, kernel_initializer=lambda shape, dtype: np.zeros(4))
    with pytest.raises(ValueError, match="expected float32 of shape"):
        layer(np.ones((1, 2)))


def test_the_largest_array_is_drawn_first():
    drawn = []

    class Apart(nn.initializers.Initializer):
        def draw(self, shape, seed):
            drawn.append(shape)
            return np.full(shape, len(drawn), np.float32)

    model = nn.Sequential(
        [
            nn.Input((3,)),
            nn.Dense(4, kernel_initializer="zeros", use_bias=False),
            nn.Dense(5, kernel_initializer=Apart(), use_bias=False),
            nn.Dense(6, kernel_initializer=Apart(), use_bias=False),
        ]
    )
    y = model.predict_on_batch(np.ones((2, 3), np.float32))
    assert drawn == [(5, 6), (4, 5)]  # the largest before the others
    assert not y.any()
    assert [w.flat[0] for w in model.get_weights()] == [0, 2, 1]


def large_model():
    """Return a model whose first values are drawn in several threads, if there are."""
    nn.set_random_seed(7)
    kinds = ("glorot_uniform", "he_normal", "random_normal", "lecun_normal", "zeros")
    layers = [nn.Dense(1024, kernel_initializer=kind) for kind in kinds]
    return nn.Sequential([nn.Input((1024,)), *layers])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_values_do_not_depend_on_the_number_of_threads(threads):
    mc.config.threading.set_intra_op_parallelism_threads(threads)
    expected = large_model().get_weights()  # drawn one by one, as there is no arena
    model = large_model()
    model.predict_on_batch(np.ones((1, 1024), np.float32))
    for one, other in zip(model.get_weights(), expected, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("seconds", [0.005, 0.01, 0.02, 0.04])
def test_what_an_interrupt_has_left_is_drawn_again(seconds):
    expected = large_model().get_weights()
    model = large_model()
    with contextlib.suppress(KeyboardInterrupt):
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            model.predict_on_batch(np.ones((1, 1024), np.float32))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    model.predict_on_batch(np.ones((1, 1024), np.float32))
    for one, other in zip(model.get_weights(), expected, strict=True):
        assert np.array_equal(one, other)
