"""What a GPU shows: its tests, limits, losses, and times beside PyTorch's, in a table.

Run on a machine that has one, with memcfg, pycuda and pytest, at best PyTorch too::

    python tests/gpu_report.py --output benchmarks/results

Each check runs in a process of its own, so that what one breaks the others are rid of.
Writes ``cuda-<gpu>-<date>.json`` and prints it as a Markdown table. Seconds are medians
of interleaved runs, and a ratio is PyTorch's over memcfg's: above 1, memcfg is better.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from datetime import date
from functools import partial
from pathlib import Path

import numpy as np

import memcfg as mc
from memcfg.errors import ResourceExhaustedError

nn = mc.nn
ROOT = Path(__file__).resolve().parents[1]
GPU = "/GPU:0"
MIB = 1 << 20
SLACK = 16 * MIB  # what page tables and the driver's own buffers may take meanwhile
SMALL = os.environ.get("MEMCFG_GPU_REPORT_SMALL") == "1"  # the stand-in is slow


def times(full):
    """How often something is done: as given, or hardly."""
    return max(2, full // 500) if SMALL else full


def device():
    return mc.config.logical_device(GPU)


def free_bytes():
    """Free memory of the GPU as the driver says."""
    return device().context.memory_info()[0]


# -- networks, here and in PyTorch -----------------------------------------------------

# By name: shape of a sample, batch, and blocks of (filters, convolutions, residual).
NETWORKS = {
    "demo": ((20, 20, 1), 256, [(32, 1, False)]),
    "VGG-like": ((32, 32, 3), 256, [(64, 2, False), (128, 2, False), (256, 3, False)]),
    "ResNet-like": ((32, 32, 3), 256, [(64, 4, True), (128, 4, True), (256, 4, True)]),
}


def ours(shape, blocks):
    x = h = nn.Input(shape)
    for filters, count, residual in blocks:
        h = nn.Conv2D(filters, 3, padding="same", activation="relu")(h)
        for _ in range(count - 1):
            inner = nn.Conv2D(filters, 3, padding="same")(h)
            if residual:
                inner = nn.BatchNormalization(epsilon=1e-5)(inner) + h
            h = nn.Activation("relu")(inner)
        h = nn.MaxPooling2D()(h)
    return nn.Model(x, nn.Dense(10)(nn.Flatten()(h)))


def theirs(shape, blocks):
    import torch
    from torch import nn as tn

    class Residual(tn.Module):
        def __init__(self, filters):
            super().__init__()
            self.inner = tn.Conv2d(filters, filters, 3, padding=1)
            self.norm = tn.BatchNorm2d(filters)

        def forward(self, x):
            return torch.relu(self.norm(self.inner(x)) + x)

    layers, channels, (height, width) = [], shape[-1], shape[:2]
    for filters, count, residual in blocks:
        layers += [tn.Conv2d(channels, filters, 3, padding=1), tn.ReLU()]
        for _ in range(count - 1):
            plain = [tn.Conv2d(filters, filters, 3, padding=1), tn.ReLU()]
            layers += [Residual(filters)] if residual else plain
        layers.append(tn.MaxPool2d(2))
        channels, height, width = filters, height // 2, width // 2
    layers += [tn.Flatten(), tn.Linear(channels * height * width, 10)]
    return tn.Sequential(*layers).cuda().to(memory_format=torch.channels_last)


def data(shape, samples):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((samples, *shape)).astype(np.float32)
    return x, rng.integers(0, 10, samples)


def small(shape, batch, blocks):
    """A network as it is, or one that the stand-in runs in a moment."""
    if not SMALL:
        return shape, batch, blocks
    return (4, 4, shape[-1]), 2, [(4, min(count, 2), r) for _, count, r in blocks[:1]]


def compiled(shape, blocks):
    with mc.device(GPU):
        nn.set_random_seed(0)
        model = ours(shape, blocks)
        loss = nn.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(nn.SGD(0.01, momentum=0.9), loss)
    return model


# -- checks ----------------------------------------------------------------------------


def check_one_context():
    """PyCUDA, PyTorch (cuBLASLt and cuDNN) and memcfg in the primary context."""
    import pycuda.driver as cuda

    found = {"pycuda": ".".join(map(str, cuda.get_version()))}
    context = cuda.Device(0).retain_primary_context()
    context.push()
    try:
        from pycuda import gpuarray

        allocator = mc.interop.pycuda_allocator(GPU)
        x = gpuarray.to_gpu(np.arange(9, dtype=np.float32), allocator=allocator)
        assert (x.get() == np.arange(9)).all()
        assert mc.config.get_memory_info(GPU)["current"] >= 36
        try:
            import torch
        except ImportError:
            return found | {"torch": "not installed"}
        a = torch.randn(64, 64, device="cuda")
        image = torch.randn(2, 3, 8, 8, device="cuda")
        kernel = torch.randn(4, 3, 3, 3, device="cuda")
        product = torch.nn.functional.linear(a, a, a[0])
        convolved = torch.nn.functional.conv2d(image, kernel)
        assert bool(product.isfinite().all() and convolved.isfinite().all())
        return found | {"torch": torch.__version__}
    finally:
        context.pop()


def check_tests():
    """The tests that are marked `gpu`."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "gpu",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [*command, *(str(ROOT / "tests" / name) for name in ("devices", "core"))],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    last = done.stdout.strip().splitlines()[-1:]
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    assert done.returncode == 0, last
    assert not failed, failed[:20]
    return {"outcome": last[0] if last else ""}


def check_digits():
    """The digits reach the CPU's accuracy; 50 losses differ by 1e-3 at most."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    train = slice(0, 64) if SMALL else slice(0, 1500)
    losses, accuracies = [], []
    for name in ("/CPU:0", GPU):
        with mc.device(name):
            nn.set_random_seed(1)
            model = nn.Sequential([nn.Input((64,)), nn.Dense(64, "relu"), nn.Dense(10)])
            loss = nn.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(nn.Adam(0.003), loss, metrics=["accuracy"])
        rows = [slice(32 * i, 32 * i + 32) for i in range(5 if SMALL else 50)]
        losses.append([model.train_on_batch(x[r], y[r])[0] for r in rows])
        model.fit(x[train], y[train], epochs=times(20), verbose=0, seed=0)
        accuracies.append(model.evaluate(x[1500:], y[1500:], verbose=0)[1])
        model.close()
    apart = float(np.abs(np.subtract(*losses)).max())
    assert apart <= 1e-3, apart
    assert accuracies[1] >= accuracies[0] - 0.01, accuracies
    return {"losses apart": apart, "accuracy CPU, GPU": accuracies}


def check_steps():
    """Seconds of a step and peak memory beside PyTorch (eager, float32, no TF32)."""
    try:
        import torch
    except ImportError:
        torch = None
    found = {}
    for name, (shape, batch, blocks) in NETWORKS.items():
        shape, batch, blocks = small(shape, batch, blocks)
        x, y = data(shape, batch)
        model = compiled(shape, blocks)
        model.train_on_batch(x, y)
        model.train_on_batch(x, y)
        row = {"batch": batch}
        runs = {"memcfg": [], "torch": []}
        peer = None
        if torch is not None and torch.cuda.is_available():
            torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = (
                False
            )
            peer = torch_step(torch, shape, blocks, x, y)
            peer()
        for _ in range(2 if SMALL else 15):
            runs["memcfg"].append(seconds(partial(model.train_on_batch, x, y)))
            if peer is not None:
                runs["torch"].append(seconds(peer))
        middle = {k: statistics.median(v) for k, v in runs.items() if v}
        row["milliseconds"] = {k: 1e3 * v for k, v in middle.items()}
        row["peak MiB"] = mc.config.get_memory_info(GPU)["peak"] / MIB
        if peer is not None:
            row["ratio of time"] = middle["torch"] / middle["memcfg"]
            row["torch reserved MiB"] = torch.cuda.max_memory_reserved() / MIB
            row["part of torch's memory"] = row["peak MiB"] / row["torch reserved MiB"]
            del peer
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        model.close()
        mc.config.reset_memory_stats(GPU)
        found[name] = row
    return found


def torch_step(torch, shape, blocks, x, y):
    net = theirs(shape, blocks)
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
    loss = torch.nn.CrossEntropyLoss()

    def step():
        rows = torch.from_numpy(x).cuda().permute(0, 3, 1, 2)
        labels = torch.from_numpy(y).cuda()
        optimizer.zero_grad()
        found = loss(net(rows), labels)
        found.backward()
        optimizer.step()
        return found.item()

    return step


def seconds(call):
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def check_allocations():
    """Nanoseconds of an allocation and its free, beside PyTorch's caching allocator."""
    count, sizes, found = times(20_000), (256, 64 << 10, 4 * MIB), {}
    allocator = device().pool
    try:
        import torch

        peer = torch.cuda.is_available() and torch
    except ImportError:
        peer = None
    for size in sizes:
        began = time.perf_counter()
        for _ in range(count):
            allocator.allocate(size).free()
        row = {"memcfg": 1e9 * (time.perf_counter() - began) / count}
        if peer:
            raw = peer.cuda.memory.caching_allocator_alloc
            free = peer.cuda.memory.caching_allocator_delete
            free(raw(size))
            began = time.perf_counter()
            for _ in range(count):
                free(raw(size))
            row["torch"] = 1e9 * (time.perf_counter() - began) / count
        found[f"{size} B"] = row
    return found


def check_limit():
    """A limit is never exceeded, as the driver's free memory shows."""
    (gpu,) = mc.config.list_physical_devices("GPU")[:1]
    limit = 4 if SMALL else 512  # MiB
    mc.config.set_logical_device_configuration(
        gpu, [mc.config.LogicalDeviceConfiguration(memory_limit=limit)]
    )
    pool, before = device().pool, free_bytes()
    rng, blocks, refused, most = np.random.default_rng(0), [], 0, 0
    for _ in range(times(5000)):
        if blocks and rng.random() < 0.4:
            blocks.pop(int(rng.integers(len(blocks)))).free()
        try:
            blocks.append(pool.allocate(int(rng.integers(1, limit * MIB // 8))))
        except ResourceExhaustedError:
            refused += 1
        most = max(most, before - free_bytes())
    for block in blocks:
        block.free()
    pool.trim()
    assert most <= limit * MIB + SLACK, most
    assert free_bytes() >= before - SLACK
    return {"limit MiB": limit, "most taken MiB": most / MIB, "refused": refused}


def check_endurance():
    """10,000 steps, and 100 models made and closed: the memory is that of before."""
    shape, _, blocks = NETWORKS["demo"]
    shape, batch, blocks = small(shape, 32, blocks)
    x, y = data(shape, batch)
    model = compiled(shape, blocks)
    model.train_on_batch(x, y)
    model.train_on_batch(x, y)
    before = free_bytes()
    for _ in range(times(10_000)):
        model.train_on_batch(x, y)
    steps = before - free_bytes()
    model.close()
    device().pool.trim()
    start = free_bytes()
    for _ in range(times(100)):
        model = compiled(shape, blocks)
        model.train_on_batch(x, y)
        model.close()
    device().pool.trim()
    models = start - free_bytes()
    assert steps <= SLACK, steps
    assert models <= SLACK, models
    return {"bytes after steps": steps, "bytes after models": models}


def check_copies():
    """GiB a second of copies of page-locked memory, alone and both ways at once."""
    from memcfg._core import CudaEvent, CudaStream

    where = device()
    nbytes = (1 if SMALL else 256) * MIB
    here = where.host_pool.allocate(nbytes, tag="report")
    there = where.pool.allocate(nbytes, tag="report")
    streams = [CudaStream(where.context) for _ in range(2)]
    begin, end = (CudaEvent(where.context, timing=True) for _ in range(2))

    def rate(target, source):
        best = 0.0
        for _ in range(2 if SMALL else 10):
            streams[0].record(begin)
            streams[0].copy(target, source, nbytes)
            streams[0].record(end)
            end.synchronize()
            best = max(best, nbytes / max(end.seconds_since(begin), 1e-9) / 2**30)
        return best

    half = nbytes // 2
    found = {
        "to the GPU": rate(there.address, here.address),
        "from the GPU": rate(here.address, there.address),
    }
    began = time.perf_counter()
    streams[0].copy(there.address, here.address, half)
    streams[1].copy(here.address + half, there.address + half, half)
    for stream in streams:
        stream.synchronize()
    found["both at once"] = nbytes / (time.perf_counter() - began) / 2**30
    here.free()
    there.free()
    return found


CHECKS = {
    name.removeprefix("check_"): function
    for name, function in list(globals().items())
    if name.startswith("check_")
}


# -- the report ------------------------------------------------------------------------


def run_apart(name, limit):
    """Run a check in a process of its own; what it found, or why it failed."""
    began = time.monotonic()
    command = [sys.executable, __file__, "--check", name]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=limit
        )
    except subprocess.TimeoutExpired:
        return {"ok": False, "why": f"more than {limit:.0f} s", "seconds": limit}
    lines = done.stdout.strip().splitlines()
    took = round(time.monotonic() - began, 1)
    if done.returncode == 0 and lines:
        return {"ok": True, "found": json.loads(lines[-1]), "seconds": took}
    return {"ok": False, "why": done.stderr.strip()[-1500:], "seconds": took}


def machine():
    (gpu,) = mc.config.list_physical_devices("GPU")[:1]
    details = mc.config.get_device_details(gpu)
    return {
        "gpu": details["device_name"],
        "capability": list(details["compute_capability"]),
        "memory MiB": details["memory"] // MIB,
        "driver": device().context.driver.version,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "memcfg": mc.__version__,
        "date": date.today().isoformat(),
    }


def table(report):
    """The results as a Markdown table."""
    rows = ["| check | | seconds |", "| --- | --- | ---: |"]
    for name, each in report["checks"].items():
        text = json.dumps(each["found"]) if each["ok"] else f"FAILED: {each['why']}"
        short = text.replace("|", "/").replace("\n", " ")[-600:]
        rows.append(f"| {name} | {short} | {each['seconds']} |")
    head = ", ".join(f"{key} {value}" for key, value in report["machine"].items())
    return "\n".join([head, "", *rows])


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", help="the folder of the JSON file")
    parser.add_argument("--minutes", type=float, default=8, help="for everything")
    parser.add_argument("--check", choices=CHECKS, help="run one, print what it found")
    chosen = parser.parse_args(arguments)
    if not mc.config.list_physical_devices("GPU"):
        try:
            device()
        except ValueError as error:
            print(error)  # says what is missing
        return 0
    if chosen.check:
        print(json.dumps(CHECKS[chosen.check]()))
        return 0
    end = time.monotonic() + 60 * chosen.minutes
    report = {"machine": machine(), "checks": {}}
    for name in CHECKS:
        left = max(1.0, end - time.monotonic())
        report["checks"][name] = run_apart(name, left)
        print(name, "ok" if report["checks"][name]["ok"] else "FAILED", flush=True)
    print(table(report))
    if chosen.output:
        card = re.sub(r"\W+", "-", report["machine"]["gpu"]).strip("-").lower()
        path = Path(chosen.output, f"cuda-{card}-{report['machine']['date']}.json")
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return int(not all(each["ok"] for each in report["checks"].values()))


if __name__ == "__main__":
    sys.exit(main())
