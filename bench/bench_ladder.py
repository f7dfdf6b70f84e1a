"""What a limit costs: memcfg's steps at ever lower limits, beside PyTorch's ways.

For each network a process a point, the points of both libraries in turns: the same
batch, threads and optimizer (SGD with momentum). memcfg trains at 100, 75, 50 and 35
percent of its default peak, that of `share`, and at the floor of `auto`. PyTorch has no
limit, so its points are what its users turn: `torch.utils.checkpoint` with several
numbers of segments, and `torch.compile` with several of
`torch._functorch.config.activation_memory_budget`. Images are channels last. A process
reports the seconds of a step, and the most memory it had in steps, the first two aside,
above what it had after its imports; weights are part of both. Compiled steps run in a
second process, which has the code from the first one's cache, so that what compiling
takes is not in their memory. Overheads are over the same library's step without a
limit: memcfg's at 100 percent, PyTorch's eager step, and its compiled one with a budget
of 1. At each memory of memcfg's the peer is the point of least overhead that needs no
more. Images are small, so that all of it takes minutes. Asserts nothing.

``python bench ladder --networks mobilenet --budgets 1,0.5``
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from bench_zoo import RATE, batch_of, resident

PARTS = (100, 75, 50, 35)  # percent of the default peak
SEGMENTS = (2, 4, 8, 16)
BUDGETS = (1.0, 0.5, 0.1)
WARM = 2  # steps before those that count
TABLE = Path(__file__).resolve().parents[1] / "bench" / "tables" / "ladder.py"


class Size(NamedTuple):
    """How large a network is trained: pixels a side, samples a step."""

    pixels: int
    batch: int


SIZES = {
    "resnet50": Size(96, 32),
    "unet": Size(128, 4),
    "mobilenet": Size(128, 32),
    "vgg16": Size(64, 32),
}


def network_of(name: str, size: Size):
    """Return the network for images of this size, in both libraries."""
    from zoo_peers import NETWORKS

    from memcfg import models

    shape = (size.pixels, size.pixels, 3)
    found = NETWORKS[name]._replace(shapes=(shape,), batch=size.batch)
    if name != "unet":
        return found._replace(build=lambda: getattr(models, name)(shape))
    return found._replace(
        build=lambda: models.unet(shape, 2, "same"), target=(size.pixels, size.pixels)
    )


# -- one process ------------------------------------------------------------------


def limits_of(network) -> dict:
    """Return the limits that memcfg trains at, and what they are of."""
    import memcfg as mc
    from memcfg.errors import InfeasiblePlanError

    model = compiled(network, "auto")
    graph = model.graph(network.batch)
    default = mc.plan.share()(graph).peak_bytes
    try:
        mc.plan.auto()(graph, 1)
        floor = 1
    except InfeasiblePlanError as refusal:
        floor = refusal.smallest_limit_bytes
    limits = {f"{part} %": default * part // 100 for part in PARTS}
    limits = {part: limit for part, limit in limits.items() if limit > floor}
    return {"default": default, "limits": limits | {"floor": floor}}


def compiled(network, method: str):
    import memcfg as mc

    model = network.build()
    model.compile(
        mc.nn.SGD(RATE, momentum=0.9),
        mc.nn.SparseCategoricalCrossentropy(from_logits=True),
        memory=mc.plan.POLICIES[method](),
    )
    return model


def memcfg_step(network, limit: int, method: str):
    import memcfg as mc

    mc.config.set_memory_limit("CPU:0", limit)
    model = compiled(network, method)
    xs, y = batch_of(network, network.batch)
    return lambda: model.train_on_batch(xs[0], y), model.count_params()


def torch_step(network, way: str, number: float):
    """Return a step of PyTorch's: eager, with segments, or with a memory budget."""
    import torch
    import torch._functorch.config
    from bench_training import parameter_count

    format_ = torch.channels_last
    model = network.torch_build().to(memory_format=format_)
    count = parameter_count(model) - network.extra
    xs, y = batch_of(network, network.batch)
    x = torch.from_numpy(xs[0]).permute(0, 3, 1, 2).contiguous(memory_format=format_)
    labels = torch.from_numpy(y).long()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    loss_of = torch.nn.CrossEntropyLoss()
    forward = model
    if way == "checkpoint":
        forward = in_segments(model, int(number))
    elif way == "compile":
        torch._functorch.config.activation_memory_budget = number
        forward = torch.compile(model)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(forward(x), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, count


def in_segments(model, count: int):
    """Return a network's forward pass in so many checkpointed segments.

    In a U-Net, which is no sequence, so many of its nine blocks are checkpointed, those
    of the most pixels first, with the step up and the concatenation before them.
    """
    import torch
    from torch.utils.checkpoint import checkpoint, checkpoint_sequential

    if not hasattr(model, "merge"):
        parts = sequence(model)
        return lambda x: checkpoint_sequential(
            parts, min(count, len(parts)), x, use_reentrant=False
        )
    order = [0, 8, 1, 7, 2, 6, 3, 5, 4][:count]

    def run(place: int, block, *inputs):
        if place in order:
            return checkpoint(block, *inputs, use_reentrant=False)
        return block(*inputs)

    def forward(x):
        skips = []
        for place, block in enumerate(model.down):
            x = run(place, block, x)
            skips.append(x)
            x = torch.nn.functional.max_pool2d(x, 2)
        x = model.dropout(run(4, model.bottom, x))
        pairs = zip(model.up, model.merge, strict=True)
        for place, (up, merge) in enumerate(pairs, 5):

            def join(skip, x, up=up, merge=merge):
                return merge(torch.cat([skip, up(x)], 1))

            x = run(place, join, skips.pop(), x)
        return model.head(x)

    return forward


def sequence(model) -> list:
    """List a network's modules in their order: layers, or blocks of a ResNet.

    What works in place is one with what stands before it: it would overwrite what a
    segment begins with.
    """
    from torch import nn as tn

    parts: list[tn.Module] = []
    for module in modules_of(model):
        if parts and getattr(module, "inplace", False):
            parts[-1] = tn.Sequential(parts[-1], module)
        else:
            parts.append(module)
    return parts


def modules_of(model) -> list:
    """List a network's modules in their order."""
    from torch import nn as tn

    if isinstance(model, tn.Sequential):
        return list(model)
    if hasattr(model, "features"):
        return [*model.features, model.avgpool, tn.Flatten(), *model.classifier]
    stages = (model.layer1, model.layer2, model.layer3, model.layer4)
    blocks = [block for stage in stages for block in stage]
    first = (model.conv1, model.bn1, model.relu, model.maxpool)
    return [*first, *blocks, model.avgpool, tn.Flatten(), model.fc]


def forget_peak() -> None:
    """Have ``VmHWM`` begin anew, at what the process needs now."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def work(options) -> None:
    """Be one process at one point: print what was measured."""
    import torch  # both have what the other has, so that the start is the same

    from memcfg._core import set_num_threads

    torch.set_num_threads(options.threads)
    set_num_threads(options.threads)
    way, number = options.way, options.number
    network = network_of(options.worker, size_of(options.worker, options))
    if way == "limits":
        print(json.dumps(limits_of(network)))
        return
    before = resident("VmRSS")
    if way == "memcfg":
        step, count = memcfg_step(network, int(number), options.method)
    else:
        step, count = torch_step(network, way, number)
    for _ in range(WARM):
        step()
    forget_peak()
    began = time.perf_counter()
    step()
    once = time.perf_counter() - began
    found = []
    for _ in range(max(2, min(2000, int(options.seconds / once)))):
        began = time.perf_counter()
        step()
        found.append(time.perf_counter() - began)
    result = {
        "seconds": statistics.median(found),
        "memory": resident("VmHWM") - before,
        "parameters": count,
    }
    print(json.dumps(result))


# -- all of them ------------------------------------------------------------------


def size_of(name: str, options) -> Size:
    """Return the size to train at: the network's, or what was asked for."""
    size = SIZES[name]
    return Size(options.pixels or size.pixels, options.batch or size.batch)


def run(name: str, way: str, number: float, options, **changes: Any) -> dict:
    given = {"seconds": options.seconds, "method": "auto"} | changes
    command = [sys.executable, __file__, "--worker", name, "--way", way]
    command += ["--number", repr(number), "--threads", str(options.threads)]
    command += ["--seconds", str(given["seconds"]), "--method", given["method"]]
    command += ["--pixels", str(options.pixels), "--batch", str(options.batch)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}, {way} {number}:\n{done.stderr[-2000:]}")
    found: dict = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(name: str, options) -> dict:
    began = time.perf_counter()
    found = run(name, "limits", 0, options)
    own = [
        {"way": "memcfg", "number": limit, "part": part, "method": method}
        for part, limit in found["limits"].items()
        for method in options.methods
    ]
    other = [
        {"way": "eager", "number": 0},
        *({"way": "checkpoint", "number": count} for count in options.segments),
        *({"way": "compile", "number": budget} for budget in options.budgets),
    ]
    for point in other:
        if point["way"] == "compile":  # once for the cache
            run(name, "compile", point["number"], options, seconds=0)
    turns: list[list[dict]] = [[] for _ in (*own, *other)]
    for _ in range(options.turns):
        for taken, point in zip(turns, (*own, *other), strict=True):
            changes = {key: point[key] for key in ("method",) if key in point}
            taken.append(run(name, point["way"], point["number"], options, **changes))
    counts = {taken[0]["parameters"] for taken in turns}
    if len(counts) > 1:
        raise SystemExit(f"{name} is not the same network in both libraries: {counts}")
    for taken, point in zip(turns, (*own, *other), strict=True):
        point["seconds"] = statistics.median(each["seconds"] for each in taken)
        point["memory"] = min(each["memory"] for each in taken)
    return {
        "network": name,
        **size_of(name, options)._asdict(),
        "default_peak_bytes": found["default"],
        "points": [*own, *other],
        "took_seconds": time.perf_counter() - began,
    }


def write(results: list[dict], options) -> None:
    from bench_training import environment

    if options.output is None:
        return
    place = environment(options.threads) | {"turns": options.turns}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    document = {"environment": place, "results": results}
    options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def listed(read):
    return lambda text: [read(each) for each in text.split(",") if each]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", type=listed(str), default=list(SIZES))
    parser.add_argument("--methods", type=listed(str), default=["auto"])
    parser.add_argument("--segments", type=listed(int), default=list(SEGMENTS))
    parser.add_argument("--budgets", type=listed(float), default=list(BUDGETS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3, help="of each process")
    parser.add_argument("--pixels", type=int, default=0, help="the network's, if 0")
    parser.add_argument("--batch", type=int, default=0, help="the network's, if 0")
    parser.add_argument("--output", type=Path)
    ways = ("limits", "memcfg", "eager", "checkpoint", "compile")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--way", choices=ways, help=argparse.SUPPRESS)
    parser.add_argument("--number", type=float, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--method", default="auto", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options)
        return
    rows = runpy.run_path(str(TABLE))["rows"]
    results = []
    with tempfile.TemporaryDirectory() as cache:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", cache)
        for name in options.networks:
            results.append(measure(name, options))
            print("\n".join(rows(results[-1])), flush=True)
            write(results, options)  # what is there, if the rest fails


if __name__ == "__main__":
    main()
