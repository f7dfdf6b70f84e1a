"""Measure the workspace modes: peak bytes and the time of a training step.

Each network is trained in every `WorkspaceMode`, and with one workspace that a
`LayerWorkspaceMgr` names for all kinds of arrays (`layer_workspaces`), with the same
kernels on the same batches. Bytes are the pool's numbers while one model is alone,
exact and the same in every run. Steps are timed in turns, one of each mode, in one
process; a ratio compares a turn with the turn of the planned default in the same round.
Prints a table, and asserts that all modes give the same bits, not that any is fast.

What was expected before the first measurement:

* Bytes: NONE holds what is live, as the planned default does, but puts no output in the
  place of its input and keeps gradients until the end: 1.1 to 1.5 times the default.
  SINGLE holds everything a step ever makes, scratch included: 3 to 10 times. SEPARATE
  keeps what the backward pass reads, and its turns: 1.2 to 2 times, well below SINGLE.
* Time: all modes run in one loop, without Python an op. NONE takes and gives back a
  buffer an op, half a microsecond each; SINGLE and SEPARATE touch more bytes, which
  are seldom in the cache.

What was found before 2026-11-22, when a mode walked the graph in Python: bytes as
expected (NONE 1.0 to 1.3, SINGLE 3.1 to 3.5, SEPARATE 1.03 to 1.95); NONE took 1.1 to
1.3 times the default's time, SEPARATE 1.3 to 1.5, SINGLE 1.3 to 1.6. Since 2026-11-28
SINGLE and SEPARATE are named workspaces: SEPARATE has an arena by kind, in which bytes
are used again, where it had some by layer that were filled and reset.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

import machine
import numpy as np

import memcfg as mc
from memcfg.commands._digits import residual_network

if TYPE_CHECKING:
    from collections.abc import Callable

nn = mc.nn
NAMED = "layer_workspaces"  # one workspace for all kinds of arrays
MODES = [*(mode.value for mode in mc.WorkspaceMode), NAMED]
DEFAULT = "enabled"


def lenet5() -> nn.Model:
    return nn.Sequential(
        [
            nn.Conv2D(6, 5, padding="same", activation="relu"),
            nn.MaxPool2D(2),
            nn.Conv2D(16, 5, activation="relu"),
            nn.MaxPool2D(2),
            nn.Flatten(),
            nn.Dense(120, activation="relu"),
            nn.Dense(84, activation="relu"),
            nn.Dense(10),
        ]
    )


def deep_chain() -> nn.Model:
    layers: list[nn.Layer] = []
    for _ in range(30):
        layers += [nn.Conv2D(16, 3, padding="same"), nn.BatchNormalization(), nn.ReLU()]
    return nn.Sequential([*layers, nn.GlobalAveragePooling2D(), nn.Dense(10)])


# Name -> input shape (height, width, channels), batch size, network.
NETWORKS: dict[str, tuple[tuple[int, int, int], int, Callable[[], nn.Model]]] = {
    "LeNet-5": ((28, 28, 1), 64, lenet5),
    "residual digits": ((8, 8, 1), 64, residual_network),
    "chain of 30 convolutions": ((16, 16, 3), 32, deep_chain),
}


def compiled(network: Callable[[], nn.Model], mode: str) -> nn.Model:
    nn.set_random_seed(1)
    model = network()
    if mode == NAMED:
        manager = mc.workspaces.LayerWorkspaceMgr().default_workspace("step")
        options = {"layer_workspaces": manager}
    else:
        names = ("training_workspace_mode", "inference_workspace_mode")
        options = dict.fromkeys(names, mode)
    model.compile(
        nn.SGD(0.01, momentum=0.9),
        nn.SparseCategoricalCrossentropy(from_logits=True),
        **options,
    )
    return model


def random_batch(shape: tuple[int, int, int], rows: int) -> tuple:
    generator = np.random.default_rng(0)
    x = generator.random((rows, *shape), np.float32)
    return x, generator.integers(0, 10, rows).astype(np.int32)


def peak_bytes(model: nn.Model, act: Callable[[], object]) -> int:
    """Return the most bytes of the pool while an act runs for the first two times."""
    pool = mc.config.logical_device().pool
    model.close()
    pool.reset_peak()
    for _ in range(2):
        act()
    return pool.stats().peak_bytes


def bytes_of(network: Callable[[], nn.Model], mode: str, batch: tuple) -> dict:
    """Return peaks, and what a step allocates once it has run twice."""
    model, (x, y) = compiled(network, mode), batch
    pool = mc.config.logical_device().pool
    losses = [model.train_on_batch(x, y) for _ in range(3)]
    before = pool.stats().allocation_count
    losses.append(model.train_on_batch(x, y))
    allocations = pool.stats().allocation_count - before
    found = {
        "losses": losses,
        "weights": [weight.tobytes() for weight in model.get_weights()],
        "training_peak_bytes": peak_bytes(model, lambda: model.train_on_batch(x, y)),
        "inference_peak_bytes": peak_bytes(model, lambda: model.predict_on_batch(x)),
        "allocations_a_step": allocations,
    }
    model.close()
    if pool.stats().current_bytes:
        raise SystemExit(f"{mode}: bytes are left: {pool.owners()}")
    return found


def seconds_of(model: nn.Model, batch: tuple, steps: int) -> float:
    began = time.perf_counter()
    for _ in range(steps):
        model.train_on_batch(*batch)
    return (time.perf_counter() - began) / steps


def timed(network: Callable[[], nn.Model], batch: tuple, options) -> dict[str, list]:
    """Time the modes in turns."""
    models = {mode: compiled(network, mode) for mode in MODES}
    first = [seconds_of(model, batch, 3) for model in models.values()]
    steps = max(2, int(options.seconds / max(first)))
    turns: dict[str, list[float]] = {mode: [] for mode in MODES}
    for _ in range(options.repeats):
        for mode, model in models.items():
            turns[mode].append(seconds_of(model, batch, steps))
    for model in models.values():
        model.close()
    return turns


def measure(name: str, options: argparse.Namespace) -> list[dict]:
    shape, rows, network = NETWORKS[name]
    batch = random_batch(shape, rows)
    found = {mode: bytes_of(network, mode, batch) for mode in MODES}
    for mode in MODES:
        same = all(found[mode][k] == found[DEFAULT][k] for k in ("losses", "weights"))
        if not same:
            raise SystemExit(f"{name}: {mode} gives other numbers than {DEFAULT}")
    turns = timed(network, batch, options)
    return [row(name, rows, mode, found, turns) for mode in MODES]


def row(name: str, batch: int, mode: str, found: dict, turns: dict) -> dict:
    pairs = zip(turns[mode], turns[DEFAULT], strict=True)
    ratios = [mine / planned for mine, planned in pairs]
    peaks = {key: found[mode][key] for key in found[mode] if key.endswith("_bytes")}
    return {
        "case": f"{name}, {mode}",
        "network": name,
        "batch_size": batch,
        "mode": mode,
        **peaks,
        "training_bytes_ratio": found[mode]["training_peak_bytes"]
        / found[DEFAULT]["training_peak_bytes"],
        "allocations_a_step": found[mode]["allocations_a_step"],
        "seconds": statistics.median(turns[mode]),
        "seconds_by_turn": turns[mode],
        "ratio": statistics.median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
    }


def environment(options: argparse.Namespace) -> dict:
    kernels = mc.config.logical_device().kernels.name
    return machine.facts() | {"kernels": kernels, "repeats": options.repeats}


def show(result: dict) -> str:
    low, high = result["ratio_range"]
    return (
        f"{result['network']:<25} {result['mode']:<9} "
        f"{result['training_peak_bytes'] / 2**20:8.2f} MiB "
        f"({result['training_bytes_ratio']:5.2f}) "
        f"{result['inference_peak_bytes'] / 2**20:8.2f} MiB "
        f"{result['allocations_a_step']:4} allocations "
        f"{result['seconds'] * 1e3:8.2f} ms {result['ratio']:5.2f} "
        f"({low:.2f} to {high:.2f})"
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=9, help="turns, at least 5")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a turn")
    parser.add_argument("--output", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    if options.repeats < 5:
        parser.error("--repeats must be at least 5")
    return options


def main() -> None:
    options = parse()
    print(
        "network, mode, training peak (of the default's), inference peak, time of a "
        "step, its ratio to the default's (range over turns)"
    )
    results = []
    for name in NETWORKS:
        for result in measure(name, options):
            results.append(result)
            print(show(result), flush=True)
    if options.output is not None:
        document = {"environment": environment(options), "results": results}
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
