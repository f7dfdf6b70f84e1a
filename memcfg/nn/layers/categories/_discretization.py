"""`Discretization`: numbers to the bins that they lie in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.nn._argument_checks import integer, real
from memcfg.nn._keras_arguments import taken
from memcfg.nn.layers.categories._data_layer import (
    MODES,
    _DataLayer,
    batches_of,
    encoded,
    mode_of,
    trace_encoded,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memcfg.nn.layers._layer import Scope


class Discretization(_DataLayer):
    """Replace numbers by the bins that they lie in.

    Parameters
    ----------
    bin_boundaries : sequence of float, optional
        The boundaries; bin 0 is below the first.
    num_bins : int, optional
        The number of bins whose boundaries `adapt` computes: each has about as many
        numbers. Either this or `bin_boundaries` is given.
    epsilon : float, default 0.01
        The error of these boundaries, as a fraction of the numbers.
    output_mode : {"int", "one_hot", "multi_hot", "count"}, default "int"
        Bins as int64 numbers, or float32 rows with a one for each, for those of the
        last axis, or with counts.
    sparse : bool, default False
        Must be False: arrays are dense.
    name : str, optional
        The name.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type, is unknown, or contradicts another.

    Examples
    --------
    >>> import memcfg as mc
    >>> layer = mc.nn.layers.Discretization(bin_boundaries=[0.0, 1.0, 2.0])
    >>> layer([[-1.5, 1.0, 3.4], [0.5, 0.0, 1.3]])
    array([[0, 2, 3],
           [1, 1, 2]])
    """

    __slots__ = ("_boundaries", "epsilon", "num_bins", "output_mode")

    def __init__(
        self,
        bin_boundaries: Any = None,
        num_bins: int | None = None,
        epsilon: float = 0.01,
        output_mode: str = "int",
        sparse: bool = False,
        *,
        name: str | None = None,
    ) -> None:
        taken("Discretization", (), {"sparse": sparse})
        if (bin_boundaries is None) == (num_bins is None):
            raise ValueError("Discretization needs bin_boundaries or num_bins")
        self._boundaries: list[float] | None = None
        if bin_boundaries is not None:
            self._boundaries = [real(each, "bin_boundaries") for each in bin_boundaries]
            if self._boundaries != sorted(self._boundaries):
                raise ValueError(
                    f"bin_boundaries must be in increasing order: {bin_boundaries}"
                )
        self.num_bins = None if num_bins is None else integer(num_bins, "num_bins")
        self.epsilon = real(epsilon, "epsilon")
        if not 0 < self.epsilon < 1:
            raise ValueError(f"epsilon must be between 0 and 1, not {epsilon}")
        self.output_mode = mode_of(output_mode, MODES, "Discretization")
        super().__init__(name)

    @property
    def bin_boundaries(self) -> list[float] | None:
        """The boundaries; None before `adapt`."""
        return self._boundaries

    def adapt(self, data: Any, steps: int | None = None) -> None:
        """Compute the boundaries of bins with about as many numbers each.

        Parameters
        ----------
        data : array_like or iterable
            The numbers, or batches of them. If batches are tuples, their first entries
            are the numbers.
        steps : int, optional
            The number of batches that are used.

        Raises
        ------
        ValueError
            If the layer was made with boundaries, a model has those of the last
            call, or there are no numbers.
        """
        if self.num_bins is None:
            raise ValueError(
                "Discretization was made with bin_boundaries, and cannot be adapted"
            )
        if any(made() is not None for made in self._calls):
            raise ValueError(
                f"Discretization: {self.name!r} is in a model, whose boundaries would "
                "stay the old ones: make a layer and a model, and adapt it before"
            )
        summary = np.zeros((2, 0), np.float32)
        for batch in batches_of(data, steps, "Discretization"):
            numbers = np.sort(np.asarray(batch, np.float32), axis=None)
            summary = _merged(_summary(numbers, self.epsilon), summary, self.epsilon)
        if not summary.size:
            raise ValueError("Discretization: adapt got no numbers")
        bounds = _compressed(summary, 1.0 / self.num_bins)[0, :-1]
        self._boundaries = bounds.tolist()

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the count of the boundaries that are not above, and its encoding.

        NaN is in the last bin, as on arrays: no boundary is above it.
        """
        bounds = self._bounds()
        (x,) = inputs
        if scope.builder.dtype(x) != "float32":
            (x,) = scope.apply("cast", (x,), {"dtype": "float32"})
        shape = scope.builder.shape(x)
        (x,) = scope.apply("reshape", (x,), {"shape": (*shape, 1)})
        wide = {"shape": (*shape, len(bounds))}
        (x,) = scope.apply("broadcast_to", (x,), wide)
        data = np.ascontiguousarray(bounds, ">f4").tobytes().hex()
        row = {"shape": (*[1] * len(shape), len(bounds)), "data": data}
        (low,) = scope.apply("constant", (), row)
        (low,) = scope.apply("broadcast_to", (low,), wide)
        (above,) = scope.apply("less", (x, low))
        axes = {"axes": (len(shape),), "keepdims": False}
        (bins,) = scope.apply("reduce_sum", (above,), axes)
        rest = {"factor": -1.0, "term": float(len(bounds))}
        (bins,) = scope.apply("affine", (bins,), rest)
        (bins,) = scope.apply("cast", (bins,), {"dtype": "int32"})
        return trace_encoded(scope, bins, self.output_mode, len(bounds) + 1)

    def _bounds(self) -> np.ndarray:
        if self._boundaries is None:
            raise ValueError("Discretization needs boundaries: call adapt first")
        return np.array(self._boundaries, np.float32)

    def call(self, inputs: Any) -> np.ndarray:
        """Return the bins of numbers.

        Parameters
        ----------
        inputs : array_like
            The numbers.

        Returns
        -------
        numpy.ndarray
            The bins, in the output mode.

        Raises
        ------
        ValueError
            If there are no boundaries yet.
        """
        bounds = self._bounds()
        bins = np.digitize(np.asarray(inputs, np.float32), bounds)
        dtype = np.int64 if self.output_mode == "int" else np.float32
        return encoded(bins, self.output_mode, len(bounds) + 1, dtype)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor.

        Returns
        -------
        dict
            The arguments by name; the boundaries instead of `num_bins` if there are
            any.
        """
        config = super().get_config() | {"bin_boundaries": self._boundaries}
        if self._boundaries is not None:
            config["num_bins"] = None
        return config

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Any:
        """Create the layer; boundaries that were found replace the number of bins."""
        given = dict(config)
        if given.get("bin_boundaries") is not None:
            given["num_bins"] = None
        return super().from_config(given)


# A summary has values and how many numbers each stands for. Summaries are merged and
# compressed to about 1 / epsilon values, at quantiles of equal distance.


def _summary(numbers: np.ndarray, epsilon: float) -> np.ndarray:
    step = max(len(numbers) * epsilon, 1.0)
    values = numbers[int(step - 1) :: int(step)]
    return np.stack([values, np.full_like(values, step)])


def _merged(first: np.ndarray, second: np.ndarray, epsilon: float) -> np.ndarray:
    both = np.concatenate([first, second], axis=1)
    return _compressed(both[:, np.argsort(both[0])], epsilon)


def _compressed(summary: np.ndarray, epsilon: float) -> np.ndarray:
    if summary.shape[1] * epsilon < 1:
        return summary
    wanted = epsilon + np.arange(0.0, 1.0, epsilon)
    counts = summary[1].cumsum()
    fractions = counts / counts[-1]
    values = np.interp(wanted, fractions, summary[0])
    weights = np.diff(np.interp(wanted, fractions, counts), prepend=0)
    return np.stack([values, weights]).astype(np.float32)
