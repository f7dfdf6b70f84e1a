"""`CategoryEncoding`: numbers of categories to rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.nn._argument_checks import integer
from memcfg.nn._keras_arguments import taken
from memcfg.nn.layers.categories._data_layer import (
    _DataLayer,
    encoded,
    mode_of,
    trace_encoded,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn.layers._layer import Scope


class CategoryEncoding(_DataLayer):
    """Encode numbers of categories as rows with ones or counts.

    In a model, numbers that are out of range are not counted, since they are not known
    when the model is made; on arrays they are refused.

    Parameters
    ----------
    num_tokens : int
        The number of categories.
    output_mode : {"multi_hot", "one_hot", "count"}, default "multi_hot"
        A one for each category of the last axis, a row for each number, or counts.
    sparse : bool, default False
        Must be False: arrays are dense.
    name : str, optional
        The name.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is unknown.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.layers.CategoryEncoding(num_tokens=4)([[0, 1], [3, 3]])
    array([[1., 1., 0., 0.],
           [0., 0., 0., 1.]], dtype=float32)
    """

    __slots__ = ("num_tokens", "output_mode")

    def __init__(
        self,
        num_tokens: int | None = None,
        output_mode: str = "multi_hot",
        sparse: bool = False,
        *,
        name: str | None = None,
    ) -> None:
        taken("CategoryEncoding", (), {"sparse": sparse})
        if num_tokens is None:
            raise ValueError(
                "CategoryEncoding needs num_tokens; IntegerLookup finds it by adapt"
            )
        self.num_tokens = integer(num_tokens, "CategoryEncoding: num_tokens")
        known = ("multi_hot", "one_hot", "count")
        self.output_mode = mode_of(output_mode, known, "CategoryEncoding")
        super().__init__(name)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the encoding."""
        (indices,) = inputs
        if scope.builder.dtype(indices) != "int32":
            (indices,) = scope.apply("cast", (indices,), {"dtype": "int32"})
        return trace_encoded(scope, indices, self.output_mode, self.num_tokens)

    def call(self, inputs: Any, count_weights: Any = None) -> np.ndarray:
        """Return the rows of numbers.

        Parameters
        ----------
        inputs : array_like of int
            The numbers, from 0 to ``num_tokens - 1``.
        count_weights : array_like, optional
            What each number counts, in the mode ``"count"``.

        Returns
        -------
        numpy.ndarray
            float32 rows of `num_tokens` elements.

        Raises
        ------
        TypeError
            If they are not integers.
        ValueError
            If a number is out of range, or weights do not fit.
        """
        numbers = np.asarray(inputs)
        if numbers.dtype.kind == "f" and np.array_equal(numbers, np.trunc(numbers)):
            numbers = numbers.astype(np.int64)
        if numbers.dtype.kind not in "iu":
            raise TypeError(f"CategoryEncoding takes integers, not {numbers.dtype}")
        most = self.num_tokens - 1
        if numbers.size and not 0 <= numbers.min() <= numbers.max() <= most:
            raise ValueError(
                f"CategoryEncoding: numbers must be in 0 to {most}, but they are in "
                f"{numbers.min()} to {numbers.max()}"
            )
        weights = None
        if count_weights is not None:
            weights = np.asarray(count_weights, np.float32)
            if self.output_mode != "count":
                raise ValueError("count_weights goes with output_mode='count'")
            if weights.shape != numbers.shape:
                raise ValueError(
                    f"count_weights has shape {weights.shape}, and the numbers "
                    f"{numbers.shape}"
                )
        return encoded(numbers, self.output_mode, self.num_tokens, np.float32, weights)
