"""Time a training step of memcfg and of PyTorch on the CPU, in one run.

Both train with the same optimizer on the same batch with the same number of threads,
taking turns, each in a process of its own, where OpenMP's threads wait as each library
has it; each turn starts with untimed steps. PyTorch runs eagerly, once in its
default memory format and once channels last, and is represented by the faster of the
two. Prints ratios (PyTorch's seconds over memcfg's: above 1, memcfg is faster) and
asserts nothing. With ``--without-onednn`` both do without it, as on an ARM machine:
memcfg by NumPy's BLAS.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import machine

import memcfg as mc
from memcfg._core import get_num_threads, set_num_threads

# isort: split
import torch  # after memcfg's core: the first of them loads OpenMP
from peers import NETWORKS, random_batch

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

Step = Callable[[], object]

MEMORY_FORMATS = {
    "torch": torch.contiguous_format,
    "torch, channels last": torch.channels_last,
}


def memcfg_step(model: mc.nn.Model, x, y) -> Step:
    model.compile(
        optimizer=mc.nn.SGD(0.01, momentum=0.9),
        loss=mc.nn.SparseCategoricalCrossentropy(from_logits=True),
        memory=mc.plan.auto(),
    )
    return lambda: model.train_on_batch(x, y)


def torch_step(model: torch.nn.Module, x, y, memory_format) -> Step:
    model = model.to(memory_format=memory_format)
    images = torch.from_numpy(x).permute(0, 3, 1, 2).contiguous()
    images = images.to(memory_format=memory_format)
    labels = torch.from_numpy(y).long()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss_of = torch.nn.CrossEntropyLoss()

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def parameter_count(module: torch.nn.Module) -> int:
    """Count weights and moving averages, but not PyTorch's scalar step counters."""
    tensors = [*module.parameters(), *module.buffers()]
    return sum(tensor.numel() for tensor in tensors if tensor.dim())


def seconds_of(steps: dict[str, Step], repeats: int, seconds: float) -> dict:
    """Return each contender's seconds a step, one number a turn."""
    counts = {}
    for name, step in steps.items():
        for _ in range(10):
            step()
        began = time.perf_counter()
        step()
        counts[name] = max(5, int(seconds / (time.perf_counter() - began)))
    found: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats):
        for name, step in steps.items():
            for _ in range(3):  # the other library's threads go to sleep meanwhile
                step()
            began = time.perf_counter()
            for _ in range(counts[name]):
                step()
            found[name].append((time.perf_counter() - began) / counts[name])
    return found


def take_turns(
    pipe: Connection, name: str, contender: str, options: argparse.Namespace
) -> None:
    """Time a contender's turns until there is no further one."""
    if options.without_onednn:
        torch.backends.mkldnn.set_flags(_enabled=False)
    use_threads(options.threads)
    shape, build, torch_build = NETWORKS[name]
    x, y = random_batch(shape, options.batch_size)
    torch.manual_seed(0)
    if contender == "memcfg":
        model: Any = build()
        step = memcfg_step(model, x, y)
        step()
        weights = model.count_params()
    else:
        model = torch_build()
        step = torch_step(model, x, y, MEMORY_FORMATS[contender])
        weights = parameter_count(model)
    pipe.send(weights)
    while pipe.recv():
        pipe.send(seconds_of({contender: step}, 1, options.seconds)[contender][0])


def environment_of(contender: str, options: argparse.Namespace) -> dict[str, str]:
    """Return the variables that a contender's process sees when it begins."""
    found = {"OMP_NUM_THREADS": str(options.threads)}
    if contender != "memcfg":
        return found | {"GOMP_SPINCOUNT": "300000"}  # GNU OpenMP's own, not memcfg's
    return found | {"MEMCFG_KERNELS": "blas" if options.without_onednn else "onednn"}


def measure(name: str, options: argparse.Namespace) -> dict:
    spawn = multiprocessing.get_context("spawn")
    pipes, processes = {}, []
    for contender in ("memcfg", *MEMORY_FORMATS):
        pipes[contender], end = spawn.Pipe()
        process = spawn.Process(
            target=take_turns, args=(end, name, contender, options), daemon=True
        )
        with mock.patch.dict(os.environ, environment_of(contender, options)):
            process.start()
        processes.append(process)
    if len({pipe.recv() for pipe in pipes.values()}) != 1:
        raise SystemExit(f"{name} is not the same network in both libraries")
    turns: dict[str, list[float]] = {contender: [] for contender in pipes}
    for _ in range(options.repeats):
        for contender, pipe in pipes.items():
            pipe.send(True)
            turns[contender].append(pipe.recv())
    for pipe, process in zip(pipes.values(), processes, strict=True):
        pipe.send(False)
        process.join()
    medians = {contender: statistics.median(turns[contender]) for contender in turns}
    peer = min(MEMORY_FORMATS, key=medians.__getitem__)
    ratios = [b / a for a, b in zip(turns["memcfg"], turns[peer], strict=True)]
    return {
        "network": name,
        "batch_size": options.batch_size,
        "seconds": medians,
        "seconds_by_turn": turns,
        "peer": peer,
        "ratio": statistics.median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
    }


def environment(threads: int) -> dict:
    return machine.facts() | {
        "instructions": machine.instructions(),
        "threads": threads,
        "kernels": mc.config.logical_device().kernels.name,
        "torch_onednn": torch.backends.mkldnn.enabled,
        "torch": torch.__version__,
        "onednn-cpu-gomp": version("onednn-cpu-gomp"),
    }


def parse(batch_size: int = 64) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", type=int, default=cores)
    parser.add_argument("--batch-size", type=int, default=batch_size)
    parser.add_argument("--repeats", type=int, default=7, help="turns, at least 5")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a turn")
    parser.add_argument("--without-onednn", action="store_true")
    parser.add_argument("--output", type=Path, help="write the result as JSON")
    options = parser.parse_args()
    if options.repeats < 5:
        parser.error("--repeats must be at least 5")
    return options


def use_threads(count: int) -> None:
    torch.set_num_threads(count)
    set_num_threads(count)
    if (torch.get_num_threads(), get_num_threads()) != (count,) * 2:
        raise SystemExit(f"not both libraries run on {count} threads")


def main() -> None:
    options = parse()
    use_threads(options.threads)
    if options.without_onednn:  # for the facts below
        os.environ["MEMCFG_KERNELS"] = "blas"
        torch.backends.mkldnn.set_flags(_enabled=False)
    results = [measure(name, options) for name in NETWORKS]
    for result in results:
        mine, theirs = result["seconds"]["memcfg"], result["seconds"][result["peer"]]
        low, high = result["ratio_range"]
        print(
            f"{result['network']}, batch {options.batch_size}: memcfg "
            f"{mine * 1e3:.2f} ms, {result['peer']} {theirs * 1e3:.2f} ms, "
            f"ratio {result['ratio']:.2f} ({low:.2f} to {high:.2f})"
        )
    if options.output is not None:
        document = {"environment": environment(options.threads), "results": results}
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
