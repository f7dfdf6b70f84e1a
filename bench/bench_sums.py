"""Time inference with residual sums in one op with their product, and apart.

Both models are in one process and take turns, call by call. Prints the medians of the
seconds of a call; ratios (below 1, one op is faster): the median of those of two calls
that follow each other, and that of the fastest calls, which other processes disturb the
least; and the peaks that the two plans predict, weights and scratch included. Asserts
nothing.

``python bench sums --networks resnet50 --batches 1,32 --threads 1``
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from unittest.mock import patch

from bench_training import environment
from bench_zoo import batch_of
from zoo_peers import NETWORKS

import memcfg as mc
from memcfg._core import set_num_threads
from memcfg.graph import fuse_products
from memcfg.nn.training import _tracing

MIB = 1 << 20
SIDES = ("apart", "one op")


def fuse_without_sums(graph, has):
    return fuse_products(graph, lambda kind: has(kind) and "_add" not in kind)


def predicting(network, batch, side):
    """What runs a batch, and the peak of its plan."""
    fuse = fuse_products if side == "one op" else fuse_without_sums
    mc.nn.set_random_seed(0)
    model = network.build()
    xs, _ = batch_of(network, batch)
    x = xs[0] if len(xs) == 1 else xs
    with patch.object(_tracing, "fuse_products", fuse):
        model.predict_on_batch(x)
    (plan,) = model._built_session().executor.plans.values()
    return model, x, plan.predicted.peak_bytes


def measure(name, batch, options):
    made = {side: predicting(NETWORKS[name], batch, side) for side in SIDES}
    seconds = {side: [] for side in SIDES}
    end = time.perf_counter() + options.seconds
    while time.perf_counter() < end or len(seconds["apart"]) < 8:
        order = SIDES if len(seconds["apart"]) % 2 else SIDES[::-1]
        for side in order:
            model, x, _ = made[side]
            began = time.perf_counter()
            model.predict_on_batch(x)
            seconds[side].append(time.perf_counter() - began)
    for model, *_ in made.values():
        model.close()
    pairs = zip(seconds["one op"], seconds["apart"], strict=True)
    return {
        "network": name,
        "batch": batch,
        "calls": len(seconds["apart"]),
        "seconds": {side: statistics.median(seconds[side]) for side in SIDES},
        "ratio": statistics.median(own / other for own, other in pairs),
        "ratio_of_fastest": min(seconds["one op"]) / min(seconds["apart"]),
        "peak_bytes": {side: made[side][2] for side in SIDES},
    }


def row(result) -> str:
    before, after = (1e3 * result["seconds"][side] for side in SIDES)
    own, other = (result["peak_bytes"][side] / MIB for side in SIDES)
    return (
        f"{result['network']:14} {result['batch']:3} {before:9.2f} {after:9.2f} ms "
        f"{result['ratio']:.3f} {result['ratio_of_fastest']:.3f} "
        f"{own:8.2f} {other:8.2f} MiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", default="resnet18,resnet50,mobilenet_v2")
    parser.add_argument("--batches", default="1,16,32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10, help="of both together")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    set_num_threads(options.threads)
    results = []
    for name in options.networks.split(","):
        for batch in map(int, options.batches.split(",")):
            results.append(measure(name, batch, options))
            print(row(results[-1]), flush=True)
    if options.output:
        document = {"environment": environment(options.threads), "results": results}
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
