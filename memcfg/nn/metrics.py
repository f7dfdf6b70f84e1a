"""What is measured beside the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.graph import Builder

__all__: list[str] = []

_OPS = dict.fromkeys(("accuracy", "sparse_categorical_accuracy"), "correct_count")


class Metric(NamedTuple):
    """A number of each batch, summed over its samples by one op."""

    name: str
    op: str

    def trace(self, builder: Builder, output: int, labels: int) -> int:
        """Append the op; returns the id of its number."""
        return builder.apply(self.op, (output, labels), name=self.op)[0]


def get_metrics(metrics: Sequence[str] | None) -> tuple[Metric, ...]:
    """Return the metrics that `compile`'s argument means."""
    if metrics is None:
        return ()
    if not isinstance(metrics, list | tuple):
        raise TypeError(f"metrics is a list such as ['accuracy'], not {metrics!r}")
    for metric in metrics:
        if not isinstance(metric, str):
            raise TypeError(f"a metric is a name such as 'accuracy', not {metric!r}")
        if metric not in _OPS:
            raise ValueError(f"unknown metric {metric!r}; known: {', '.join(_OPS)}")
    if len(set(metrics)) != len(metrics):
        raise ValueError(f"duplicate metric in {list(metrics)!r}")
    return tuple(Metric(name, _OPS[name]) for name in metrics)
