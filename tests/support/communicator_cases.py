"""What every communicator promises, checked by each rank against plain sums.

A rank knows the arrays of all from their seeds, so it can check its own results, in a
thread or in a process.
"""

from __future__ import annotations

import numpy as np

__all__ = [
    "DTYPES",
    "check_all_reduce",
    "check_all_reduce_encoded",
    "check_broadcast",
    "check_exchange",
    "check_parts",
    "draw",
    "in_order",
    "values",
]

DTYPES = ("float32", "float64", "int32", "int64")


def values(rank, shape, dtype, seed):
    rng = np.random.default_rng((seed, rank))
    return np.asarray(rng.standard_normal(shape) * 1000).astype(dtype)


def in_order(arrays):
    total = arrays[0].copy()
    for each in arrays[1:]:
        total += each
    return total


def work(communicator, collective, arrays):
    nbytes = sum(each.nbytes for each in arrays)
    item = max(each.itemsize for each in arrays)
    size = communicator.work_bytes(collective, nbytes, item)
    return np.full(size, 255, np.uint8)


def check_all_reduce(communicator, shapes, dtypes, seed):
    rank, size = communicator.rank, communicator.size
    kinds = list(zip(shapes, dtypes, strict=True))
    arrays = [values(rank, *kind, (seed, i)) for i, kind in enumerate(kinds)]
    communicator.all_reduce(arrays, work(communicator, "all_reduce", arrays))
    for i, kind in enumerate(kinds):
        wanted = in_order([values(each, *kind, (seed, i)) for each in range(size)])
        np.testing.assert_array_equal(arrays[i], wanted, strict=True)


def encodable(rank, shape, seed):
    """Return an array of 0, T and -T, with few or many entries."""
    rng = np.random.default_rng((seed, rank))
    magnitude = np.float32(rng.random() + 0.1)
    entries = rng.random(shape) < rng.choice([0.01, 0.06, 0.5])
    array = np.where(entries, rng.choice([-magnitude, magnitude], shape), 0)
    return np.asarray(array, np.float32)


def check_all_reduce_encoded(communicator, shapes, seed):
    rank, size = communicator.rank, communicator.size
    seeds = [(seed, 0)] * len(shapes)  # of all arrays, so that they have one magnitude
    arrays = [encodable(rank, *kind) for kind in zip(shapes, seeds, strict=True)]
    entries = sum(map(np.count_nonzero, arrays))
    before = communicator.encoded_totals
    scratch = work(communicator, "all_reduce_encoded", arrays)
    communicator.all_reduce_encoded(arrays, scratch)
    for i, shape in enumerate(shapes):
        wanted = in_order([encodable(each, shape, seeds[i]) for each in range(size)])
        np.testing.assert_array_equal(arrays[i], wanted, strict=True)
    after = communicator.encoded_totals
    elements = sum(each.size for each in arrays)
    assert after.elements - before.elements == elements
    assert after.entries - before.entries == entries
    dense = 4 * elements * (size - 1)
    assert after.dense_bytes - before.dense_bytes == dense
    headers = 4 * (4 * (1 + elements // (1 << 18)) + len(shapes))
    sent = after.sent_bytes - before.sent_bytes
    assert sent <= min(4 * entries, elements // 4) * (size - 1) + headers * (size - 1)
    return sent


def check_parts(communicator, length, dtype, seed):
    rank, size = communicator.rank, communicator.size
    part = -(-length // size)
    whole = values(rank, length, dtype, seed)
    before = whole.copy()
    mine, gathered = np.empty(part, dtype), np.empty(length, dtype)
    scratch = work(communicator, "reduce_scatter", [whole])
    communicator.reduce_scatter(whole, mine, scratch)
    np.testing.assert_array_equal(whole, before)
    communicator.all_gather(mine, gathered, work(communicator, "all_gather", [whole]))

    wanted = in_order([values(each, length, dtype, seed) for each in range(size)])
    padded = np.zeros(part * size, dtype)
    padded[:length] = wanted
    np.testing.assert_array_equal(gathered, wanted)
    np.testing.assert_array_equal(mine, padded[rank * part : (rank + 1) * part])


def check_broadcast(communicator, shapes, dtypes, root, seed):
    kinds = list(zip(shapes, dtypes, strict=True))
    arrays = [
        values(communicator.rank, *kind, (seed, i)) for i, kind in enumerate(kinds)
    ]
    communicator.broadcast(arrays, root)
    for i, kind in enumerate(kinds):
        np.testing.assert_array_equal(arrays[i], values(root, *kind, (seed, i)))


def check_exchange(communicator):
    rank, size = communicator.rank, communicator.size
    given = {"rank": rank, "text": "x" * (1 << (5 * rank))}
    wanted = [{"rank": r, "text": "x" * (1 << (5 * r))} for r in range(size)]
    assert communicator.exchange(given) == wanted


def draw(rng):
    """Return shapes and dtypes: a few small arrays, or many, or one of some MiB."""
    kind = rng.integers(4)
    if kind == 0:
        return [(int(rng.integers(1, 1 << 19)),)], [str(rng.choice(DTYPES))]
    count = int(rng.integers(20, 60)) if kind == 1 else int(rng.integers(1, 4))
    longest = 1 << int(rng.integers(2, 15))
    shapes = [tuple(map(int, rng.integers(0, longest, 1))) for _ in range(count)]
    shapes[0] = ()
    return shapes, [str(each) for each in rng.choice(DTYPES, count)]
