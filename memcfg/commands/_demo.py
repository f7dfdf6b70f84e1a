"""``memcfg demo``: train under three limits, and be refused a fourth.

Every number that it prints comes from the run. The limits belong to four logical
devices of one CPU, so the models exist at the same time and their steps are timed in
turns.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from rich.table import Column

from memcfg import config, nn, plan
from memcfg._tables import draw, new_table
from memcfg._terminal import paragraph, write
from memcfg.commands._digits import Digits, load_digits, residual_network
from memcfg.commands._whole_numbers import natural, positive
from memcfg.errors import InfeasiblePlanError
from memcfg.units import format_bytes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_PART = 35  # the most that the third run may take, in percent of keep_all's peak
# How often each model is timed, at most once an epoch, and for how many steps.
_TURNS, _STEPS = 6, 5

_Weights = list[npt.NDArray[np.float32]]


@dataclass(frozen=True)
class _Task:
    """What every run trains."""

    digits: Digits
    weights: _Weights  # the first ones
    epochs: int
    batch_size: int
    seed: int

    def compiled(self, policy: plan.Policy) -> nn.Model:
        """Build the network with its initial weights."""
        model = residual_network()
        model.compile(
            optimizer=nn.SGD(0.05, momentum=0.9),
            loss=nn.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            memory=policy,
        )
        model.set_weights(self.weights)
        return model

    def step(self, model: nn.Model) -> None:
        """Train on the first batch."""
        model.train_on_batch(
            self.digits.x[: self.batch_size], self.digits.y[: self.batch_size]
        )

    def plan(self, policy: plan.Policy) -> plan.Plan:
        """Plan a training step."""
        return self.compiled(policy).plan(self.batch_size)


@dataclass(frozen=True)
class _Result:
    """The results of one run."""

    limit: int | None  # bytes
    method: str
    predicted: int  # bytes
    measured: int  # bytes
    accuracy: float  # held out
    weights: _Weights  # the last ones
    model: nn.Model


def add_demo(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``memcfg demo`` to a parser."""
    text = "train on handwritten digits under three limits, and be refused a fourth"
    parser = subparsers.add_parser("demo", help=text, description=text)
    parser.add_argument("--epochs", type=positive, default=10, help="default: 10")
    parser.add_argument("--batch-size", type=positive, default=64, help="default: 64")
    parser.add_argument("--seed", type=natural, default=0, help="default: 0")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    """Return 0 if weights are equal, peaks as predicted, and one limit refused."""
    nn.set_random_seed(args.seed)
    digits = load_digits()
    if args.batch_size > len(digits.x):
        sizes = f"{args.batch_size}, and there are {len(digits.x)} images to train on"
        print(f"memcfg: error: --batch-size is {sizes}", file=sys.stderr)
        return 2
    weights = residual_network().get_weights()
    task = _Task(digits, weights, args.epochs, args.batch_size, args.seed)
    epochs = "1 epoch" if task.epochs == 1 else f"{task.epochs} epochs"
    write(
        f"{len(digits.x)} handwritten digits, {len(digits.held_out_x)} more held out; "
        f"batches of {task.batch_size}, {epochs}."
    )
    limits = _limits(task)
    config.reset()
    config.set_logical_device_configuration(
        config.list_physical_devices("CPU")[0],
        [config.LogicalDeviceConfiguration(limit and f"{limit}B") for limit in limits],
    )
    return _show(task, limits)


def _limits(task: _Task) -> tuple[int | None, ...]:
    """Choose no limit, the peak of `share`, one to recompute, and one too low."""
    largest = task.plan(plan.keep_all()).peak_bytes
    shared = task.plan(plan.share())
    smallest = task.plan(plan.sqrt_checkpoint()).peak_bytes
    between = min((smallest + shared.peak_bytes) // 2, largest * _PART // 100)
    limit = max(smallest, between)
    return None, shared.peak_bytes, limit, shared.lower_bound_bytes - 1


def _show(task: _Task, limits: Sequence[int | None]) -> int:
    """Train on each logical device in turn."""
    devices = config.list_logical_devices("CPU")
    policies: list[plan.Policy] = [plan.keep_all(), plan.auto(), plan.auto()]
    runs: list[_Result] = []
    try:
        for device, limit, policy in zip(devices[:3], limits, policies, strict=False):
            write(f"\nLimit: {_limit_text(limit)}")
            with config.device(device):
                runs.append(_train(task, limit, policy))
        write(_table(runs, _step_seconds(task, runs)))
        kept = _compare(runs)
        return 0 if _refused(task, devices[3], limits[3]) and kept else 1
    finally:
        for item in runs:
            item.model.close()


def _train(task: _Task, limit: int | None, policy: plan.Policy) -> _Result:
    digits = task.digits
    model = task.compiled(policy)
    model.fit(
        digits.x,
        digits.y,
        batch_size=task.batch_size,
        epochs=task.epochs,
        seed=task.seed,
        verbose=1,
    )
    weights = model.get_weights()
    scores = model.evaluate(
        digits.held_out_x,
        digits.held_out_y,
        batch_size=task.batch_size,
        verbose=0,
        return_dict=True,
    )
    assert isinstance(scores, dict)
    chosen = model.memory_plan
    return _Result(
        limit=limit,
        method=chosen.method,
        predicted=chosen.peak_bytes,
        measured=model.memory_report(verify=True).measured_peak_bytes,
        accuracy=scores["accuracy"],
        weights=weights,
        model=model,
    )


def _step_seconds(task: _Task, runs: Sequence[_Result]) -> list[float]:
    """Time more steps of all models in turns; return the median of each."""
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(min(_TURNS, task.epochs)):
        for item, result in zip(runs, seconds, strict=True):
            task.step(item.model)  # brings its memory into the caches
            for _ in range(_STEPS):
                began = time.perf_counter()
                task.step(item.model)
                result.append(time.perf_counter() - began)
    return [median(result) for result in seconds]


def _limit_text(limit: int | None) -> str:
    return "none" if limit is None else format_bytes(limit, exact=True)


def _table(runs: Sequence[_Result], seconds: Sequence[float]) -> str:
    table = new_table(
        *(Column(heading, no_wrap=True) for heading in ("Limit", "Method")),
        numbers=("Predicted\npeak", "Measured\npeak", "Step time", "Accuracy"),
    )
    for item, time_taken in zip(runs, seconds, strict=True):
        table.add_row(
            "none" if item.limit is None else f"{item.limit:,}",
            item.method,
            f"{item.predicted:,}",
            f"{item.measured:,}",
            f"× {time_taken / seconds[0]:.2f}",
            f"{item.accuracy:.4f}",
        )
    shares = [f"{item.predicted / runs[0].predicted:.1%}" for item in runs[1:]]
    return (
        f"\nThe same training under three limits (bytes)\n{draw(table)}\n"
        f"Accuracy on held-out digits. Of {runs[0].method}'s peak the others take "
        f"{' and '.join(shares)}."
    )


def _compare(runs: Sequence[_Result]) -> bool:
    first, *others = runs
    identical = all(_same_bits(first.weights, item.weights) for item in others)
    exact = all(item.predicted == item.measured for item in runs)
    outcome = "bit-identical" if identical else "NOT identical"
    write(f"The weights after the three runs are {outcome}.")
    if not exact:
        write("A measured peak is NOT the predicted one.")
    return identical and exact


def _same_bits(one: _Weights, other: _Weights) -> bool:
    return len(one) == len(other) and all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        for a, b in zip(one, other, strict=True)
    )


def _refused(task: _Task, device: config.LogicalDevice, limit: int | None) -> bool:
    """Ask for less than any method needs; return whether that took no memory."""
    before = config.get_memory_info(device)
    try:
        with config.device(device):
            task.step(task.compiled(plan.auto()))
    except InfeasiblePlanError as error:
        after = config.get_memory_info(device)
        message = (
            f"Limit: {_limit_text(limit)}, one byte below the lower bound: refused. "
            f"In use before: {before['current']} B; after: {after['current']} B; max "
            f"in between: {after['peak']} B."
        )
        write("\n" + paragraph("", message.split()))
        write(paragraph("", str(error).split()))
        return before == after
    write("A limit below the lower bound was NOT refused.")
    return False
