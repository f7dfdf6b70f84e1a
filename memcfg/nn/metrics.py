"""What is measured beside the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from memcfg.nn._attributes import FixedAttributes, check_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from memcfg.graph import Builder
    from memcfg.nn.layers._layer import SymbolicTensor
    from memcfg.nn.losses import Target

__all__ = ["Metric"]

_OPS = dict.fromkeys(("accuracy", "sparse_categorical_accuracy"), "correct_count")


class Metric(FixedAttributes):
    """Base class of the metrics.

    Parameters
    ----------
    name : str
        Its name in logs.
    """

    __slots__ = ("name",)

    count: ClassVar[int] = 2  # of what `trace` returns

    def __init__(self, name: str) -> None:
        self.name = check_name(name)

    def target(self, output: SymbolicTensor) -> Target | None:
        """Return what y is of one sample.

        Parameters
        ----------
        output : SymbolicTensor
            The model's output that the metric reads.

        Returns
        -------
        Target or None
            None: that of the loss.
        """
        del output
        return None

    def trace(
        self, builder: Builder, y_true: int, y_pred: int, sample_weight: int | None
    ) -> tuple[int, ...]:
        """Append the ops of the metric.

        Parameters
        ----------
        builder : Builder
            Collects the ops.
        y_true, y_pred : int
            Ids of the targets of a batch and of the model's output.
        sample_weight : int or None
            Id of a float32 tensor of shape ``(batch,)``, with a mask
            ``(batch, time)``; None: all weigh the same.

        Returns
        -------
        tuple of int
            Ids of float32 numbers or vectors, which are summed over the batches.
        """
        raise NotImplementedError

    def result(self, sums: Sequence[float | npt.NDArray[np.float64]]) -> float:
        """Return the metric.

        Parameters
        ----------
        sums : sequence of float or numpy.ndarray
            What `trace` returned, summed over the batches.

        Returns
        -------
        float
            The number for logs.
        """
        raise NotImplementedError


class SparseCategoricalAccuracy(Metric):
    """The part of the labels that are the largest output."""

    __slots__ = ()

    def trace(
        self, builder: Builder, y_true: int, y_pred: int, sample_weight: int | None
    ) -> tuple[int, ...]:
        """Count right answers, and all."""
        if sample_weight is not None:
            raise ValueError(f"{self!r} does not weigh samples yet")
        (right,) = builder.apply("correct_count", (y_pred, y_true))
        samples = float(builder.shape(y_true)[0])
        count = {"shape": (), "value": samples, "dtype": "float32"}
        return right, *builder.apply("fill", (), count, name="sample_count")

    def result(self, sums: Sequence[float | npt.NDArray[np.float64]]) -> float:
        """Divide one by the other."""
        right, samples = sums
        return float(right / samples)


def get_metric(
    metric: Any, output: SymbolicTensor | None = None, target: Target | None = None
) -> Metric:
    """Return the metric that an entry of `compile`'s argument means for an output."""
    del output, target  # which accuracy it is
    if isinstance(metric, Metric):
        return metric
    if not isinstance(metric, str):
        raise TypeError(f"a metric is a name such as 'accuracy', not {metric!r}")
    if metric not in _OPS:
        raise ValueError(f"unknown metric {metric!r}; known: {', '.join(_OPS)}")
    return SparseCategoricalAccuracy(metric)


def get_metrics(metrics: Sequence[str] | None) -> tuple[Metric, ...]:
    """Return the metrics that `compile`'s argument means."""
    if metrics is None:
        return ()
    if not isinstance(metrics, list | tuple):
        raise TypeError(f"metrics is a list such as ['accuracy'], not {metrics!r}")
    if len(set(metrics)) != len(metrics):
        raise ValueError(f"duplicate metric in {list(metrics)!r}")
    return tuple(get_metric(each) for each in metrics)
