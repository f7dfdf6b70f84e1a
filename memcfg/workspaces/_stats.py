"""The numbers of a workspace, as a value.

Owns their names and meanings; computes nothing: the native core counts.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["WorkspaceStats"]


@dataclass(frozen=True, slots=True)
class WorkspaceStats:
    """What a workspace holds and has learned, all of one moment.

    Bytes are those of requests, each rounded up to 64.

    Parameters
    ----------
    size : int
        Bytes of the page that a cycle gets; 0 as long as nothing was learned.
    offset : int
        Where in the page the next array comes to lie.
    cycle_bytes : int
        Bytes that this cycle has asked for, spilled ones included.
    last_cycle_bytes : int
        The same of the cycle that ended last.
    max_cycle_bytes : int
        The most of all cycles: what sizes are learned from.
    spilled_bytes : int
        Bytes that found no room in the page since that was last forgotten: when the
        next cycle begins, in a ring when it has come round.
    spilled_count : int
        In how many arrays.
    pinned_bytes : int
        Bytes of a ring's cycles that were too large for their block; forgotten with the
        third step that follows.
    pinned_count : int
        In how many arrays.
    block_size : int
        Bytes of a ring's block; 0 without one.
    cycles : int
        Cycles that have ended.
    steps : int
        How often a ring has come round.
    generation : int
        Cycles that have begun.
    live_arrays : int
        Arrays that are alive, wherever in the workspace's memory.
    escaped_arrays : int
        Arrays that have outlived their cycle so far, whether they are alive or not.
    retired_bytes : int
        Bytes of pages that belong to such arrays and are not used again before the last
        of them is gone.
    """

    size: int
    offset: int
    cycle_bytes: int
    last_cycle_bytes: int
    max_cycle_bytes: int
    spilled_bytes: int
    spilled_count: int
    pinned_bytes: int
    pinned_count: int
    block_size: int
    cycles: int
    steps: int
    generation: int
    live_arrays: int
    escaped_arrays: int
    retired_bytes: int
