"""The accuracy of a model on data, as `evaluate` measures it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memcfg.nn import Model

__all__ = ["arguments_of", "measure", "metric_of"]


def arguments_of(data: Any) -> tuple[Any, ...]:
    """Return data as the first arguments of `fit` and `evaluate`."""
    if isinstance(data, Iterator) and not hasattr(data, "reset"):
        raise TypeError(
            f"data is read several times, and a {type(data).__name__} only once: pass "
            "(x, y), a dataset or a list of batches"
        )
    if isinstance(data, tuple) and len(data) in (2, 3):
        return data
    return (data,)


def measure(model: Model, data: Any, batch_size: int) -> dict[str, float]:
    """Return what `evaluate` measures, by name."""
    x, *rest = arguments_of(data)
    options: dict[str, Any] = {"verbose": 0, "return_dict": True}
    if rest:
        options |= dict(zip(("y", "sample_weight"), rest, strict=False))
        options["batch_size"] = batch_size
    result: Any = model.evaluate(x, **options)
    return dict(result)


def metric_of(measured: dict[str, float], metric: str | None, what: str) -> str:
    """Return the name of the metric that must not fall; by default an accuracy."""
    names = [name for name in measured if name != "loss"]
    if metric is None:
        found = [name for name in names if "accuracy" in name or name == "acc"]
        if found:
            return found[0]
        raise ValueError(
            f"{what} compares accuracies, and the model measures "
            f"{', '.join(names) or 'none'}: compile it with metrics=['accuracy'], or "
            "name another metric, of which more is better"
        )
    if metric not in names:
        raise ValueError(f"{what}: metric {metric!r} is none of {', '.join(names)}")
    return metric
