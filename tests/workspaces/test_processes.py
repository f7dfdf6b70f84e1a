"""Workspaces across forks and processes, and when the interpreter ends."""

from __future__ import annotations

import sys

import pytest
from scripts import ends_in_silence

START = """
import atexit, gc, os, signal, sys, threading, warnings
import numpy as np
import memcfg as mc
from memcfg import memory
pool = memory.Pool(limit="64MiB")
config = mc.WorkspaceConfig(initial_size="1MiB", allocation="strict")
ring = mc.WorkspaceConfig(reset="end_of_buffer", overallocation=3)
def make(name, config=config):
    return mc.workspace(name, config, resource=pool)
"""
ENDS = {
    "an open scope and arrays": """
ws = make("one").open()
arrays = [np.arange(1000), ws.ones(10)]
""",
    "scopes in scopes": """
stack = [make(name).open() for name in "abcabc"]
stack[1].borrow().__enter__()
mc.scope_out().__enter__()
array = np.ones(10)
""",
    "arrays of workspaces that are gone": """
with make("one") as ws:
    arrays = [np.arange(1000), ws.ones(10)]
with make("two", ring) as two:
    arrays.append(two.ones(10))
mc.destroy_all_workspaces()
del ws, two, pool
""",
    "a workspace and its arrays in a cycle": """
class Node:
    pass
node = Node()
node.node = node
node.ws = make("one")
with node.ws:
    node.array = np.ones(1000)
    node.rows = [node, np.array([node, {}], dtype=object)]
del node
""",
    "finalizers that use a workspace": """
class Late:
    def __del__(self, np=np):
        with self.ws:
            assert (np.ones(1000) * 2).sum() == 2000
late = Late()
late.self = late
late.ws = make("one")
atexit.register(late.__del__)
""",
    "an exception on its way": """
make("one").open()
array = np.arange(1000)
try:
    sys.exit(0)
finally:
    other = array[::2].copy()
""",
    "a thread that never leaves": """
def work():
    with make("one") as ws:
        ready.set()
        while True:
            with ws.borrow():
                array = np.full(1000, 3)
            with make("two", ring):
                other = np.full(1000, 3)
ready = threading.Event()
threading.Thread(target=work, daemon=True).start()
ready.wait()
""",
    "arrays of a thread": """
def work():
    make("one").open()
    kept.append(np.arange(1000))
kept = []
thread = threading.Thread(target=work)
thread.start()
thread.join()
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
def work():
    while not stop.is_set():
        with make("busy") as ws:
            rows = [np.full(n, 5) for n in (3, 1000, 50_000)]
            assert (rows[2] == 5).all()
            del rows
thread = threading.Thread(target=work)
thread.start()
closed, circle = make("closed"), make("circle", ring)
with closed:
    escaped = np.arange(1000)
with make("open") as ws:
    before = np.arange(1000)
    for step in range(30):
        with circle:
            kept = np.full(100, step)
        child = os.fork()
        if child == 0:
            signal.alarm(30)  # ends a child that hangs
            assert mc.workspaces.current_workspace() is ws
            more = np.ones(3)
            assert mc.workspace_of(more) is ws
            before[:] = 0
            escaped[:] = 0
            for _ in range(5):
                with closed, circle:
                    both = np.full(100, 7), closed.ones(100)
                    assert (both[0] == 7).all()
                    del both
            assert (kept == step).all()
            mc.detach(before)
            with make("busy") as again:
                assert mc.workspace_of(np.ones(3)) is again
            ws.memory.check()
            del more, before, escaped, kept
            mc.destroy_all_workspaces()
            pool.check()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert (before == range(1000)).all()
        assert (escaped == range(1000)).all()
    del before
stop.set()
thread.join()
del escaped, kept
mc.destroy_all_workspaces("all")
gc.collect()
assert pool.stats().current_bytes == 0, pool.owners()
pool.check()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX processes")
def test_the_child_of_a_fork_goes_on_with_the_workspaces():
    ends_in_silence("-c", START + FORK)


CHILDREN = """
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

def halve(array):
    with make("child") as ws:
        half = array / 2
        assert mc.workspace_of(half) is ws
        return mc.detach(half) if len(array) > 100 else half

def main():
    with make("parent") as ws:
        array = np.arange(1000)
        context = get_context({method!r})
        with ProcessPoolExecutor(2, mp_context=context) as executor:
            halves = list(executor.map(halve, [array, array[:10]] * 3))
        for half, whole in zip(halves, [array, array[:10]] * 3, strict=True):
            assert (half * 2 == whole).all()
        del array, half, halves, whole

if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)
    main()
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_arrays_travel_between_processes(method, tmp_path):
    script = tmp_path / "children.py"
    script.write_text(START + CHILDREN.format(method=method), encoding="utf-8")
    ends_in_silence(script)
