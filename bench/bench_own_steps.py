"""Compare the time of a train_step of one's own with that of the built-in step.

The step is that of the guide, with a tape, `compute_loss` and metrics; both models have
the same weights and update them to the same bits. They fit in turns, in one process.
Two networks: that of ``memcfg demo``, whose step takes milliseconds, and one so small
that a step is Python's time alone. Times are printed, not asserted.

What was expected: the same kernels run, so the difference is Python's between two
steps, some 10 to 30 microseconds: it looks up the program by the data's shapes, and
adds the sums of metrics.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from machine import facts

import memcfg as mc
from memcfg.commands._digits import residual_network

nn = mc.nn


def tiny_network() -> nn.Model:
    """Build a network whose step is Python's time."""
    layers = [nn.Dense(8, activation="relu"), nn.Dense(10)]
    return nn.Sequential([nn.Input((8,)), *layers])


NETWORKS = {"demo": (residual_network, 64, 20), "tiny": (tiny_network, 32, 400)}


class BuiltIn(nn.Model):
    """A network in a subclass."""

    def __init__(self, network: nn.Model) -> None:
        super().__init__()
        self.network = network

    def call(self, x: Any) -> Any:
        return self.network(x)


class Own(BuiltIn):
    """The same with a step of its own."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with mc.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
        weights = self.trainable_weights
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}


def measure(name: str, turns: int, part: int) -> dict[str, Any]:
    """Fit both models in turns; return seconds a step and their ratio."""
    build, batch, steps = NETWORKS[name]
    steps = max(1, steps // part)
    models = []
    for kind in (BuiltIn, Own):
        nn.set_random_seed(0)
        model = kind(build())
        loss = nn.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(nn.Adam(1e-3), loss, metrics=["accuracy"])
        models.append(model)
    generator = np.random.default_rng(0)
    shape = models[0].network.input_shape[1:]
    x = generator.standard_normal((batch * steps, *shape)).astype(np.float32)
    y = generator.integers(0, 10, batch * steps).astype(np.int32)
    options: dict[str, Any] = {"batch_size": batch, "shuffle": False, "verbose": 0}
    for model in models:
        model.fit(x, y, **options)  # compiles
    taken: list[list[float]] = [[], []]
    for _ in range(turns):
        for model, seconds in zip(models, taken, strict=True):
            begin = time.perf_counter()
            model.fit(x, y, **options)
            seconds.append((time.perf_counter() - begin) / steps)
    pairs = zip(models[0].get_weights(), models[1].get_weights(), strict=True)
    built_in, own = map(statistics.median, taken)
    ratios = [b / a for a, b in zip(*taken, strict=True)]
    return {
        "network": name,
        "batch_size": batch,
        "steps": steps,
        "turns": turns,
        "same_bits": all(np.array_equal(a, b) for a, b in pairs),
        "built_in_seconds": built_in,
        "own_seconds": own,
        "ratio": statistics.median(ratios),
        "ratios": [min(ratios), max(ratios)],
        "peak_bytes": [model.memory_plan.peak_bytes for model in models],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="write results as JSON")
    parser.add_argument("--quick", action="store_true", help="a tenth of all")
    options = parser.parse_args()
    cases = []
    for name in NETWORKS:
        turns, part = (2, 10) if options.quick else (15, 1)
        cases.append(measure(name, turns, part))
        print(json.dumps(cases[-1]), flush=True)
    if options.output:
        document = {"environment": facts(), "cases": cases}
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
