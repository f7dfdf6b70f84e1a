"""Workers that compute the gradient of a batch together, each of a part."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from memcfg.nn.training.ranks._shard_estimate import best_of
from memcfg.nn.training.ranks._sharding import SHARDINGS

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
    the optimizer's state, or of weights, and updates that part. With ``"auto"`` it is
    chosen for the first batch, and `chosen` is told.
    """

    def __init__(
        self,
        members: Members,
        *,
        sharding: str | None,
        report: Callable[[float], None],
        chosen: Callable[[str | None], None] | None = None,
    ) -> None:
        self._members = members
        self._report = report
        self._chosen = chosen
        self._is_open = sharding == "auto"
        if not self._is_open:
            members.join(sharding)

    def require(self, wanted: Sequence[ProgramKey], promised: int) -> None:
        """Load the programs of each worker's part of batches."""
        if self._is_open:
            self._choose(next(key for key in wanted if key.kind == "train"))

        def load(member: Member) -> None:
            member.session.require_of_rank(wanted, promised)

        self._members.call(load)

    def _choose(self, whole: ProgramKey) -> None:
        """Choose what to divide, on the worker with the least memory."""

        def choose(member: Member) -> str | None:
            session, communicator = member.session, member.communicator
            left = session.executor.budget_bytes(0)
            lefts = communicator.exchange(math.inf if left is None else left)
            decides = lefts.index(min(lefts))
            choice = None
            if communicator.rank == decides:
                ranks = [member.rank(each) for each in (None, *SHARDINGS)]
                choice = best_of(session.estimate_ranks(ranks, whole, left)).shard
            found: str | None = communicator.exchange(choice)[decides]
            return found

        choice = self._members.call(choose)[0]
        self._members.join(choice)
        self._is_open = False
        if self._chosen is not None:
            self._chosen(choice)

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
