"""What a few real steps under a plan take: bytes and seconds."""

from __future__ import annotations

import datetime
import statistics
import time
from typing import TYPE_CHECKING, NamedTuple

from memcfg import config
from memcfg._version import __version__

if TYPE_CHECKING:
    from memcfg.commands._tasks import Task
    from memcfg.plan import Policy

DEVICE = "CPU:0"


class Measured(NamedTuple):
    """A real run: the highest byte of the arena that was touched, seconds a step."""

    peak_bytes: int
    seconds: float


def environment() -> dict[str, str | int]:
    """Return what measured numbers belong to: the day, the machine, the versions."""
    details = config.get_device_details(config.list_physical_devices("CPU")[0])
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "processor": details["device_name"],
        "cores": details["cores"],
        "kernels": config.logical_device(DEVICE).kernels.name,
        "memcfg": __version__,
    }


def measure(task: Task, policy: Policy, limit: int | None, steps: int) -> Measured:
    """Train some steps with the device's limit set so; the first is not counted."""
    config.set_memory_limit(DEVICE, limit)
    model = task.model(policy)
    try:
        x, y = task.data(model)
        model.train_on_batch(x, y)
        taken = []
        for _ in range(steps):
            began = time.perf_counter()
            model.train_on_batch(x, y)
            taken.append(time.perf_counter() - began)
        peak = model.memory_report(verify=True).measured_peak_bytes
        return Measured(peak, statistics.median(taken))
    finally:
        model.close()
        config.set_memory_limit(DEVICE, None)
