"""Where Linux's own calls are missing, memcfg imports, plans, judges and computes."""

from __future__ import annotations

import os
import subprocess
import sys

# What Python has on Linux alone, beside what a system such as macOS has.
PROGRAM = """
import mmap, os, sys
for name in ("sched_getaffinity", "posix_fallocate", "posix_fadvise", "memfd_create",
             "copy_file_range", "eventfd", "setns", "sched_setaffinity", "O_TMPFILE"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("MADV_HUGEPAGE", "MADV_DONTFORK", "MADV_REMOVE", "MAP_POPULATE"):
    if hasattr(mmap, name):
        delattr(mmap, name)
import asyncio, multiprocessing, subprocess, sysconfig, urllib.request  # as here
sys.platform = "darwin"

import builtins
whole = builtins.open
def opened(path, *args, **options):
    if str(path).startswith(("/proc/", "/sys/")):
        raise FileNotFoundError(2, "no such file", str(path))
    return whole(path, *args, **options)
builtins.open = opened
import io
io.open = opened

import numpy as np
import memcfg as mc

for room in mc.__all__:
    getattr(mc, room)
model = mc.nn.Sequential([mc.nn.Input((16,)), mc.nn.Dense(64), mc.nn.Dense(4)])
model.compile("sgd", "mse")
graph = model.graph(batch_size=32)
plan = mc.plan.auto()(graph, None)
mc.plan.validate(graph, plan)
print(model.fit(np.ones((8, 16)), np.ones((8, 4)), verbose=0).history["loss"][0] > 0)
"""


def test_without_linuxs_own_calls_it_plans_and_judges():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"MEMCFG_KERNELS": "reference"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "True\n", done.stderr
