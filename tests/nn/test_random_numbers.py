"""`nn.random`: distributions, seeds, and draws in functions, steps and calls."""

from __future__ import annotations

import math
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import memcfg as mc

nn, ops, random = mc.nn, mc.nn.ops, mc.nn.random
COUNT = 40_000


@pytest.fixture(autouse=True)
def _seeded():
    nn.set_random_seed(11)


DRAWS = {  # -> draw, mean, standard deviation, bounds
    "uniform": (lambda n: random.uniform((n,), -1, 3), 1.0, 4 / 12**0.5, (-1, 3)),
    "normal": (lambda n: random.normal((n,), 2.0, 0.5), 2.0, 0.5, (-np.inf, np.inf)),
    "truncated_normal": (
        lambda n: random.truncated_normal((n,), 1.0, 2.0),
        1.0,
        2 * 0.8796,  # of a standard normal cut off at 2
        (-3, 5),
    ),
    "randint": (lambda n: random.randint((n,), -2, 4), 0.5, (35 / 12) ** 0.5, (-2, 3)),
}


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("in_function", [False, True])
def test_moments_and_bounds_are_those_of_the_distribution(name, in_function):
    draw, mean, deviation, (low, high) = DRAWS[name]
    found = mc.function(lambda: draw(COUNT))() if in_function else draw(COUNT)
    assert found.shape == (COUNT,)
    assert found.dtype == (np.int32 if name == "randint" else np.float32)
    assert abs(found.mean() - mean) < 5 * deviation / COUNT**0.5
    assert abs(found.std() / deviation - 1) < 0.02
    assert low <= found.min() <= found.max() <= high


def test_integers_are_equally_frequent():
    counts = np.bincount(random.randint((COUNT,), 0, 7), minlength=7)
    assert len(counts) == 7
    assert_allclose(counts / COUNT, 1 / 7, atol=0.01)


def test_classes_are_drawn_by_their_logits():
    wanted = np.array([[0.1, 0.2, 0.7], [0.5, 0.5, 0.0]])
    with np.errstate(divide="ignore"):
        logits = np.maximum(np.log(wanted), -50).astype(np.float32)
    found = random.categorical(logits, 20_000)
    assert found.shape == (2, 20_000)
    for row, shares in zip(found, wanted, strict=True):
        assert_allclose(np.bincount(row, minlength=3) / 20_000, shares, atol=0.02)


def test_an_int_is_the_same_draw_and_a_generator_another_each_time():
    one, two = (random.normal((5,), seed=3) for _ in range(2))
    assert_array_equal(one, two)
    first, second = random.SeedGenerator(3), random.SeedGenerator(3)
    draws = [random.normal((5,), seed=first) for _ in range(3)]
    again = [random.normal((5,), seed=second) for _ in range(3)]
    assert_array_equal(draws, again)
    assert len({each.tobytes() for each in draws}) == 3

    @mc.function
    def both():
        return random.normal((5,), seed=3), random.normal((5,), seed=first)

    results = [both() for _ in range(3)]
    assert len({fixed.tobytes() for fixed, _ in results}) == 1
    assert len({drawn.tobytes() for _, drawn in results}) == 3
    assert_array_equal(results[0][0], one)


def test_draws_are_the_same_by_every_plan():
    def loss(x):
        noisy = x * ops.exp(random.normal(x.shape, seed=generator))
        return ops.sum(ops.tanh(noisy) * random.uniform(x.shape, seed=generator))

    found = []
    x = np.linspace(-1, 1, 600, dtype=np.float32)
    for policy in ("auto", "sqrt_checkpoint", "share"):
        generator = random.SeedGenerator(5)
        run = mc.function(mc.value_and_grad(loss), memory=policy)
        found += [[np.array(each) for each in run(x)] for _ in range(2)]
    for value, slope in found[2::2]:
        assert_array_equal(value, found[0][0])
        assert_array_equal(slope, found[0][1])
    assert not np.array_equal(found[0][0], found[1][0])


def test_one_number_is_drawn_without_a_shape():
    assert random.normal(()).shape == ()
    assert mc.function(lambda: random.uniform(()))().shape == ()


def test_a_shuffle_has_the_same_elements():
    x = np.arange(50, dtype=np.float32).reshape(25, 2)
    made = random.shuffle(x)
    assert not np.array_equal(made, x)
    assert_array_equal(made[np.argsort(made[:, 0])], x)
    assert_array_equal(np.sort(random.shuffle(x, axis=1), 1), x)


def test_dropout_keeps_the_mean():
    made = random.dropout(np.ones((200, 200)), 0.25)
    assert {*np.unique(made)} == {np.float32(0), np.float32(1 / 0.75)}
    assert abs(made.mean() - 1) < 0.02


class Noisy(nn.Layer):
    """Adds noise in all modes."""

    def __init__(self):
        super().__init__()
        self.seeds = random.SeedGenerator(7)

    def call(self, x):
        return x + random.normal(ops.shape(x), seed=self.seeds)


def test_a_layer_draws_for_each_sample_and_step():
    start = nn.Input((3,))
    model = nn.Model(start, Noisy()(start))
    zeros = np.zeros((4000, 3), np.float32)
    one, two = (model.predict(zeros, batch_size=4000, verbose=0) for _ in range(2))
    assert abs(one.mean()) < 0.05
    assert abs(one.std() - 1) < 0.05
    assert not np.array_equal(one, two)
    assert len({row.tobytes() for row in one}) == 4000


def test_a_batch_in_parts_draws_the_numbers_of_the_whole():
    found = []
    for limit in (None, 0.4):
        mc.config.reset()
        nn.set_random_seed(3)
        start = nn.Input((64,))
        hidden = nn.Dense(64, activation="tanh")(Noisy()(start))
        model = nn.Model(start, nn.Dense(64)(hidden))
        model.compile(nn.SGD(0.1), "mse")
        if limit is not None:
            mc.config.set_memory_limit("CPU:0", int(model.plan(512).peak_bytes * limit))
        x = np.random.default_rng(0).standard_normal((512, 64)).astype(np.float32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the batch runs in parts
            options = {"epochs": 2, "shuffle": False, "verbose": 0}
            history = model.fit(x, x, batch_size=512, **options)
        assert bool(history.fallbacks) == (limit is not None)
        found.append(model.get_weights())
        model.close()
        del model
    for one, other in zip(*found, strict=True):
        assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("draw", "kind", "text"),
    [
        (lambda: random.normal((2,), stddev=-1), ValueError, "stddev"),
        (lambda: random.normal((2,), dtype="float64"), ValueError, "draws are float32"),
        (lambda: random.normal((2.5,)), TypeError, "a length of a draw"),
        (lambda: random.randint((2,), 3, 3), ValueError, "at most 2\\*\\*23 apart"),
        (lambda: random.randint((2,), 0, 2, "int64"), ValueError, "integers are int32"),
        (lambda: random.dropout(np.ones(2), 1.5), ValueError, "dropout: rate"),
        (lambda: random.dropout(np.ones(2), 0.5, (1,)), ValueError, "noise_shape"),
        (lambda: random.uniform((2,), seed=-1), ValueError, "a seed"),
        (lambda: random.SeedGenerator("a"), TypeError, "a seed"),
        (lambda: random.shuffle(np.ones((2, 2)), axis=5), ValueError, "axis 5 is out"),
        (lambda: random.categorical(np.ones(2), 3), ValueError, "logits must have"),
    ],
)
def test_invalid_arguments_are_refused(draw, kind, text):
    with pytest.raises(kind, match=text):
        draw()


def test_a_draw_in_a_call_starts_with_the_batch():
    class Fixed(nn.Layer):
        def call(self, x):
            return x + random.normal((4, 3))

    with pytest.raises(ValueError, match="must be that of the batch"):
        Fixed()(nn.Input((3,)))


@pytest.mark.parametrize("alpha", [0.1, 0.8, 1.0, 3.5, 60.0])
def test_draws_from_a_gamma_distribution_have_its_moments(alpha):
    x = nn.random.gamma((40000,), alpha, seed=1)
    assert (x >= 0).all()
    assert x.mean() == pytest.approx(alpha, rel=0.05)
    assert x.var() == pytest.approx(alpha, rel=0.1)
    y = nn.random.beta((40000,), alpha, 0.5, seed=2)
    mean = alpha / (alpha + 0.5)
    assert y.mean() == pytest.approx(mean, rel=0.03)
    wanted = mean * (1 - mean) / (alpha + 1.5)
    assert y.var() == pytest.approx(wanted, rel=0.1)


def test_draws_from_a_binomial_distribution_have_its_probabilities():
    for count, share in ((6, 0.3), (6, 0.0), (6, 1.0), (0, 0.5)):
        x = nn.random.binomial((40000,), count, share, seed=1)
        found = np.bincount(x.astype(int), minlength=count + 1) / len(x)
        exact = [
            math.comb(count, k) * share**k * (1 - share) ** (count - k)
            for k in range(count + 1)
        ]
        assert_allclose(found, exact, atol=0.01)
    x = nn.random.binomial(
        (9000, 2), np.array([4, 10**6]), np.array([0.5, 0.1]), seed=1
    )
    assert_allclose(x.mean(0), [2, 1e5], rtol=0.02)
    assert_allclose(x.std(0), [1, 300], rtol=0.05)
    assert nn.random.binomial((), 3, 0.5, seed=1).shape == ()


@pytest.mark.parametrize(
    ("draw", "kind", "text"),
    [
        (lambda: nn.random.gamma((2,), 0.0), ValueError, "alpha must be above 0"),
        (lambda: nn.random.beta((2,), 1.0, -1.0), ValueError, "beta must be above 0"),
        (lambda: nn.random.binomial((2,), -1, 0.5), ValueError, "counts are 0 to"),
        (lambda: nn.random.binomial((2,), 1.5, 0.5), ValueError, "counts are 0 to"),
        (lambda: nn.random.binomial((2,), 3, 1.5), ValueError, "are 0 to 1"),
        (
            lambda: nn.random.binomial((2,), nn.Input((2,)), 0.5),
            TypeError,
            "counts must be numbers",
        ),
    ],
)
def test_wrong_parameters_of_distributions(draw, kind, text):
    with pytest.raises(kind, match=text):
        draw()


class Late(nn.Layer):
    """A layer that makes another one, which draws a seed, when it is built."""

    def build(self, input_shape):
        self.inner = nn.Dense(64)

    def call(self, inputs):
        return self.inner(inputs)


def classifier(first, **options):
    model = nn.Sequential([first(), nn.Dense(2)])
    loss = nn.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, **options)
    return model


ROWS, CLASSES = np.ones((64, 8), np.float32), np.zeros(64, int)
REFUSED = {
    "limit": lambda m: m.fit(ROWS, CLASSES, verbose=0),
    "batch": lambda m: m.train_on_batch(ROWS, CLASSES),
    "prediction": lambda m: m.predict(ROWS, verbose=0),
    "labels": lambda m: m.fit(ROWS, CLASSES + 2, verbose=0),
    "lengths": lambda m: m.fit(ROWS, CLASSES[1:], verbose=0),
    "split": lambda m: m.fit(ROWS, CLASSES, validation_split=0.999, verbose=0),
}


@pytest.mark.parametrize("first", [Late, lambda: nn.Dense(64)], ids=["late", "known"])
@pytest.mark.parametrize("on_oom", ["raise", "micro_batch", ["resize"]])
@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_call_leaves_the_sequence_of_seeds(first, on_oom, name):
    def drawn_after(call):
        nn.set_random_seed(5)
        model = classifier(first, on_oom=on_oom)
        call(model)
        return random.uniform((4,))

    def refused(model):
        mc.config.set_memory_limit("CPU:0", "1KiB")
        with pytest.raises((ValueError, mc.errors.InfeasiblePlanError)):
            REFUSED[name](model)

    expected = drawn_after(bool)
    assert_array_equal(drawn_after(refused), expected)
    mc.config.set_memory_limit("CPU:0", None)
    trained = drawn_after(lambda model: model.fit(ROWS, CLASSES, verbose=0))
    assert (trained != expected).any()  # its order was drawn


def test_what_other_threads_have_drawn_is_not_drawn_again():
    def drawing(data):
        def batches():
            with ThreadPoolExecutor(1) as threads:
                found.append(threads.submit(random.uniform, (4,)).result())
            yield data

        return batches

    found = []
    model = classifier(lambda: nn.Dense(64))
    nn.set_random_seed(5)
    batches = drawing((ROWS, CLASSES[1:]))()
    with pytest.raises(ValueError, match="batch 1"):
        model.fit(batches, verbose=0)
    assert (random.uniform((4,)) != found[0]).any()
