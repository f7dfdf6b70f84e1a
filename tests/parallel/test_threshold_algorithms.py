"""Thresholds and residual limits against the numbers of DL4J's tests."""

import pytest

from memcfg.parallel import (
    AdaptiveThresholdAlgorithm,
    FixedThresholdAlgorithm,
    ResidualClippingPostProcessor,
)


def test_the_threshold_follows_the_share_that_is_sent():
    """The numbers of DL4J's ThresholdAlgorithmTests."""
    algorithm = AdaptiveThresholdAlgorithm(1e-3, 1e-3, 1e-2, 0.95)
    first = algorithm.calculate_threshold(0, None, None, None)
    assert first == 1e-3
    second = algorithm.calculate_threshold(1, first, True, None)
    assert second == pytest.approx(1e-3 / 0.95, rel=1e-12)
    third = algorithm.calculate_threshold(2, second, False, 1e-1)
    assert third == pytest.approx(1e-3 / 0.95**2, rel=1e-12)
    fourth = algorithm.calculate_threshold(3, third, False, 1e-4)
    assert fourth == pytest.approx(1e-3 / 0.95, rel=1e-12)
    assert algorithm.last_threshold == fourth
    assert algorithm.calculate_threshold(4, fourth, False, 5e-3) == fourth

    algorithm.calculate_threshold(5, fourth, False, 1e-4)
    stored = algorithm.last_threshold
    unused = AdaptiveThresholdAlgorithm(1e-3, 1e-3, 1e-2, 0.95)
    merged = algorithm.clone().merge([algorithm.clone(), unused])
    assert merged.last_threshold == pytest.approx(stored, rel=1e-12)
    again = merged.calculate_threshold(0, None, None, None)  # of the next epoch
    assert again == pytest.approx(0.95 * stored, rel=1e-12)
    assert algorithm.last_threshold == stored


def test_ranks_merge_to_the_mean_of_their_thresholds():
    algorithms = [AdaptiveThresholdAlgorithm(each) for each in (1e-4, 5e-4)]
    for each in algorithms:
        each.calculate_threshold(0, None, None, None)
    merged = algorithms[0].merge(algorithms[1:])
    assert merged.last_threshold == pytest.approx(3e-4, rel=1e-12)
    assert merged.calculate_threshold(0, None, None, None) == merged.last_threshold
    assert AdaptiveThresholdAlgorithm().merge([]).last_threshold is None


def test_defaults_are_those_of_dl4j():
    algorithm = AdaptiveThresholdAlgorithm()
    value = algorithm.calculate_threshold(0, None, None, None)
    assert value == 1e-4
    for step in range(1, 21):
        value = algorithm.calculate_threshold(step, value, False, 0.5)
    assert value == pytest.approx(2e-4, rel=1e-12)
    kept = (algorithm.min_target_sparsity, algorithm.max_target_sparsity)
    assert kept == (1e-4, 1e-2)


def test_a_dense_step_counts_as_a_sixteenth():
    algorithm = AdaptiveThresholdAlgorithm(1.0, 0.01, 0.2, 0.5)
    assert algorithm.calculate_threshold(1, 1.0, True, 0.9) == 1.0
    assert algorithm.calculate_threshold(2, 1.0, False, 0.9) == 2.0


def test_a_fixed_threshold_stays():
    algorithm = FixedThresholdAlgorithm(0.25)
    assert algorithm.calculate_threshold(7, 1.0, True, 0.5) == 0.25
    assert algorithm.clone().merge([algorithm]).threshold == 0.25


def test_residuals_are_limited_every_few_steps_but_not_in_the_first():
    limits = [
        ResidualClippingPostProcessor(2.0, 3).residual_limit(i, 4.0) for i in range(8)
    ]
    inf = float("inf")
    assert limits == [inf, inf, inf, 8.0, inf, inf, 8.0, inf]
    assert ResidualClippingPostProcessor().residual_limit(5, 1.0) == 5.0


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: FixedThresholdAlgorithm(0), ValueError, "threshold"),
        (lambda: FixedThresholdAlgorithm("1"), TypeError, "threshold"),
        (lambda: AdaptiveThresholdAlgorithm(-1.0), ValueError, "initial_threshold"),
        (
            lambda: AdaptiveThresholdAlgorithm(1e-4, 0.5, 0.1),
            ValueError,
            "min_target_sparsity",
        ),
        (
            lambda: AdaptiveThresholdAlgorithm(decay_rate=1.0),
            ValueError,
            "decay_rate",
        ),
        (
            lambda: ResidualClippingPostProcessor(0.5),
            ValueError,
            "threshold_multiplier",
        ),
        (lambda: ResidualClippingPostProcessor(5, 0), ValueError, "frequency"),
    ],
)
def test_arguments_outside_their_range_are_refused(make, error, words):
    with pytest.raises(error, match=words):
        make()
