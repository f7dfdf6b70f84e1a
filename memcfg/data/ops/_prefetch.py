"""`Dataset.prefetch`: elements prepared ahead by a thread, in a ring of blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memcfg.data._pipeline_report import StageReport
from memcfg.data.engine._autotune import AUTOTUNE, TunedDepth
from memcfg.data.engine._batch_blocks import Ring
from memcfg.data.engine._producer import FixedDepth, Producer
from memcfg.data.ops._node import UnaryNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memcfg.data.engine._producer import BoundedQueue
    from memcfg.data.engine._run import Run


@dataclass(frozen=True, eq=False)
class Prefetch(UnaryNode):
    """The elements of another step, prepared ahead."""

    buffer_size: int
    name: str = "prefetch"

    def elements(self, run: Run) -> Iterator[Any]:
        if self.buffer_size == 0:
            return self.source.elements(run)
        tuned = self.buffer_size == AUTOTUNE
        depth = (
            TunedDepth(run, run.tuned_state(self.name))
            if tuned
            else FixedDepth(self.buffer_size)
        )
        ring = Ring(f"data {self.name}", run.resource)
        elements = self.source.elements(run)
        producer = Producer(
            elements, depth, self.name, ring=ring, allocator=run.allocator
        )
        run.on_close(producer)
        run.stages.append(_report_of(self.name, producer.queue, ring, tuned=tuned))
        return producer


def _report_of(
    name: str, queue: BoundedQueue, ring: Ring, *, tuned: bool
) -> Callable[[], StageReport]:
    """Return a function that reports on a prefetch; it keeps no item alive."""
    return lambda: StageReport(
        name=name,
        autotuned=tuned,
        buffer_size=int(queue.capacity(ring)),
        items=queue.delivered,
        waited_seconds=queue.waited,
        nbytes=ring.max_bytes,
    )
