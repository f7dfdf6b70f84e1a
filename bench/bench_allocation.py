"""Plan five networks within four limits by the rules that divide memory.

Limits lie between the smallest of `by_need`, 0 %, and the peak of `share` with the
default algorithms, 100 %. Times are nominal,
and each convolution has three algorithms: the default one with half of its output as
scratch, a fast one (0.7 of the time, two outputs), and a slow one (twice the time, no
scratch). No plan depends on the machine, except for the seconds of planning.

``python bench allocation --output bench/results/allocation.json``
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import machine

from memcfg.commands._tasks import Task
from memcfg.errors import InfeasiblePlanError
from memcfg.graph import Algorithm, Graph
from memcfg.plan import POLICIES, share, validate

NETWORKS = ("alexnet", "vgg16", "resnet18", "mobilenet", "unet")
PERCENT = (110, 70, 40, 10)
METHODS = (
    *("by_need", "by_priority", "balanced"),
    *("workspace_priority", "workspace_balanced", "ucudnn_wd"),
    *("sqrt_checkpoint", "auto", "auto_algorithms"),
)


def graph_of(name: str, batch: int) -> Graph:
    """Return a training step whose convolutions have three algorithms."""
    graph = Task(name, batch).graph()
    ops = []
    for op in graph.ops:
        rows: tuple[Algorithm, ...] = ()
        scratch = 0
        if "conv" in op.type:
            out = max(graph.tensors[t].nbytes for t in op.outputs)
            scratch = out // 2
            rows = (
                Algorithm("default", op.seconds, scratch),
                Algorithm("fast", 0.7 * op.seconds, 2 * out),
                Algorithm("slow", 2.0 * op.seconds, 0),
            )
        ops.append(replace(op, scratch_bytes=scratch, algorithms=rows))
    return replace(graph, ops=tuple(ops), tiers=())


def planned(name: str, graph: Graph, limit: int) -> dict:
    """Plan once, and let the judge prove the plan."""
    began = time.process_time()
    try:
        plan = POLICIES[name]()(graph, limit)
    except InfeasiblePlanError as refusal:
        found = {"needs_bytes": refusal.smallest_limit_bytes}
    else:
        validate(graph, plan)
        found = {
            "seconds": plan.elapsed_seconds,
            "recompute_seconds": plan.predicted.recompute_seconds,
            "peak_bytes": plan.peak_bytes,
        }
    return {"method": name, **found, "planned": round(time.process_time() - began, 3)}


def measure(name: str, batch: int) -> dict:
    graph = graph_of(name, batch)
    peak = share()(graph).peak_bytes
    floor = planned("by_need", graph, 1)["needs_bytes"]
    limits = []
    for percent in PERCENT:
        limit = floor + (peak - floor) * percent // 100
        methods = [planned(each, graph, limit) for each in METHODS]
        limits.append({"percent": percent, "limit_bytes": limit, "methods": methods})
        cells = (f"{e['method']} {e.get('seconds', 0):.4f}" for e in methods)
        print(name, f"{percent}%", *cells, flush=True)
    return {
        "network": name,
        "batch": batch,
        "ops": len(graph.ops),
        "floor_bytes": floor,
        "share_bytes": peak,
        "limits": limits,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    results = []
    for name in options.networks.split(","):
        results.append(measure(name, options.batch))
        if options.output is not None:  # what there is, if the rest fails
            text = json.dumps({"environment": machine.facts(), "results": results})
            for first in ("method", "percent", "network"):
                text = text.replace(f'{{"{first}"', f'\n{{"{first}"')
            options.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
