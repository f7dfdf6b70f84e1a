"""The bars that show how full a pool is, and what lies where in it."""

from __future__ import annotations

import pytest

from memcfg import memory

MIB = 2**20


def test_it_shows_how_much_of_the_limit_is_in_use():
    pool = memory.Pool(memory.simulated("1GiB"), limit=16 * MIB)
    assert pool.occupancy(8) == "_" * 8
    blocks = [pool.allocate(4 * MIB) for _ in range(3)]
    assert pool.occupancy(8) == "******__"
    arena = pool.arena(2 * MIB)
    arena.grow(2 * MIB)
    assert pool.occupancy(8) == "*******_"
    sorted(blocks, key=lambda block: block.address)[1].free()
    assert pool.occupancy(8) == "*****.._"  # together, wherever they lie
    pool.trim()
    assert pool.occupancy(8) == "*****___"
    pool.set_limit(20 * MIB)
    assert pool.occupancy(10) == "*****_____"
    assert len(pool.occupancy()) == 100


def test_without_a_limit_it_is_what_the_pool_has():
    pool = memory.Pool(memory.simulated("1GiB"))
    assert pool.occupancy() == ""
    blocks = [pool.allocate(4 * MIB) for _ in range(4)]
    assert pool.occupancy(8) == "*" * 8
    blocks[0].free()
    assert pool.occupancy(8) == "******.."


def test_a_byte_in_use_is_seen():
    pool = memory.Pool(limit="1GiB")
    with pool.allocate(1):
        assert pool.occupancy(60)[0] == "*"
        assert pool.occupancy(60)[1:].strip("._") == ""


def test_it_shows_blocks_memory_and_addresses():
    pool = memory.Pool(memory.simulated("1GiB"), limit=16 * MIB)
    assert pool.occupancy(addresses=True) == ""
    blocks = [pool.allocate(4 * MIB) for _ in range(4)]
    width = pool.stats().address_bytes // (4 * MIB)
    assert pool.occupancy(width, addresses=True).strip("_") == "****"
    sorted(blocks, key=lambda block: block.address)[1].free()
    assert pool.occupancy(width, addresses=True).strip("_") == "*.**"
    pool.trim()
    assert pool.occupancy(width, addresses=True).strip("_") == "*_**"
    assert len(pool.occupancy(addresses=True)) == 100


def test_what_a_thread_keeps_is_its_own_letter():
    pool = memory.Pool(limit=64 * MIB)
    blocks = [pool.allocate(4096) for _ in range(16)]
    assert pool.occupancy(1) == pool.occupancy(1, addresses=True) == "*"
    for block in blocks:
        block.free()
    assert pool.stats().current_bytes == 0
    assert pool.occupancy(1, addresses=True) in "x."
    assert pool.occupancy(1) in "x."


@pytest.mark.parametrize("bad", [0, -1, 1.5, "wide", None])
def test_a_width_is_a_number(bad):
    with pytest.raises((TypeError, ValueError)):
        memory.Pool().occupancy(bad)
