"""Numbers of threads: of one kernel (intra-op), and of programs (inter-op).

The first is the number of OpenMP threads of a kernel, the second limits the programs of
the process that run at the same time.
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
    """Return the number of threads of a kernel.

    Returns
    -------
    int
        The setting; 0, the default, is automatic: ``OMP_NUM_THREADS``, or all cores
        that the process may use.
    """
    return registry.settings.intra_threads


def set_intra_op_parallelism_threads(num_threads: int) -> None:
    """Set the number of threads of a kernel.

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
        If a device was used already and the number differs from the current one, or it
        is more than 1 and memcfg was built without OpenMP.
    """
    what = "The threads of a kernel"
    _set("intra_threads", num_threads, what, registry.use_threads)


def get_inter_op_parallelism_threads() -> int:
    """Return the max. number of programs that run at once; 0 (default): no limit."""
    return registry.settings.inter_threads


def set_inter_op_parallelism_threads(num_threads: int) -> None:
    """Set the max. number of programs that run at the same time in this process.

    A program is one run of a training, evaluation or prediction step. When that many
    are running, the next one waits until one of them ends.

    Parameters
    ----------
    num_threads : int
        0 is automatic: no limit.

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
