"""Where a step's time goes on a GPU: its kernels by what they do, and the gaps between.

PyTorch's profiler hears of all kernels of the process, whoever launches them.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict

FAMILIES = (  # the first that matches a kernel's name, in lower case
    ("copies", r"memcpy|memset|copy|fill"),
    ("turning images", r"nchwto|nhwcto|transpose|permute"),
    ("normalisation", r"batch_?norm|batch_moments|(^|_)bn_|welford"),
    ("pooling", r"pool"),
    ("loss", r"softmax|cross_entropy|nll|logit"),
    ("convolutions", r"conv|fprop|dgrad|wgrad|winograd|implicit|cudnn|xmma|fft"),
    ("products", r"gemm|gemv|splitk|dense|matmul|nvjet"),
    ("updates", r"sgd|momentum|multi_tensor|foreach|adam"),
    ("sums and biases", r"bias|reduce|sum"),
    ("element-wise", r"relu|clamp|threshold|elementwise|add|multiply|triton"),
)
OTHER = "other"
SHOWN = 12  # kernels, of the most time
NAME = 90  # characters


def family_of(name):
    low = name.lower()
    found = (family for family, known in FAMILIES if re.search(known, low))
    return next(found, OTHER)


def table_of(kernels, seconds, steps):
    """Families and kernels in milliseconds a step, of (name, begin, end) in seconds.

    ``busy`` is the time in which at least one runs, ``gaps`` the rest of the step.
    """
    families, each = defaultdict(float), defaultdict(lambda: [0, 0.0])
    for name, begin, end in kernels:
        families[family_of(name)] += end - begin
        row = each[name[:NAME]]
        row[0] += 1
        row[1] += end - begin
    busy, until = 0.0, float("-inf")
    for _, begin, end in sorted(kernels, key=lambda kernel: kernel[1]):
        busy += max(0.0, end - max(begin, until))
        until = max(until, end)

    def shown(value):
        return round(1e3 * value / steps, 4)

    most = sorted(each.items(), key=lambda row: -row[1][1])[:SHOWN]
    return {
        "milliseconds": shown(seconds),
        "busy": shown(busy),
        "gaps": shown(seconds - busy),
        "launches": round(len(kernels) / steps, 1),
        "families": {
            name: shown(value)
            for name, value in sorted(families.items(), key=lambda row: -row[1])
        },
        "kernels": [[name, count / steps, shown(all_)] for name, (count, all_) in most],
    }


def profile(torch, run, steps):
    """Run steps twice: by the clock, then before the profiler; return the table."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(steps):
        run()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    on = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=on) as told:
        for _ in range(steps):
            run()
        torch.cuda.synchronize()
    kernels = [
        (event.name, event.time_range.start / 1e6, event.time_range.end / 1e6)
        for event in told.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    ]
    return table_of(kernels, seconds, steps)
