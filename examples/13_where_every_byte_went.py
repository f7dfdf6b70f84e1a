"""Ask who holds the memory: a table, a bar, a list, and a file for a web page."""

import sys
import tempfile
from pathlib import Path

from memcfg import memory

MIB = 2**20

# The pool of a small program. The tracking resource on top of it notes the calls.
pool = memory.Pool(limit="64MiB", name="scratch")
tracked = memory.tracking(pool, stacks=True)


def load_model() -> list[memory.Block]:
    """Take what stays: 6 MiB of weights, next to each other at one end."""
    sizes = (1 * MIB, 2 * MIB, 3 * MIB)
    with memory.tag("weights"):
        return [tracked.allocate(size, lifetime="long") for size in sizes]


def run_step(number: int, cache: list[memory.Block]) -> None:
    """Take what a step needs, and keep a result every other time: a leak."""
    with tracked.allocate(8 * MIB, tag="activations", lifetime="short"):
        result = tracked.allocate(MIB + number, tag="result")
        if number % 2:
            cache.append(result)
        else:
            result.free()


weights = load_model()
leaked: list[memory.Block] = []
for step in range(10):
    run_step(step, leaked)
arena = pool.arena(16 * MIB, tag="buffers")
arena.grow(2 * MIB)

print(memory.summary(pool))
print()
print(memory.occupancy(pool))
print()
for block in memory.list_live(pool, top=6):
    print(block)

# The leak is what `run_step` took and nobody gave back.
held = [block for block in memory.list_live(pool) if block.tag == "result"]
assert len(held) == len(leaked) == 5
assert {block.stack[0][2] for block in held} == {"run_step"}
assert sum(block.nbytes for block in memory.list_live(pool, top=None)) == (
    pool.stats().requested_bytes
)

# The whole history, for https://docs.pytorch.org/memory_viz (it uploads nothing), or
# for `python -m torch.cuda._memory_viz trace_plot memory.pickle`. Name a file to keep.
with tempfile.TemporaryDirectory() as folder:
    path = Path(sys.argv[1] if len(sys.argv) > 1 else f"{folder}/memory.pickle")
    memory.snapshot(path, tracked)
    print(f"\n{path.name}: {path.stat().st_size:,} bytes, {tracked.trace()}")
    back = memory.Trace.from_snapshot(path)
    assert len(back) == len(tracked.trace()) + 1  # and the arena, which was not tracked
