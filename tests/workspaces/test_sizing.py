"""How large a workspace is and becomes: W1 to W17 of ND4J's tests, N1 to N9 of its C++.

The numbers are those that follow for an alignment of 64. `np.empty` is one allocation;
arithmetic would add scalars of Python.
"""

from __future__ import annotations

import numpy as np
import pytest
from workspace_rules import up

import memcfg as mc
from memcfg.errors import ResourceExhaustedError, WorkspaceFullError

MIB = 2**20


def config(**fields) -> mc.WorkspaceConfig:
    return mc.WorkspaceConfig(**fields)


STRICT = config(allocation="strict")
MANUAL = STRICT.replace(learning="over_time")


@pytest.fixture
def make(pool):
    return lambda config, name="sizes": mc.workspace(name, config, resource=pool)


def cycle(ws, *counts: int) -> mc.workspaces.WorkspaceStats:
    """Run a cycle of arrays of so many doubles; return the numbers inside."""
    with ws:
        arrays = [np.empty(count) for count in counts]
        inside = ws.stats()
        del arrays
    return inside


def sizes(ws, counts) -> list[int]:
    found = []
    for count in counts:
        cycle(ws, count)
        found.append(ws.stats().size)
    return found


def test_w1_overallocation_of_an_initial_size(make):
    ws = make(config(initial_size=1024, overallocation=1.0, learning="none"))
    assert ws.stats().size == 2048


def test_w2_overallocation_of_what_was_learned(make):
    ws = make(config(overallocation=1.0, max_size="10MiB"))
    assert ws.stats().size == 0
    cycle(ws, 100)
    assert ws.stats().size == 2 * up(800)


def test_w3_learning_when_told(make):
    ws = make(config(overallocation=1.0, max_size="10MiB", learning="over_time"))
    assert set(sizes(ws, range(10, 101, 10))) == {0}
    ws.initialize()
    assert ws.stats().size == 2 * up(800)


def test_w4_the_smallest_size_is_not_multiplied(make):
    ws = make(config(min_size="10MiB", overallocation=1.0))
    assert cycle(ws, 100).size == 0
    assert cycle(ws, 100).size == 10 * 1024 * 1024


def test_w5_a_loop_with_a_scalar(make):
    ws = make(MANUAL)
    with ws:
        array = ws.ones(10)
        total = ws.empty(())
        assert (ws.stats().offset, ws.stats().size) == (0, 0)
        np.sum(array, out=total)
        with mc.scope_out():
            assert total == 10
        del array, total
    ws.initialize()
    assert ws.stats().size == up(80) + up(8)
    for _ in range(10):
        with ws:
            assert ws.stats().offset == 0
            array = ws.ones(10)
            assert ws.stats().offset == up(80)
            np.add(array, array, out=array)
            assert ws.stats().offset == up(80)
            del array
        assert ws.stats().offset == 0


def test_w6_cold_cycles_of_many_sizes(make):
    ws = make(MANUAL)
    for count in range(1, 101):
        inside = cycle(ws, count)
        assert (inside.offset, inside.size) == (0, 0)
    ws.initialize()
    assert cycle(ws, 10).offset == up(80)


def test_w7_the_sum_of_the_first_loop(make):
    ws = make(STRICT)
    inside = cycle(ws, 100, 10)
    assert (inside.offset, inside.size) == (0, 0)
    assert (ws.stats().offset, ws.stats().size) == (0, up(800) + up(80))


def test_w8_the_second_loop_is_in_the_page(make):
    ws = make(STRICT)
    cycle(ws, 100, 100)
    assert (ws.stats().offset, ws.stats().size) == (0, 2 * up(800))
    assert cycle(ws, 100).offset == up(800)
    assert ws.stats().offset == 0


def test_w9_a_cold_array_is_in_its_scope(make):
    ws = make(STRICT)
    with ws:
        array = np.empty(100)
        assert mc.workspaces.is_in_scope(array)
        assert mc.is_attached(array)
        assert ws.stats().size == 0
        del array
    assert cycle(ws, 100).offset == up(800)


def test_w10_the_last_cycle(make):
    with make(config(initial_size=81_920, learning="none"), "outer"):
        ws = make(MANUAL)
        for count in range(1, 101):
            cycle(ws, count)
            assert ws.stats().last_cycle_bytes == up(8 * count)
        ws.initialize()
        assert ws.stats().size == up(800)


def test_w11_external_never_grows(make):
    ws = make(MANUAL)
    cycle(ws, 100)
    ws.initialize()
    assert ws.stats().size == up(800)
    cycle(ws, 1000)
    ws.initialize()
    assert ws.stats().size == up(800)
    assert ws.stats().max_cycle_bytes == up(8000)


def test_w12_the_first_three_cycles_are_learned(make):
    ws = make(MANUAL.replace(learning_cycles=3))
    found = sizes(ws, range(100, 1000, 100))
    assert found == [0, 0, *[up(2400)] * 7]


def test_w13_reallocate_grows(make):
    ws = make(MANUAL.replace(spill="reallocate"))
    cycle(ws, 100)
    ws.initialize()
    assert ws.stats().size == up(800)
    cycle(ws, 1000)
    assert ws.stats().max_cycle_bytes == ws.stats().size == up(8000)
    with ws:
        array = ws.ones(500)
        assert ws.stats().spilled_count == 0
        assert array.mean(dtype="f8") == 1.0
        del array


def test_w14_reallocate_grows_with_each_cycle(make):
    ws = make(MANUAL.replace(spill="reallocate", learning_cycles=3))
    found = sizes(ws, range(100, 1001, 100))
    assert found == [0, 0, *(up(800 * i) for i in range(3, 11))]


def test_w15_what_grew_does_not_shrink(make):
    ws = make(config(overallocation=0.0, spill="reallocate", learning="over_time"))
    assert set(sizes(ws, [100, 200, 300])) == {0}
    ws.initialize()
    assert ws.stats().size == up(2400)
    found = sizes(ws, range(400, 1001, 100))
    assert found == [up(8 * count) for count in range(400, 1001, 100)]
    assert set(sizes(ws, range(1000, 0, -100))) == {up(8000)}
    ws.initialize()
    assert ws.stats().size == up(8000)


def test_w13_growth_by_the_smallest_step(make):
    ws = make(STRICT.replace(spill="reallocate"))
    assert sizes(ws, [8, 16, 15, 17, 16]) == [64, 128, 128, 192, 192]


def test_w15_trimmed_only_between_cycles(make):
    ws = make(STRICT)
    assert sizes(ws, [1000, 8]) == [8000, 8000]
    with ws:
        assert ws.trim() == 0
        array = ws.ones(1000)
        assert ws.stats().spilled_count == 0
        del array
    cycle(ws, 8)
    assert ws.trim() == 8000
    assert ws.stats().size == 64
    assert sizes(ws, [1000]) == [64]


def test_w16_the_default_adds_three_tenths(make):
    ws = make(config())
    cycle(ws, 100)
    assert ws.stats().size == up(800) + 249


def test_w17_the_default_workspace_is_one():
    assert mc.workspaces.get_workspace() is mc.workspaces.get_workspace()
    assert mc.workspaces.get_workspace().name == "DefaultWorkspace"


def test_n1_n2_n3_initial_sizes(make):
    fixed = STRICT.replace(learning="none")
    ws = make(fixed.replace(initial_size=1024), "small")
    assert (ws.stats().size, ws.stats().offset) == (1024, 0)
    assert cycle(make(fixed.replace(initial_size=65_536)), 1).offset > 0
    inside = cycle(make(fixed, "nothing"), 100)
    assert (inside.size, inside.offset, inside.spilled_count) == (0, 0, 1)


def test_n4_empty_cycles(make):
    ws = make(STRICT.replace(initial_size=65_536))
    for _ in range(5):
        cycle(ws)
    stats = ws.stats()
    assert (stats.size, stats.offset, stats.spilled_bytes) == (65_536, 0, 0)


def test_n5_stretched_to_what_was_needed(make):
    ws = make(STRICT.replace(initial_size=128, spill="reallocate"))
    cycle(ws, 1)
    assert cycle(ws, *[16] * 10).spilled_bytes == 1152
    assert cycle(ws).offset == 0
    inside = cycle(ws, 1)
    assert (inside.size, inside.spilled_bytes) == (1280, 0)


def test_n6_a_successor_of_the_size_that_spilled(make):
    ws = make(STRICT.replace(initial_size=65_536, spill="reallocate"))
    assert cycle(ws, 131_072 // 8).spilled_bytes == 131_072
    stats = cycle(ws)
    assert (stats.size, stats.offset, stats.spilled_bytes) == (131_072, 0, 0)


def test_n1_a_size_that_is_no_multiple(make):
    ws = make(STRICT.replace(learning="none", initial_size=1000, spill="fail"))
    with ws:
        array = np.empty(125)  # what lies behind the end needs no place
        stats = ws.stats()
        assert (stats.size, stats.offset, stats.cycle_bytes) == (1000, 1000, 1024)
        with pytest.raises(WorkspaceFullError):
            ws.empty(1)
        del array


def test_n8_less_than_a_byte(make):
    with make(STRICT.replace(initial_size=1024)) as ws:
        with pytest.raises(ValueError, match="-1"):
            ws.alloc(-1)
        assert ws.stats().offset == 0
        nothing = np.empty(0)  # takes a place, as every array of NumPy's does
        assert ws.stats().offset == 64
        del nothing


def test_n9_pages_and_spills_obey_the_limit_to_the_byte(make, pool):
    before = pool.stats().current_bytes
    size = 100_000_000
    ws = make(STRICT.replace(initial_size=size))
    assert pool.stats().current_bytes - before == up(size)
    ws.destroy()
    assert pool.stats().current_bytes == before
    pool.set_limit(99_999_900)
    with pytest.raises(ResourceExhaustedError) as caught:
        make(STRICT.replace(initial_size=size), "another")
    assert not isinstance(caught.value, WorkspaceFullError)
    assert not mc.workspaces.workspace_exists("another")
    assert pool.stats().current_bytes == before
