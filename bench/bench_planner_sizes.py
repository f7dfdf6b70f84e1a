"""Plan training steps of six shapes, from a thousand to a hundred thousand ops.

Graphs are made here, without layers: each forward op has a backward op that reads its
inputs and the gradient of its output, and gradients of a tensor with several readers
are added up. A method plans in a process of its own, at a percentage of the peak of
`share`; the table has processor seconds, the most memory of that process above what it
had before, the peak and the recomputation. Asserts nothing.

``python bench planner_sizes --shapes chain,unet --sizes 1000,3000 --methods share``
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import time
from itertools import pairwise
from pathlib import Path

import machine
from bench_plans import apart, names

from memcfg.errors import InfeasiblePlanError
from memcfg.graph import Graph, Op, Tensor
from memcfg.plan import POLICIES, Plan

SIZES = 1_000, 3_000, 10_000, 30_000, 100_000
KIB = 1024
Forward = list[tuple[list[int], int, float]]  # inputs (-1: the data), bytes, seconds


def chain(n: int) -> Forward:
    """n ops in a row, of four sizes."""
    return [([i - 1], KIB << (i % 4), 1.0 + i % 3) for i in range(n)]


def residual(n: int) -> Forward:
    """Blocks of two ops and a sum with what the block read."""
    rows: Forward = []
    for block in range(n // 3):
        first = 3 * block - 1
        rows.append(([first], 4 * KIB, 4.0))
        rows.append(([first + 1], 4 * KIB, 4.0))
        rows.append(([first + 2, *([first] if block else [])], 4 * KIB, 0.5))
    return rows


def unet(n: int) -> Forward:
    """Five levels down and up, joined at each level; 11 stages of one length."""
    length, rows, skips = max(1, n // 11), list[tuple[list[int], int, float]](), []
    for stage in range(11):
        level = min(stage, 10 - stage)
        for place in range(length):
            reads = [len(rows) - 1]
            if stage > 5 and place == 0:
                reads.append(skips[level])
            rows.append((reads, 32 * KIB >> level, 4.0))
        skips.append(len(rows) - 1)
    return rows


def dense(n: int) -> Forward:
    """Blocks of twelve ops, each of which reads all earlier ones of the block."""
    rows: Forward = []
    for i in range(n):
        first = i // 12 * 12 - 1
        rows.append((list(range(max(first, -1), i)), 2 * KIB, 2.0 + i % 12))
    return rows


def transformer(n: int) -> Forward:
    """Layers of thirteen ops: attention and two products, each with a sum around it."""
    parts = [  # reads, relative to the first op of the layer; KiB; seconds
        ([-1], 4, 0.5),  # norm
        *[([0], 4, 4.0)] * 3,  # query, key, value
        ([1, 2], 16, 2.0),  # scores
        ([4], 16, 1.0),  # softmax
        ([5, 3], 4, 2.0),  # context
        ([6], 4, 4.0),  # projection
        ([7, -1], 4, 0.5),
        ([8], 4, 0.5),  # norm
        ([9], 16, 8.0),
        ([10], 16, 1.0),
        ([11, 8], 4, 8.0),  # product and sum
    ]
    return [
        ([i - i % 13 + part for part in reads], size * KIB, seconds)
        for i in range(n)
        for reads, size, seconds in parts[i % 13 : i % 13 + 1]
    ]


def layered(n: int) -> Forward:
    """Layers of eight ops, each of which reads one to three of two layers before."""
    chance = random.Random(0)
    rows: Forward = []
    for i in range(n):
        end = i // 8 * 8
        known = range(max(0, end - 16), end)
        reads = chance.sample(known, chance.randint(1, 3)) if known else [-1]
        size = chance.choice((1, 2, 4, 8)) * KIB
        rows.append((reads, size, chance.uniform(0.5, 4.0)))
    return rows


SHAPES = {
    each.__name__: each for each in (chain, residual, unet, dense, transformer, layered)
}


def training_step(name: str, rows: Forward) -> Graph:
    """Return a graph of forward ops, a loss, backward ops and sums of gradients."""
    tensors = [Tensor("data", 4 * KIB, "input")]
    ops: list[Op] = []

    def tensor(label: str, nbytes: int, role: str) -> int:
        tensors.append(Tensor(label, nbytes, role))
        return len(tensors) - 1

    made: list[int] = []
    read: set[int] = set()
    for i, (reads, nbytes, seconds) in enumerate(rows):
        made.append(tensor(f"x{i}", nbytes, "activation"))
        inputs = tuple(made[each] if each >= 0 else 0 for each in reads)
        read.update(reads)
        ops.append(Op(f"f{i}", "f", "forward", inputs, (made[i],), seconds=seconds))
    gradients: dict[int, list[int]] = {}
    ends = [i for i in range(len(rows)) if i not in read]
    for end in ends:
        gradients[end] = [tensor(f"d{end}", rows[end][1], "activation_gradient")]
    inputs = tuple(made[end] for end in ends)
    outputs = tuple(gradients[end][0] for end in ends)
    ops.append(Op("loss", "f", "backward", inputs, outputs, seconds=0.5))
    for i in reversed(range(len(rows))):
        reads, nbytes, seconds = rows[i]
        parts = gradients.pop(i)
        for number, (one, other) in enumerate(pairwise(parts)):
            total = tensor(f"d{i}+{number}", nbytes, "activation_gradient")
            before = one if number == 0 else total - 1
            ops.append(
                Op(
                    f"s{i}.{number}",
                    "s",
                    "backward",
                    (before, other),
                    (total,),
                    in_place=((before, total),),
                    seconds=0.5,
                )
            )
        gradient = parts[0] if len(parts) == 1 else len(tensors) - 1
        outputs = []
        for each in reads:
            size = rows[each][1] if each >= 0 else 4 * KIB
            outputs.append(tensor(f"d{i}>{each}", size, "activation_gradient"))
            gradients.setdefault(each, []).append(outputs[-1])
        inputs = (*(made[each] if each >= 0 else 0 for each in reads), gradient)
        ops.append(
            Op(f"b{i}", "b", "backward", inputs, tuple(outputs), seconds=2 * seconds)
        )
    keep = (gradients[-1][0],)
    return Graph(name, tuple(tensors), tuple(ops), keep)


def graph_of(shape: str, size: int) -> Graph:
    """Return a step of a shape with about so many ops."""
    few = training_step(shape, SHAPES[shape](size // 4))
    forward = size // 4 * size // len(few.ops)
    return training_step(f"{shape} {size}", SHAPES[shape](forward))


def plan(method: str, graph: Graph, limit: int | None) -> dict:
    """Plan once, in this process."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    try:
        made: Plan = POLICIES[method]()(graph, limit)
    except InfeasiblePlanError as refusal:
        found: dict = {"needs_bytes": refusal.smallest_limit_bytes}
    else:
        recomputed = made.predicted.recompute_seconds
        found = {
            "method": made.method,
            "peak_bytes": made.peak_bytes,
            "recompute": recomputed / (made.predicted.seconds - recomputed),
        }
    seconds = time.process_time() - began
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most
    return {"seconds": seconds, "bytes": more * KIB, **found}


def measure(shape: str, size: int, options) -> list[dict]:
    """Plan one graph by every method, at every limit."""
    graph = graph_of(shape, size)
    roomy = apart(plan, "share", graph, None, cap=options.cap)
    rows = []
    for method in options.methods:
        for percent in [None] if method == "share" else options.percent:
            limit = None
            if roomy is not None and percent is not None:
                limit = roomy["peak_bytes"] * percent // 100
            found = roomy
            if limit is not None:
                found = apart(plan, method, graph, limit, cap=options.cap)
            row = {"shape": shape, "ops": len(graph.ops), "asked": method}
            row |= {"percent": percent, "limit_bytes": limit, **(found or {})}
            print(told(row, roomy), flush=True)
            rows.append(row)
    return rows


def told(row: dict, roomy: dict | None) -> str:
    """Return a line of the table."""
    words = f"{row['shape']:12}{row['ops']:8} {row['asked']:18}{row['percent'] or '':4}"
    if "seconds" not in row or roomy is None:
        return f"{words}  no answer"
    words += f"{row['seconds']:8.2f} s {row['bytes'] / 2**20:6.0f} MiB "
    if "needs_bytes" in row:
        return words + f"needs {row['needs_bytes'] / roomy['peak_bytes']:.1%}"
    words += f"{row['peak_bytes'] / roomy['peak_bytes']:7.1%} "
    return words + f"{row['recompute']:+7.2%} {row['method']}"


def numbers(text: str) -> list[int]:
    return [*map(int, text.split(","))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", type=names, default=list(SHAPES))
    parser.add_argument("--sizes", type=numbers, default=list(SIZES))
    parser.add_argument("--methods", type=names, default=["share", "auto"])
    parser.add_argument("--percent", type=numbers, default=[60])
    parser.add_argument("--cap", type=float, default=60, help="processor s a plan")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if unknown := set(options.methods) - set(POLICIES):
        sys.exit(f"no method: {', '.join(sorted(unknown))}")
    results = []
    for shape in options.shapes:
        for size in options.sizes:
            results += measure(shape, size, options)
    if options.output is not None:
        place = machine.facts() | {"cap_seconds": options.cap}
        text = json.dumps({"environment": place, "results": results})
        options.output.parent.mkdir(parents=True, exist_ok=True)
        text = text.replace('{"shape"', '\n{"shape"')
        options.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
