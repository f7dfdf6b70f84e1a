"""What a budget costs where the model fits: steps beside eager's, in turns.

Each turn has a step of eager, of a budget of all that eager needs, and of a twin of
eager, in this order or backwards; the twin says what a ratio of 1 looks like. Ratios
are of steps of one turn. Nothing is computed again: the peak of the step without a plan
is within the limit. Run it as ``chrt -f 50 taskset -c 0 python bench
torch_overhead``, on one thread of a core that is its own, and with
``MALLOC_TRIM_THRESHOLD_`` and ``MALLOC_MMAP_THRESHOLD_`` of some GiB: else steps differ
by what the C library gives back to the system in between.

Asserts no time. That nothing is computed again, and that losses and gradients have
the bits of the graph without a plan, it does. Networks of large steps have fewer turns.

What was expected before the first measurement: 1 % at most, where a step takes more
than some 20 ms; what PyTorch runs around compiled graphs, some 0.1 ms, shows in smaller
ones.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import math
import os
import statistics
import sys
import time
import warnings
from functools import partial
from pathlib import Path

import torch
from bench_codecs import environment
from torch import nn

import memcfg.torch as mt
from memcfg.plan import Compute

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from beside_torchvision import theirs
from torch_allocations import pool_peak
from torch_networks import GPT, Recurrent


def vgg() -> nn.Module:
    layers, width = [], 3
    for wider in (32, 64, 128, 128):
        layers += [nn.Conv2d(width, wider, 3, padding=1), nn.ReLU()]
        layers += [nn.Conv2d(wider, wider, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        width = wider
    layers += [nn.Flatten(), nn.Linear(2048, 256), nn.ReLU(), nn.Linear(256, 10)]
    return nn.Sequential(*layers)


images = partial(torch.randn, 8, 3, 64, 64)
# By name: how it is made, and its inputs.
NETWORKS = {
    "resnet18": (theirs.resnet18, images),
    "gpt": (partial(GPT, 512, 128, 64, 4), partial(torch.randint, 512, (8, 64))),
    "lstm": (partial(Recurrent, 60, 128), partial(torch.randint, 60, (16, 24))),
    "vgg": (vgg, images),
    "resnet50": (theirs.resnet50, partial(torch.randn, 16, 3, 96, 96)),
    "vgg16": (theirs.vgg16, partial(torch.randn, 16, 3, 64, 64)),
}
MOST = 150  # seconds of a network's turns
FEWEST = 15  # turns


def step(module: nn.Module, run, x, y):
    """One step without the update: the loss; gradients are in the module."""
    for each in module.parameters():
        each.grad = None
    torch.manual_seed(1)
    loss = nn.functional.cross_entropy(run(x), y)
    loss.backward()
    return loss.detach()


def seconds_of(module: nn.Module, run, x, y) -> float:
    began = time.perf_counter()
    step(module, run, x, y)
    return time.perf_counter() - began


def spread(values: list[float]) -> list[float]:
    """The quartiles."""
    return statistics.quantiles(values, n=4)


def measure(name: str, turns: int) -> dict:
    make, rows = NETWORKS[name]
    torch._dynamo.reset()
    torch.manual_seed(0)
    original, x = make(), rows()
    for each in original.modules():
        if getattr(each, "inplace", False):
            each.inplace = False
    y = torch.randint(10, (len(x),))
    data = x, y
    eager, twin, free, module = (copy.deepcopy(original) for _ in range(4))
    step(eager, eager, *data), step(eager, eager, *data)
    most = pool_peak(eager, x, partial(step, eager, eager, *data))
    unplanned = mt.budget(free, math.inf)
    # Where the graph keeps more than eager, its own peak is what fits.
    limit = max(most, mt.estimate(copy.deepcopy(original), (x,)).peak_bytes)
    run = mt.budget(module, limit)
    losses = step(module, run, *data), step(free, unplanned, *data)
    pairs = zip(module.parameters(), free.parameters(), strict=True)
    if not torch.equal(*losses) or not all(
        torch.equal(a.grad, b.grad) for a, b in pairs
    ):
        raise SystemExit(f"{name}: other bits")
    computed = [
        a.op for a in mt.get_budget(run).memory_plan.actions if isinstance(a, Compute)
    ]
    if len(computed) != len(set(computed)):
        raise SystemExit(f"{name}: something is computed again")
    mt.limit_cpu(None)  # as users have it
    ways = (eager, eager), (module, run), (twin, twin)
    for _ in range(3):
        for way in ways:
            step(*way, *data)
    found: list[list[float]] = []
    one = sum(seconds_of(*way, *data) for way in ways)
    turns = min(turns, max(FEWEST, int(MOST / one)))
    gc.collect()
    gc.disable()
    for turn in range(turns):
        order = (0, 1, 2) if turn % 2 == 0 else (2, 1, 0)
        seconds = {at: seconds_of(*ways[at], *data) for at in order}
        found.append([seconds[at] for at in range(3)])
        gc.collect()
    gc.enable()
    mt.limit_cpu("16GiB", tag_modules=False)
    return {
        "network": name,
        "turns": turns,
        "eager_bytes": most,
        "limit_bytes": limit,
        "eager_seconds": spread([each[0] for each in found]),
        "budget_ratio": spread([each[1] / each[0] for each in found]),
        "control_ratio": spread([each[2] / each[0] for each in found]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=101, help="turns")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS)
    parser.add_argument("--output", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    options.clock = "wall"
    torch.set_num_threads(1)
    mt.limit_cpu("16GiB", tag_modules=False)
    warnings.simplefilter("ignore")
    results = []
    for network in options.networks:
        made = measure(network, options.repeats) | {"load": os.getloadavg()[0]}
        results.append(made)
        print(
            f"{network:<10} eager {1e3 * made['eager_seconds'][1]:8.2f} ms   "
            f"budget {made['budget_ratio'][1]:.4f} "
            f"({made['budget_ratio'][0]:.3f} to {made['budget_ratio'][2]:.3f})   "
            f"eager again {made['control_ratio'][1]:.4f} "
            f"({made['control_ratio'][0]:.3f} to {made['control_ratio'][2]:.3f})",
            flush=True,
        )
    if options.output is not None:
        place = environment(options) | {"torch": torch.__version__}
        document = {"environment": place, "results": results}
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
