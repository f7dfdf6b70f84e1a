"""Measure the bytes and seconds of a few real steps under a plan."""

from __future__ import annotations

import datetime
import statistics
import time
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from memcfg import config
from memcfg._core._machine import machine_bytes
from memcfg._version import __version__
from memcfg.plan import share

if TYPE_CHECKING:
    from memcfg import nn
    from memcfg.commands._tasks import Task
    from memcfg.plan import Plan, Policy
    from memcfg.timeline import MemoryTimeline

DEVICE = "CPU:0"
# The device of the policy, with its lane and limit; `share` trains on `DEVICE`.
_BESIDE = "CPU:1"
_CHOOSING = 64  # the steps in which a program may choose another plan, and one more


class Measured(NamedTuple):
    """A run: the highest byte of the arena that was touched, and seconds per step."""

    peak_bytes: int
    seconds: float


class Turns(NamedTuple):
    """What a run took, and what `share` took in the same minute.

    Its plan may differ from that of the first step, and be of another method.
    """

    method: str
    predicted_bytes: int
    peak_bytes: int
    seconds: float
    share_seconds: float


def environment() -> dict[str, str | int]:
    """Return the date, the machine and the versions of a measurement."""
    details = config.get_device_details(config.list_physical_devices("CPU")[0])
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "processor": details["device_name"],
        "cores": details["cores"],
        "kernels": config.logical_device(DEVICE).kernels.name,
        "memcfg": __version__,
    }


def measure(task: Task, policy: Policy, limit: int | None, steps: int) -> Measured:
    """Train some steps within a limit of the device; the first is not counted."""
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


def measured_timeline(task: Task, policy: Policy, limit: int | None) -> MemoryTimeline:
    """Train a step within a limit of the device; return the timeline of the next."""
    config.set_memory_limit(DEVICE, limit)
    model = task.model(policy)
    try:
        model.train_on_batch(*task.data(model))
        return model.memory_timeline(verify=True)
    finally:
        model.close()
        config.set_memory_limit(DEVICE, None)


def devices_for_turns(
    bytes_per_second: float, places: config.LogicalDeviceConfiguration
) -> list[config.LogicalDeviceConfiguration]:
    """Return the two CPUs of `measure_in_turns`; the second has such a lane."""
    _, *others = places.spill_on(machine_bytes()).places
    rates = [each.bandwidth and f"{each.bandwidth:.0f}B" for each in others]
    first = f"{bytes_per_second:.0f}B"
    lanes = replace(places, lane_bandwidth=[first, *rates])
    return [config.LogicalDeviceConfiguration(), lanes]


def _may_change(plan: Plan, policy: Policy, times: str) -> bool:
    """Return whether the next steps may still choose another plan."""
    summary, predicted = plan.summary, plan.predicted
    if summary is None or summary.recosted is not None:
        return False
    learns = times == "measured" and getattr(policy, "learns", None) is not None
    evicts = predicted.moved_bytes > 0 or predicted.recompute_seconds > 0
    return bool(summary.chosen_by) or (learns and evicts)


def measure_in_turns(task: Task, policy: Policy, limit: int, steps: int) -> Turns:
    """Train some steps within a limit, alternating with as many under `share`.

    The first steps are not counted, nor those that choose a plan.
    """
    models: list[nn.Model] = []
    config.set_memory_limit(_BESIDE, limit)
    try:
        for device, method in ((_BESIDE, policy), (DEVICE, share())):
            with config.device(device):
                models.append(task.model(method))
                x, y = task.data(models[-1])
                models[-1].train_on_batch(x, y)
        for _ in range(_CHOOSING):
            if not _may_change(models[0].memory_plan, policy, task.times):
                break
            models[0].train_on_batch(x, y)
        taken: tuple[list[float], list[float]] = ([], [])
        for _ in range(steps):
            for model, of_model in zip(models, taken, strict=True):
                began = time.perf_counter()
                model.train_on_batch(x, y)
                of_model.append(time.perf_counter() - began)
        report, plan = models[0].memory_report(verify=True), models[0].memory_plan
        peak = report.measured_peak_bytes
        assert peak is not None  # it was verified
        seconds, beside = map(statistics.median, taken)
        return Turns(plan.method, plan.peak_bytes, peak, seconds, beside)
    finally:
        for model in models:
            model.close()
        config.set_memory_limit(_BESIDE, None)
