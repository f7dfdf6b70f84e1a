"""Measure copy lanes beside a training step, a plain memcpy and the disk's calls.

One thread computes on one core, and the lanes' threads copy on another. Everything of a
row is measured in turns in one process; ratios are medians.

*At full load* the step is planned by `share`, and copies that it does not need go along
with it, between memory that no op touches: behind each op so many of the size of its
outputs that the lanes have work until the step ends, and nothing waits for them. Their
bandwidth is the bytes of those that ran while ops did, over the time from the first to
the last, beside a plain memcpy of the same sizes between the same addresses on the same
core while nothing computes; for the disk it is pwrite or pread, of the same sizes in a
file of the same folder, through the page cache and past it (O_DIRECT). What compute
loses is the time of the ops with such copies over that without. A third kind of turn
has a plain memcpy beside it in place of the lanes: what it loses then is the memory's
and no lane's.

*A plan that swaps* moves what it needs, and waits where it must. `vdnn_all` runs at the
least bandwidth at which the simulator, given the ops' measured times, predicts that
waits take at most 1 percent of the step; what is reported is what they took. A second
row has no throttle.

`chrt -f 50 python bench lanes` keeps other work away. Asserts no time.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import mmap
import os
import statistics
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import machine
import numpy as np

import memcfg as mc
from memcfg._core import Lane, Program, ScratchFile
from memcfg.graph import Tier
from memcfg.plan import Compute, SwapIn, SwapOut, share, simulate, vdnn_all
from memcfg.units import align_up

REGION = 2**26  # bytes that copies go around in, each way: no cache holds them
SMALLEST, LARGEST = 2**18, 2**23  # bytes of a copy
WAYS = ("out", "in")
CORES = (0, 1)  # of ops, of lanes
WAITS = 0.01  # of a step, that may be predicted where a lane is throttled


# -- networks ---------------------------------------------------------------------


def convolutions():
    """Return a network in which products take the time."""
    layers = [mc.nn.Conv2D(64, 3, padding="same", activation="relu") for _ in range(8)]
    return (
        mc.nn.Sequential(
            [
                mc.nn.Input((32, 32, 16)),
                *layers,
                mc.nn.GlobalAveragePooling2D(),
                mc.nn.Dense(10),
            ]
        ),
        (32, 32, 16),
        16,
    )


def mobilenet():
    """Return one in which passes over memory do."""
    return mc.models.mobilenet((96, 96, 3)), (96, 96, 3), 16


def resnet18():
    return mc.models.resnet18((64, 64, 3)), (64, 64, 3), 16


NETWORKS = {each.__name__: each for each in (convolutions, resnet18, mobilenet)}


# -- machines ---------------------------------------------------------------------


@contextmanager
def on(core: int):
    """Run on one core; threads that are started there stay on it."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Regions:
    """Two pieces of memory, or one and a file, between which copies go."""

    def __init__(self, tier: str, folder: str) -> None:
        self.pool = mc.memory.Pool(name="copies")
        self.here = self._arena()
        self.there = ScratchFile(folder, REGION) if tier == "file" else self._arena()
        fill = Program(self.here, [self.there])
        fill.copy(0, 0, (1, 0), REGION)
        fill.run()

    def _arena(self):
        arena = self.pool.arena(tag="copies")
        arena.grow(REGION)
        np.frombuffer(memoryview(arena), np.uint8)[...] = 1
        return arena


def address(arena) -> int:
    return np.frombuffer(memoryview(arena), np.uint8).ctypes.data


class Beside:
    """A device whose programs have copies beside their ops."""

    def __init__(self, device, ways, regions, sizes, lanes) -> None:
        self._device = device
        self._ways = ways
        self._regions = regions
        self._sizes = sizes  # of each op's copies: (bytes, how many)
        self._lanes = lanes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def program(self, arena, tiers):
        spaces = list(tiers.values())
        first = 1 + len(spaces)
        for way in self._ways:
            spaces += [self._regions[way].here, self._regions[way].there]
        lanes = [self._lanes[way] for way in self._ways]
        return Loaded(Program(arena, spaces, lanes), self._ways, first, self._sizes)


class Loaded:
    """A program that starts copies behind its ops, and waits for none."""

    def __init__(self, loop, ways, first, sizes) -> None:
        self._loop = loop
        self._ways = ways
        self._first = first
        self._sizes = iter(sizes)
        self._at = dict.fromkeys(ways, 0)
        self.copies: dict[int, int] = {}  # bytes by instruction

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def __len__(self) -> int:
        return len(self._loop)

    def compute(self, *operands):
        index = self._loop.compute(*operands)
        nbytes, count = next(self._sizes, (0, 0))
        for _ in range(count):
            for lane, way in enumerate(self._ways):
                at = self._at[way]
                if at + nbytes > REGION:
                    at = 0
                self._at[way] = at + nbytes
                here, there = self._first + 2 * lane, self._first + 2 * lane + 1
                ends = (here, at), (there, at)
                ends = ends if way == "out" else ends[::-1]
                self.copies[self._loop.copy(1 + lane, *ends, nbytes)] = nbytes
        return index


# -- a step -----------------------------------------------------------------------


class Step:
    """A program of a model, and when its instructions ran."""

    def __init__(self, device, graph, policy) -> None:
        self.executor = mc.runtime.Executor(device, name="bench")
        random = np.random.default_rng(0)
        values = {
            graph.tensors[t].name: (
                random.standard_normal(graph.tensors[t].shape, np.float32) * 0.05
            ).astype(graph.tensors[t].dtype)
            for t in graph.persistent
        }
        self.executor.load({"train": graph}, policy, values)
        self.program = self.executor.prepare("train")
        for tensor in self.program.graph.tensors:
            if tensor.role == "input":
                try:
                    view = self.program.view(tensor.name, at_end=False)
                except KeyError:  # not one that is fed
                    continue
                view[...] = 0
        self.loop = self.program._loop
        self.copies = getattr(self.loop, "copies", None)
        if self.copies is None:
            self.copies = moved_by(self.program)

    def run(self) -> dict:
        """Run once: seconds of ops and waits, and of copies what ran beside ops."""
        spans = self.loop.run_traced()
        ops = set(self.program._op_instructions)
        compute = sum(spans[i][2] - spans[i][1] for i in ops)
        rest = [e - b for i, (q, b, e) in enumerate(spans) if q == 0 and i not in ops]
        begin = min(spans[i][1] for i in ops)
        end = max(spans[i][2] for i in ops)
        copies = {way: self._copies(spans, way, end) for way in (0, 1)}
        return {
            "compute": compute,
            "waits": sum(rest),
            "step": end - begin,
            "by_op": [spans[i][2] - spans[i][1] for i in self.program._op_instructions],
            "copies": copies,
        }

    def _copies(self, spans, lane: int, end: float) -> dict:
        """Count what a lane moved before the last op ended: bytes, span, busy time."""
        rows = [
            (spans[i][1], spans[i][2], nbytes)
            for i, nbytes in self.copies.items()
            if spans[i][0] == 1 + lane and spans[i][2] <= end
        ]
        if not rows:
            return {"bytes": 0, "span": 0.0, "busy": 0.0, "until": 0.0}
        return {
            "bytes": sum(n for *_, n in rows),
            "span": max(e for _, e, _ in rows) - min(b for b, *_ in rows),
            "busy": sum(e - b for b, e, _ in rows),
            "until": max(e for _, e, _ in rows) / end,
        }

    def close(self) -> None:
        self.loop = None
        self.program = None
        self.executor.close()


def moved_by(program) -> dict[int, int]:
    """Return the bytes of a plan's own copies, by instruction."""
    tensors = program.graph.tensors
    return {
        program.instructions[index]: tensors[action.tensor].nbytes
        for index, action in enumerate(program.spec.plan.actions)
        if isinstance(action, SwapOut | SwapIn)
    }


def sizes_of(program, by_op: list[float], rate: float, ways: int) -> list:
    """Choose copies behind each op: for as long as the next one computes.

    They have the bytes of that one's largest operand.
    """
    found, owed = [], 0.0
    actions = [a for a in program.spec.plan.actions if isinstance(a, Compute)]
    for action, seconds in zip(actions[1:], by_op[1:], strict=True):
        op = program.graph.ops[action.op]
        tensors = (*op.inputs, *op.outputs)
        nbytes = max(program.graph.tensors[t].nbytes for t in tensors)
        nbytes = min(max(align_up(nbytes, 4096), SMALLEST), LARGEST)
        owed += seconds * rate / ways
        count = round(owed / nbytes)
        owed -= count * nbytes
        found.append((nbytes, count))
    return found


# -- plain copies -----------------------------------------------------------------


def rounds(sizes):
    """Yield (offset, bytes) as a lane's copies have them, again and again."""
    at = 0
    while True:
        for nbytes, count in sizes:
            for _ in range(count):
                if at + nbytes > REGION:
                    at = 0
                yield at, nbytes
                at += nbytes


def plain(sizes, act, seconds: float, core: int, stop=lambda: False) -> float:
    """Return the bytes a second of `act(offset, bytes)` on a core."""
    moved = 0
    with on(core):
        began = time.perf_counter()
        for offset, nbytes in rounds(sizes):
            act(offset, nbytes)
            moved += nbytes
            if time.perf_counter() - began >= seconds or stop():
                return moved / (time.perf_counter() - began)
    raise AssertionError


def memcpy_of(regions, way):
    here, there = address(regions.here), address(regions.there)
    source, target = (here, there) if way == "out" else (there, here)
    return lambda at, n: ctypes.memmove(target + at, source + at, n)


class DiskCalls:
    """Plain pwrite and pread in a file of a folder."""

    def __init__(self, folder: str, direct: bool) -> None:
        flags = os.O_RDWR | os.O_TMPFILE | (os.O_DIRECT if direct else 0)
        self.file = os.open(folder, flags, 0o600)
        os.posix_fallocate(self.file, 0, REGION)
        self.bytes = mmap.mmap(-1, REGION)  # page-aligned
        self.view = memoryview(self.bytes)
        for at in range(0, REGION, 2**20):
            os.pwrite(self.file, self.view[at : at + 2**20], at)

    def act(self, way: str):
        if way == "out":
            return lambda at, n: os.pwrite(self.file, self.view[at : at + n], at)
        return lambda at, n: os.preadv(self.file, [self.view[at : at + n]], at)

    def close(self) -> None:
        self.view.release()
        self.bytes.close()
        os.close(self.file)


# -- rows -------------------------------------------------------------------------


def graph_of(name: str):
    mc.nn.set_random_seed(0)
    model, _, batch = NETWORKS[name]()
    model.compile(
        mc.nn.SGD(0.01, momentum=0.9),
        mc.nn.SparseCategoricalCrossentropy(from_logits=True),
        memory=share(),
    )
    graph = model.graph(batch)
    model.close()
    return graph


def at_full_load(name: str, tier: str, ways: tuple[str, ...], options) -> dict:
    """Measure a step with lanes that are never idle."""
    device = mc.config.logical_device()
    graph = graph_of(name)
    regions = {way: Regions(tier, options.folder) for way in ways}
    with on(CORES[1]):
        lanes = {way: Lane() for way in ways}
    peers = peers_of(tier, regions, ways, options)
    alone = Step(device, graph, share())
    warm = [alone.run() for _ in range(4)][-1]
    rate = 1.1 * rate_of(peers, options)
    sizes = sizes_of(alone.program, warm["by_op"], rate, len(ways))
    loaded = Step(Beside(device, ways, regions, sizes, lanes), graph, share())
    loaded.run()
    turns: dict[str, list] = {name: [] for name in ("alone", "loaded", "beside")}
    rates: dict[str, list] = {name: [] for name in (*peers, "beside ops")}
    for _ in range(options.repeats):
        turns["alone"].append(alone.run())
        turns["loaded"].append(loaded.run())
        for peer, acts in peers.items():
            rates[peer].append(
                statistics.harmonic_mean(
                    [plain(sizes, act, options.seconds, CORES[1]) for act in acts]
                )
            )
        step, rate = with_plain(alone, sizes, next(iter(peers.values())))
        turns["beside"].append(step)
        rates["beside ops"].append(rate)
    alone.close()
    loaded.close()
    lane = [
        sum(each["copies"][i]["bytes"] for i in range(len(ways)))
        / max(each["copies"][i]["span"] for i in range(len(ways)))
        for each in turns["loaded"]
    ]
    compute = {
        kind: statistics.median(each["compute"] for each in turns[kind])
        for kind in turns
        if turns[kind]
    }
    return {
        "kind": "full load",
        "network": name,
        "tier": tier,
        "ways": list(ways),
        "copy_bytes": statistics.median(n for n, count in sizes for _ in range(count)),
        "lane_bytes_per_second": statistics.median(lane),
        "until": statistics.median(
            min(each["copies"][i]["until"] for i in range(len(ways)))
            for each in turns["loaded"]
        ),
        "plain_bytes_per_second": {
            peer: statistics.median(rows) for peer, rows in rates.items()
        },
        "compute_seconds": compute,
        "slowdown": compute["loaded"] / compute["alone"] - 1,
        "slowdown_by_plain": compute["beside"] / compute["alone"] - 1,
        "lane_by_turn": lane,
        "plain_by_turn": rates,
        "compute_by_turn": {k: [e["compute"] for e in v] for k, v in turns.items()},
    }


def rate_of(peers, options) -> float:
    """Return what the first peer copies in a second, in pieces of a MiB."""
    acts = next(iter(peers.values()))
    return statistics.harmonic_mean(
        [plain([(2**20, 1)], act, options.seconds, CORES[1]) for act in acts]
    )


def peers_of(tier, regions, ways, options) -> dict[str, list]:
    if tier == "host":
        return {"memcpy": [memcpy_of(regions[way], way) for way in ways]}
    calls = {
        "page cache": DiskCalls(options.folder, direct=False),
        "direct": DiskCalls(options.folder, direct=True),
    }
    return {name: [each.act(way) for way in ways] for name, each in calls.items()}


def with_plain(step: Step, sizes, acts) -> tuple[dict, float]:
    """Run a step while threads copy on the lanes' core; also their bytes a second."""
    ended = threading.Event()
    with ThreadPoolExecutor(len(acts)) as pool:
        found = [
            pool.submit(plain, sizes, act, 60.0, CORES[1], ended.is_set) for act in acts
        ]
        row = step.run()
        ended.set()
        return row, sum(each.result() for each in found)


def swapping(name: str, throttled: bool, options) -> dict:
    """Measure a step of `vdnn_all`, its waits, and its copies."""
    graph = graph_of(name)
    step = Step(configured(None), graph, share())
    timed = with_times(step, [step.run() for _ in range(5)])
    step.close()
    bandwidth = least_bandwidth(timed) if throttled else None
    device = configured(bandwidth)
    alone = Step(device, graph, share())
    with on(CORES[1]):
        step = Step(device, graph, vdnn_all())
    rate = bandwidth or 1e18
    predicted = simulate(timed, step.program.spec.plan, {"host": rate})
    sizes = [(nbytes, 1) for nbytes in step.copies.values()]
    regions = Regions("host", options.folder)
    act = memcpy_of(regions, "out")
    base, rows, memcpy = [], [], []
    step.run()
    for _ in range(options.repeats):
        base.append(alone.run())
        rows.append(step.run())
        memcpy.append(plain(sizes, act, options.seconds, CORES[1]))
    step.close()
    alone.close()
    lane = [both_ways(each["copies"], "busy") for each in rows]
    waits = [each["waits"] / each["step"] for each in rows]
    return {
        "kind": "plan",
        "network": name,
        "method": "vdnn_all",
        "bandwidth": bandwidth,
        "moved_bytes": sum(step.copies.values()),
        "copy_bytes": statistics.median(step.copies.values()),
        "waits": statistics.median(waits),
        "waits_predicted": predicted.elapsed_seconds / predicted.seconds - 1,
        "slowdown": median_of(rows, "compute") / median_of(base, "compute") - 1,
        "step_seconds": {
            "alone": median_of(base, "step"),
            "swapping": median_of(rows, "step"),
        },
        "lane_bytes_per_second": statistics.median(lane),
        "plain_bytes_per_second": {"memcpy": statistics.median(memcpy)},
        "lane_by_turn": lane,
        "waits_by_turn": waits,
        "step_by_turn": {
            "alone": [each["step"] for each in base],
            "swapping": [each["step"] for each in rows],
        },
    }


def median_of(rows: list[dict], key: str) -> float:
    return statistics.median(each[key] for each in rows)


def both_ways(copies: dict, per: str) -> float:
    """Return the bytes of all lanes over their time."""
    each = [copy for copy in copies.values() if copy["bytes"]]
    return sum(copy["bytes"] for copy in each) / sum(copy[per] for copy in each)


def with_times(step: Step, rows: list[dict]):
    """Return a step's graph with the least time of each op."""
    graph = step.program.graph
    order = [a.op for a in step.program.spec.plan.actions if isinstance(a, Compute)]
    times = [min(row["by_op"][i] for row in rows) for i in range(len(order))]
    seconds = dict(zip(order, times, strict=True))
    return replace(
        graph,
        ops=tuple(replace(op, seconds=seconds[i]) for i, op in enumerate(graph.ops)),
    )


def configured(bandwidth: float | None):
    """Return the CPU anew, with lanes of a bandwidth."""
    gc.collect()
    mc.config.reset()
    mc.config.threading.set_intra_op_parallelism_threads(1)
    (cpu,) = mc.config.list_physical_devices("CPU")
    mc.config.set_logical_device_configuration(
        cpu,
        [
            mc.config.LogicalDeviceConfiguration(
                spill_to="host",
                lane_bandwidth=None if bandwidth is None else f"{int(bandwidth)}B",
            )
        ],
    )
    return mc.config.logical_device()


def least_bandwidth(graph) -> float:
    """Find the least at which few waits are predicted for `vdnn_all`."""
    low, high = 1e6, 1e11
    for _ in range(40):
        middle = (low * high) ** 0.5
        given = replace(graph, tiers=(Tier("host", middle),))
        found = simulate(given, vdnn_all()(given), {"host": middle})
        if found.elapsed_seconds <= (1 + WAITS) * found.seconds:
            high = middle
        else:
            low = middle
    return high


def measure(options) -> list[dict]:
    mc.config.threading.set_intra_op_parallelism_threads(1)
    rows = []
    for name in options.networks:
        for ways in (("out",), ("in",), WAYS):
            rows.append(at_full_load(name, "host", ways, options))
            show(rows[-1])
    for ways in (("out",), ("in",)):
        rows.append(at_full_load(options.networks[0], "file", ways, options))
        show(rows[-1])
    for name in options.networks:
        for throttled in (True, False):
            rows.append(swapping(name, throttled, options))
            show(rows[-1])
    return rows


def show(row: dict) -> None:
    rate = row["lane_bytes_per_second"]
    peers = ", ".join(
        f"{rate / each:.0%} of {name} {each / 1e9:.2f}"
        for name, each in row["plain_bytes_per_second"].items()
    )
    words = f"{row['kind']} {row['network']} {rate / 1e9:.2f} GB/s: {peers}; "
    words += f"compute {row['slowdown']:+.1%}"
    if row["kind"] == "plan":
        words += f"; waits {row['waits']:.2%}, predicted {row['waits_predicted']:.2%}"
        words += f"; at {row['bandwidth']}"
    else:
        words += f" {row['tier']} {row['ways']} until {row['until']:.0%}"
        words += f", by plain copies {row['slowdown_by_plain']:+.1%}"
    print(words, flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=9, help="turns, at least 3")
    parser.add_argument("--seconds", type=float, default=0.1, help="of a plain copy")
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS))
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="of the files")
    parser.add_argument("--output", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    if options.repeats < 3:
        parser.error("--repeats must be at least 3")
    if not set(CORES) <= os.sched_getaffinity(0):
        parser.error(f"needs the cores {CORES}")
    return options


def main() -> None:
    options = parse()
    place = machine.facts() | {"repeats": options.repeats}
    with on(CORES[0]):
        rows = measure(options)
    if options.output is not None:
        document = {"environment": place, "results": rows}
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
