"""Which of an op's algorithms is the default: the library's, the fastest, the smallest.

A choice holds for the process, so that all plans and policies compute the same bits.

See docs/decisions/0025-default-algorithms-first.md.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from memcfg._core import Lock
from memcfg.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["CHOICES", "asked_choice", "choose_fastest"]

CHOICES = ("default", "fastest", "least_scratch")
_VARIABLE = "MEMCFG_CPU_ALGORITHMS"
_GAIN = 0.95  # of the default's time; what gains less may be noise

_lock = Lock("algorithms")
_chosen: dict[tuple[str, ...], str] = {}  # by machine, op, names; in this process


def asked_choice() -> str:
    """Return what ``MEMCFG_CPU_ALGORITHMS`` asks for; KernelError if it is odd."""
    value = os.environ.get(_VARIABLE, "") or CHOICES[0]
    if value not in CHOICES:
        raise KernelError(
            f"{_VARIABLE} is {value!r}; it takes one of {', '.join(CHOICES)}"
        )
    return value


def choose_fastest(
    names: Sequence[str],
    machine: Sequence[str],
    op: str,
    measure: Callable[[], Sequence[float]],
) -> str:
    """Return the name of the fastest of an op's algorithms, the same in a process.

    Parameters
    ----------
    names : sequence of str
        The algorithms, the library's choice first.
    machine : sequence of str
        All that seconds depend on beside the op: processor, library, threads.
    op : str
        The op with its attributes and shapes.
    measure : callable
        Returns the seconds of each; 0 where they cannot be had.

    Returns
    -------
    str
        One of `names`: the first, unless another takes 5 % less. So it is as well where
        seconds cannot be had.
    """
    key = (*machine, op, *names)
    with _lock.turn():
        if key not in _chosen:
            _chosen[key] = _fastest(names, measure())
        return _chosen[key]


def _fastest(names: Sequence[str], seconds: Sequence[float]) -> str:
    if not all(seconds):
        return names[0]
    best = min(seconds)
    return names[seconds.index(best)] if best < _GAIN * seconds[0] else names[0]
