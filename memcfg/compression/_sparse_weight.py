"""Weights of which a model holds what is left of them, or shared values."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from memcfg.nn.layers._parametrization import Parametrization, Part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.graph import Builder

__all__ = ["SparseWeight"]


class SparseWeight(Parametrization):
    """A weight of `count` values at indices, the rest 0; all of them if not `sparse`.

    The values are trained; if there are `shared` ones, these are: each value is one of
    them, at the place that its code says. The gradient of a shared value is the sum of
    those of the weights that have it.
    """

    __slots__ = ("count", "shared", "sparse")

    def __init__(self, count: int, *, sparse: bool, shared: int | None = None) -> None:
        self.count = count
        self.sparse = sparse
        self.shared = shared

    @property
    def parts(self) -> tuple[Part, ...]:
        """The values, or shared ones with codes, and indices into the flat weight."""
        if self.shared is None:
            result = [Part("values", (self.count,), trainable=True)]
        else:
            result = [
                Part("codebook", (self.shared,), trainable=True),
                Part("codes", (self.count,), "int32"),
            ]
        if self.sparse:
            result.append(Part("indices", (self.count,), "int32"))
        return tuple(result)

    def trace(
        self, builder: Builder, parts: Sequence[int], shape: tuple[int, ...], name: str
    ) -> int:
        """Append a gather of shared values, and a scatter to the indices."""
        (values, *rest), size = parts, prod(shape)
        if self.shared is not None:
            operands = (values, rest.pop(0))
            (values,) = builder.apply("gather", operands, name=f"{name}/values")
        if self.sparse:
            operands, rows = (rest.pop(), values), {"rows": size}
            (values,) = builder.apply("scatter_add", operands, rows, name=f"{name}/all")
        return builder.apply("reshape", (values,), {"shape": shape}, name=name)[0]

    def compute(
        self, parts: Sequence[np.ndarray], shape: tuple[int, ...]
    ) -> np.ndarray:
        """Return the weight."""
        values = parts[0] if self.shared is None else parts[0][parts[1]]
        if not self.sparse:
            return values.reshape(shape).copy()
        result = np.zeros(prod(shape), np.float32)
        result[parts[-1]] = values
        return result.reshape(shape)

    def split(
        self, value: np.ndarray, parts: Sequence[np.ndarray]
    ) -> Sequence[np.ndarray]:
        """Return values for a weight that is 0, or shares values, where it does now."""
        flat = np.asarray(value, np.float32).ravel()
        values = flat[parts[-1]] if self.sparse else flat
        if np.count_nonzero(flat) > np.count_nonzero(values):
            raise ValueError("the new value has numbers where weights are pruned")
        if self.shared is None:
            return [values, *parts[1:]]
        codebook, codes = parts[0].copy(), parts[1]
        codebook[codes] = values
        if not np.array_equal(codebook[codes], values):
            raise ValueError("the new value differs where weights share one")
        return [codebook, *parts[1:]]
