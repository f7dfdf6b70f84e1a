"""Ask in which units memory is best swapped: pages, chunks, tensors, or parts of them.

*Measured* is what a unit costs: a lane of the runtime copies the same bytes in pieces
of each size, and for units below a tensor, of which some leave while others stay, the
pages of a memory file are mapped anew (mmap with MAP_FIXED, and a touch), as a runtime
must that puts scattered chunks under one range of addresses.

*Simulated* is what follows for training: the schedule of `share` under a limit, where
of each value between two uses as many units leave as the limit asks for, and come back
in time where the lane allows. A tensor as the unit leaves whole, and is planned and
placed as `out_of_core` does; units that are mapped need no place of their own, so their
peak is their load, rounded up to units. A lane takes the larger of what its bandwidth
and what the measured unit asks for.

For each network, limit and bandwidth: stall (what the step takes longer than its ops),
traffic (bytes each way, of the bytes in use at the peak without a limit), waste (what
rounding, or placing, adds to the bytes in use). Asserts nothing but that limits hold.

What was expected: small units move the fewest bytes, since they cover what is too much
exactly, and cost the most a byte; parts of 2 MiB should lose to neither. Tensors should
suffer where few large ones decide, as in a U-Net.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench_codecs import environment

from memcfg._core import Lane, Program
from memcfg.commands._tasks import Task
from memcfg.graph import Tier
from memcfg.memory import Pool
from memcfg.plan import share, validate
from memcfg.plan.search._policy import propose
from memcfg.plan.search._request import Request
from memcfg.plan.search.swaps._accesses import Entry, Gap, Trace
from memcfg.plan.search.swaps._covering import Covering
from memcfg.plan.search.swaps._event_times import clock
from memcfg.plan.search.swaps._swap_events import least_load, plan_events

if TYPE_CHECKING:
    from memcfg.plan.search.swaps._walk import Swaps

KIB, MIB = 2**10, 2**20
WHOLE = 64 * MIB  # bytes that are copied for one measurement
LARGE = 8 * MIB  # bytes of a tensor that the hybrid splits
SMALL = 64 * KIB  # bytes of one that it leaves where it is
PIECES = {"page (4 KiB)": 4 * KIB, "chunk (64 KiB)": 64 * KIB, "chunk (2 MiB)": 2 * MIB}
UNITS = (*PIECES, "quarter of a tensor", "tensor", "hybrid")
NETWORKS = {
    "resnet50": (16, {}),
    "unet": (2, {}),
    "bert_encoder": (8, {}),
    "nin": (32, {}),
}
LIMITS = (80, 60, 40)  # percent of the peak of `share`
BANDWIDTHS = (8e9, 2e9, 5e8)  # bytes a second


# -- what a unit costs --------------------------------------------------------------


def copy_seconds(nbytes: int, repeats: int) -> float:
    """Return the seconds of a unit's copy by a lane, among many."""
    pool = Pool(name="granularity")
    arena, host = pool.arena(), pool.arena()
    arena.grow(WHOLE)
    host.grow(WHOLE)
    program = Program(arena, [host], [Lane(None), Lane(None)])
    for offset in range(0, WHOLE, nbytes):
        program.copy(1, (0, offset), (1, offset), min(nbytes, WHOLE - offset))
    program.run()
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        program.run()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) / (WHOLE // nbytes)


def map_seconds(nbytes: int, repeats: int) -> float:
    """Return the seconds of putting a unit of a memory file elsewhere, and a touch."""
    count = min(WHOLE // nbytes, 2048)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int),
        *(ctypes.c_int, ctypes.c_long),
    ]
    file = os.memfd_create("granularity")
    try:
        os.ftruncate(file, count * nbytes)
        os.pwrite(file, b"\1" * count * nbytes, 0)  # it has its memory
        with mmap.mmap(-1, count * nbytes) as addresses:
            base = ctypes.addressof(ctypes.c_char.from_buffer(addresses))
            protection, fixed = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | 0x10
            taken = []
            for turn in range(repeats):
                began = time.perf_counter()
                for unit in range(count):
                    there = (unit + turn) % count * nbytes
                    where = base + unit * nbytes
                    got = libc.mmap(where, nbytes, protection, fixed, file, there)
                    if got != where:
                        raise OSError(ctypes.get_errno(), "mmap")
                    ctypes.memset(where, 0, 1)
                taken.append(time.perf_counter() - began)
        return statistics.median(taken) / count
    finally:
        os.close(file)


# -- what follows -------------------------------------------------------------------


@dataclass(frozen=True)
class Unit:
    """A unit of swapping; sizes in bytes, seconds of one piece."""

    name: str
    copies: dict[int, float]  # seconds a byte by size of a copy
    maps: dict[int, float]  # seconds by size of a piece

    def piece(self, nbytes: int) -> int | None:
        """Return the size of the pieces of a tensor; None: it stays."""
        if self.name in PIECES:
            return PIECES[self.name]
        if self.name == "quarter of a tensor":
            return max(64, -(-nbytes // 256) * 64)
        if self.name == "hybrid":
            return None if nbytes < SMALL else 2 * MIB if nbytes > LARGE else nbytes
        return nbytes

    def seconds(self, nbytes: int, piece: int, rate: float) -> float:
        """Return the seconds that pieces take on a lane."""
        nearest = min(self.copies, key=lambda size: abs(size - piece))
        mapped = self.maps[min(self.maps, key=lambda size: abs(size - piece))]
        whole = self.name == "tensor"
        count = -(-nbytes // piece)
        taken = nbytes * max(1 / rate, self.copies[nearest])
        return taken if whole else taken + count * mapped


class Parts(Trace):
    """A trace of whose values parts are away."""

    def __init__(self, graph, entries) -> None:
        super().__init__(graph, entries)
        self.parts: dict[Gap, int] = {}

    def size(self, gap: Gap) -> int:
        return self.parts.get(gap, super().size(gap))

    def loads(self, scratch, away=(), copied=()) -> list[int]:
        found = super().loads(scratch)
        for gap in away:
            for place in range(gap.after + 1, gap.back):
                found[place + 1] -= self.size(gap)
        return found


class Units(Covering):
    """Gaps in which parts of values are away."""

    def __init__(self, graph, sequence, limit, unit: Unit) -> None:
        self.unit = unit
        self.rate = graph.tiers[0].bytes_per_second
        entries = [Entry(place, op) for place, op in enumerate(sequence)]
        super().__init__(Parts(graph, entries), limit)

    def cover_by_units(self, order) -> list[Gap] | None:
        """Choose of each value as many pieces as are too much, in this order."""
        left = self.loads.copy()
        self.trace.parts = {}  # sizes are whole
        for gap in order:
            inside = left[gap.inside]
            over = int(inside.max(initial=0)) - self.limit
            size = self.trace.size(gap)
            piece = self.unit.piece(size)
            if over > 0 and piece is not None:
                taken = min(size, -(-over // piece) * piece)
                inside -= taken
                self.trace.parts[gap] = taken
        return None if left.max() > self.limit else [*self.trace.parts]

    def swaps(self, gaps) -> Swaps:
        made = super().swaps(gaps)
        for gap in made.gaps:
            nbytes = self.trace.size(gap)
            piece = min(self.unit.piece(nbytes) or nbytes, nbytes)
            seconds = self.unit.seconds(nbytes, piece, self.rate)
            made.swap_out_seconds[gap] = made.swap_in_seconds[gap] = seconds
        return made


ORDERS = (
    lambda units, gap: -units.idle(gap),
    lambda units, gap: gap.after,
    lambda units, gap: -units.trace.size(gap),
)


def rounded(graph, piece: int):
    """Return a graph whose tensors are whole pieces."""
    tensors = (
        replace(tensor, nbytes=-(-tensor.nbytes // piece) * piece)
        for tensor in graph.tensors
    )
    return replace(graph, tensors=tuple(tensors))


def cell(graph, limit: int, unit: Unit) -> dict:
    """Return what a unit takes for a network, limit and bandwidth."""
    own = rounded(graph, PIECES[unit.name]) if unit.name in PIECES else graph
    request = Request.of(own, "granularity", None)
    given = Request.of(graph, "granularity", None)
    nothing = propose(share(), given)
    sequence = given.sequence_of(nothing)
    units = Units(own, sequence, limit, unit)
    waste = units.loads.max() / Units(graph, sequence, limit, unit).loads.max() - 1
    found = []
    for order in ORDERS:
        ranked = sorted(units.gaps, key=lambda gap: (order(units, gap), gap))
        chosen = units.cover_by_units(ranked)
        if chosen is not None:
            walked = units.swaps(chosen).fastest(limit, request.is_over)
            found.append((walked.seconds, walked.events, [*units.trace.parts.items()]))
    if not found:
        return {"fits": False, "waste": waste}
    seconds, events, parts = min(found, key=lambda each: each[0])
    if unit.name == "tensor":
        plan = plan_events(request, events)
        validate(graph, plan)
        told = clock(request.graph, events).elapsed_seconds
        if told > seconds * (1 + 1e-6):  # whose lanes are no slower
            raise SystemExit(f"the clocks differ: {told} and {seconds}")
        waste = plan.peak_bytes / least_load(request, events) - 1
    sizes = [(nbytes, unit.piece(nbytes) or nbytes) for _, nbytes in parts]
    return {
        "fits": True,
        "stall": seconds / nothing.predicted.seconds - 1,
        "traffic": sum(nbytes for nbytes, _ in sizes) / nothing.peak_bytes,
        "waste": waste,
        "pieces": sum(-(-nbytes // piece) for nbytes, piece in sizes),
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=9, help="turns, at least 3")
    parser.add_argument("--clock", default="wall", choices=["wall"])
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS))
    parser.add_argument("--output", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    if options.repeats < 3:
        parser.error("--repeats must be at least 3")
    return options


def main() -> None:
    options = parse()
    sizes = [*PIECES.values(), 16 * MIB, WHOLE]
    seconds = {size: copy_seconds(size, options.repeats) / size for size in sizes}
    maps = {size: map_seconds(size, options.repeats) for size in PIECES.values()}
    costs = []
    for size in sizes:
        costs.append(
            {
                "nbytes": size,
                "copy_bytes_per_second": 1 / seconds[size],
                "map_seconds": maps.get(size),
            }
        )
        told = f", mapped in {maps[size] * 1e6:.2f} us" if size in maps else ""
        print(f"{size >> 10:>6} KiB: {1e-9 / seconds[size]:6.2f} GB/s{told}")
    results = []
    for name in options.networks:
        batch, arguments = NETWORKS[name]
        graph = Task(name, batch, arguments).graph()
        for rate in BANDWIDTHS:
            tier = Tier("host", rate, is_stated=True)
            slow = replace(graph, tiers=(tier,))
            for percent in LIMITS:
                limit = share()(graph).peak_bytes * percent // 100
                for each in UNITS:
                    unit = Unit(each, seconds, maps)
                    row = {
                        "network": name,
                        "batch": batch,
                        "bandwidth": rate,
                        "limit": percent,
                        "unit": each,
                        **cell(slow, limit, unit),
                    }
                    results.append(row)
                    told = "does not fit"
                    if row["fits"]:
                        told = (
                            f"stall {row['stall']:7.2%} traffic {row['traffic']:6.1%} "
                            f"waste {row['waste']:6.2%} {row['pieces']} pieces"
                        )
                    print(
                        f"{name:<13}{rate / 1e9:4.1f} GB/s {percent}% {each:<20}{told}"
                    )
    if options.output is not None:
        document = {
            "environment": environment(options),
            "costs": costs,
            "results": results,
        }
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
