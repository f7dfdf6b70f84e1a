"""Workers that compute the gradient of a batch together, and send it encoded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.parallel._synchronous import Synchronous

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.parallel._members import Member, Members
    from memcfg.parallel.encoding import ThresholdAlgorithm

__all__ = ["SharedGradients"]


class SharedGradients(Synchronous):
    """Synchronous data parallelism by encoded gradients, which steps sum."""

    def __init__(
        self,
        members: Members,
        *,
        report: Callable[[float], None],
        learned: Callable[[ThresholdAlgorithm], None],
    ) -> None:
        super().__init__(members, sharding=None, report=report)
        self._learned = learned

    def finish(self, members: Members) -> None:
        """Merge what the threshold algorithms of all workers have learned."""
        if members.lead.encoder is None:  # of a single rank, or after a failure
            return

        def share(member: Member) -> list[ThresholdAlgorithm]:
            assert member.encoder is not None
            return member.communicator.exchange(member.encoder.algorithm)

        first, *others = members.call(share)[0]
        self._learned(first.merge(others))
