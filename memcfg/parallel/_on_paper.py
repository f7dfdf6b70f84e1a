"""A rank of a group that exists on paper only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Never

from memcfg.ops import EncodedTotals

if TYPE_CHECKING:
    from memcfg.graph import Link

__all__ = ["CommunicatorOnPaper"]


class CommunicatorOnPaper:
    """The first rank of a group, for plans; see `memcfg.ops.Communicator`.

    As between the workers of one process, collectives need no scratch.
    """

    rank = 0
    encoded_totals = EncodedTotals()

    def __init__(self, size: int, link: Link | None) -> None:
        self.size = size
        self.rate = None if link is None else (link.seconds, link.bytes_per_second)

    def work_bytes(self, collective: str, nbytes: int, item_bytes: int) -> int:
        """Return 0."""
        del collective, nbytes, item_bytes
        return 0

    def all_reduce(self, *args: Any) -> Never:
        """Raise RuntimeError, as the other ranks do not exist."""
        del args
        raise RuntimeError("a group on paper computes nothing")

    all_reduce_encoded = reduce_scatter = all_gather = broadcast = all_reduce
    exchange = fail = renewed = all_reduce
