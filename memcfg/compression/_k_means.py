"""Clusters of numbers by k-means, from the three starts of Deep Compression."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from memcfg._checks import unknown
from memcfg.nn._argument_checks import integer

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["INITS", "Clusters", "k_means"]

INITS = ("linear", "density", "random")


class Clusters(NamedTuple):
    """Clusters of numbers.

    Parameters
    ----------
    centroids : numpy.ndarray
        Their means in float32, in ascending order, of shape ``(clusters,)``.
    codes : numpy.ndarray
        The cluster of each number in int32, in the shape of the numbers.
    inertia : float
        The sum of squared distances to the centroids.
    iterations : int
        How often centroids were computed.
    """

    centroids: npt.NDArray[np.float32]
    codes: npt.NDArray[np.int32]
    inertia: float
    iterations: int


def k_means(
    values: npt.ArrayLike,
    clusters: int,
    *,
    init: str = "linear",
    max_iter: int = 300,
    seed: int = 0,
) -> Clusters:
    """Cluster numbers such that the sum of squared distances is locally minimal.

    Parameters
    ----------
    values : array_like
        The numbers, such as the weights of a layer.
    clusters : int
        How many clusters, at most. There are fewer if there are fewer distinct numbers,
        or if clusters are left without numbers.
    init : {"linear", "density", "random"}, default "linear"
        The first centroids: evenly spaced between the smallest and the largest number;
        evenly spaced in rank, so that each has as many numbers; or drawn from the
        numbers, which is Forgy's method. Linear ones keep the few large weights, which
        matter most, apart.
    max_iter : int, default 300
        How often centroids are computed, at most.
    seed : int, default 0
        Draws the numbers of ``init="random"``.

    Returns
    -------
    Clusters
        Centroids, and the cluster of each number.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, or there is a number that is not finite, or none.

    References
    ----------
    Han et al., "Deep compression", ICLR 2016, section 3; Lloyd, "Least squares
    quantization in PCM", IEEE Transactions on Information Theory 28, 1982.

    Examples
    --------
    >>> from memcfg import compression
    >>> found = compression.k_means([0.0, 0.1, 2.0, 2.2, 5.0], 3)
    >>> [round(each, 2) for each in found.centroids.tolist()], found.codes.tolist()
    ([0.05, 2.1, 5.0], [0, 0, 1, 1, 2])
    """
    if init not in INITS:
        raise unknown("init", init, INITS, "k_means: ")
    count, most = integer(clusters, "clusters"), integer(max_iter, "max_iter")
    given = np.asarray(values, np.float32)
    if not given.size or not np.isfinite(given).all():
        raise ValueError("k_means takes finite numbers, at least one")
    order = np.argsort(given, axis=None, kind="stable")
    x = given.ravel()[order].astype(np.float64)
    distinct = x[np.concatenate([[True], x[1:] != x[:-1]])]
    if len(distinct) <= count:
        centroids, iterations = distinct, 0
    else:
        centroids, iterations = _lloyd(x, _first(x, distinct, count, init, seed), most)
    ends = np.append(_ends(x, centroids), len(x))
    counts = np.diff(ends, prepend=0)
    kept = counts > 0
    centroids = centroids[kept].astype(np.float32)
    in_order = np.repeat(np.arange(len(centroids), dtype=np.int32), counts[kept])
    codes = np.empty(len(x), np.int32)
    codes[order] = in_order
    inertia = float(np.square(x - centroids[in_order]).sum())
    return Clusters(centroids, codes.reshape(given.shape), inertia, iterations)


def _first(x: Any, distinct: Any, count: int, init: str, seed: int) -> Any:
    """Return the first centroids of sorted numbers."""
    if init == "linear":
        return np.linspace(x[0], x[-1], count)
    if init == "random":
        rng = np.random.default_rng(seed)
        return np.sort(rng.choice(distinct, count, replace=False))
    ranks = (np.arange(count) + 0.5) * len(x) / count
    return np.unique(x[ranks.astype(int)])


def _ends(x: Any, centroids: Any) -> Any:
    """Return where the clusters of sorted numbers end, but for the last one."""
    return np.searchsorted(x, (centroids[1:] + centroids[:-1]) / 2, side="right")


def _lloyd(x: Any, centroids: Any, most: int) -> tuple[Any, int]:
    """Move centroids to the means of their clusters until clusters stay.

    Clusters of sorted numbers are intervals, so a sum is a difference of prefix sums.
    """
    sums = np.concatenate([[0.0], np.cumsum(x)])
    before = None
    for iteration in range(most):
        ends = np.concatenate([[0], _ends(x, centroids), [len(x)]])
        if before is not None and np.array_equal(ends, before):
            return centroids, iteration
        counts = np.diff(ends)
        total = sums[ends[1:]] - sums[ends[:-1]]
        means = np.divide(total, counts, out=centroids.copy(), where=counts > 0)
        centroids, before = np.sort(means), ends
    return centroids, most
