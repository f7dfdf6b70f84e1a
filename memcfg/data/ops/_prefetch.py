"""Elements prepared ahead by a thread, in a ring of blocks: `Dataset.prefetch`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memcfg.data._pipeline_report import StageReport
from memcfg.data.engine._autotune import TunedDepth
from memcfg.data.engine._bounded_queue import FixedDepth
from memcfg.data.engine._producer import Producer
from memcfg.data.engine._ring import Ring
from memcfg.data.ops._node import Node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcfg.data.engine._run import Run

__all__ = ["Prefetch"]

AUTOTUNE = -1


@dataclass(frozen=True, eq=False)
class Prefetch(Node):
    """Elements of another step, prepared ahead.

    Parameters
    ----------
    source : Node
        The step before.
    buffer_size : int
        How many elements may wait; -1 is AUTOTUNE, 0 prepares nothing ahead.
    name : str
        For threads, messages and reports.
    """

    source: Node
    buffer_size: int
    name: str = "prefetch"

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The step before."""
        return (self.source,)

    @property
    def element_spec(self) -> Any:
        """That of the step before."""
        return self.source.element_spec

    @property
    def cardinality(self) -> int:
        """That of the step before."""
        return self.source.cardinality

    def elements(self, run: Run) -> Iterator[Any]:
        """Start a thread that makes the pass.

        Parameters
        ----------
        run : Run
            What the nodes of this pass share.

        Returns
        -------
        iterator
            Over the elements.
        """
        if self.buffer_size == 0:
            return self.source.elements(run)
        tuned = self.buffer_size == AUTOTUNE
        depth = (
            TunedDepth(run, run.hindsight(self.name))
            if tuned
            else FixedDepth(self.buffer_size)
        )
        ring = Ring(f"data {self.name}", run.resource)
        elements = self.source.elements(run)
        producer = Producer(
            elements, depth, self.name, ring=ring, allocator=run.allocator
        )
        run.on_close(producer)
        run.stages.append(_Stage(self.name, producer, ring, tuned=tuned))
        return producer


class _Stage:
    """What is told of a thread; it keeps no item."""

    def __init__(self, name: str, producer: Producer, ring: Ring, *, tuned: bool):
        self._name = name
        self._line = producer.line
        self._ring = ring
        self._tuned = tuned

    def report(self) -> StageReport:
        line = self._line
        return StageReport(
            name=self._name,
            autotuned=self._tuned,
            buffer_size=line.depth.capacity,
            items=line.taken,
            waited_seconds=line.waited,
            nbytes=self._ring.most_bytes,
        )
