"""The seconds of an op's algorithms, measured once for each shape and kept on disk.

Owns the files. Their keys are the op, its shapes and attributes, the algorithms, and
all else that seconds depend on: the processor, the kernels and their version, threads.
"""

from __future__ import annotations

import json
import math
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from memcfg._version import __version__
from memcfg.devices._file_cache import CacheKind, digest, find_file_cache, warn_once
from memcfg.devices._switch import switched_on

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memcfg.devices._contract import OperandSpec
    from memcfg.memory import Pool

_RUNS = 5  # runs, of which the shortest counts
_ENOUGH = 0.05  # seconds after which no further run begins
_VARIABLE = "MEMCFG_MEASURE"
_KEPT = CacheKind(
    "algorithms",
    "MEMCFG_ALGORITHM_CACHE",
    16 << 20,
    "the seconds of algorithms are not kept on the disk ({reason}), and are measured "
    "again in each process",
)


class MeasuredKernel(Protocol):
    """A kernel that can measure how long a run takes."""

    @property
    def algorithm(self) -> str:
        """The name of the algorithm."""

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch that a run needs."""

    def measure(self, pool: Pool) -> float:
        """Return the seconds of a run in memory of a pool; 0 if that has too little."""


class AlgorithmTimes:
    """The seconds of algorithms on a piece of hardware, by op."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, ...], dict[str, float]] = {}

    def rows(
        self,
        op: tuple[str, Mapping[str, Any], Sequence[OperandSpec], Sequence[OperandSpec]],
        kernels: Sequence[MeasuredKernel],
        pool: Pool,
        machine: Sequence[str] | None = None,
    ) -> list[tuple[str, int, float]]:
        """List name, scratch and seconds of an op's kernels.

        They run in memory of the pool, unless their seconds are known or in a file for
        this machine. Seconds are 0 if the pool has too little memory.
        """
        names = [each.algorithm for each in kernels]
        key = (describe(*op), *names)
        known = self._found.get(key)
        if known is None:
            known = {} if machine is None else _kept(key, names, machine)
        missing = [each for each in kernels if each.algorithm not in known]
        measured = {each.algorithm: each.measure(pool) for each in missing}
        had = {name: seconds for name, seconds in measured.items() if seconds}
        self._found[key] = known = {**known, **had}
        if had and machine is not None:
            _keep(key, known, machine)
        return [
            (each.algorithm, each.scratch_bytes, known.get(each.algorithm, 0.0))
            for each in kernels
        ]


def shortest_run(run: Callable[[], object]) -> float:
    """Run something up to six times; return the least seconds, without the first."""
    taken: list[float] = []
    run()  # fills the caches, and touches memory
    while len(taken) < _RUNS and sum(taken) < _ENOUGH:
        begin = perf_counter()
        run()
        taken.append(perf_counter() - begin)
    return min(taken)


def describe(
    op_type: str,
    attributes: Mapping[str, Any],
    inputs: Sequence[OperandSpec],
    outputs: Sequence[OperandSpec],
) -> str:
    """Return an op with its attributes and shapes as text."""
    return repr((op_type, sorted(attributes.items()), [*inputs], [*outputs]))


def asks_for_times() -> bool:
    """Return whether ``MEMCFG_MEASURE`` is set; KernelError for an unknown value."""
    return switched_on(_VARIABLE)


def _kept(
    op: Sequence[str], names: Sequence[str], machine: Sequence[str]
) -> dict[str, float]:
    """Return the seconds in a file by name; empty if the file has none."""
    cache = find_file_cache(_KEPT)
    if cache is None:
        return {}
    key = digest(__version__, *machine, *op)
    seconds = _read(cache.read(key), names)
    if seconds is None and cache.has(key):
        warn_once(
            f"a file of seconds in {cache.folder} is damaged, and is measured again"
        )
    return seconds or {}


def _keep(
    op: Sequence[str], seconds: Mapping[str, float], machine: Sequence[str]
) -> None:
    """Write seconds to a file, without those that could not be measured."""
    cache = find_file_cache(_KEPT)
    if cache is not None:
        cache.write(digest(__version__, *machine, *op), json.dumps(seconds).encode())


def _read(data: bytes | None, names: Sequence[str]) -> dict[str, float] | None:
    """Return the seconds in a file; None if it has none, or those of others."""
    if data is None:
        return None
    try:
        result = {
            str(name): float(seconds) for name, seconds in json.loads(data).items()
        }
    except (ValueError, TypeError, AttributeError):
        return None
    fine = all(math.isfinite(each) and each > 0 for each in result.values())
    return result if fine and result and result.keys() <= {*names} else None
