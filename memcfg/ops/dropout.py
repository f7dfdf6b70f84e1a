"""Dropout (Srivastava et al., JMLR 15, 2014), uniform numbers, and their generator.

No mask is stored: Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random
numbers: as easy as 1, 2, 3", SC 2011) computes it from (key, step, element) again in
backward and in every recomputation. This implementation is independent of the C++ one,
and agrees with it bit for bit.
"""

from __future__ import annotations

from math import floor
from typing import TYPE_CHECKING

import numpy as np

from memcfg.ops._op_type import (
    Adjoint,
    Array,
    Arrays,
    Attributes,
    OpType,
    Spec,
    register,
    require,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__: list[str] = []

_MASK = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def philox4x32(counter: Array, key: tuple[int, int]) -> Array:
    """Return random words for counters [..., 4] of words below 2**32."""
    a, b, c, d = (counter[..., i].astype(np.uint64) for i in range(4))
    for i in range(_ROUNDS):
        bumped = [(key[j] + i * _WEYL[j]) & 0xFFFFFFFF for j in (0, 1)]
        first, second = _MULTIPLIERS[0] * a, _MULTIPLIERS[1] * c
        a, b, c, d = (
            (second >> _HALF) ^ b ^ np.uint64(bumped[0]),
            second & _MASK,
            (first >> _HALF) ^ d ^ np.uint64(bumped[1]),
            first & _MASK,
        )
    return np.stack([a, b, c, d], axis=-1)


def keep_mask(key: int, step: Array | int, count: int, rate: float) -> Array:
    """Return for each of `count` elements whether dropout keeps it.

    Element i is kept iff lane ``i % 4`` of block ``i // 4`` is at least
    ``floor(rate * 2**32)``. The key lies in [0, 2**63). See `check_step` for `step`.
    """
    kept: Array = _words(key, step, count) >= floor(rate * 2**32)
    return kept


def _words(key: int, step: Array | int, count: int) -> Array:
    """Return a random word below 2**32 for each of `count` elements."""
    given = np.asarray(step)
    number, first, samples = given.tolist() if given.ndim else (int(given), 0, 1)
    begin = count // samples * first
    block = np.arange(begin // 4, (begin + count + 3) // 4, dtype=np.uint64)
    counter = np.empty((len(block), 4), np.uint64)
    counter[:, 0], counter[:, 1] = block & _MASK, block >> _HALF
    unsigned = number % 2**64
    counter[:, 2], counter[:, 3] = unsigned & 0xFFFFFFFF, unsigned >> 32
    words: Array = philox4x32(counter, (key & 0xFFFFFFFF, key >> 32))
    return words.reshape(-1)[begin % 4 :][:count]


def check_step(step: Spec, what: str) -> None:
    """Raise GraphError unless this is a step, or a step and a part of its batch.

    A part is given as int64 ``[step, first, samples]``. Its array holds `samples`
    samples, the slowest axis, and gets the numbers of samples `first` onwards of the
    array of the whole batch.
    """
    require(
        step.shape in ((), (3,)) and step.dtype == "int64",
        f"{what}: the step is one int64 number, or three",
    )


def _infer(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    rate, step = attributes["rate"], inputs[1]
    require(0 <= rate < 1, f"dropout: rate {rate} is not in [0, 1)")
    check_step(step, "dropout")
    return [Spec(inputs[0].shape, inputs[0].dtype)]


def _gradient(adjoint: Adjoint) -> Sequence[int | None]:
    (dx,) = adjoint.emit("dropout", (adjoint.dy, adjoint.inputs[1]), adjoint.attributes)
    return dx, None


def _dropout(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    x, step = inputs
    rate = a["rate"]
    kept = keep_mask(a["key"], step, x.size, rate).reshape(x.shape)
    scale = x.dtype.type(1 / (1 - rate) if rate < 1 else 0)
    outputs[0][...] = np.where(kept, x * scale, 0)


def _infer_uniform(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    check_step(inputs[0], "random_uniform")
    return [Spec(tuple(attributes["shape"]), "float32")]


def _random_uniform(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    """Draw uniformly from the midpoints of 2**23 equal parts of (0, 1)."""
    (y,) = outputs
    parts = _words(a["key"], inputs[0], y.size) >> np.uint64(9)
    y[...] = ((parts + 0.5) * 2.0**-23).reshape(y.shape)


register(
    OpType("dropout", 2, _infer, _dropout, ((0, 0),), _gradient),
    OpType("random_uniform", 1, _infer_uniform, _random_uniform),
)
