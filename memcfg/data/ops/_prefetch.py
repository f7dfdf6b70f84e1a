"""`Dataset.prefetch`: elements prepared ahead by a thread, in a ring of blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memcfg.data._pipeline_report import StageReport
from memcfg.data.engine._autotune import AUTOTUNE, TunedDepth
from memcfg.data.engine._batch_blocks import Ring
from memcfg.data.engine._device_rings import DeviceRings
from memcfg.data.engine._producer import FixedDepth, Producer
from memcfg.data.ops._node import UnaryNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memcfg.data.engine._producer import BoundedQueue
    from memcfg.data.engine._run import Run
    from memcfg.memory import Resource


@dataclass(frozen=True, eq=False)
class Prefetch(UnaryNode):
    """The elements of another step, prepared ahead.

    With `resources`, they lie in a ring of each of these in turn; none: of the pass.
    """

    buffer_size: int
    name: str = "prefetch"
    resources: tuple[Resource, ...] = ()

    def elements(self, run: Run) -> Iterator[Any]:
        if self.buffer_size == 0:
            return self.source.elements(run)
        tuned = self.buffer_size == AUTOTUNE
        depth = (
            TunedDepth(run, run.tuned_state(self.name))
            if tuned
            else FixedDepth(self.buffer_size)
        )
        ring = DeviceRings(
            [
                Ring(f"data {self.name}", resource)
                for resource in self.resources or (run.resource,)
            ]
        )
        elements = self.source.elements(run)
        producer = Producer(
            elements, depth, self.name, ring=ring, allocator=run.allocator
        )
        run.on_close(producer)
        run.stages.append(_report_of(self.name, producer.queue, ring, tuned=tuned))
        return producer


def _report_of(
    name: str, queue: BoundedQueue, ring: DeviceRings, *, tuned: bool
) -> Callable[[], StageReport]:
    """Return a function that reports on a prefetch; it keeps no item alive."""

    def report() -> StageReport:
        waiting = queue.capacity(ring)
        missing = max(0, queue.depth.asked - int(waiting))
        return StageReport(
            name=name,
            autotuned=tuned,
            buffer_size=int(waiting),
            items=queue.delivered,
            waited_seconds=queue.waited,
            nbytes=ring.max_bytes,
            missing_bytes=missing * ring.block_bytes,
        )

    return report
