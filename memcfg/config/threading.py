"""How many threads compute: within one kernel, and programs at the same time.

The first is the number of the kernels' OpenMP threads, the second bounds how many
programs of the process run at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg._checks import count
from memcfg._core import set_max_running
from memcfg.config._registry import registry

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "get_inter_op_parallelism_threads",
    "get_intra_op_parallelism_threads",
    "set_inter_op_parallelism_threads",
    "set_intra_op_parallelism_threads",
]

_MAX = 2**16 - 1


def get_intra_op_parallelism_threads() -> int:
    """Return how many threads a kernel uses.

    Returns
    -------
    int
        What was set; 0, the default, is automatic: ``OMP_NUM_THREADS``, or all cores
        that the process may use.
    """
    return registry.settings.intra_threads


def set_intra_op_parallelism_threads(num_threads: int) -> None:
    """Set how many threads a kernel uses.

    The kernels are oneDNN's and memcfg's own; NumPy's reference kernels follow
    NumPy's rules.

    Parameters
    ----------
    num_threads : int
        0 is automatic.

    Raises
    ------
    TypeError
        If it is not an int, or a bool.
    ValueError
        If it is negative or beyond 65,535.
    RuntimeError
        If a device was used already and the number is not the present one, or it is
        more than 1 and memcfg was built without OpenMP.
    """
    what = "The threads of a kernel"
    _set("intra_threads", num_threads, what, registry.use_threads)


def get_inter_op_parallelism_threads() -> int:
    """Return how many programs may run at the same time; 0 (default) is any number."""
    return registry.settings.inter_threads


def set_inter_op_parallelism_threads(num_threads: int) -> None:
    """Set how many programs may run at the same time in this process.

    A program is one run of a training, evaluation or prediction step. When that many
    are running, the next one waits until one of them ends.

    Parameters
    ----------
    num_threads : int
        0 is automatic: without a bound.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        What `set_intra_op_parallelism_threads` raises.
    """
    what = "The number of programs that run at once"
    _set("inter_threads", num_threads, what, set_max_running)


def _set(setting: str, threads: int, what: str, use: Callable[[int], object]) -> None:
    number = count(threads, "a number of threads", 0)
    if number > _MAX:
        raise ValueError(f"a number of threads is {_MAX} at most, not {number}")
    with registry.lock:
        if getattr(registry.settings, setting) != number:
            registry.check_unused(what)
            use(number)
            setattr(registry.settings, setting, number)
