"""Blocks across forks, and to the end of the interpreter."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX processes")

STACK = """
from memcfg import memory
from memcfg.errors import *
pool = memory.Pool(limit="64MiB")
stacked = memory.statistics(memory.limiting(
    memory.failure_callback(pool, lambda n: False), "32MiB"))
every = [pool, stacked, memory.system(), memory.simulated("1GiB"),
         memory.Pool(memory.simulated("1GiB")), memory.Pool(memory.system())]
"""


def run_python(source: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process that may die or hang."""
    return subprocess.run(
        [
            sys.executable,
            "-W",
            "error::UserWarning",
            "-c",
            STACK + textwrap.dedent(source),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def ended_well(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_child_uses_what_it_inherits_and_the_parent_does_not_notice():
    done = run_python(
        """
        import os, sys
        blocks = [resource.allocate(5000, tag="before") for resource in every]
        memoryview(blocks[0])[:5] = b"hello"
        before = [resource.stats() for resource in every]
        child = os.fork()
        if child == 0:
            assert bytes(blocks[0])[:5] == b"hello"
            memoryview(blocks[0])[:5] = b"child"
            for resource, block in zip(every, blocks):
                more = [resource.allocate(n) for n in (1, 5000, 3_000_000)]
                block.free()
                for each in more:
                    each.free()
                resource.trim()
                resource.check()
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert bytes(blocks[0])[:5] == b"hello"
        assert [resource.stats() for resource in every] == before
        for resource, block in zip(every, blocks):
            resource.check()
            block.free()
        print("well")
        """
    )
    assert ended_well(done) == "well\n"


def test_forks_while_other_threads_are_at_work(tenths):
    done = run_python(
        f"""
        import os, sys, threading, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # fork in threads, 3.12
        stop = threading.Event()
        def work(resource):
            while not stop.is_set():
                blocks = [resource.allocate(n) for n in (10, 1000, 70_000)]
                for block in blocks:
                    block.free()
        threads = [threading.Thread(target=work, args=(r,)) for r in every]
        for thread in threads:
            thread.start()
        for _ in range({6 * tenths}):
            child = os.fork()
            if child == 0:
                for resource in every:
                    resource.allocate(100).free()
                    resource.allocate(100_000).free()
                    resource.check()
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        stop.set()
        for thread in threads:
            thread.join()
        for resource in every:
            resource.check()
            assert resource.stats().current_bytes == 0
        print("well")
        """
    )
    assert ended_well(done) == "well\n"


@pytest.mark.parametrize(
    "leave",
    [
        "",
        "import sys; sys.modules['memcfg'].kept = blocks",
        "blocks.append(blocks)",
        "import atexit; atexit.register(lambda: blocks[0].free())",
        "addresses = [block.detach() for block in blocks]",
        "view = memoryview(blocks[0])",
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
    ],
)
def test_the_interpreter_ends_with_blocks_alive(leave):
    done = run_python(
        f"""
        blocks = [each.allocate(n) for n in (10, 10**6) for each in every]
        arena = pool.arena()
        arena.grow(10_000)
        {leave}
        """
    )
    assert ended_well(done) == ""


def test_the_interpreter_ends_while_threads_are_at_work():
    done = run_python(
        """
        import threading, time
        started = threading.Barrier(len(every) + 1)
        def work(resource):
            started.wait()
            while True:
                block = resource.allocate(1000)
                large = resource.allocate(100_000)
                block.free()
        for resource in every:
            threading.Thread(target=work, args=(resource,), daemon=True).start()
        started.wait()
        time.sleep(0.05)
        """
    )
    assert ended_well(done) == ""


@pytest.mark.parametrize(
    "resource",
    [
        "memory.failure_callback(memory.Pool(limit='1KiB'), lambda nbytes: False)",
        "memory.tracking(memory.Pool(limit='1MiB'), stacks=True)",
    ],
)
def test_the_interpreter_ends_while_threads_wait_for_it(resource):
    program = f"""
        import threading, time

        busy = {resource}

        def work():
            while True:
                try:
                    for _ in range(100):
                        busy.allocate(5000)
                except MemoryError:
                    pass

        for _ in range(4):
            threading.Thread(target=work, daemon=True).start()
        time.sleep(0.05)
        """
    for _ in range(3):
        ended_well(run_python(program))


def test_an_exception_with_blocks_in_its_frames_ends_well():
    done = run_python(
        """
        def fail():
            block = stacked.allocate(100)
            view = memoryview(block)
            raise KeyError("frame")
        fail()
        """
    )
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("KeyError: 'frame'")


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for its limits")
def test_a_process_that_gets_no_more_memory_is_told_so():
    done = run_python(
        """
        import resource as limits
        used = int(open("/proc/self/statm").read().split()[0]) * 4096
        limits.setrlimit(limits.RLIMIT_AS, (used + 2**28, used + 2**28))
        for each in every:
            if each.allocate(64).resource.name == "never":
                raise SystemExit
            before = each.stats().current_bytes
            held = []
            try:
                while True:
                    held.append(each.allocate(2**23))
            except MemoryError as error:
                assert held, error
            each.check()
            held.clear()
            assert each.stats().current_bytes == before, each
            each.trim()
        print("well")
        """
    )
    assert ended_well(done) == "well\n"
