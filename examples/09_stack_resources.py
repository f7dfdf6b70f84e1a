"""Stack resources: a pool, a limit on one part of a program, statistics, a cache."""

from memcfg import memory
from memcfg.errors import InvalidFreeError, ResourceExhaustedError

MIB = 2**20

# One pool for the program; its cache of results may have half of it.
pool = memory.Pool(limit="16MiB", name="scratch")
cache: dict[str, memory.Block] = {}


def make_room(nbytes: int) -> bool:
    """Drop the oldest result; False when there is none left."""
    for key in cache:
        print(f"  no room for {nbytes / MIB:g} MiB: dropping {key}")
        cache.pop(key).free()
        return True
    return False


results = memory.limiting(pool, "8MiB")
work = memory.statistics(memory.failure_callback(pool, make_room))

for number in range(4):
    cache[f"result {number}"] = results.allocate(2 * MIB, tag="cache", lifetime="long")
    memoryview(cache[f"result {number}"])[:5] = b"bytes"
try:
    results.allocate(1)
except ResourceExhaustedError as error:
    print(error)
print(pool.occupancy(64))

# A region counts what goes through while it is open; a tag names it.
work.push()
with memory.tag("step"):
    for nbytes in (3 * MIB, 9 * MIB, 14 * MIB):
        with work.allocate(nbytes, lifetime="short") as block:
            view = memoryview(block)
            view[-1] = 1
            view.release()
step = work.pop()
print(f"{step.total_count} blocks, at most {step.peak_bytes / MIB:g} MiB at a time")
print(f"{len(cache)} results are left; {pool.owners()}")
assert work.by_tag()["step"].total_bytes == 26 * MIB
assert (step.current_bytes, step.peak_bytes) == (0, 14 * MIB)

# Memory can leave its block, and must come back exactly once.
address = work.allocate(1000).detach()
work.deallocate(address, 1000)
try:
    work.deallocate(address, 1000)
except InvalidFreeError as error:
    print(error)

for block in cache.values():
    block.free()
print(f"{pool.trim():,} bytes went back to the system; {pool}")
assert pool.stats().reserved_bytes == pool.stats().current_bytes == 0

# The same on a device that this machine does not have.
gpu = memory.Pool(memory.simulated("80GiB", name="GPU:0"), limit="64GiB")
weights = [gpu.allocate(7 * 2**30, tag=f"layer {i}", lifetime="long") for i in range(9)]
print(gpu, f"largest free: {gpu.stats().largest_free_bytes / 2**30:g} GiB")
