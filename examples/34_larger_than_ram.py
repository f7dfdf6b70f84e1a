"""Train a network that needs more than the device and the host's memory have together.

All pools of memory in this process are under one limit, which stands for the machine's.
Only a file has room for what the backward phase reads again. Weights and optimizer
state stay in memory: they cannot be swapped, and must fit.
"""

import os
import tempfile
import time

import numpy as np

import memcfg as mc
from memcfg.errors import ResourceExhaustedError

nn, planning = mc.nn, mc.plan
BATCH, LAYERS, STEPS = 8, 24, 3
PIECE = 2**19  # bytes; a swapped tensor has as many

rng = np.random.default_rng(0)
x = rng.standard_normal((BATCH, 32, 32, 3), np.float32)
y = rng.integers(0, 5, BATCH)


def train(memory, spill_to, ram=None):
    """Train a few steps; return the plan, the weights, the peak and a step's time."""
    mc.config.reset()
    mc.config.set_host_memory_limit(tracked=ram)
    cpu = mc.config.list_physical_devices("CPU")[0]
    device = mc.config.LogicalDeviceConfiguration(spill_to=spill_to)
    mc.config.set_logical_device_configuration(cpu, [device])
    nn.set_random_seed(0)
    convolutions = [
        nn.Conv2D(16, 3, padding="same", activation="relu") for _ in range(LAYERS)
    ]
    ends = [nn.GlobalAveragePooling2D(), nn.Dense(5)]
    model = nn.Sequential([nn.Input((32, 32, 3)), *convolutions, *ends])
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    try:
        model.compile(nn.SGD(0.01, momentum=0.9), loss, memory=memory)
        for _ in range(STEPS):
            began = time.perf_counter()
            model.train_on_batch(x, y)
            seconds = time.perf_counter() - began
        peak = mc.config.get_memory_info("CPU:0")["peak"]
        return model.memory_plan, model.get_weights(), peak, seconds
    finally:
        model.close()


def disk_rate(folder):
    """Return the bytes a second of plain writes and reads in a folder."""
    piece = rng.bytes(PIECE)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, 32 * PIECE)
        began = time.perf_counter()
        for _ in range(32):
            file.write(piece)
        file.seek(0)
        while file.read(PIECE):
            pass
        return 2 * 32 * PIECE / (time.perf_counter() - began)


everything, expected, _, _ = train(planning.keep_all(), "host")
ram = everything.peak_bytes // 12
print(f"needed:  {everything.peak_bytes:,} bytes; memory: {ram:,}")
try:
    train(planning.vdnn_all(), "host", ram)
except ResourceExhaustedError as error:
    print(f"to the host's memory: refused, {error.requested_bytes:,} bytes more")
with tempfile.TemporaryDirectory() as folder:
    plan, weights, peak, seconds = train(planning.vdnn_all(), folder, ram)
    rate, disk = plan.predicted.moved_bytes / seconds, disk_rate(folder)
assert peak <= ram < plan.predicted.moved_bytes
assert all(map(np.array_equal, weights, expected))
print(f"to a file: peak {peak:,}, moved {plan.predicted.moved_bytes:,} bytes a step")
print(f"           {rate / 1e6:,.0f} MB/s, plain files {disk / 1e6:,.0f}; same bits")
