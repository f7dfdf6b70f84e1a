"""Read series of any length into a ring of three blocks, and keep some of them."""

from collections import deque

import numpy as np

import memcfg as mc

KIB = 2**10
LENGTHS = [900, 800, 1000, 700, 950, 1000, 3000, 900, 850, 980, 1000, 900, 950, 700]
LENGTHS += [800, 2900, 3100, 900]


def read(number: int, length: int) -> np.ndarray:
    """Stand for a reader: what NumPy makes in it lies in the ring, or beside it."""
    return np.cumsum(np.sin(np.arange(length) * (number + 1.0)))


def picture(
    before: mc.workspaces.WorkspaceStats, after: mc.workspaces.WorkspaceStats
) -> str:
    """Draw the blocks of the ring, and mark the one that a cycle has written."""
    block = before.offset // after.block_size % ring.slots
    same = before.block_size == after.block_size  # else it is another ring
    inside = same and after.offset != before.offset
    marks = "".join("#" if inside and i == block else "." for i in range(ring.slots))
    return f"[{marks}] × {after.block_size / KIB:4.1f} KiB"


def happened(
    before: mc.workspaces.WorkspaceStats, after: mc.workspaces.WorkspaceStats
) -> str:
    """Say what was out of the ordinary in a cycle."""
    if after.block_size > before.block_size:
        return "the ring is built for longer ones" if before.size else "learned"
    if after.pinned_bytes > before.pinned_bytes:
        return "beside the ring: one was longer than a block"
    if after.retired_bytes > before.retired_bytes:
        return f"another page: this block held series {[*kept][-1]}"
    return ""


pool = mc.memory.Pool(limit="2MiB", name="series")
config = mc.WorkspaceConfig(spill="reallocate")
ring = mc.RingWorkspace(slots=3, config=config, name="series", resource=pool)
recent: deque[np.ndarray] = deque(maxlen=2)  # what the consumer works on
kept: dict[int, np.ndarray] = {}  # what it keeps for as long as it likes

print("    values                     new blocks of the pool")
for number, length in enumerate(LENGTHS):
    before, calls = ring.stats(), pool.stats().allocation_count
    with ring:
        recent.append(read(number, length))
    after, new = ring.stats(), pool.stats().allocation_count - calls
    words = f"{picture(before, after)}  {new:2}  {happened(before, after)}"
    print(f"{number:2}   {length:5}  {words}".rstrip())
    if number % 5 == 1:
        kept[number] = recent[-1]

# The ring came round several times since, and none of these was overwritten.
for number, series in kept.items():
    with mc.scope_out():
        assert np.array_equal(series, read(number, LENGTHS[number]))
    assert mc.workspace_of(series) is ring
print(f"kept: {', '.join(f'series {number}' for number in kept)}, as they were read")
