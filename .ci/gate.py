"""Run the steps of a gate, some at once, and hold each to its processor seconds.

    python .ci/gate.py .ci/gate.toml

Prints what each step wrote when it ends, then a table of what each took. Exits with 1
when a step fails, or takes more than its budget; the steps that wait for a failed one
do not run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """A command of bash, and what it may take."""

    name: str
    run: str
    budget: float  # processor seconds
    after: tuple[str, ...] = ()
    slots: int = 1


@dataclass(frozen=True)
class Cost:
    """How a step ended, and what it took."""

    status: int  # of its process
    processor_seconds: float
    seconds: float


class Slots:
    """How many steps may run at once; a step may take several."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._changed = threading.Condition()

    def acquire(self, count: int) -> None:
        """Wait until so many are free, and take them."""
        with self._changed:
            self._changed.wait_for(lambda: self._free >= count)
            self._free -= count

    def release(self, count: int) -> None:
        """Give back as many."""
        with self._changed:
            self._free += count
            self._changed.notify_all()


def calibrate() -> float:
    """Return the processor seconds that a fixed loop takes here: the least of three."""
    taken = []
    for _ in range(3):
        began, value = time.process_time(), 0
        for number in range(5_000_000):
            value = (value * 31 + number) & 0xFFFF
        taken.append(time.process_time() - began)
    return min(taken)


def run_step(step: Step) -> Cost:
    """Run a step's command; its output is printed in one piece."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", step.run],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        _, status, usage = os.wait4(child.pid, 0)  # with all descendants waited for
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read().decode(errors="replace")
    cost = Cost(
        child.returncode, usage.ru_utime + usage.ru_stime, time.monotonic() - began
    )
    print(
        f"== {step.name}: {cost.seconds:.0f} s, exit {cost.status}\n{text}", flush=True
    )
    return cost


def run_steps(steps: list[Step], slots: int) -> dict[str, Cost]:
    """Run steps in the order of what they wait for; omit those behind a failed one."""
    free = Slots(slots)
    costs: dict[str, Cost] = {}
    futures: dict[str, object] = {}

    def work(step: Step) -> None:
        for name in step.after:
            futures[name].result()
        if any(name not in costs or costs[name].status != 0 for name in step.after):
            return
        free.acquire(step.slots)
        try:
            costs[step.name] = run_step(step)
        finally:
            free.release(step.slots)

    with ThreadPoolExecutor(len(steps)) as executor:
        for step in steps:
            futures[step.name] = executor.submit(work, step)
        for future in futures.values():
            future.result()
    return costs


def report(steps: list[Step], costs: dict[str, Cost], scale: float) -> list[str]:
    """Print a table of what the steps took; return what was wrong."""
    wrong = []
    print(f"{'step':<12}{'seconds':>9}{'processor':>11}{'budget':>9}")
    for step in steps:
        cost, budget = costs.get(step.name), step.budget * scale
        if cost is None:
            wrong.append(f"{step.name} did not run")
            continue
        print(
            f"{step.name:<12}{cost.seconds:>9.0f}{cost.processor_seconds:>11.0f}"
            f"{budget:>9.0f}"
        )
        if cost.status != 0:
            wrong.append(f"{step.name} failed with exit status {cost.status}")
        if cost.processor_seconds > budget:
            wrong.append(
                f"{step.name} took {cost.processor_seconds:.0f} processor seconds, "
                f"{cost.processor_seconds - budget:.0f} over its budget"
            )
    return wrong


def main(path: str) -> int:
    """Run the gate that a file describes."""
    with open(path, "rb") as file:
        settings = tomllib.load(file)
    steps = [
        Step(name, **{**step, "after": tuple(step.get("after", ()))})
        for name, step in settings["steps"].items()
    ]
    scale = max(1.0, calibrate() / settings["calibration_seconds"])
    began = time.monotonic()
    costs = run_steps(steps, settings["slots"])
    wrong = report(steps, costs, scale)
    print(f"gate: {time.monotonic() - began:.0f} s, budgets scaled by {scale:.2f}")
    for line in wrong:
        print(f"gate: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
