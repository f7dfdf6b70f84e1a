"""Plan the training steps of the zoo by every method, at ever lower limits.

Limits are 90, 80, ... 30 percent of the default peak, that of `share`, or down to the
smallest that a method says it needs. Each plan is made in a process of its own, on one
processor, and ends when that has taken as many processor seconds as a method is given;
lower limits of the network are then not asked of it. Times of a step are nominal, so
everything but the planning seconds is the same on every machine. A bound is a time that
no plan is below; the time that it takes is part of `auto`'s planning seconds, and of
nobody else's. Asserts
nothing.

``python bench plans --networks vgg16,unet --methods auto,rotor --cap 5``
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import resource
import sys
import time
from pathlib import Path

import machine

from memcfg.commands._tasks import Task
from memcfg.errors import InfeasiblePlanError, MemcfgError
from memcfg.plan import POLICIES, share, time_lower_bound
from memcfg.plan.search._policy import draft

NETWORKS = (
    "resnet50",
    "mobilenet",
    "unet",
    "vgg16",
    "vgg19",
    "segnet",
    "fcn8",
    "densenet121",
    "bert_encoder",
    "lstm_lm",
)
PERCENT = tuple(range(90, 20, -10))
ALONE = ("auto",)  # asked as users ask them, with the bound
LATE = "no answer"


def plan(name: str, graph, limit: int) -> dict:
    """Plan once, in this process."""
    policy = POLICIES[name]()
    began = time.process_time()
    try:
        made = policy(graph, limit) if name in ALONE else draft(policy, graph, limit)
    except InfeasiblePlanError as refusal:
        found = {"needs_bytes": refusal.smallest_limit_bytes}
    except MemcfgError as error:
        found = {"refusal": " ".join(str(error).split())}
    else:
        found = {
            "seconds": made.elapsed_seconds,
            "recompute_seconds": made.predicted.recompute_seconds,
            "peak_bytes": made.peak_bytes,
        }
    return {"method": name, **found, "planned": time.process_time() - began}


def apart(work, *arguments, cap: float):
    """Return what a function gives in a process of its own; None if that runs over."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)

    def run() -> None:
        most = math.ceil(cap)
        resource.setrlimit(resource.RLIMIT_CPU, (most, most + 1))
        theirs.send(work(*arguments))

    process = context.Process(target=run)
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        return None
    finally:
        process.join()


def rows_of(graph, default: int, options) -> list[dict]:
    """Plan a graph at every limit by every method, and at the lowest of any method."""
    late: set[str] = set()
    rows: list[dict] = []
    for limit in [default * percent // 100 for percent in PERCENT]:
        row = row_of(graph, limit, late, options)
        if not any("seconds" in each for each in row["methods"]):
            floor = min(each.get("needs_bytes", default) for each in row["methods"])
            row = row_of(graph, floor, late, options)
        rows.append(row)
        print(told(row, default), flush=True)
        if row["limit_bytes"] > limit:
            break
    return rows


def row_of(graph, limit: int, late: set[str], options) -> dict:
    began = time.process_time()
    bound = time_lower_bound(graph, limit)
    bounded = time.process_time() - began
    methods = []
    for name in options.methods:
        found = None
        if name not in late:
            found = apart(plan, name, graph, limit, cap=options.cap)
        if found is None:
            late.add(name)
            found = {"method": name, "refusal": LATE}
        methods.append(found)
    return {
        "limit_bytes": limit,
        "bound_seconds": None if math.isinf(bound) else bound,
        "bounded": bounded,
        "methods": methods,
    }


def told(row: dict, default: int) -> str:
    """Say in a line who is first at a limit, and how `auto` does."""
    plans = {each["method"]: each for each in row["methods"] if "seconds" in each}
    others = {name: each for name, each in plans.items() if name not in ALONE}
    words = [f"  {row['limit_bytes'] / default:.1%}:"]
    if "auto" in plans:
        auto = plans["auto"]
        gap = auto["seconds"] / row["bound_seconds"] - 1
        words += [f"auto {work(auto):.2%}, gap {gap:.2%}, in {auto['planned']:.2f} s;"]
    else:
        words.append("auto has no plan;")
    if others:
        best = min(others, key=lambda name: others[name]["seconds"])
        words.append(f"{best} {work(others[best]):.2%}")
    late = [each["method"] for each in row["methods"] if each.get("refusal") == LATE]
    words += [f"({LATE}: {', '.join(late)})"] if late else []
    return " ".join(words)


def work(found: dict) -> float:
    """Return the work done again as a part of the rest."""
    return found["recompute_seconds"] / (found["seconds"] - found["recompute_seconds"])


def measure(name: str, options) -> dict:
    graph = Task(name, options.batch).graph()
    default = share()(graph).peak_bytes
    print(f"{name}: {len(graph.ops)} ops, {default} B", flush=True)
    return {
        "network": name,
        "batch": options.batch,
        "ops": len(graph.ops),
        "default_peak_bytes": default,
        "limits": rows_of(graph, default, options),
    }


def write(results: list[dict], options) -> None:
    """Write what there is, a method a line."""
    if options.output is None:
        return
    place = machine.facts() | {"cap_seconds": options.cap}
    text = json.dumps({"environment": place, "results": results})
    for first in ("method", "limit_bytes", "network"):
        text = text.replace(f'{{"{first}"', f'\n{{"{first}"')
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(text + "\n", encoding="utf-8")


def names(text: str) -> list[str]:
    return text.split(",")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", type=names, default=list(NETWORKS))
    parser.add_argument("--methods", type=names, default=list(POLICIES))
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--cap", type=float, default=20, help="processor s a plan")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if unknown := set(options.methods) - set(POLICIES):
        sys.exit(f"no method: {', '.join(sorted(unknown))}")
    results = []
    for name in options.networks:
        results.append(measure(name, options))
        write(results, options)  # what is there, if the rest fails


if __name__ == "__main__":
    main()
