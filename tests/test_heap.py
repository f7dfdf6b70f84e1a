"""A step takes no memory: the heap of the process is watched, not the pool's count.

The watcher is a small C library that stands before the heap (LD_PRELOAD) in a child
process and records every request above 64 KiB while it is switched on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "support" / "heap_watch.c"

HEAD = """
import ctypes, json, sys
import numpy as np
import memcfg as mc
from memcfg.runtime import Executor

# The interpreter's table of names must not happen to grow in a step: it has room now.
names = [sys.intern(f"name {number}") for number in range(50_000)]
heap = ctypes.CDLL(sys.argv[1])
heap.heap_watch_size.restype = ctypes.c_size_t
heap.heap_watch_caller.restype = ctypes.c_void_p
pool = mc.config.logical_device().pool

def calls():
    stats = pool.stats()
    return [stats.allocation_count, stats.current_bytes, stats.peak_bytes]

def tell(before=None, steps=0):
    count = heap.heap_watch_count()
    sizes = [heap.heap_watch_size(i) for i in range(min(count, 64))]
    found = {"count": count, "sizes": sizes, "steps": steps}
    print(json.dumps(found | {"pool": [before, calls()]}))

generator = np.random.default_rng(0)
x = generator.random((160, 32, 32, 3), np.float32)  # 64 rows are 768 KiB
y = generator.integers(0, 10, 160)

def build(**options):
    model = mc.nn.Sequential([
        mc.nn.Conv2D(16, 3, padding="same", activation="relu"),
        mc.nn.BatchNormalization(), mc.nn.MaxPool2D(2), mc.nn.Conv2D(16, 3),
        mc.nn.AveragePooling2D(2), mc.nn.Flatten(), mc.nn.Dropout(0.25),
        mc.nn.Dense(10)])
    model.compile(optimizer=mc.nn.SGD(0.01, momentum=0.9),
                  loss=mc.nn.SparseCategoricalCrossentropy(from_logits=True),
                  metrics=["accuracy"], **options)
    return model
"""

# Calls `ended` after each run of a program of a model's.
WATCH_RUNS = """
class Watched:
    def __init__(self, program):
        self.program = program

    def __getattr__(self, name):
        return getattr(self.program, name)

    def run(self, **options):
        reached = self.program.run(**options)
        ended()
        return reached

prepare, programs = Executor.prepare, {}

def prepare_watched(self, name):
    program = prepare(self, name)
    return programs.setdefault(id(program), Watched(program))

Executor.prepare = prepare_watched
"""

PLANTED = """
heap.heap_watch(1)
block = {planted}
heap.heap_watch(0)
tell()
"""

TRAIN_ON_BATCH = """
mc.config.set_dtype_policy("{dtype}")
model = build(memory=mc.plan.{policy}())
model.train_on_batch(x[:64], y[:64])
before = calls()
heap.heap_watch(1)
for _ in range(5):
    model.train_on_batch(x[:64], y[:64])
heap.heap_watch(0)
tell(before, 5)
"""

# Every convolution as one product over its columns, or over those of 16 images.
COLUMNS = """
from dataclasses import replace

def columns(graph, limit_bytes=None):
    # The policy is told that these are the fastest.
    def quick(op):
        rows = [replace(a, seconds=float(a.name != "{name}")) for a in op.algorithms]
        return replace(op, algorithms=tuple(rows))
    told = replace(graph, ops=tuple(map(quick, graph.ops)))
    plan = mc.plan.{policy}()(told, limit_bytes=limit_bytes)
    names = [a.algorithm for a in plan.actions if isinstance(a, mc.plan.Compute)]
    assert names.count("{name}") == 5, names
    return replace(plan, predicted=mc.plan.Predicted(plan.peak_bytes))

model = build(memory=columns)
model.train_on_batch(x[:64], y[:64])
before = calls()
heap.heap_watch(1)
for _ in range(5):
    model.train_on_batch(x[:64], y[:64])
heap.heap_watch(0)
tell(before, 5)
"""

VOLUMES = """
model = mc.nn.Sequential([
    mc.nn.Conv3D(16, 3, padding="same", activation="relu"), mc.nn.MaxPooling3D(),
    mc.nn.Conv3D(24, 3, strides=(1, 2, 1)), mc.nn.Conv3D(16, 1, strides=2),
    mc.nn.Conv3DTranspose(8, 2, strides=2), mc.nn.Flatten(), mc.nn.Dense(10)])
model.compile("adam", mc.nn.SparseCategoricalCrossentropy(from_logits=True))
volumes = x.reshape(160, 8, 16, 24, 1)
model.train_on_batch(volumes[:32], y[:32])
before = calls()
heap.heap_watch(1)
for _ in range(5):
    model.train_on_batch(volumes[:32], y[:32])
heap.heap_watch(0)
tell(before, 5)
"""

WORKSPACE_MODE = """
model = build(training_workspace_mode="{mode}")
for _ in range(2):
    model.train_on_batch(x[:64], y[:64])
before = calls()
heap.heap_watch(1)
for _ in range(5):
    model.train_on_batch(x[:64], y[:64])
heap.heap_watch(0)
tell(before, 5)
"""

# Watches from the end of fit's first training step to the end of its last one:
# whatever fit does between steps (shuffling, gathering rows) counts too.
FIT = (
    """
model = build(memory=mc.plan.auto())
epochs, seen, before = 3, [], []

def ended():
    seen.append(0)
    if len(seen) == 3:
        before.extend(calls())
        heap.heap_watch(1)
    if len(seen) == 3 * epochs:
        heap.heap_watch(0)
"""
    + WATCH_RUNS
    + """
model.fit(x, y, batch_size=64, epochs=epochs, verbose=0, seed=0)
tell(before, len(seen))
"""
)

# The same of one pass over a dataset, its thread included, once its blocks are there.
FIT_DATASET = (
    """
model = build(memory=mc.plan.auto())
rows = np.tile(np.arange(128), 20)
data = mc.data.Dataset.from_tensor_slices((x[rows], y[rows]))
seen, before = [], []

def ended():
    seen.append(0)
    if len(seen) == 12:
        before.extend(calls())
        heap.heap_watch(1)
    if len(seen) == 36:
        heap.heap_watch(0)
        before.append(calls())
"""
    + WATCH_RUNS
    + """
model.fit(data.batch(64).prefetch(2), verbose=0)
heap.heap_watch(0)
tell(before, len(seen))
"""
)


@pytest.fixture(scope="module")
def watcher(tmp_path_factory):
    if sys.platform != "linux":
        pytest.skip("the watcher stands before glibc's heap")
    library = tmp_path_factory.mktemp("heap") / "heap_watch.so"
    compiler = sysconfig.get_config_var("CC").split()[0]
    flags = ["-std=c17", "-O1", "-fno-builtin", "-shared", "-fPIC"]
    command = [compiler, *flags, str(SOURCE), "-o", str(library)]
    subprocess.run(command, check=True)
    return library


def watch(library, body, cwd):
    environment = {
        **os.environ,
        "LD_PRELOAD": str(library),
        "PYTHONMALLOC": "malloc",  # no arenas of Python's own among the records
    }
    run = subprocess.run(
        [sys.executable, "-c", HEAD + body, str(library)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "planted",
    [
        "np.empty(70000, np.uint8)",
        "np.zeros(70000, np.uint8)",
        "bytearray(70000)",
        "pool.allocate(70000)",
        "__import__('mmap').mmap(-1, 70000)",
    ],
)
def test_the_watcher_sees_a_planted_allocation(watcher, tmp_path, planted):
    found = watch(watcher, PLANTED.format(planted=planted), tmp_path)
    assert found["count"] >= 1
    assert max(found["sizes"]) >= 70000


def test_the_watcher_lets_small_allocations_pass(watcher, tmp_path):
    found = watch(watcher, PLANTED.format(planted="bytearray(60000)"), tmp_path)
    assert found["count"] == 0


@pytest.mark.usefixtures("native_kernels")
@pytest.mark.parametrize(
    ("policy", "dtype"),
    [
        *((p, "float32") for p in ("keep_all", "share", "sqrt_checkpoint", "auto")),
        ("auto", "mixed_bfloat16"),
    ],
)
@pytest.mark.always
def test_a_training_step_takes_no_memory(watcher, tmp_path, policy, dtype):
    body = TRAIN_ON_BATCH.format(policy=policy, dtype=dtype)
    found = watch(watcher, body, tmp_path)
    assert found["steps"] == 5
    assert found["sizes"] == []
    before, after = found["pool"]
    assert before == after


@pytest.mark.usefixtures("native_kernels")
@pytest.mark.parametrize(
    ("policy", "name"),
    [("workspace_performance", "im2col"), ("ucudnn_wr", "im2col/16")],
)
def test_columns_lie_in_scratch_alone(watcher, tmp_path, policy, name):
    body = COLUMNS.format(policy=policy, name=name)
    found = watch(watcher, body, tmp_path)
    assert found["steps"] == 5
    assert found["sizes"] == []
    before, after = found["pool"]
    assert before == after


@pytest.mark.usefixtures("native_kernels")
def test_a_step_of_volumes_takes_no_memory(watcher, tmp_path):
    found = watch(watcher, VOLUMES, tmp_path)
    assert found["sizes"] == []
    before, after = found["pool"]
    assert before == after


@pytest.mark.usefixtures("native_kernels")
@pytest.mark.parametrize("mode", ["none", "single", "separate"])
def test_a_step_in_a_workspace_mode_takes_memory_from_the_pool_alone(
    watcher, tmp_path, mode
):
    """In workspaces not even that: their pages are there."""
    found = watch(watcher, WORKSPACE_MODE.format(mode=mode), tmp_path)
    assert found["steps"] == 5
    assert found["sizes"] == []
    before, after = found["pool"]
    assert before[1:] == after[1:]
    assert (before[0] == after[0]) == (mode != "none")


@pytest.mark.usefixtures("native_kernels")
def test_fit_takes_no_memory_from_its_second_epoch_on(watcher, tmp_path):
    found = watch(watcher, FIT, tmp_path)
    assert found["steps"] == 9
    assert found["sizes"] == []
    before, after = found["pool"]
    assert before == after


@pytest.mark.usefixtures("native_kernels")
def test_batches_of_a_dataset_take_no_memory(watcher, tmp_path):
    """Neither the heap's nor the pool's: their blocks are there."""
    found = watch(watcher, FIT_DATASET, tmp_path)
    assert found["steps"] == 40
    assert found["sizes"] == []
    *before, after = found["pool"][0]
    assert before == after
