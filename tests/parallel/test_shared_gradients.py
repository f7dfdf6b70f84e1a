"""Training by encoded gradients, against simulations in NumPy.

Data are small integers, and rates and thresholds powers of two, so that all numbers of
these steps are exact in float32, in whatever order they are summed.
"""

from itertools import product

import numpy as np
import pytest
from sklearn.datasets import load_digits

import memcfg as mc
from memcfg import nn
from memcfg.errors import NonFiniteLossError
from memcfg.parallel import (
    AdaptiveThresholdAlgorithm,
    FixedThresholdAlgorithm,
    ParallelWrapper,
    ResidualClippingPostProcessor,
    ThresholdAlgorithm,
)

WIDTH = 200
RATE = 2.0**-9
RNG = np.random.default_rng(11)
X = RNG.integers(-2, 3, (22, WIDTH)).astype(np.float32)
Y = RNG.integers(-8, 9, (22, 1)).astype(np.float32)
FIRST = RNG.integers(-2, 3, (WIDTH, 1)).astype(np.float32) / 4


def linear(loss="mean_squared_error", optimizer=None, first=FIRST):
    model = nn.Sequential([nn.Input((len(first),)), nn.Dense(1, use_bias=False)])
    kinds = {
        "mean_squared_error": nn.losses.MeanSquaredError,
        "mean_absolute_error": nn.losses.MeanAbsoluteError,
    }
    model.compile(optimizer or nn.optimizers.SGD(RATE), kinds[loss](reduction="sum"))
    model.set_weights([first])
    return model


def shared(model, workers=2, **options):
    return ParallelWrapper(model, workers, training_mode="shared_gradients", **options)


def fit(wrapper, x=X, y=Y, epochs=3, **options):
    return wrapper.fit(
        x, y, batch_size=8, epochs=epochs, shuffle=False, verbose=0, **options
    )


def parts(rows, workers):
    """Divide rows as evenly as possible, more to the first workers."""
    return np.array_split(rows, workers)


class Simulated:
    """The steps of several workers; `slope` is the gradient of some rows."""

    def __init__(
        self, workers, slope, threshold, limit=lambda step, t: np.inf, first=FIRST
    ):
        self.slope, self.threshold, self.limit = slope, threshold, limit
        self.w = first.copy()
        self.residuals = [np.zeros_like(self.w) for _ in range(workers)]
        self.shares = [None] * workers  # of the elements sent in the last step
        self.used = [None] * workers  # thresholds of the last step
        self.entries = self.words = self.steps = 0

    def step(self, rows):
        workers = len(self.residuals)
        total = np.zeros_like(self.w)
        for rank, own in enumerate(parts(rows, workers)):
            self.used[rank] = self.threshold(self.used[rank], self.shares[rank])
            t = np.float32(self.used[rank])
            value = self.residuals[rank] + self.slope(self.w, own)
            sent = np.where(np.abs(value) >= t, np.sign(value) * t, np.float32(0))
            limit = np.float32(self.limit(self.steps, self.used[rank]))
            self.residuals[rank] = np.clip(value - sent, -limit, limit)
            total += sent
            count = np.count_nonzero(sent)
            self.shares[rank] = count / sent.size
            self.entries += count
            self.words += (workers - 1) * (4 + min(count, -(-sent.size // 16)))
        self.w -= np.float32(RATE) * total
        self.steps += 1

    def run(self, epochs=3, batch=8):
        for _ in range(epochs):
            for begin in range(0, len(X), batch):
                self.step(np.arange(begin, min(begin + batch, len(X))))
        return self


def square_slope(w, rows):
    x, y = X[rows], Y[rows]
    return 2 * x.T @ (x @ w - y)


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("workers", [2, 3])
def test_steps_are_those_of_workers_that_send_thresholds(workers, clips):
    """Batches of 8, 8 and 6 rows, of which workers have different numbers."""
    wanted = Simulated(
        workers,
        square_slope,
        lambda last, share: 16.0,
        lambda step, t: 2 * t if clips and step and step % 3 == 0 else np.inf,
    ).run()
    model = linear()
    with shared(
        model,
        workers,
        threshold_algorithm=FixedThresholdAlgorithm(16.0),
        residual_post_processor=ResidualClippingPostProcessor(2, 3) if clips else None,
    ) as wrapper:
        fit(wrapper)
        totals = wrapper.encoded_totals
    np.testing.assert_array_equal(model.get_weights()[0], wanted.w)
    assert 0 < totals.entries == wanted.entries < totals.elements
    assert totals.elements == workers * 9 * WIDTH
    assert totals.sent_bytes == 4 * wanted.words
    assert totals.dense_bytes == 4 * totals.elements * (workers - 1)


def test_each_worker_adapts_its_threshold_to_what_it_sends():
    """The gradient of the absolute error is a sum of rows; one worker's are larger."""
    x = X.copy()
    x[[*range(4, 8), *range(12, 16), *range(19, 22)]] *= 16

    def adapt(last, share):
        if last is None:
            return 3.0
        if min(share, 1 / 16) > 0.03:
            return last / 0.75
        return last * 0.75 if share < 0.01 else last

    wanted = Simulated(2, lambda w, rows: -x[rows].sum(0)[:, None], adapt).run()
    model = linear("mean_absolute_error")
    algorithm = AdaptiveThresholdAlgorithm(3.0, 0.01, 0.03, 0.75)
    with shared(model, threshold_algorithm=algorithm) as wrapper:
        fit(wrapper, x, np.full((22, 1), 1e6, np.float32))
        assert wrapper.encoded_totals.entries == wanted.entries
        assert wrapper.bytes_sent == 4 * wanted.words
    learned = wrapper.threshold_algorithm.last_threshold
    assert wanted.used[0] != wanted.used[1]
    assert learned == pytest.approx(sum(wanted.used) / 2, rel=1e-12)
    assert algorithm.last_threshold is None  # the wrapper has a clone
    np.testing.assert_allclose(model.get_weights()[0], wanted.w, rtol=1e-6, atol=1e-6)


def test_long_weights_are_encoded_in_rounds():
    """A gradient of 4 MiB or more, which other modes compute in blocks."""
    width = (1 << 20) + 1001
    x = RNG.integers(-1, 2, (8, width)).astype(np.float32)
    y = RNG.integers(-8, 9, (8, 1)).astype(np.float32)
    first = np.zeros((width, 1), np.float32)
    wanted = Simulated(
        2,
        lambda w, rows: 2 * x[rows].T @ (x[rows] @ w - y[rows]),
        lambda *_: 32.0,
        first=first,
    )
    model = linear(first=first)
    with shared(model, threshold_algorithm=FixedThresholdAlgorithm(32.0)) as wrapper:
        fit(wrapper, x, y, epochs=1)
        wanted.step(np.arange(8))
        assert wrapper.encoded_totals.entries == wanted.entries > width // 16
        np.testing.assert_array_equal(model.get_weights()[0], wanted.w)
        for report in wrapper.memory_reports(verify=True):
            assert report.measured_peak_bytes == report.predicted_peak_bytes


def classifier(optimizer="adam", seed=3):
    nn.utils.set_random_seed(seed)
    model = nn.Sequential(
        [nn.Input((64,)), nn.Dense(64, activation="relu"), nn.Dense(10)]
    )
    loss = nn.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


@pytest.fixture(scope="module")
def digits():
    """Training and test parts of the handwritten digits."""
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    x, y = (found.data / 16).astype(np.float32)[order], found.target[order]
    return (x[:1200], y[:1200]), (x[1200:], y[1200:])


def test_the_accuracy_is_that_of_whole_gradients_within_a_point(digits):
    """In the mean of some seeds, which differ by more than that."""
    train, test = digits
    accuracy = {"all_reduce": [], "shared_gradients": []}
    for (mode, found), seed in product(accuracy.items(), range(3)):
        model = classifier(seed=seed)
        with ParallelWrapper(model, 2, training_mode=mode) as wrapper:
            wrapper.fit(*train, batch_size=64, epochs=25, seed=seed, verbose=0)
            totals = wrapper.encoded_totals
        found.append(model.evaluate(*test, verbose=0)[1])
    assert np.mean(accuracy["all_reduce"]) > 0.9
    lost = np.mean(accuracy["all_reduce"]) - np.mean(accuracy["shared_gradients"])
    assert lost < 0.01
    assert totals.sent_bytes < totals.dense_bytes / 16


def test_runs_of_the_same_program_have_the_same_bits(digits):
    (x, y), _ = digits
    runs = []
    for _ in range(3):
        model = classifier()
        with shared(model, 3) as wrapper:
            wrapper.fit(x[:300], y[:300], batch_size=64, epochs=4, seed=1, verbose=0)
            runs.append((wrapper.encoded_totals, model.get_weights()))
    for totals, weights in runs[1:]:
        assert totals == runs[0][0]
        for mine, theirs in zip(runs[0][1], weights, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def divide_cpu(mebibytes):
    """Make two logical CPUs with a limit each."""
    (cpu,) = mc.config.list_physical_devices("CPU")
    half = mc.config.LogicalDeviceConfiguration(memory_limit=mebibytes)
    mc.config.set_logical_device_configuration(cpu, [half, half])


def test_residuals_are_planned_on_each_device():
    divide_cpu(8)
    model = linear()
    with shared(model) as wrapper:
        fit(wrapper)
        reports = wrapper.memory_reports(verify=True)
    assert [report.device for report in reports] == ["/device:CPU:0", "/device:CPU:1"]
    for report in reports:
        assert report.measured_peak_bytes == report.predicted_peak_bytes
        assert report.measured_peak_bytes <= report.limit_bytes == 8 << 20
        of_residual = -(-4 * WIDTH // 64) * 64
        assert report.by_role["optimizer_state"] == of_residual  # SGD has none


def test_residuals_stay_between_fits_and_measurements():
    whole, parted = linear(), linear()
    fixed = FixedThresholdAlgorithm(16.0)
    with shared(whole, threshold_algorithm=fixed) as wrapper:
        fit(wrapper, epochs=2)
    with shared(parted, threshold_algorithm=fixed) as wrapper:
        fit(wrapper, epochs=1)
        wrapper.memory_reports(verify=True)
        fit(wrapper, epochs=1, validation_data=(X, Y))
    np.testing.assert_array_equal(whole.get_weights()[0], parted.get_weights()[0])


def test_residuals_are_no_part_of_what_is_saved(tmp_path):
    model, plain = linear(optimizer="adam"), linear(optimizer="adam")
    plain.fit(X, Y, verbose=0)
    with shared(model) as wrapper:
        fit(wrapper, epochs=1)
        model.save(tmp_path / "model.memcfg")
        assert model.optimizer.get_state().keys() == plain.optimizer.get_state().keys()
    loaded = nn.models.load_model(tmp_path / "model.memcfg")
    np.testing.assert_array_equal(loaded.get_weights()[0], model.get_weights()[0])
    model.fit(X, Y, verbose=0)


def test_training_alone_while_the_wrapper_is_open_does_not_encode():
    model, plain = linear(), linear()
    with shared(model, threshold_algorithm=FixedThresholdAlgorithm(16.0)) as wrapper:
        fit(wrapper, epochs=1)
        totals = wrapper.encoded_totals
        model.set_weights([FIRST])
        model.fit(X[:8], Y[:8], batch_size=8, verbose=0)
        assert wrapper.encoded_totals == totals
    plain.fit(X[:8], Y[:8], batch_size=8, verbose=0)
    np.testing.assert_array_equal(model.get_weights()[0], plain.get_weights()[0])


def rooted():
    """A model with a finite loss and a gradient of NaN where all inputs are 0."""
    model = nn.Sequential(
        [nn.Input((WIDTH,)), nn.Dense(1, use_bias=False), nn.Lambda(mc.nn.ops.sqrt)]
    )
    model.compile(nn.optimizers.SGD(RATE), nn.losses.MeanSquaredError())
    model.set_weights([np.abs(FIRST) + 1])
    return model


def test_a_gradient_that_is_not_finite_is_refused_and_changes_nothing():
    model = rooted()
    x, y = np.abs(X[:16]), Y[:16]
    with shared(model) as wrapper:
        fit(wrapper, x, y, epochs=1)
        before, totals = model.get_weights(), wrapper.encoded_totals
        threshold = wrapper.threshold_algorithm.last_threshold
        x[1] = 0
        with pytest.raises(ValueError, match="not finite"):
            fit(wrapper, x, y, epochs=1)
        np.testing.assert_array_equal(model.get_weights()[0], before[0])
        assert wrapper.encoded_totals.elements >= totals.elements
        assert wrapper.threshold_algorithm.last_threshold == threshold
        fit(wrapper, np.abs(X[:16]), y, epochs=1)  # with new replicas


def test_a_loss_that_is_not_finite_stops_all_workers():
    bad = X.copy()
    bad[12] = np.nan
    model = linear()
    with shared(model) as wrapper:
        with pytest.raises(NonFiniteLossError):
            fit(wrapper, bad)
        assert np.isfinite(model.get_weights()[0]).all()
        fit(wrapper)


class Broken(ThresholdAlgorithm):
    """Returns a threshold that cannot be used after the first step."""

    def calculate_threshold(
        self, iteration, last_threshold, last_was_dense, last_sparsity_ratio
    ):
        return 0.0 if iteration else 1.0


def test_a_threshold_that_cannot_be_used_is_refused():
    model = linear()
    with (
        shared(model, threshold_algorithm=Broken()) as wrapper,
        pytest.raises(ValueError, match=r"Broken returned the threshold 0\.0"),
    ):
        fit(wrapper)


def test_the_builder_has_the_arguments_of_encodings():
    wrapper = (
        ParallelWrapper.Builder(linear())
        .workers(2)
        .training_mode("shared_gradients")
        .threshold_algorithm(FixedThresholdAlgorithm(16.0))
        .residual_post_processor(ResidualClippingPostProcessor(2, 3))
        .build()
    )
    with wrapper:
        fit(wrapper)
    wanted = Simulated(
        2,
        square_slope,
        lambda last, share: 16.0,
        lambda step, t: 2 * t if step and step % 3 == 0 else np.inf,
    ).run()
    np.testing.assert_array_equal(wrapper.model.get_weights()[0], wanted.w)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (
            {"threshold_algorithm": FixedThresholdAlgorithm(1.0)},
            ValueError,
            "threshold_algorithm is for",
        ),
        (
            {
                "training_mode": "all_reduce",
                "residual_post_processor": ResidualClippingPostProcessor(),
            },
            ValueError,
            "residual_post_processor is for",
        ),
        (
            {"training_mode": "shared_gradients", "threshold_algorithm": 1e-3},
            TypeError,
            "ThresholdAlgorithm",
        ),
        (
            {"training_mode": "shared_gradients", "residual_post_processor": 5},
            TypeError,
            "ResidualClippingPostProcessor",
        ),
    ],
)
def test_arguments_that_cannot_be_honoured_are_refused(options, error, words):
    with pytest.raises(error, match=words):
        ParallelWrapper(linear(), 2, **options)
