"""The choice of an op's default algorithm: the library's, the fastest, the smallest.

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
_GAIN = 0.95  # share of the default's time; a smaller gain may be noise

_lock = Lock("algorithms")
_chosen: dict[tuple[str, ...], str] = {}  # by machine, op and names, in this process


def asked_choice() -> str:
    """Return the value of ``MEMCFG_CPU_ALGORITHMS``; KernelError if it is unknown."""
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
        What the seconds depend on in addition to the op: processor, library, threads.
    op : str
        The op with its attributes and shapes.
    measure : callable
        Returns the seconds of each; 0 if they cannot be measured.

    Returns
    -------
    str
        One of `names`: the first, unless another takes at least 5 % less. The first as
        well if any seconds cannot be measured.
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
