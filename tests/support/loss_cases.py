"""Losses with their arguments, and what they are in NumPy, for each sample."""

from __future__ import annotations

import numpy as np
import objectives as oracle
from hypothesis import strategies as st

import memcfg as mc

losses = mc.nn.losses
SHAPES = st.sampled_from([(5, 1), (4, 3), (2, 3, 4), (3, 2, 2, 3)])


def reals(random, shape):
    return random.normal(size=shape), random.normal(size=shape)


def positives(random, shape):
    return random.uniform(0.1, 3, shape), random.uniform(0.1, 3, shape)


def bits(random, shape):
    return random.integers(0, 2, shape).astype(float), random.uniform(0.05, 0.95, shape)


def signs(random, shape):
    return random.choice([-1.0, 1.0], shape), random.normal(size=shape)


def rates(random, shape):
    shape = (*shape[:-1], shape[-1] + 1)
    return tuple(oracle.softmax(random.normal(size=shape)) for _ in range(2))


def logits(random, shape):
    return rates(random, shape)[0], random.normal(size=(*shape[:-1], shape[-1] + 1))


def bit_logits(random, shape):
    return random.integers(0, 2, shape).astype(float), 2 * random.normal(size=shape)


def labels(random, shape):
    _, p = rates(random, shape)
    return random.integers(0, p.shape[-1], shape[:-1]).astype(np.int32), p


def label_logits(random, shape):
    t, p = labels(random, shape)
    return t, 2 * np.log(p)


def hot(t, p):
    return oracle.one_hot(t, p.shape[-1])


# A loss, its arguments, and the losses of samples in NumPy.
CASES = {
    "mse": (losses.MeanSquaredError(), reals, lambda t, p: ((t - p) ** 2).mean(-1)),
    "mae": (losses.MeanAbsoluteError(), reals, lambda t, p: abs(t - p).mean(-1)),
    "mape": (
        losses.MeanAbsolutePercentageError(),
        reals,
        lambda t, p: (100 * abs((t - p) / t)).mean(-1),
    ),
    "msle": (
        losses.MeanSquaredLogarithmicError(),
        positives,
        lambda t, p: ((np.log1p(t) - np.log1p(p)) ** 2).mean(-1),
    ),
    "huber": (losses.Huber(), reals, oracle.huber),
    "huber of 0.3": (losses.Huber(0.3), reals, lambda t, p: oracle.huber(t, p, 0.3)),
    "log_cosh": (
        losses.LogCosh(),
        reals,
        lambda t, p: np.log(np.cosh(t - p)).mean(-1),
    ),
    "poisson": (
        losses.Poisson(),
        positives,
        lambda t, p: (p - t * np.log(p + 1e-7)).mean(-1),
    ),
    "kl": (losses.KLDivergence(), rates, lambda t, p: (t * np.log(t / p)).sum(-1)),
    "hinge": (
        losses.Hinge(),
        signs,
        lambda t, p: np.maximum(1 - t * p, 0).mean(-1),
    ),
    "hinge of bits": (
        losses.Hinge(),
        bits,
        lambda t, p: np.maximum(1 - oracle.signed(t) * p, 0).mean(-1),
    ),
    "squared hinge": (
        losses.SquaredHinge(),
        signs,
        lambda t, p: (np.maximum(1 - t * p, 0) ** 2).mean(-1),
    ),
    "categorical hinge": (
        losses.CategoricalHinge(),
        logits,
        lambda t, p: np.maximum(
            ((1 - t) * p).max(-1) - (t * p).sum(-1) + 1,
            0,
        ),
    ),
    "cosine": (losses.CosineSimilarity(), reals, lambda t, p: -oracle.cosine(t, p)),
    "binary": (losses.BinaryCrossentropy(), bits, oracle.binary),
    "binary, smoothed": (
        losses.BinaryCrossentropy(label_smoothing=0.2),
        bits,
        lambda t, p: oracle.binary(t, p, 0.2),
    ),
    "binary of logits": (
        losses.BinaryCrossentropy(from_logits=True, label_smoothing=0.1),
        bit_logits,
        lambda t, p: oracle.binary(t, oracle.sigmoid(p), 0.1),
    ),
    "binary focal": (
        losses.BinaryFocalCrossentropy(True, 0.4, 1.5, label_smoothing=0.1),
        bits,
        lambda t, p: oracle.focal(t, p, 0.4, 1.5, 0.1, True),
    ),
    "binary focal of logits": (
        losses.BinaryFocalCrossentropy(from_logits=True),
        bit_logits,
        lambda t, p: oracle.focal(t, oracle.sigmoid(p)),
    ),
    "categorical": (losses.CategoricalCrossentropy(), rates, oracle.categorical),
    "categorical, smoothed": (
        losses.CategoricalCrossentropy(label_smoothing=0.3),
        rates,
        lambda t, p: oracle.categorical(t, p, 0.3),
    ),
    "categorical of logits": (
        losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
        logits,
        lambda t, p: oracle.categorical(t, oracle.softmax(p), 0.1),
    ),
    "categorical focal": (
        losses.CategoricalFocalCrossentropy(0.3, 1.5, label_smoothing=0.2),
        rates,
        lambda t, p: oracle.categorical_focal(t, p, 0.3, 1.5, 0.2),
    ),
    "categorical focal of logits": (
        losses.CategoricalFocalCrossentropy(from_logits=True),
        logits,
        lambda t, p: oracle.categorical_focal(t, oracle.softmax(p)),
    ),
    "sparse": (
        losses.SparseCategoricalCrossentropy(),
        labels,
        lambda t, p: oracle.categorical(hot(t, p), p),
    ),
    "sparse of logits": (
        losses.SparseCategoricalCrossentropy(from_logits=True),
        label_logits,
        lambda t, p: oracle.categorical(hot(t, p), oracle.softmax(p)),
    ),
    "generalized": (
        losses.CategoricalGeneralizedCrossEntropy(0.3),
        labels,
        lambda t, p: (1 - (hot(t, p) * p).sum(-1) ** 0.3) / 0.3,
    ),
}
