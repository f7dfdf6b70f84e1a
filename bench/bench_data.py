"""Measure memcfg.data: hidden waiting, items a second beside torch and tf.data, bytes.

Three parts. `waiting`: a producer that sleeps 0.9 of a step while a model trains; the
epoch is compared with computing alone, and with reading in turn. `peers`: passes over
the same items in batches, by memcfg.data, `torch.utils.data.DataLoader` and tf.data,
each in a process of its own, all in turn; the process-based workers of torch stand
beside and are not the peer. `allocations`: blocks that a batch takes from the pool in
the steady state. Prints every result, won or lost, and asserts that all
peers gave the same items; no time is asserted.

What was expected before the first measurement:

* Waiting: the thread sleeps without the interpreter's lock and the step computes
  without it, so an epoch is the longer of the two and a hand-over, 20 to 50 µs: 1.01 to
  1.03 of computing alone, whatever the number of threads that compute.
* In memory: tf.data moves items one by one, about 1 µs each, and torch 5 to 10 µs in
  Python. Row numbers are shuffled in C++ and a batch is one gather, so 5 to 20 times
  the items of tf.data for 256 a batch, less for 32, where a hand-over of 20 µs counts.
* Map: the function is 30 to 40 µs of NumPy under the interpreter's lock; tf.data adds
  the way into Python, 20 to 50 µs, torch its collating: 1.2 times the better one.
* File: rows of 12 KiB are read from the page cache at some GB/s; tf.data's reader adds
  decoding and copies: 1.5 to 3 times, and flat memory for all but torch's mapping.

What was found: waiting 1.04 and 1.05. In memory 1.5 and 2.6 times the better peer: the
90 µs of a batch of 32 are mostly the hand-over of two threads that both want the
interpreter's lock. File 1.7 times torch and 10 times tf.data. Map 0.92 of torch (0.81
before passes went on where the last one was, and before a ring took its warmest block):
of 41 µs an item the function is 33; 4 are its 18 arrays, which come out of a workspace,
50 to 90 ns each more than from NumPy's own cache; 2 to 3 are written past the second-
level cache by the thread that prefetches; what is left is Python.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import machine
import numpy as np

import memcfg as mc

HERE = Path(__file__).resolve().parent / "data"
sys.path.insert(0, str(HERE))

from workloads import WORKLOADS, arrays, augment, images  # noqa: E402

PEERS = {  # name -> script and its argument
    "memcfg": ("ours.py", ""),
    "torch": ("torch_loader.py", "0"),
    "tf.data": ("tf_data.py", "tensors"),
    "tf.data, as NumPy": ("tf_data.py", "numpy"),
    "torch, 2 processes": ("torch_loader.py", "2"),
}
Dataset, AUTOTUNE = mc.data.Dataset, mc.data.AUTOTUNE


class Peer:
    """A process that answers questions; see ``data/serve.py``."""

    def __init__(self, name: str, folder: Path) -> None:
        script, argument = PEERS[name]
        words = [sys.executable, str(HERE / script), str(folder), argument]
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **quiet},
        )

    def ask(self, workload: str) -> dict[str, Any]:
        self._process.stdin.write(json.dumps(workload) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self._process.args}: status {self._process.wait()}")
        return json.loads(answer)

    def close(self) -> None:
        self._process.communicate()


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def crew() -> list[str]:
    """Name the peers that are here; say in a line which are not."""
    needs = {"torch": "torch", "tf.data": "tensorflow-cpu"}
    absent = [peer for peer, need in needs.items() if installed(need) is None]
    for peer in absent:
        print(f"{peer} is not here: pip install {needs[peer]}", file=sys.stderr)
    return [name for name in PEERS if not any(name.startswith(a) for a in absent)]


def compared(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Ask all peers for all workloads, in turn."""
    with tempfile.TemporaryDirectory() as folder:
        return [
            {"workload": name, **played(name, crew(), Path(folder), options)}
            for name in WORKLOADS
            if options.workload in (None, name)
        ]


def played(
    workload: str, names: list[str], folder: Path, options: argparse.Namespace
) -> dict[str, Any]:
    peers = {name: Peer(name, folder) for name in names}
    first = {name: peer.ask(workload) for name, peer in peers.items()}
    sums = {(answer["items"], answer["labels"]) for answer in first.values()}
    if len(sums) != 1:
        raise SystemExit(f"{workload}: the peers saw different items: {first}")
    turns: dict[str, list[float]] = {name: [] for name in names}
    peak: dict[str, int] = {}
    for turn in range(options.repeats):
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            answer = peers[name].ask(workload)
            turns[name].append(answer["items"] / answer["seconds"])
            peak[name] = answer["peak_rss"]
    for peer in peers.values():
        peer.close()
    return {"items_a_second": turns, "peak_rss": peak}


# --- waiting


def model() -> mc.nn.Model:
    mc.nn.set_random_seed(1)
    layers = [mc.nn.Conv2D(32, 3, activation="relu") for _ in range(3)]
    net = mc.nn.Sequential([*layers, mc.nn.GlobalAveragePooling2D(), mc.nn.Dense(10)])
    loss = mc.nn.SparseCategoricalCrossentropy(from_logits=True)
    net.compile(mc.nn.SGD(0.01), loss)
    return net


def waiting(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Train while a producer sleeps, with one thread and with two."""
    found = []
    for threads in (1, 2):
        mc.config.reset()
        mc.config.threading.set_intra_op_parallelism_threads(threads)
        found.append({"threads": threads, **epochs(options)})
    mc.config.reset()
    return found


def epochs(options: argparse.Namespace) -> dict[str, Any]:
    """Time epochs of computing alone, in turn with the producer, and ahead of it."""
    steps, net = options.steps, model()
    generator = np.random.default_rng(0)
    x = generator.random((64, 32, 32, 3), np.float32)
    y = generator.integers(0, 10, 64).astype(np.int32)
    for _ in range(5):
        net.train_on_batch(x, y)

    def sleeping(seconds: float):
        for _ in range(steps):
            time.sleep(seconds)
            yield x, y

    def alone() -> None:
        for _ in range(steps):
            net.train_on_batch(x, y)

    def in_turn(seconds: float) -> None:
        for batch in sleeping(seconds):
            net.train_on_batch(*batch)

    def ahead(seconds: float) -> None:
        signature = (spec_of(x), spec_of(y))
        data = Dataset.from_generator(
            lambda: sleeping(seconds), output_signature=signature
        )
        net.fit(data.prefetch(2), verbose=0)

    ratios: dict[str, list[float]] = {"in_turn": [], "ahead": []}
    step = []
    for _ in range(options.repeats):
        base = seconds_of(alone)
        step.append(base / steps)
        pause = 0.9 * base / steps
        ratios["in_turn"].append(seconds_of(in_turn, pause) / base)
        ratios["ahead"].append(seconds_of(ahead, pause) / base)
    net.close()
    return {"step_seconds": statistics.median(step), "ratios": ratios}


def spec_of(array: np.ndarray) -> mc.data.TensorSpec:
    return mc.data.TensorSpec(array.shape, array.dtype)


def seconds_of(act, *arguments) -> float:
    began = time.perf_counter()
    act(*arguments)
    return time.perf_counter() - began


# --- allocations


def pipelines(folder: Path) -> dict[str, Dataset]:
    """Name the pipelines whose allocations are counted."""
    x, y = arrays(8_192)
    path = folder / "rows.npy"
    np.save(path, x)
    pictures = Dataset.from_tensor_slices(images(4_096))

    def work(image, label):
        return augment(image), label

    parts = {
        "in memory": Dataset.from_tensor_slices((x, y)).shuffle(1_000),
        "file": Dataset.from_tensor_slices((np.load(path, mmap_mode="r"), y)),
        "map": pictures.map(work),
        "parallel map": pictures.map(work, num_parallel_calls=2),
    }
    return {name: data.batch(32).prefetch(4) for name, data in parts.items()}


def allocations() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        return [
            {"pipeline": name, "pool_blocks_a_batch": counted(data)}
            for name, data in pipelines(Path(folder)).items()
        ]


def counted(data: Dataset) -> float:
    """Count the blocks that a batch takes from the pool, over 50 behind 20 others.

    All arrays of a pipeline are made in its rings or in the pool, in all its threads.
    """
    pool = mc.config.logical_device().pool
    with iter(data.repeat()) as batches:
        for _ in range(20):
            next(batches)
        before = pool.stats().allocation_count
        for _ in range(50):
            next(batches)
        return (pool.stats().allocation_count - before) / 50


# --- the whole


def environment(options: argparse.Namespace) -> dict[str, Any]:
    peers = {name: installed(name) for name in ("torch", "tensorflow-cpu")}
    counts = {"repeats": options.repeats, "steps": options.steps}
    return machine.facts() | peers | counts


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = ("waiting", "peers", "allocations")
    parser.add_argument("--part", action="append", choices=parts, help="only this")
    parser.add_argument("--workload", choices=WORKLOADS, help="of the peers, only this")
    parser.add_argument("--repeats", type=int, default=7, help="turns")
    parser.add_argument("--steps", type=int, default=60, help="of an epoch that waits")
    parser.add_argument("--output", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    options.part = options.part or list(parts)
    return options


def show(results: dict[str, Any]) -> None:
    for case in results.get("waiting", []):
        step = case["step_seconds"] * 1e3
        print(f"\nwaiting, {case['threads']} threads, steps of {step:.1f} ms")
        for name, ratios in case["ratios"].items():
            print(f"  {name:<10}{spread(ratios)} x computing alone")
    for case in results.get("peers", []):
        print(f"\n{case['workload']}")
        best = statistics.median(case["items_a_second"]["memcfg"])
        for name, rates in case["items_a_second"].items():
            ratio = best / statistics.median(rates)
            rss = case["peak_rss"][name] / 2**20
            print(f"  {name:<20}{spread(rates)} items/s  {ratio:6.2f}  {rss:6.0f} MiB")
    for case in results.get("allocations", []):
        count = case["pool_blocks_a_batch"]
        print(f"{case['pipeline']:<14}{count:g} blocks of the pool a batch")


def spread(values: list[float]) -> str:
    middle = statistics.median(values)
    return f"{middle:>12.4g} ({min(values):.4g} to {max(values):.4g})"


def main() -> None:
    options = parse()
    parts = {
        "waiting": lambda: waiting(options),
        "peers": lambda: compared(options),
        "allocations": allocations,
    }
    results = {name: parts[name]() for name in options.part}
    show(results)
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        document = {"environment": environment(options), **results}
        text = json.dumps(document, indent=1) + "\n"
        options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
