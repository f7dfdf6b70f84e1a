"""Time and memory of the zoo's networks beside PyTorch's on the CPU.

For each network a process a turn and a library, taking turns: the same batch, threads
and optimizer (SGD with momentum). PyTorch runs eagerly, in the first turn in both
memory formats where there are images, then in the faster, which counts; ``--compile``
adds `torch.compile` in that format, beside the ratios, and ``--beside results.json``
adds it to rows there that lack it, after a run of memcfg. A process reports the seconds
of a step and the most memory it ever had above what it had after its imports; weights
are part of both. Of several turns the medians count. Ratios of time are PyTorch's over
memcfg's, ratios of memory memcfg's over PyTorch's. With ``--dtype mixed_bfloat16`` both
compute in bfloat16, PyTorch under `torch.autocast`; ratios of memory are then over
PyTorch's in float32. With another ``--policy`` than `auto`, `auto` takes turns, too:
what the policy costs. Asserts nothing.

``python bench zoo --networks lenet5,unet:8 --kinds train,predict1``
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

KINDS = ("train", "predict1", "predict32")
SIDES = ("memcfg", "torch", "torch, channels last")
COMPILED = tuple(f"{side}, compiled" for side in SIDES[1:])
FLOAT32 = "torch, float32"  # beside both in bfloat16
AUTO = "memcfg, auto"  # beside another policy
MIB = 1 << 20
RATE = 1e-4  # a random batch over and over: larger ones diverge


def resident(field: str) -> int:
    """Bytes of this process: ``VmRSS`` now, or ``VmHWM``, the most there were."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def batch_of(network, size):
    rng = np.random.default_rng(0)
    if network.words:
        xs = [
            rng.integers(0, network.words, (size, *shape)).astype(np.int32)
            for shape in network.shapes
        ]
    else:
        xs = [
            rng.normal(size=(size, *shape)).astype(np.float32)
            for shape in network.shapes
        ]
    labels = rng.integers(0, network.classes, (size, *network.target))
    return xs, labels.astype(np.int32)


def memcfg_step(network, kind, size, options):
    import memcfg as mc

    mc.config.set_dtype_policy(options.dtype)
    model = network.build()
    xs, y = batch_of(network, size)
    x = xs[0] if len(xs) == 1 else xs
    model.compile(
        mc.nn.SGD(RATE, momentum=0.9),
        mc.nn.SparseCategoricalCrossentropy(from_logits=True),
        memory=getattr(mc.plan, "auto" if options.side == AUTO else options.policy)(),
    )
    if kind == "train":
        return lambda: model.train_on_batch(x, y), model.count_params()
    return lambda: model.predict_on_batch(x), model.count_params()


def torch_step(network, kind, size, options):
    import torch
    from bench_training import parameter_count

    model = network.torch_build()
    count = parameter_count(model) - network.extra
    xs, y = batch_of(network, size)
    inputs = [torch.from_numpy(x) for x in xs]
    if inputs[0].dim() == 4:
        format_ = torch.channels_last
        if not options.side.startswith(SIDES[2]):
            format_ = torch.contiguous_format
        model = model.to(memory_format=format_)
        inputs = [
            x.permute(0, 3, 1, 2).contiguous(memory_format=format_) for x in inputs
        ]
    if network.words:
        inputs = [x.long() for x in inputs]
    if options.side in COMPILED:
        model = torch.compile(model)
    mixed = options.dtype != "float32" and options.side != FLOAT32

    def cast():
        return torch.autocast("cpu", torch.bfloat16, enabled=mixed)

    if kind != "train":
        model.eval()

        def predict():
            with torch.inference_mode(), cast():
                return model(*inputs)

        return predict, count
    labels = torch.from_numpy(y).long()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    loss_of = torch.nn.CrossEntropyLoss()

    def step():
        optimizer.zero_grad(set_to_none=True)
        with cast():
            found = model(*inputs)
            if network.words and network.target:
                found = found.transpose(1, 2)
            loss = loss_of(found, labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, count


def work(options) -> None:
    """Be one process of one library: print what was measured."""
    import torch  # both have what the other has, so that the start is the same
    from zoo_peers import NETWORKS

    from memcfg import config, nn  # noqa: F401  (`import memcfg` alone loads little)
    from memcfg._core import set_num_threads

    torch.set_num_threads(options.threads)
    set_num_threads(options.threads)
    assert config.logical_device().kernels.name  # loaded, as torch's are
    network = NETWORKS[options.worker]
    size = {"train": network.batch, "predict1": 1, "predict32": 32}[options.kind]
    size = options.batch or size
    before = resident("VmRSS")
    make = memcfg_step if options.side in (SIDES[0], AUTO) else torch_step
    step, count = make(network, options.kind, size, options)
    step()
    began = time.perf_counter()
    step()
    once = time.perf_counter() - began
    times = max(2, min(2000, int(options.seconds / max(once, 1e-6))))
    found = []
    for _ in range(times):
        began = time.perf_counter()
        step()
        found.append(time.perf_counter() - began)
    result = {
        "seconds": statistics.median(found),
        "memory": resident("VmHWM") - before,
        "parameters": count,
        "batch": size,
    }
    print(json.dumps(result))


def run(name, kind, side, batch, options) -> dict | None:
    command = [sys.executable, __file__, "--worker", name, "--side", side]
    command += ["--kind", kind, "--threads", str(options.threads)]
    command += ["--seconds", str(options.seconds), "--policy", options.policy]
    command += ["--dtype", options.dtype, "--batch", str(batch)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        if side in COMPILED:  # not every network compiles
            print(f"{name}, {side}: {done.stderr.strip().splitlines()[-1]}")
            return None
        raise SystemExit(f"{name}, {side}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(name, kind, options) -> dict:
    from zoo_peers import NETWORKS

    name, _, own = name.partition(":")
    batch = int(own or options.batch)
    sides = SIDES if len(NETWORKS[name].shapes[0]) == 3 else SIDES[:2]
    more = () if options.dtype == "float32" else (FLOAT32,)
    beside = () if options.policy == "auto" else (AUTO,)
    turns = {side: [] for side in (*sides, *more, *beside)}
    taken = list(turns)
    for turn in range(options.turns):
        for side in taken:
            turns[side].append(run(name, kind, side, batch, options))
        if turn == 0:  # the slower of two formats has no further turns
            slower = sorted(sides[1:], key=lambda side: turns[side][0]["seconds"])[1:]
            taken = [side for side in taken if side not in slower]
    counts = {side: turns[side][0]["parameters"] for side in turns}
    if len(set(counts.values())) > 1:
        raise SystemExit(f"{name} is not the same network in both libraries: {counts}")
    seconds = {s: statistics.median(t["seconds"] for t in turns[s]) for s in turns}
    memory = {s: statistics.median(t["memory"] for t in turns[s]) for s in turns}
    peer = next(side for side in sides[1:] if side in taken)
    if options.compile:
        side = COMPILED[SIDES.index(peer) - 1]
        found = run(name, kind, side, batch, options)
        if found is not None:
            seconds[side], memory[side] = found["seconds"], found["memory"]
    ratios = [
        b["seconds"] / a["seconds"]
        for a, b in zip(turns["memcfg"], turns[peer], strict=True)
    ]
    return {
        "network": name,
        "kind": kind,
        "batch": turns["memcfg"][0]["batch"],
        "parameters": counts["memcfg"],
        "peer": peer,
        "seconds": seconds,
        "memory": memory,
        "speed": seconds[peer] / seconds["memcfg"],
        "speed_range": [min(ratios), max(ratios)],
        "memory_peer": more[0] if more else peer,
        "memory_ratio": memory["memcfg"] / memory[more[0] if more else peer],
    }


def measure_compiled(path, options) -> None:
    """Add `torch.compile` to a file's results without it, and memcfg beside it."""
    from bench_training import environment

    document = json.loads(path.read_text())
    place = document["environment"]
    options.threads, options.policy = place["threads"], place["policy"]
    options.dtype = place["dtype"]
    if environment(options.threads)["processor"] != place["processor"]:
        raise SystemExit(f"{path} was measured on another processor")
    names = options.networks.split(",") if options.networks else ()
    for result in document["results"]:
        found = result.get("compiled", result["seconds"])
        if any(side in COMPILED for side in found) or (
            (names and result["network"] not in names)
            or result["kind"] not in options.kinds.split(",")
        ):
            continue
        own, kind, batch = (result[key] for key in ("network", "kind", "batch"))
        other = COMPILED[SIDES.index(result["peer"]) - 1]
        taken = {
            side: run(own, kind, side, batch, options) for side in ("memcfg", other)
        }
        if taken[other] is None:  # run() has said why
            continue
        result["compiled"] = {side: one["seconds"] for side, one in taken.items()}
        mine, theirs = result["compiled"].values()
        print(f"{own:18} {kind:9} {batch:3} torch.compile {theirs / mine:5.2f}")
        path.write_text(json.dumps(document, indent=1) + "\n")


def row(result) -> str:
    own, other = (result["seconds"][s] for s in ("memcfg", result["peer"]))
    sides = "memcfg", result["memory_peer"]
    mine, theirs = (result["memory"][s] / MIB for s in sides)
    low, high = result["speed_range"]
    return (
        f"{result['network']:18} {result['kind']:9} {result['batch']:3} "
        f"{1e3 * own:9.2f} {1e3 * other:9.2f} ms {result['speed']:5.2f} "
        f"({low:.2f}-{high:.2f}) {mine:7.0f} {theirs:7.0f} MiB "
        f"{result['memory_ratio']:5.2f}"
        + "".join(
            f", torch.compile {1e3 * seconds:.2f} ms"
            for side, seconds in result["seconds"].items()
            if side in COMPILED
        )
        + "".join(
            f", {own / seconds - 1:+.1%} beside auto"
            for side, seconds in result["seconds"].items()
            if side == AUTO
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--networks",
        help="names, with commas and, behind a colon, batches; all if left out",
    )
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5, help="of each process")
    parser.add_argument("--policy", default="auto", help="of memcfg.plan")
    parser.add_argument(
        "--dtype", choices=("float32", "mixed_bfloat16"), default="float32"
    )
    parser.add_argument("--batch", type=int, default=0, help="the network's, if 0")
    parser.add_argument("--compile", action="store_true", help="and torch.compile")
    parser.add_argument("--beside", type=Path, help="results that lack torch.compile")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument(
        "--side", choices=(*SIDES, *COMPILED, FLOAT32, AUTO), help=argparse.SUPPRESS
    )
    parser.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options)
        return
    if options.beside:
        measure_compiled(options.beside, options)
        return
    from zoo_peers import NETWORKS

    names = options.networks.split(",") if options.networks else list(NETWORKS)
    results = []
    for kind in options.kinds.split(","):
        for name in names:
            results.append(measure(name, kind, options))
            print(row(results[-1]), flush=True)
            write(results, options)  # what is there, if the rest fails
        speeds = [each["speed"] for each in results if each["kind"] == kind]
        print(f"{kind}: geometric mean {statistics.geometric_mean(speeds):.2f}")


def write(results, options) -> None:
    from bench_training import environment

    if options.output is None:
        return
    place = environment(options.threads) | {"policy": options.policy}
    place |= {"dtype": options.dtype}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    document = {"environment": place, "results": results}
    options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
