"""All alignments of labels with steps, one by one."""

from __future__ import annotations

from itertools import groupby, product

import numpy as np


def merged(classes, blank):
    """The labels of an alignment: runs are one, blanks are dropped."""
    return tuple(label for label, _ in groupby(classes) if label != blank)


def sums_of_all(x, blank):
    """The probability of each sequence of labels, and its derivatives by logits."""
    steps, classes = x.shape
    shares = np.exp(x - x.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    sums, slopes = {}, {}
    for path in product(range(classes), repeat=steps):
        p = np.prod([shares[i, c] for i, c in enumerate(path)])
        key = merged(path, blank)
        sums[key] = sums.get(key, 0) + p
        slope = -shares.copy()
        slope[np.arange(steps), list(path)] += 1
        slopes[key] = slopes.get(key, 0) + p * slope
    return sums, slopes


def loss_of(x, labels, count, steps, blank):
    sums, slopes = sums_of_all(x[:steps], blank)
    key = tuple(labels[:count].tolist())
    dx = np.zeros(x.shape)
    if key not in sums:
        dx[:steps] = np.nan
        return np.inf, dx
    dx[:steps] = -slopes[key] / sums[key]
    return -np.log(sums[key]), dx
