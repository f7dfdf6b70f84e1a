"""The loop of a peer's process: a question a line, an answer a line.

A question names a workload; the answer is the seconds of one pass over it, the items
that came, and a sum that tells whether they were the right ones. The first question of
a workload is a pass that nobody times: files are read, functions traced.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from workloads import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from workloads import Workload

    Passes = Callable[[], Iterable]

__all__ = ["serve"]


def serve(make: Callable[[Workload, Path], Passes]) -> None:
    """Answer until the questions end.

    `make` gives what begins a pass: batches that are tuples of x and y.
    """
    folder, made = Path(sys.argv[1]), {}
    for line in sys.stdin:
        workload = WORKLOADS[json.loads(line)]
        if workload.name not in made:
            made.clear()  # the data of one workload at a time
            made[workload.name] = make(workload, folder)
        print(json.dumps(passed(made[workload.name])), flush=True)


def passed(begin: Passes) -> dict:
    """Make a pass; labels are summed, as a model would read them."""
    items, labels = 0, 0
    began = time.perf_counter()
    for _, y in begin():
        items += len(y)
        labels += int(np.asarray(y).sum())
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": seconds, "items": items, "labels": labels, "peak_rss": peak}
