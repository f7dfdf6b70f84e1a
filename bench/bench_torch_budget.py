"""Train PyTorch's networks within budgets, beside PyTorch's ways to drop activations.

The peers are `torch.utils.checkpoint` around segments of blocks, as many as give other
peaks; the same around each block or all, keeping what convolutions and products gave
(selective checkpointing); and `activation_memory_budget` of the partitioner that
`torch.compile` uses. Each has a peak of its own; `budget` gets each of these peaks as
its limit, and shares of eager's. So times are compared at the same bytes. Where none
fits by computing again, tensors may leave for a file.

Bytes are those of all tensors of the process, counted by the pool of `limit_cpu`: the
state, and what a step adds at most. Steps are timed in turns with eager's in one
process, on one thread. On a machine where others work, run it as
``chrt -f 50 taskset -c 0 python ...``, and with ``MALLOC_TRIM_THRESHOLD_`` and
``MALLOC_MMAP_THRESHOLD_`` of some GiB, or steps differ by what the C library gives back
to the system in between.

Asserts no time. That limits hold, and that losses and gradients have the bits of the
graph without a plan, it does. Activations in place are put out of place for all.

What was expected before the first measurement: to checkpoint all costs a forward pass,
a third; a plan at the same bytes computes cheap ops again first, so half of that, and
nothing down to some 80 % of eager's peak.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import statistics
import sys
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path

import torch
import torch._inductor.lowering  # which decompositions of pooling ask
from bench_codecs import environment
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import memcfg.torch as mt
from memcfg.errors import InfeasiblePlanError

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from beside_torchvision import theirs
from torch_allocations import pool_peak
from torch_networks import GPT, UNet, Unrolled

SHARES = (1.0, 0.75, 0.5, 0.35)  # of eager's peak
BUDGETS = (0.8, 0.5, 0.3, 0.1, 0.0)  # of the partitioner
ROOM = 1.0005  # of a peer's peak: its scratch is known to the byte, ours as measured
aten = torch.ops.aten
KEPT = {
    *(aten.convolution.default, aten.mm.default, aten.addmm.default),
    *(aten.bmm.default, aten.baddbmm.default),
}


def images(count: int, side: int):
    return torch.randn(count, 3, side, side)


# By name: how it is made, and its inputs.
NETWORKS = {
    "resnet50": (theirs.resnet50, partial(images, 16, 96)),
    "vgg16": (theirs.vgg16, partial(images, 16, 64)),
    "densenet121": (theirs.densenet121, partial(images, 16, 64)),
    "unet": (partial(UNet, 24), partial(images, 8, 128)),
    "gpt": (
        partial(GPT, 512, 256, 128, 6),
        partial(torch.randint, 512, (16, 128)),
    ),
    "lstm": (partial(Unrolled, 256), partial(torch.randn, 64, 16, 256)),
}


def blocks_of(name: str, model: nn.Module) -> list[nn.Module] | None:
    """Return what a network runs one after another; None: it does not."""
    if name == "resnet50":
        stem = nn.Sequential(model.conv1, model.bn1, model.relu, model.maxpool)
        layers = (model.layer1, model.layer2, model.layer3, model.layer4)
        head = nn.Sequential(model.avgpool, nn.Flatten(1), model.fc)
        return [stem, *(block for layer in layers for block in layer), head]
    if name == "vgg16":
        head = nn.Sequential(model.avgpool, nn.Flatten(1), model.classifier)
        return [*model.features, head]
    if name == "densenet121":
        relu, pool = nn.ReLU(), nn.AdaptiveAvgPool2d(1)
        return [
            *model.features,
            nn.Sequential(relu, pool, nn.Flatten(1), model.classifier),
        ]
    return None


def inner_blocks(name: str, model: nn.Module) -> list[nn.Module]:
    """Return the modules that are checkpointed one by one."""
    if name == "unet":
        return [*model.down, model.middle, *model.joined]
    if name == "gpt":
        return [each for each in model.modules() if type(each).__name__ == "Block"]
    if name == "lstm":
        return []
    return blocks_of(name, model)


def segments(blocks: list[nn.Module], count: int, x):
    """Run blocks in so many segments, all but the last one checkpointed."""
    size = -(-len(blocks) // count)
    parts = [blocks[i : i + size] for i in range(0, len(blocks), size)]
    for part in parts[:-1]:
        x = checkpoint(nn.Sequential(*part), x, use_reentrant=False)
    return nn.Sequential(*parts[-1])(x)


def keeps(_context, op, *_args, **_kwargs):
    return (
        CheckpointPolicy.MUST_SAVE if op in KEPT else CheckpointPolicy.PREFER_RECOMPUTE
    )


def selective(run, *args):
    context = partial(create_selective_checkpoint_contexts, keeps)
    return checkpoint(run, *args, use_reentrant=False, context_fn=context)


def wrapped(modules: list[nn.Module], how) -> None:
    for each in modules:
        each.forward = partial(how, each.forward)


def peers(name: str, model: nn.Module):
    """Yield PyTorch's ways of a network: (method, setting, make), which runs a copy."""
    blocks = blocks_of(name, model)
    inner = inner_blocks(name, model)
    if blocks is not None:
        several = range(2, len(blocks) + 1)
        for count in sorted({2, 3, 4, 6, 8, 12, len(blocks)} & set(several)):
            yield "checkpoint", f"{count} segments", partial(segmented, name, count)
    elif inner:
        for share in (2, 1):
            yield "checkpoint", f"1 of {share} blocks", partial(each_block, name, share)
    if inner:
        yield "selective", "blocks", partial(selective_blocks, name)
    yield "selective", "all", selective_all
    for share in BUDGETS:
        yield "activation_memory_budget", f"{share}", partial(partitioned, share)


def segmented(name: str, count: int, module: nn.Module):
    return module, partial(segments, blocks_of(name, module), count)


def each_block(name: str, share: int, module: nn.Module):
    how = partial(checkpoint, use_reentrant=False)
    wrapped(inner_blocks(name, module)[::share], how)
    return module, module


def selective_blocks(name: str, module: nn.Module):
    wrapped(inner_blocks(name, module), selective)
    return module, module


def selective_all(module: nn.Module):
    return module, partial(selective, module)


def partitioned(share: float, module: nn.Module):
    """With inductor's decompositions where there are statistics, which it needs."""
    decomposed = any(isinstance(m, nn.BatchNorm2d) for m in module.modules())
    made = aot_autograd(
        decompositions=select_decomp_table() if decomposed else None,
        fw_compiler=lambda graph, _: graph,
        bw_compiler=lambda graph, _: graph,
        partition_fn=min_cut_rematerialization_partition,
    )
    run = torch.compile(module, backend=made, dynamic=False)

    def call(x):
        with functorch.patch(activation_memory_budget=share):
            return run(x)

    return module, call


def step(module: nn.Module, run, x, y):
    """One step without an update: the loss; gradients are in the module."""
    for each in module.parameters():
        each.grad = None
    torch.manual_seed(1)
    loss = nn.functional.cross_entropy(run(x), y)
    loss.backward()
    return loss.detach()


def peak_of(module: nn.Module, run, x, y) -> int:
    return pool_peak(module, x, partial(step, module, run, x, y))


def ratio_of(one, other, turns: int) -> tuple[float, float]:
    """The seconds of one, and what they are of the other's: medians of turns."""
    seconds = []
    ways = {"other": other, "one": one}
    for turn in range(turns):
        pair = {}
        for name in sorted(ways, reverse=turn % 2 == 1):  # the second may be slower
            module, run, x, y = ways[name]
            began = time.perf_counter()
            step(module, run, x, y)
            pair[name] = time.perf_counter() - began
        seconds.append(pair)
    return (
        statistics.median(pair["one"] for pair in seconds),
        statistics.median(pair["one"] / pair["other"] for pair in seconds),
    )


class Bench:
    """One network: eager's step, and what others make of it."""

    def __init__(self, name: str, repeats: int) -> None:
        self.name, self.repeats = name, repeats
        make, rows = NETWORKS[name]
        torch.manual_seed(0)
        self.original, self.x = make(), rows()
        for each in self.original.modules():
            if getattr(each, "inplace", False):  # which peers cannot compute again
                each.inplace = False
        self.y = torch.randint(10, (len(self.x),))
        self.eager = copy.deepcopy(self.original)
        for _ in range(2):
            self.step(self.eager, self.eager)
        self.most = peak_of(self.eager, self.eager, self.x, self.y)
        self.results: list[dict] = []

    def step(self, module, run):
        return step(module, run, self.x, self.y)

    def add(self, method, setting, module, run, **more) -> int:
        """Measure a way to run steps; the bytes of one."""
        data = self.x, self.y
        peak = peak_of(module, run, *data)
        pair = ((module, run, *data), (self.eager, self.eager, *data))
        seconds, ratio = ratio_of(*pair, self.repeats)
        self.results.append(
            {
                "network": self.name,
                "method": method,
                "setting": setting,
                "peak_bytes": peak,
                "eager_bytes": self.most,
                "seconds": seconds,
                "times_eager": ratio,
                **more,
            }
        )
        print(
            f"{self.name:<12} {method:<25} {setting:<12} {peak / 2**20:8.1f} MiB "
            f"{100 * peak / self.most:5.1f} %  {100 * (ratio - 1):+6.1f} %  "
            f"{more.get('planning_seconds', 0):.1f} s",
            flush=True,
        )
        return peak

    def measure_peers(self) -> None:
        for method, setting, made in peers(self.name, self.original):
            torch._dynamo.reset()
            module, run = made(copy.deepcopy(self.original))
            try:
                for _ in range(2):
                    self.step(module, run)
            except Exception as error:  # the peer's; said, and passed over
                why = str(error).splitlines()[0][:80]
                print(f"{self.name} {method} {setting}: {why}")
                continue
            self.add(method, setting, module, run)

    def measure_budgets(self) -> None:
        torch._dynamo.reset()
        free = copy.deepcopy(self.original)
        unplanned = mt.budget(free, math.inf)
        loss = self.step(free, unplanned)
        wanted = [loss, *(p.grad.clone() for p in free.parameters())]
        floor = mt.estimate(copy.deepcopy(self.original), (self.x,)).floor_bytes
        limits = [(f"{100 * share:.0f} %", int(share * self.most)) for share in SHARES]
        limits += [
            (f"as {each['method']}, {each['setting']}", int(ROOM * each["peak_bytes"]))
            for each in pareto(self.results)
        ]
        self.add("budget", "none", free, unplanned)
        for setting, limit in [*limits, ("floor", floor)]:
            if not self.measure_budget(setting, limit, wanted):
                with tempfile.TemporaryDirectory() as folder:
                    self.measure_budget(setting, limit, wanted, folder)

    def measure_budget(
        self, setting: str, limit: int, wanted: list, folder: str | None = None
    ) -> bool:
        """Measure a budget, whose tensors may leave for a folder; False: no plan."""
        torch._dynamo.reset()
        module = copy.deepcopy(self.original)
        began = time.perf_counter()
        try:
            run = mt.budget(module, limit, example=(self.x,), spill_to=folder)
        except InfeasiblePlanError as error:
            least = error.smallest_limit_bytes
            print(f"{self.name} {setting}: {limit} is below the floor, {least}")
            return False
        planning = time.perf_counter() - began
        first = self.step(module, run)
        found = [first, *(p.grad for p in module.parameters())]
        if not all(map(torch.equal, found, wanted)):
            raise SystemExit(f"{self.name}, {setting}: other bits")
        for _ in range(3):  # the second is measured, and the third planned again
            self.step(module, run)
        peak = self.add(
            "budget",
            setting,
            module,
            run,
            limit_bytes=limit,
            predicted_bytes=mt.get_budget(run).predicted_peak_bytes,
            planning_seconds=planning,
            spill_bytes=mt.get_budget(run).spill_bytes,
        )
        if peak > limit:
            raise SystemExit(f"{self.name}, {setting}: {peak - limit} bytes over")
        return True


def pareto(results: list[dict]) -> list[dict]:
    """Return the peers that none beats in both bytes and time."""
    others = [each for each in results if each["method"] not in ("eager", "budget")]
    return [
        each
        for each in others
        if not any(
            other["peak_bytes"] < each["peak_bytes"]
            and other["times_eager"] < each["times_eager"]
            for other in others
        )
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help="turns")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS)
    parser.add_argument("--output", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    options.clock = "wall"
    torch.set_num_threads(1)
    mt.limit_cpu("16GiB", tag_modules=False)
    warnings.simplefilter("ignore")
    results = []
    for network in options.networks:
        bench = Bench(network, options.repeats)
        bench.add("eager", "", bench.eager, bench.eager)
        bench.measure_peers()
        bench.measure_budgets()
        results += bench.results
        if options.output is not None:
            place = environment(options) | {"torch": torch.__version__}
            document = {"environment": place, "results": results}
            options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
