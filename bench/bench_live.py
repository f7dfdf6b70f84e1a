"""What it costs to show memory while a model trains: the bar's line, and live reports.

One process trains LeNet-5 on digits of the size of MNIST's. Epochs of all kinds take
turns: without output, with the bar of steps alone, with the line of memory below it,
and, without output, while a live report is written. A bar is drawn on a terminal whose
output nobody reads. Beside the epochs, the seconds of the training's thread in which
the bar was drawn are counted, which other programs disturb less. Asserts nothing.

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
from contextlib import redirect_stdout
from pathlib import Path

import machine
import numpy as np

import memcfg as mc
from memcfg.files import HeldFile
from memcfg.memory.live._live_report import LiveReport
from memcfg.nn.training import _session
from memcfg.nn.training.progress import _progress

REPORTS = 200
KINDS = ("silent", "bar", "memory", "report")


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=6_000)
    parser.add_argument("--repeats", type=int, default=9, help="turns")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    # Reports lie in a folder of the session; here, in one of this run.
    session = tempfile.TemporaryDirectory()
    os.environ["XDG_RUNTIME_DIR"] = session.name
    rng = np.random.default_rng(0)
    x = rng.random((options.rows, 32, 32, 1), "float32")
    y = rng.integers(0, 10, options.rows)
    mc.config.set_memory_limit("CPU:0", "64MiB")
    model = mc.models.lenet5()
    model.compile("adam", mc.nn.SparseCategoricalCrossentropy(from_logits=True))
    pool, drawn = _session.Session.pool, Drawn()
    seconds = {kind: [] for kind in KINDS}
    draws = {kind: [] for kind in KINDS}

    def epoch(kind: str) -> None:
        _session.Session.pool = pool if kind == "memory" else None
        mc.config.set_live_report(kind == "report")
        drawn.seconds, drawn.count = 0.0, 0
        with redirect_stdout(Terminal()):
            began = time.perf_counter()
            verbose = int(kind in ("bar", "memory"))
            model.fit(x, y, batch_size=32, epochs=1, verbose=verbose)
            took = time.perf_counter() - began
        seconds[kind].append(took)
        draws[kind].append((drawn.seconds / took, drawn.seconds / max(drawn.count, 1)))

    for kind in KINDS:
        epoch(kind)
    for each in (*seconds.values(), *draws.values()):
        each.clear()
    for turn in range(options.repeats):
        for kind in KINDS[turn % 4 :] + KINDS[: turn % 4]:
            epoch(kind)
    mc.config.set_live_report(False)
    written = report_seconds()
    print(f"a report takes {1e6 * written:.0f} µs of a processor, once a second")
    results = summaries(seconds, draws)
    if options.output is not None:
        facts = machine.facts() | {"rows": options.rows, "turns": options.repeats}
        document = {"environment": facts, "report_processor_seconds": written}
        document["results"] = results
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
