"""What it costs to show memory while a model trains: bars, live reports, histories.

One process trains LeNet-5 on digits of the size of MNIST's. Epochs of all kinds take
turns: without output, with the bar of steps alone, with the line of memory below it,
and, without output, while a live report is written, and while the history of the
device's pool is recorded. A bar is drawn on a terminal whose output nobody reads.
Beside the epochs, the seconds of the training's thread in which the bar was drawn are
counted, which other programs disturb less. Asserts nothing.

``python bench live --output bench/results/live.json``
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import nullcontext, redirect_stdout
from pathlib import Path

import machine
import numpy as np

import memcfg as mc
from memcfg.files import HeldFile
from memcfg.memory.live._live_report import LiveReport
from memcfg.nn.training import _session
from memcfg.nn.training.progress import _progress

REPORTS = 200
BLOCKS = 20_000
KINDS = ("silent", "bar", "memory", "report", "history")


class Terminal(io.StringIO):
    """A terminal whose output nobody reads."""

    def isatty(self) -> bool:
        return True


class Drawn:
    """The processor seconds in which bars were drawn."""

    def __init__(self) -> None:
        self.seconds, self.count = 0.0, 0
        inner = _progress.Progress._draw

        def draw(progress):
            began = time.thread_time()
            inner(progress)
            self.seconds += time.thread_time() - began
            self.count += 1

        _progress.Progress._draw = draw


def report_seconds() -> float:
    """Return the processor seconds of one live report, as its thread makes it."""
    with tempfile.TemporaryDirectory() as folder:
        file = HeldFile(Path(folder, "report.json"))
        began = time.thread_time()
        for _ in range(REPORTS):
            file.replace(LiveReport.of_this_process().document())
        file.remove()
        return (time.thread_time() - began) / REPORTS


def block_seconds() -> dict[str, float]:
    """Return the processor seconds of a block, without a history and in one."""
    pool = mc.memory.Pool(limit="1GiB")

    def least() -> float:
        found = []
        for _ in range(7):
            began = time.thread_time()
            for _ in range(BLOCKS):
                pool.allocate(1000, tag="bench").free()
            found.append((time.thread_time() - began) / BLOCKS)
        return min(found)

    off = least()
    with mc.memory.MemoryHistory(pool):
        return {"off": off, "on": least()}


def summaries(seconds: dict, draws: dict) -> list[dict]:
    """Print and return the medians of each kind."""
    results = []
    for kind in KINDS:
        ratios = [a / b for a, b in zip(seconds[kind], seconds["silent"], strict=True)]
        parts, each = zip(*draws[kind], strict=True)
        results.append(
            {
                "kind": kind,
                "seconds": statistics.median(seconds[kind]),
                "ratio": statistics.median(ratios),
                "ratios": sorted(ratios),
                "drawing_part": statistics.median(parts),
                "seconds_a_draw": statistics.median(each),
            }
        )
        print(
            f"{kind:8} {results[-1]['seconds']:6.2f} s  {results[-1]['ratio']:.3f} of "
            f"silent; drawing {results[-1]['drawing_part']:.2%}, "
            f"{1e6 * results[-1]['seconds_a_draw']:.0f} µs each"
        )
    return results


class Epochs:
    """Trains epochs of all kinds, and keeps what they took."""

    def __init__(self, rows: int) -> None:
        rng = np.random.default_rng(0)
        self.x = rng.random((rows, 32, 32, 1), "float32")
        self.y = rng.integers(0, 10, rows)
        self.model = mc.models.lenet5()
        loss = mc.nn.SparseCategoricalCrossentropy(from_logits=True)
        self.model.compile("adam", loss)
        self.pool, self.drawn = _session.Session.pool, Drawn()
        self.seconds = {kind: [] for kind in KINDS}
        self.draws = {kind: [] for kind in KINDS}
        self.events = 0  # of a history, the most

    def clear(self) -> None:
        for each in (*self.seconds.values(), *self.draws.values()):
            each.clear()

    def train(self, kind: str) -> None:
        _session.Session.pool = self.pool if kind == "memory" else None
        mc.config.set_live_report(kind == "report")
        self.drawn.seconds, self.drawn.count = 0.0, 0
        verbose = int(kind in ("bar", "memory"))
        with redirect_stdout(Terminal()):
            began = time.perf_counter()
            with recording() if kind == "history" else nullcontext() as history:
                self.model.fit(self.x, self.y, batch_size=32, epochs=1, verbose=verbose)
            took = time.perf_counter() - began
        if history is not None:
            self.events = max(self.events, len(history.trace()))
        self.seconds[kind].append(took)
        drawn = self.drawn
        self.draws[kind].append(
            (drawn.seconds / took, drawn.seconds / max(drawn.count, 1))
        )


def recording():
    return mc.config.record_memory_history("CPU:0")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=6_000)
    parser.add_argument("--repeats", type=int, default=9, help="turns")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    # Reports lie in a folder of the session; here, in one of this run.
    session = tempfile.TemporaryDirectory()
    os.environ["XDG_RUNTIME_DIR"] = session.name
    mc.config.set_memory_limit("CPU:0", "64MiB")
    epochs = Epochs(options.rows)
    for kind in KINDS:
        epochs.train(kind)
    epochs.clear()
    for turn in range(options.repeats):
        first = turn % len(KINDS)
        for kind in KINDS[first:] + KINDS[:first]:
            epochs.train(kind)
    mc.config.set_live_report(False)
    written = report_seconds()
    print(f"a report takes {1e6 * written:.0f} µs of a processor, once a second")
    print(f"a history of an epoch has at most {epochs.events} events")
    blocks = block_seconds()
    print(
        f"a block takes {1e9 * blocks['off']:.0f} ns, {1e9 * blocks['on']:.0f} in one"
    )
    results = summaries(epochs.seconds, epochs.draws)
    if options.output is not None:
        facts = machine.facts() | {"rows": options.rows, "turns": options.repeats}
        document = {"environment": facts, "report_processor_seconds": written}
        document |= {"events_of_a_history": epochs.events}
        document |= {"block_processor_seconds": blocks, "results": results}
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
