"""Checks of the evaluators' arguments."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

from memcfg._checks import count

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["label_names", "same_size", "steps_of", "threshold"]


def label_names(labels: Sequence[str] | None) -> list[str] | None:
    """Return names of classes or outputs as a list, or raise an error."""
    if labels is None:
        return None
    if isinstance(labels, str) or not all(isinstance(each, str) for each in labels):
        raise TypeError(f"labels are names, such as ['cat', 'dog'], not {labels!r}")
    if not labels:
        raise ValueError("labels has no name")
    return list(labels)


def threshold(value: Any, what: str) -> float:
    """Return a number between 0 and 1, or raise an error."""
    number = float(value)
    if not (isfinite(number) and 0 <= number <= 1):
        raise ValueError(f"{what} is from 0 to 1, not {value!r}")
    return number


def steps_of(value: Any) -> int:
    """Return the number of threshold steps, 0 for an exact curve."""
    return count(value, "threshold_steps", 0)


def same_size(columns: int, wanted: int | None, name: str) -> None:
    """Raise ValueError unless predictions have as many outputs as wanted."""
    if wanted is not None and columns != wanted:
        raise ValueError(
            f"{name} is of {wanted} outputs, and the predictions have {columns}"
        )
