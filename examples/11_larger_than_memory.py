"""Take the column means of a table in a file, four times as large as the limit."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import memcfg as mc
from memcfg import memory
from memcfg.errors import ResourceExhaustedError

MIB = 2**20
LIMIT = 32 * MIB
ROWS, COLUMNS = 2**18, 64  # of float64: 128 MiB
STEP = 2**13  # rows at a time: 4 MiB


def resident() -> int:
    """Count the bytes that this process has in memory."""
    return mc.config.get_host_memory_info()["resident"]


pool = memory.Pool(limit=LIMIT, name="work")
folder = TemporaryDirectory()
table = memory.mapped_array(Path(folder.name, "table.bin"), (ROWS, COLUMNS))
print(f"{table.nbytes // MIB} MiB in a file, all of its disk allocated: {table.shape}")
before = resident()
highest = 0

# Row r, column c: r · (c + 1). What was written need not stay in memory.
factors = np.arange(1.0, COLUMNS + 1)
for start in range(0, ROWS, STEP):
    part = table[start : start + STEP]
    np.multiply(np.arange(start, start + STEP)[:, None], factors, out=part)
    highest = max(highest, resident() - before)
    part.evict()
table.flush()  # from here on it would survive the end of the machine

# Arrays that NumPy makes inside `with` come from the pool; the table is in its file.
try:
    with memory.numpy_allocator(pool):
        (table / factors).mean(axis=0)
except ResourceExhaustedError as error:
    print(f"All at once: {error.message}")
    print(f"  {error.requested_bytes / MIB:g} MiB; the limit is {LIMIT / MIB:g} MiB")

# Part by part, a scan of any length stays small.
evicted = 0
with memory.numpy_allocator(pool):
    total = np.zeros(COLUMNS)
    for start in range(0, ROWS, STEP):
        part = table[start : start + STEP]
        total += (part / factors).sum(axis=0)  # a temporary of 4 MiB, in the pool
        highest = max(highest, resident() - before)
        evicted += part.evict()
    mean = total / ROWS * factors

assert np.array_equal(mean, (ROWS - 1) / 2 * factors)
print(f"The mean of column 1 is {mean[0]:g}, of column {COLUMNS} {mean[-1]:g}.")

stats = pool.stats()
print(f"{evicted / MIB:g} MiB of the file came into memory and went again;")
print(f"the process never had more than {highest / MIB:.1f} MiB on top.")
print(f"The pool's peak was {stats.peak_bytes / MIB:.1f} MiB of {LIMIT / MIB:g} MiB.")
assert stats.peak_bytes < LIMIT < table.nbytes
assert highest < LIMIT

file = memory.owner_of(table)
print(f"{file.path.rpartition('/')[2]} holds {file.owners()}")
del table, part  # the last views: the file is closed
folder.cleanup()
