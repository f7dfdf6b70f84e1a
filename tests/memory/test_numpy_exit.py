"""Arrays that are left over: when the interpreter ends, and in the child of a fork."""

from __future__ import annotations

import sys

import pytest
from scripts import ends_in_silence

START = """
import atexit, gc, os, signal, sys, threading, time, warnings
import numpy as np
from memcfg import memory
pool = memory.Pool(limit="64MiB")
"""
ENDS = {
    "an array in a global": """
with memory.numpy_allocator(pool):
    array = np.arange(1000)
del pool
""",
    "an allocator that is never left": """
allocator = memory.numpy_allocator(pool)
allocator.__enter__()
arrays = [np.arange(1000) for _ in range(100)]
""",
    "an allocator and its arrays in cycles": """
class Node:
    pass
node = Node()
node.node = node
node.allocator = memory.numpy_allocator(pool)
with node.allocator:
    node.array = np.arange(100_000)
    node.rows = [node, np.array([node, {}], dtype=object)]
del node
""",
    "a cycle through a failure callback": """
cached = []
careful = memory.failure_callback(pool, lambda nbytes: bool(cached and cached.pop(0)))
with memory.numpy_allocator(careful):
    cached.append(np.zeros(1000))
    cached.append(cached)
del careful, pool
""",
    "arrays that finalizers make and free": """
class Late:
    def __del__(self):
        with memory.numpy_allocator(self.pool):
            self.array = np.ones(1000) * 2
            assert self.array.sum() == 2000
late = Late()
late.pool = pool
late.self = late
with memory.numpy_allocator(pool):
    late.array = np.ones(10)
atexit.register(late.__del__)
""",
    "a refusal while the interpreter ends": """
class Late:
    def __del__(self, np=np, memory=memory):
        with memory.numpy_allocator(self.pool):
            try:
                np.ones(10**9)
            except MemoryError:
                pass
late = Late()
late.pool = pool
""",
    "an exception on its way": """
memory.numpy_allocator(pool).__enter__()
array = np.arange(1000)
try:
    sys.exit(0)
finally:
    other = array[::2].copy()
""",
    "daemon threads at work": """
def work(i):
    with memory.numpy_allocator(pool):
        while True:
            rows = [np.full(n, i) for n in (3, 1000, 100_000)]
            rows[1].resize(5000, refcheck=False)
            np.sort(np.concatenate(rows))
            kept[i] = rows
kept = {}
for i in range(4):
    threading.Thread(target=work, args=[i], daemon=True).start()
while len(kept) < 4:
    time.sleep(0.01)
""",
    "a thread's own variables": """
local = threading.local()
def work():
    with memory.numpy_allocator(pool):
        local.array = np.arange(1000)
thread = threading.Thread(target=work)
thread.start()
thread.join()
with memory.numpy_allocator(pool):
    local.array = np.arange(1000)
""",
}


@pytest.mark.parametrize("name", ENDS)
def test_the_interpreter_ends_in_silence(name):
    ends_in_silence("-c", START + ENDS[name])


@pytest.mark.parametrize("name", ENDS)
def test_the_interpreter_ends_in_silence_in_its_debug_mode(name):
    ends_in_silence("-X", "dev", "-c", START + ENDS[name])


FORK = """
warnings.simplefilter("ignore", DeprecationWarning)  # fork in threads, 3.12
stop = threading.Event()
def work(i):
    with memory.numpy_allocator(pool):
        while not stop.is_set():
            rows = [np.full(n, i) for n in (3, 1000, 100_000)]
            rows[1].resize(5000, refcheck=False)
            assert (np.sort(np.concatenate(rows))[-100_000:] == i).all()
threads = [threading.Thread(target=work, args=[i]) for i in (1, 2)]
for thread in threads:
    thread.start()
with memory.numpy_allocator(pool) as allocator:
    before = np.arange(100_000)
    for _ in range(30):
        child = os.fork()
        if child == 0:
            signal.alarm(30)  # ends a child that hangs
            assert memory.owner_of(np.ones(3)) is pool
            before[:] = 0
            before.resize(10, refcheck=False)
            more = [np.full(n, 7) for n in (3, 1000, 100_000)]
            try:
                np.empty(10**9)
            except MemoryError:
                assert allocator.refusal.limit_bytes == 2**26
            del more, before
            pool.check()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert (before == range(100_000)).all()
stop.set()
for thread in threads:
    thread.join()
del before
gc.collect()
assert pool.stats().current_bytes == 0, pool.owners()
pool.check()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX processes")
def test_the_child_of_a_fork_goes_on_with_the_arrays():
    ends_in_silence("-c", START + FORK)


CHILDREN = """
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
import operator

def main():
    with memory.numpy_allocator(pool):
        array = np.arange(100_000)
        context = get_context({method!r})
        with ProcessPoolExecutor(2, mp_context=context) as executor:
            sums = executor.map(operator.methodcaller("sum"), [array, array[:10]])
            assert list(sums) == [4999950000, 45]
            back = list(executor.map(operator.itemgetter(slice(5)), [array] * 3))
    assert [row.sum() for row in back] == [10] * 3

if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)
    main()
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_arrays_travel_between_processes(method, tmp_path):
    script = tmp_path / "children.py"
    script.write_text(START + CHILDREN.format(method=method), encoding="utf-8")
    ends_in_silence(script)
