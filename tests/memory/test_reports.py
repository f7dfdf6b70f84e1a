"""The table of resources and tags, and the bars of pools."""

from __future__ import annotations

import subprocess
import sys
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from resources import MAKERS

from memcfg import memory

MIB = 2**20
# How wide a spacing mark is depends on the terminal.
LETTERS = st.characters(exclude_categories=["Mc"])
GIB = 2**30


def columns(text: str) -> int:
    """Count a terminal's columns, by a table that the library does not read."""
    wide = {"W": 2, "F": 2}
    return sum(
        0
        if unicodedata.combining(letter)
        else wide.get(unicodedata.east_asian_width(letter), 1)
        for letter in text
    )


def tags_of(report: str) -> dict[str, tuple[int, str]]:
    """Read the second table: bytes and share, by tag."""
    lines = report.splitlines()
    start = next(i for i, line in enumerate(lines) if line.split()[:1] == ["Tag"])
    rows = [line.rsplit(maxsplit=4) for line in lines[start + 2 :]]
    return {row[0].strip(): (int(row[3].replace(",", "")), row[4]) for row in rows}


class TestSummary:
    def test_it_shows_the_numbers_of_a_layout_made_by_hand(self):
        device = memory.simulated("1GiB", name="GPU:0")
        pool = memory.Pool(device, limit="16MiB", name="scratch")
        weights = pool.allocate(4 * MIB, tag="weights", lifetime="long")
        window = pool.allocate(MIB - 7, tag="window", lifetime="long")
        pool.allocate(2 * MIB, lifetime="long").free()
        arena = pool.arena(MIB, tag="weights")
        arena.grow(1000)
        assert [line.split() for line in memory.summary(pool).splitlines() if line] == [
            ["Resource", "In", "use", "Requested", "Limit", "Fragmentation"],
            ["kind", "Peak", "Reserved", "Largest", "free", "Allocations"],
            ["─" * 72],
            # 4 MiB + 1 MiB (rounded up to 64) + 1024 B; requested 7 and 24 B less
            *(
                ["scratch", "5.00", "MiB", "5.00", "MiB", "16.00", "MiB", "0.0%"],
                ["pool", "7.00", "MiB", "7.00", "MiB", "11.00", "MiB", "4"],
            ),
            ["Tag", "In", "use", "Bytes", "Share"],
            ["─" * 76],
            ["weights", "4.00", "MiB", f"{4 * MIB + 1024:,}", "80.0%"],
            ["window", "1.00", "MiB", f"{MIB:,}", "20.0%"],
        ]
        weights.free()
        window.free()

    def test_each_kind_says_what_it_is(self):
        kinds = {
            "system": "system",
            "simulated": "simulated",
            "pool": "pool",
            "limiting": "limiting",
            "statistics": "statistics",
            "failure callback": "failure callback",
        }
        for name, kind in kinds.items():
            lines = memory.summary(MAKERS[name]()).splitlines()
            assert lines[4].startswith(f"  {kind} "), lines

    def test_each_byte_counts_once_for_its_tag(self):
        system = memory.system("below")
        pool = memory.Pool(memory.limiting(system, "64MiB"), name="above")
        counted = memory.statistics(pool)
        held = [
            pool.allocate(1000, tag="a"),
            counted.allocate(1000, tag="b"),
            system.allocate(1000, tag="a"),
        ]
        report = memory.summary(system, pool, counted)
        assert tags_of(report) == {"a": (2048, "66.7%"), "b": (1024, "33.3%")}
        assert "Of below, 2.00 MiB are the pools' on top of it." in report
        assert tags_of(memory.summary(counted)) == {"b": (1024, "100.0%")}
        assert tags_of(memory.summary(system)) == {
            "pool": (2 * MIB, "100.0%"),
            "a": (1024, "0.0%"),
        }
        assert "Of below" not in memory.summary(system)
        for block in held:
            block.free()

    def test_tags_beyond_the_tenth_are_one_row(self):
        pool = memory.Pool(limit="64MiB")
        held = [pool.allocate(64 * (i + 1), tag=f"tag {i:02}") for i in range(13)]
        tags = tags_of(memory.summary(pool))
        assert list(tags)[:10] == [f"tag {i:02}" for i in range(12, 2, -1)]
        assert tags["3 more"][0] == 64 * (1 + 2 + 3)
        del held

    def test_what_has_no_tag_is_unnamed(self):
        pool = memory.Pool(limit="64MiB")
        with pool.allocate(100):
            assert tags_of(memory.summary(pool)) == {"unnamed": (128, "100.0%")}

    def test_nothing_in_use_needs_no_second_table(self):
        report = memory.summary(memory.Pool(limit="64MiB"))
        assert "Tag" not in report
        assert "0 B" in report

    def test_no_colours_whatever_the_environment_says(self, monkeypatch):
        plain = memory.summary(memory.Pool(limit="1MiB"))
        for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "CLICOLOR_FORCE"):
            monkeypatch.setenv(name, "1")
        assert memory.summary(memory.Pool(limit="1MiB")) == plain
        assert "\x1b" not in plain

    def test_a_device_of_terabytes_fits(self):
        device = memory.simulated("100TiB", name="GPU:0")
        pool = memory.Pool(device, limit="99TiB")
        with pool.allocate(10 * 2**40 + 1, tag="weights"):
            report = memory.summary()
            assert "10.00 TiB" in report
            assert f"{10 * 2**40 + 64:,}" in report
            assert max(map(columns, report.splitlines())) <= 80


@settings(deadline=None, max_examples=30)
@given(
    name=st.text(LETTERS, max_size=60),
    tags=st.lists(st.text(LETTERS), min_size=1, max_size=9),
)
def test_every_line_fits_whatever_the_names(name, tags):
    def text(words: str) -> str:
        return words.encode("utf-8", "replace").decode().replace("\0", "?")

    pool = memory.Pool(limit="64MiB", name=text(name))
    counted = memory.statistics(pool)
    held = [counted.allocate(100, tag=text(tag)) for tag in tags]
    for report in (
        memory.summary(pool, counted),
        memory.occupancy(pool, counted),
        *map(str, memory.list_live(pool)),
    ):
        for line in report.splitlines():
            assert columns(line) <= 80
            assert line.isprintable()
    del held


def test_wide_and_composed_letters_keep_the_columns_straight():
    pool = memory.Pool(limit="64MiB", name="メモリ")
    held = [
        pool.allocate(128, tag=tag)
        for tag in ("重み" * 20, "e\u0301te\u0301", "\x1b[2J", "a\nb", "[bold]x[/bold]")
    ]
    lines = memory.summary(pool).splitlines()
    ends = {columns(line) for line in lines if line.endswith("%")}
    assert len(ends) == 2  # of the two tables
    text = "\n".join(lines)
    assert "メモリ" in text
    assert r"\x1b[2J" in text
    assert r"a\nb" in text
    assert "[bold]x[/bold]" in text  # no markup
    assert "重み…" in text
    del held


class TestOccupancy:
    def test_it_draws_a_layout_made_by_hand(self):
        pool = memory.Pool(memory.simulated("1GiB"), limit="16MiB", name="GPU:0")
        low = [pool.allocate(4 * MIB, lifetime="long") for _ in range(2)]
        high = pool.allocate(4 * MIB, lifetime="short")
        low[0].free()
        assert memory.occupancy(pool, width=66).splitlines() == [
            "GPU:0 (pool): 8.00 MiB in use of 16.00 MiB",
            f"[{'*' * 32}{'.' * 16}{'_' * 16}]",
            " 0                a letter is 256.00 KiB                16.00 MiB",
            "where in its addresses:",
            f"[....****{'_' * 52}****]",
            " 0                 a letter is 1.00 MiB                 64.00 MiB",
            "",
            "* in use, x kept by a thread for its next request,",
            ". free with memory, _ free without memory",
        ]
        arenas = [pool.arena(MIB) for _ in range(3)]
        for arena in arenas[:2]:
            arena.grow(4096)
        assert "of it in 2 arenas, elsewhere: 8.00 KiB" in memory.occupancy(pool)
        arenas[0].free()
        assert "of it in an arena, elsewhere: 4.00 KiB" in memory.occupancy(pool)
        low[1].free()
        high.free()

    def test_a_resource_that_is_no_pool_has_a_line(self, tmp_path):
        with memory.mmap_file(tmp_path / ("f" * 60), "1MiB") as file:
            block = file.allocate(1000)
            lines = memory.occupancy(file, width=120).splitlines()
            assert lines[0].endswith(
                "(mapped file): 1.00 KiB in use of 1.00 MiB, in a file"
            )
            assert memory.summary(file).splitlines()[3].startswith(f" …{'f' * 16} ")
            assert f" …{'f' * 13} " in str(memory.list_live(file)[0])
            block.free()
        assert "mapped file" in memory.summary(file)  # closed, and still alive
        assert "0 B in use" in memory.occupancy(file)
        assert memory.list_live(file) == []

    def test_a_resource_without_addresses_of_its_own_says_so(self):
        system = memory.system("heap")
        with system.allocate(100):
            lines = memory.occupancy(system).splitlines()
            assert lines[0] == "heap (system): 128 B in use, no addresses of its own"
        pool = memory.Pool()
        assert "no addresses yet" in memory.occupancy(pool)
        pool.allocate(4 * MIB).free()
        pool.trim()
        assert "[______" in memory.occupancy(pool).splitlines()[2]

    def test_an_adaptor_stands_for_what_is_below(self):
        pool = memory.Pool(memory.simulated("1GiB"), limit="16MiB")
        limited = memory.limiting(memory.statistics(pool), None)
        with limited.allocate(MIB):
            assert memory.occupancy(limited) == memory.occupancy(pool)
            assert memory.occupancy(limited, pool, limited) == memory.occupancy(pool)

    @settings(deadline=None, max_examples=30)
    @given(st.integers(40, 300), st.lists(st.integers(1, 4 * MIB), max_size=8))
    def test_it_is_as_wide_as_it_is_told(self, width, sizes):
        pool = memory.Pool(limit="64MiB", name="n" * 70)
        held = [pool.allocate(size) for size in sizes]
        lines = memory.occupancy(pool, memory.system(), width=width).splitlines()
        assert max(map(len, lines)) <= width
        if held:
            assert lines[1] == f"[{pool.occupancy(width - 2)}]"
            assert len(lines[2]) == width - 1
        del held

    @pytest.mark.parametrize("bad", [39, 0, -1])
    def test_a_bar_has_room(self, bad):
        with pytest.raises(ValueError, match="at least 40"):
            memory.occupancy(width=bad)

    @pytest.mark.parametrize("bad", [80.0, "wide", None, True])
    def test_a_width_is_a_number(self, bad):
        with pytest.raises(TypeError, match="width"):
            memory.occupancy(width=bad)


def test_a_process_without_resources_says_so():
    script = """
from memcfg import memory
print(memory.summary())
print(memory.occupancy())
print(memory.list_live(), memory.list_live(top=None))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["There is no resource."] * 2 + ["[] []"]
