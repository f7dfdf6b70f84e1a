"""Find out why batches are wrong: shields take one suspect away at a time."""

import time
from collections.abc import Iterator

import numpy as np

import memcfg as mc

BATCHES, SHAPE = 12, (256, 16)
BLOCK = 4 * SHAPE[0] * SHAPE[1]


class Reader(mc.data.DataSetIterator):
    """Stands for a reader of files. It is careless: all batches are one array."""

    def __init__(self, *, careful: bool = False) -> None:
        self.room = np.zeros(SHAPE, np.float32)
        self.careful = careful
        self.number = 0

    def has_next(self) -> bool:
        return self.number < BATCHES

    def next(self) -> mc.data.DataSet:
        self.room.fill(self.number)
        x = self.room.copy() if self.careful else self.room
        self.number += 1
        return mc.data.DataSet(x, np.full(len(x), self.number - 1))

    def reset(self) -> None:
        self.number = 0


def count_right(batches: Iterator[mc.data.DataSet]) -> int:
    """Compare the features of each batch with its labels, as slowly as a step."""
    right = 0
    for batch in batches:
        time.sleep(0.005)
        right += bool((batch.features == batch.labels[:, None]).all())
    return right


# A thread reads two batches ahead. Something is wrong.
with mc.data.AsyncDataSetIterator(Reader(), buffer_size=2) as ahead:
    found = count_right(ahead)
print(f"read ahead by a thread:        {found:2} of {BATCHES} batches are right")
assert found < BATCHES

# Is it the thread? Behind this shield nobody reads ahead, `fit` included.
shield = mc.data.AsyncShieldDataSetIterator(Reader())
found = count_right(shield)
print(f"behind a shield from threads:  {found:2} of {BATCHES} batches are right")
assert found == BATCHES

# It is. The reader writes the next batch over the one that waits, so it needs a copy
# (or to say that it must not be read ahead: async_supported).
with mc.data.AsyncDataSetIterator(Reader(careful=True), buffer_size=2) as ahead:
    found = count_right(ahead)
print(f"with a reader that copies:     {found:2} of {BATCHES} batches are right")
assert found == BATCHES

# Or is it the ring that batches lie in? It never overwrites one that is kept, but what
# is kept holds its block. Behind a shield from workspaces batches are copies outside.
for shielded in (False, True):
    pool = mc.memory.Pool(limit="4MiB", name="batches")
    ahead = mc.data.AsyncDataSetIterator(
        Reader(careful=True), buffer_size=2, resource=pool
    )
    batches = mc.data.WorkspacesShieldDataSetIterator(ahead) if shielded else ahead
    kept = [batch.features for batch in batches]
    inside = sum(mc.is_attached(array) for array in kept)
    held = pool.stats().peak_bytes / BLOCK
    name = "behind a shield from them" if shielded else "kept in workspaces"
    print(f"{name:25} {inside:7} batches hold blocks; the pool had {held:.1f} at most")
    assert [int(array[0, 0]) for array in kept] == list(range(BATCHES))
    batches.close()
