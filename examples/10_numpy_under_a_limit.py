"""NumPy code that would take 2 GiB, refused at 256 MiB, and fixed with ``out=``."""

import textwrap
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from memcfg import memory
from memcfg.errors import ResourceExhaustedError

MIB = 2**20
pool = memory.Pool(limit="256MiB", name="scratch")
points = np.random.default_rng(0).random((4096, 16))


def distances(points: np.ndarray) -> np.ndarray:
    """Short, and 4096 × 4096 × 16 differences of 8 bytes are in memory at a time."""
    difference = points[:, None] - points
    return np.sqrt((difference**2).sum(axis=-1))


def careful_distances(points: np.ndarray, rows: int = 64) -> np.ndarray:
    """The same with one buffer for a few rows, and the result written in place."""
    count, width = points.shape
    result = np.empty((count, count))
    buffer = np.empty((rows, count, width))
    for start in range(0, count, rows):
        part = slice(start, start + rows)
        np.subtract(points[part, None], points, out=buffer)
        np.multiply(buffer, buffer, out=buffer)
        np.sum(buffer, axis=-1, out=result[part])
    return np.sqrt(result, out=result)


# NumPy says what it could not have; the resource says why, and who has the rest.
allocator = memory.numpy_allocator(pool)
try:
    with allocator:
        weights = np.ones((4096, 256))
        distances(points)
except ResourceExhaustedError as error:
    print(textwrap.fill(f"NumPy: {error.__cause__}", 79))
    print(textwrap.fill(f"memcfg: {error}", 79))

assert allocator.refusal is not None
assert allocator.refusal.requested_bytes == 2048 * MIB

# Arrays that were made inside outlive the block; the pool knows of them.
print(f"still there: {pool.owners()}")
assert memory.owner_of(weights[::2]) is pool
del weights
assert pool.stats().current_bytes == 0

with memory.numpy_allocator(pool), memory.tag("distances"):
    result = careful_distances(points)
assert np.allclose(result[:10, :10], distances(points[:10]))
print(f"careful: {pool.stats().peak_bytes / MIB:.0f} MiB at most, now {pool.owners()}")
assert pool.stats().peak_bytes < 192 * MIB

# A thread begins with NumPy's own memory; a decorated function takes the pool along.
make = memory.numpy_allocator(pool, tag="workers")(np.ones)
with ThreadPoolExecutor(2) as executor:
    rows = list(executor.map(make, [100_000, 200_000]))
print(f"with arrays of workers: {pool.owners()}")
assert pool.owners()["workers"] == sum(row.nbytes for row in rows)
