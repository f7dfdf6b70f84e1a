"""How long an op's algorithms take: measured on request, once for a shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from memcfg.devices._switch import switched_on

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memcfg.devices._contract import OperandSpec
    from memcfg.memory import Pool

_VARIABLE = "MEMCFG_MEASURE"


class MeasuredKernel(Protocol):
    """A kernel that can tell how long a run takes."""

    @property
    def algorithm(self) -> str:
        """Its name."""

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch that a run needs."""

    def measure(self, pool: Pool) -> float:
        """Return the seconds of a run, in memory of a pool; 0 if it has not enough."""


class AlgorithmTimes:
    """The seconds of algorithms on a piece of hardware, by the op."""

    def __init__(self) -> None:
        self._found: dict[tuple[Any, ...], list[float]] = {}

    def rows(
        self,
        op: tuple[str, Mapping[str, Any], Sequence[OperandSpec], Sequence[OperandSpec]],
        kernels: Sequence[MeasuredKernel],
        pool: Pool,
    ) -> list[tuple[str, int, float]]:
        """List name, scratch and seconds of an op's kernels.

        They run in memory of the pool, unless they have; 0 seconds where it has not
        the memory, or where there is nothing to choose.
        """
        seconds = [0.0] * len(kernels)
        if len(kernels) > 1:
            op_type, attributes, inputs, outputs = op
            key = (op_type, repr(sorted(attributes.items())), *inputs, *outputs)
            seconds = self._found.get(key) or [each.measure(pool) for each in kernels]
            if all(seconds):
                self._found[key] = seconds
        return [
            (each.algorithm, each.scratch_bytes, taken)
            for each, taken in zip(kernels, seconds, strict=True)
        ]


def asks_for_times() -> bool:
    """Tell whether ``MEMCFG_MEASURE`` asks for seconds; KernelError if it is odd."""
    return switched_on(_VARIABLE)
