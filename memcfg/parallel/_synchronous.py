"""Workers that compute the gradient of a batch together, each of a part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memcfg.nn.inputs._batches import Batch
    from memcfg.nn.optimizers import Optimizer
    from memcfg.nn.training._tracing import ProgramKey
    from memcfg.parallel._members import Member, Members

__all__ = ["Synchronous"]


class Synchronous:
    """Synchronous data parallelism: a `Distribution` of steps of whole batches.

    Gradients and results are summed over all workers in the step's program, so all have
    the same weights and the same numbers after it. With a sharding, each has a part of
    the optimizer's state, or of weights, and updates that part.
    """

    def __init__(
        self,
        members: Members,
        *,
        sharding: str | None,
        report: Callable[[float], None],
    ) -> None:
        self._members = members
        self._report = report
        members.call(lambda member: member.session.join(member.rank(sharding)))

    def require(self, wanted: Sequence[ProgramKey], promised: int) -> None:
        """Load the programs of each worker's part of batches."""

        def load(member: Member) -> None:
            member.session.require_of_rank(wanted, promised)

        self._members.call(load)

    def step(
        self, kind: str, batch: Batch, optimizer: Optimizer | None, guard: bool
    ) -> tuple[bool, tuple[Any, ...]]:
        """Run a batch on all workers."""
        lead = self._members.lead

        def run(member: Member) -> tuple[bool, tuple[Any, ...]]:
            return member.session.step_of_rank(
                kind, batch, optimizer, guard=guard, advances=member is lead
            )

        finished, results = self._members.call(run)[0]
        if kind == "train":
            self._report(results[0])
        return finished, results

    def finish(self, members: Members) -> None:
        """Do nothing, as all workers have the same weights after each step."""
