"""The bytes that one training step has in use, op by op, beside PyTorch's.

A process a side trains one network of the zoo on the same batch: PyTorch eagerly, in
channels last and with SGD's momentum; memcfg without a limit, and under limits that are
parts of PyTorch's most bytes. PyTorch's bytes are what its profiler records of its CPU
allocator, from the parameters, the momentum and the batch on; memcfg's are those of its
memory report, whose peak is measured, too. Each side's curve is stretched to the
median time of its steps without a profiler. Asserts nothing.

``python bench timeline --output bench/results/timeline.json``
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

from bench_zoo import RATE, batch_of

PARTS = 600  # of a step; a picture has fewer columns


def timed(step, seconds: float) -> float:
    """Return the median seconds of a step, of those that fit some seconds."""
    step()
    began, found = time.perf_counter(), []
    while time.perf_counter() - began < seconds or len(found) < 3:
        before = time.perf_counter()
        step()
        found.append(time.perf_counter() - before)
    return statistics.median(found)


def torch_curve(network, options) -> dict:
    """Profile a step of PyTorch: its bytes at each allocation and release."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    model = network.torch_build().to(memory_format=torch.channels_last)
    xs, y = batch_of(network, network.batch)
    x = torch.from_numpy(xs[0]).permute(0, 3, 1, 2)
    x = x.contiguous(memory_format=torch.channels_last)
    labels = torch.from_numpy(y).long()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    loss_of = torch.nn.CrossEntropyLoss()

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss_of(model(x), labels).backward()
        optimizer.step()

    seconds = timed(step, options.seconds)
    optimizer.zero_grad(set_to_none=True)
    kept = [*model.state_dict().values(), x, labels]
    kept += [s["momentum_buffer"] for s in optimizer.state.values()]
    start = sum(each.untyped_storage().nbytes() for each in kept)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    events = profiled.profiler.kineto_results.events()
    changes = sorted(
        (each.start_ns(), each.nbytes()) for each in events if each.name() == "[memory]"
    )
    first = min(each.start_ns() for each in events)
    last = max(each.start_ns() + each.duration_ns() for each in events)
    live, curve = start, [(0.0, start)]
    for moment, change in changes:
        live += change
        curve.append(((moment - first) / (last - first) * seconds, live))
    return {
        "seconds": seconds,
        "start_bytes": start,
        "curve": [*curve, (seconds, live)],
    }


def memcfg_curve(network, options) -> dict:
    """Return the bytes of each op of a step of memcfg, within its limit."""
    import memcfg as mc

    if options.limit:
        mc.config.set_memory_limit("CPU:0", options.limit)
    model = network.build()
    model.compile(
        mc.nn.SGD(RATE, momentum=0.9),
        mc.nn.SparseCategoricalCrossentropy(from_logits=True),
    )
    xs, y = batch_of(network, network.batch)
    seconds = timed(lambda: model.train_on_batch(xs[0], y), options.seconds)
    report = model.memory_report(verify=True)
    if report.measured_peak_bytes != report.predicted_peak_bytes:
        raise SystemExit("the measured peak is not the predicted one")
    whole = sum(each.seconds for each in report.timeline)
    moment, curve = 0.0, []
    for each in report.timeline:
        curve.append((moment / whole * seconds, each.live_bytes))
        moment += each.seconds
    last = report.timeline[-1].live_bytes
    peak = report.measured_peak_bytes
    return {"seconds": seconds, "peak_bytes": peak, "curve": [*curve, (seconds, last)]}


def work(options) -> None:
    """Be one process of one side: print its curve."""
    import torch  # on both sides, so that both start alike
    from zoo_peers import NETWORKS

    import memcfg as mc

    torch.set_num_threads(options.threads)
    mc.config.threading.set_intra_op_parallelism_threads(options.threads)
    network = NETWORKS[options.network]
    network = network._replace(batch=options.batch or network.batch)
    measure = torch_curve if options.side == "torch" else memcfg_curve
    found = measure(network, options)
    found["curve"] = highest(found["curve"], found["seconds"])
    print(json.dumps(found | {"batch": network.batch}))


def highest(curve, seconds: float) -> list[int]:
    """Return the most bytes in each of `PARTS` equal parts of a step, in order."""
    most = [0] * PARTS
    for (moment, live), (end, _) in pairwise(curve):
        first = int(moment / seconds * PARTS)
        last = min(int(end / seconds * PARTS), PARTS - 1)
        for part in range(first, last + 1):
            most[part] = max(most[part], live)
    return most


def run(side: str, limit: int, options) -> dict:
    """Start the process of a side and return what it measured."""
    command = [sys.executable, __file__, "--side", side, "--limit", str(limit)]
    command += ["--network", options.network, "--batch", str(options.batch)]
    command += ["--threads", str(options.threads), "--seconds", str(options.seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{side}, {limit} B:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="resnet50", help="one with images")
    parser.add_argument("--batch", type=int, default=0, help="the network's, if 0")
    parser.add_argument(
        "--limits", default="0.333", help="parts of PyTorch's most bytes, with commas"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20, help="of timed steps")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--side", choices=("torch", "memcfg"), help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        work(options)
        return
    results = [{"side": "torch", "limit_bytes": None} | run("torch", 0, options)]
    most = max(results[0]["curve"])
    for limit in (0, *(int(float(part) * most) for part in options.limits.split(","))):
        found = run("memcfg", limit, options)
        results.append({"side": "memcfg", "limit_bytes": limit or None} | found)
    for each in results:
        peak = max(each["curve"])
        print(
            f"{each['side']:8} {each['limit_bytes'] or 0:12} B "
            f"{peak:12} B {peak / most:5.2f} {each['seconds']:6.2f} s"
        )
    if options.output is not None:
        from bench_training import environment

        place = environment(options.threads)
        document = {"environment": place, "network": options.network}
        options.output.write_text(json.dumps(document | {"results": results}) + "\n")


if __name__ == "__main__":
    main()
