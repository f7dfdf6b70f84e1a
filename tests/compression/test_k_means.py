"""k-means of numbers, beside Lloyd's method as written and the optimum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcfg.compression import k_means

NUMBERS = st.lists(st.integers(-40, 40).map(lambda n: n / 8), min_size=1, max_size=24)


def optimum(values, k):
    """The least sum of squares, over all divisions of the sorted numbers."""
    x = np.sort(np.asarray(values, np.float64))

    def cost(begin, end):
        return float(np.square(x[begin:end] - x[begin:end].mean()).sum())

    best = [0.0] + [np.inf] * len(x)
    for _ in range(k):
        best = [0.0] + [
            min(best[begin] + cost(begin, end) for begin in range(end))
            for end in range(1, len(x) + 1)
        ]
    return best[-1]


def lloyd(values, centroids):
    """Lloyd's method without sorting."""
    x = np.asarray(values, np.float64)
    while True:
        codes = np.abs(x[:, None] - centroids).argmin(1)
        moved = np.array(
            [
                x[codes == i].mean() if (codes == i).any() else c
                for i, c in enumerate(centroids)
            ]
        )
        if np.array_equal(moved, centroids):
            return codes, centroids
        centroids = moved


@given(NUMBERS, st.integers(1, 6), st.sampled_from(["linear", "density", "random"]))
def test_the_result_is_locally_and_nearly_optimal(values, k, init):
    x = np.float32(values)
    found = k_means(x, k, init=init)
    assert len(found.centroids) <= k
    assert (np.diff(found.centroids) > 0).all()
    assert found.codes.shape == x.shape
    assert found.codes.dtype == np.int32
    assert {*found.codes.tolist()} == {*range(len(found.centroids))}
    # Numbers are in the nearest cluster, and centroids are means.
    distances = np.abs(x[:, None] - found.centroids)
    own = distances[np.arange(len(x)), found.codes]
    np.testing.assert_allclose(own, distances.min(1), atol=1e-6)
    for code, centroid in enumerate(found.centroids):
        mean = x[found.codes == code].mean(dtype=np.float64)
        np.testing.assert_allclose(centroid, mean, atol=1e-6)
    assert found.inertia == pytest.approx(np.square(own.astype(float)).sum(), abs=1e-5)
    assert found.inertia >= optimum(values, k) - 1e-5
    if len({*values}) <= k:
        assert found.inertia == 0


def test_a_linear_start_finds_what_lloyd_does():
    x = np.random.default_rng(0).normal(size=300).astype(np.float32)
    found = k_means(x, 8, init="linear")
    start = np.linspace(float(x.min()), float(x.max()), 8)
    codes, centroids = lloyd(x, start)
    np.testing.assert_allclose(found.centroids, centroids, rtol=1e-6)
    np.testing.assert_array_equal(found.codes, codes)
    assert found.iterations > 1


def test_starts_differ_as_the_paper_says():
    """Linear centroids reach large weights; those by density stay where many are."""
    x = np.random.default_rng(1).laplace(size=5000)
    first = {
        init: k_means(x, 16, init=init, max_iter=1).centroids
        for init in ("linear", "density", "random")
    }
    largest = {init: np.abs(each).max() for init, each in first.items()}
    assert largest["linear"] > largest["density"]
    assert largest["linear"] > largest["random"]
    near = {init: (np.abs(each) < 1).sum() for init, each in first.items()}
    assert near["density"] > near["linear"]
    again = k_means(x, 16, init="random", max_iter=1, seed=1).centroids
    assert not np.array_equal(first["random"], again)


def test_a_start_by_density_has_as_many_numbers_in_each():
    x = np.arange(80.0) ** 3
    counts = np.bincount(k_means(x, 4, init="density", max_iter=1).codes)
    assert counts.max() - counts.min() < 20


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        ([], {}, "finite numbers, at least one"),
        ([1.0, np.nan], {}, "finite"),
        ([1.0], {"init": "densty"}, "did you mean 'density'"),
        ([1.0], {"max_iter": 0}, "max_iter must be positive"),
    ],
)
def test_what_is_refused(values, options, message):
    with pytest.raises(ValueError, match=message):
        k_means(values, 2, **options)
