"""The arena: grows in place, guards its end, never outlived by a view."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcfg._core import Arena, CallbackKernel, Pool, Program
from memcfg.errors import ResourceExhaustedError
from memcfg.units import align_up


def run_python(source: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process that may die."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_addresses_are_free():
    pool = Pool(limit=64)
    arena = pool.arena(2**40)
    assert (arena.nbytes, arena.reserved_addresses) == (0, 2**40)
    assert pool.stats().current_bytes == pool.stats().reserved_bytes == 0
    assert arena.address % 4096 == 0


@given(st.lists(st.integers(0, 200_000), max_size=6))
def test_growth_is_in_place_and_charged_exactly(sizes):
    pool = Pool()
    arena = pool.arena(2**20)
    address = arena.address
    for nbytes in sizes:
        before = arena.nbytes
        arena.grow(nbytes)
        assert arena.address == address
        assert arena.nbytes == max(before, align_up(nbytes))
        assert pool.stats().current_bytes == arena.nbytes
        cells = np.frombuffer(arena, np.uint8) if arena.nbytes else np.zeros(0)
        assert (cells[:before] == 7).all()
        assert not cells[before:].any()
        cells[:] = 7
        arena.check()
        pool.check()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40_000)), max_size=12))
def test_growing_and_shrinking_agree_with_a_model(steps):
    pool = Pool(limit=64 * 500)
    arena = pool.arena(2**20)
    model = b""
    for step, (grow, nbytes) in enumerate(steps, 1):
        size = align_up(nbytes)
        if not grow:
            arena.shrink(nbytes)
            model = model[:size]
        elif size <= 64 * 500:
            arena.grow(nbytes)
            model = model.ljust(size, b"\0")
        else:
            with pytest.raises(ResourceExhaustedError):
                arena.grow(nbytes)
        assert bytes(arena) == model
        memoryview(arena)[:] = model = bytes([step]) * len(model)
        assert pool.stats().current_bytes == len(model)
        arena.check()
        pool.check()


def test_views_stay_valid_while_it_grows():
    arena = Pool().arena()
    arena.grow(64)
    view = memoryview(arena)
    arena.grow(10_000_000)
    view[63] = 9
    assert (len(view), memoryview(arena)[63]) == (64, 9)


def test_limit_refuses_growth_and_nothing_changes():
    pool = Pool(limit=1024, name="cpu")
    arena = pool.arena(tag="model")
    arena.grow(960)
    before = pool.stats()
    with pytest.raises(ResourceExhaustedError, match="memory limit") as caught:
        arena.grow(1025)
    assert caught.value.requested_bytes == 1025 - 960
    assert caught.value.in_use_bytes == 960
    assert caught.value.limit_bytes == 1024
    assert caught.value.owners == {"model": 960}
    assert (pool.stats(), arena.nbytes) == (before, 960)
    pool.set_limit(2048)
    arena.grow(2048)  # a limit raised later is not held back by the addresses


def test_addresses_run_out():
    pool = Pool()
    arena = pool.arena(4096)
    with pytest.raises(ResourceExhaustedError, match="no addresses"):
        arena.grow(4097)
    assert arena.nbytes == pool.stats().current_bytes == 0


@pytest.mark.parametrize("reserve", [2**60, 2**64, 2**70])
def test_more_addresses_than_there_are(reserve):
    pool = Pool()
    with pytest.raises(ResourceExhaustedError, match="no addresses"):
        pool.arena(reserve)
    assert pool.owners() == {}


@pytest.mark.parametrize(
    ("reserve", "error"), [(0, ValueError), (-1, ValueError), ("1", TypeError)]
)
def test_reservations_that_are_none(reserve, error):
    with pytest.raises(error):
        Pool().arena(reserve)


@pytest.mark.parametrize(
    ("nbytes", "error"), [(-1, ValueError), ("1", TypeError), (1.0, TypeError)]
)
def test_sizes_that_are_none(nbytes, error):
    arena = Pool().arena()
    with pytest.raises(error):
        arena.grow(nbytes)
    with pytest.raises(error):
        arena.shrink(nbytes)


def test_free_waits_for_views_and_programs():
    pool = Pool()
    arena = pool.arena()
    arena.grow(64)
    view, program = memoryview(arena), Program(arena)
    for release in (view.release, lambda: None):
        with pytest.raises(BufferError, match="cannot be freed"):
            arena.free()
        with pytest.raises(BufferError, match="cannot be shrunk"):
            arena.shrink(0)
        release()
    del program
    arena.free()
    assert pool.stats().current_bytes == pool.stats().reserved_bytes == 0
    for use in (
        arena.free,
        lambda: arena.grow(1),
        lambda: arena.shrink(1),
        lambda: arena.nbytes,
        lambda: arena.address,
        lambda: memoryview(arena),
        lambda: Program(arena),
    ):
        with pytest.raises(ValueError, match="freed"):
            use()


def test_arena_goes_when_it_is_forgotten():
    pool = Pool()
    arena = Arena(pool, tag="model")
    arena.grow(1000)
    view = np.frombuffer(arena, np.uint8)
    del arena
    assert pool.owners() == {"model": 1024}
    del view
    assert pool.stats().reserved_bytes == 0
    assert pool.owners() == {}


def test_a_program_and_its_callback_are_collected_together():
    pool = Pool()
    arena = pool.arena()
    arena.grow(64)
    program = Program(arena)
    program.compute(CallbackKernel(program.run), [], [], None)
    del arena, program
    gc.collect()
    assert pool.stats().current_bytes == 0


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_the_page_past_the_end_is_guarded():
    done = run_python(
        """
        import ctypes
        from memcfg._core import Pool
        arena = Pool().arena()
        arena.grow(4096)
        ctypes.memset(arena.address, 1, 4096)
        print("inside", flush=True)
        ctypes.memset(arena.address + 4096, 1, 1)
        print("outside", flush=True)
        """
    )
    assert done.stdout == "inside\n"
    assert done.returncode == -11


def test_limited_address_space_is_a_clean_error():
    done = run_python(
        """
        import resource
        from memcfg._core import Pool
        from memcfg.errors import ResourceExhaustedError
        used = int(open("/proc/self/statm").read().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, used + 2**28))
        pool = Pool()
        try:
            pool.arena(2**30)
        except ResourceExhaustedError as error:
            print(error.hint)
        try:
            pool.allocate(2**29)
        except ResourceExhaustedError as error:
            print(error.message)
        arena = pool.arena()
        arena.grow(2**20)
        print(2**20 < arena.reserved_addresses < 2**28 + 2**20, pool.owners())
        """
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "Reserve fewer addresses, or raise the process' limit (ulimit -v).",
        "There are no addresses for the memory.",
        "True {'unnamed': 1048576}",
    ]


def test_a_forked_child_ends_well():
    done = run_python(
        """
        import os, sys
        from memcfg._core import CallbackKernel, Pool, Program
        pool = Pool(limit=2**20)
        arena = pool.arena()
        arena.grow(4096)
        block = pool.allocate(100)
        program = Program(arena)
        program.compute(CallbackKernel(lambda: None), [], [], None)
        program.run()
        child = os.fork()
        if child == 0:
            memoryview(arena)[0] = 9
            assert pool.stats().current_bytes == 4224
            block.free()
            del program
            sys.exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(status, memoryview(arena)[0], pool.stats().current_bytes, program.run())
        """
    )
    assert (done.stderr, done.stdout) == ("", "0 0 4224 -1\n")
