"""Passes over data: epochs of training, evaluation, prediction.

Owns the loops, shuffling and what is said when the loss is not finite. Refuses
checks of data, which are done before, and memory: no step allocates any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from memcfg.errors import NonFiniteLossError
from memcfg.nn._arguments import nonnegative_int, positive_int
from memcfg.nn._data import Dataset, batches
from memcfg.nn._progress import Progress, check_verbose
from memcfg.nn._random import check_seed, next_seed
from memcfg.nn._steps import (
    Totals,
    evaluate_step,
    predict_step,
    programs_for,
    train_step,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcfg.nn._graphs import Program
    from memcfg.nn._history import History
    from memcfg.nn._programs import Programs
    from memcfg.nn._setup import Setup

__all__ = [
    "FitOptions",
    "check_on_nan",
    "evaluate",
    "fit_options",
    "predict",
    "required",
    "train",
]


@dataclass(frozen=True, slots=True)
class FitOptions:
    """The checked arguments of `fit` that are not data.

    Parameters
    ----------
    batch_size, validation_batch_size : int
        Samples a step.
    epochs, initial_epoch : int
        The epochs ``initial_epoch`` to ``epochs - 1`` are run.
    verbose : int
        0, 1 or 2.
    shuffle : bool
        Whether each epoch has an order of its own.
    seed : int
        Decides the orders.
    guard : bool
        Whether a loss that is not finite stops training.
    """

    batch_size: int
    validation_batch_size: int
    epochs: int
    initial_epoch: int
    verbose: int
    shuffle: bool
    seed: int
    guard: bool


def fit_options(given: dict[str, Any]) -> FitOptions:
    """Check the arguments of `fit` that are not data.

    Parameters
    ----------
    given : dict
        The arguments by name.

    Returns
    -------
    FitOptions
        The same, checked.

    Raises
    ------
    TypeError, ValueError
        If one cannot be honoured.
    """
    batch_size = positive_int(given["batch_size"], "batch_size")
    validation = given["validation_batch_size"]
    if not isinstance(given["shuffle"], bool | np.bool_):
        raise TypeError(f"shuffle is True or False, not {given['shuffle']!r}")
    return FitOptions(
        batch_size=batch_size,
        validation_batch_size=(
            batch_size
            if validation is None
            else positive_int(validation, "validation_batch_size")
        ),
        epochs=positive_int(given["epochs"], "epochs"),
        initial_epoch=nonnegative_int(given["initial_epoch"], "initial_epoch"),
        verbose=check_verbose(given["verbose"]),
        shuffle=bool(given["shuffle"]),
        seed=next_seed() if given["seed"] is None else check_seed(given["seed"]),
        guard=check_on_nan(given["on_nan"]),
    )


def check_on_nan(on_nan: Any) -> bool:
    """Return whether a loss that is not finite stops training.

    Parameters
    ----------
    on_nan : {"raise", "ignore"}
        What was given.

    Returns
    -------
    bool
        True for ``"raise"``.

    Raises
    ------
    ValueError
        If it is something else.
    """
    if on_nan not in ("raise", "ignore"):
        raise ValueError(f'on_nan is "raise" or "ignore", not {on_nan!r}')
    return bool(on_nan == "raise")


def required(
    train: Dataset, validation: Dataset | None, options: FitOptions
) -> list[Program]:
    """Return all programs that `train` will run.

    Parameters
    ----------
    train : Dataset
        To train on.
    validation : Dataset or None
        To evaluate after each epoch.
    options : FitOptions
        The batch sizes.

    Returns
    -------
    list of Program
        The full training step first.
    """
    wanted = programs_for("train", len(train), options.batch_size)
    if validation is not None:
        size = options.validation_batch_size
        wanted += programs_for("evaluate", len(validation), size)
    return wanted


def train(
    programs: Programs,
    setup: Setup,
    data: tuple[Dataset, Dataset | None],
    options: FitOptions,
    history: History,
) -> None:
    """Train for some epochs.

    Parameters
    ----------
    programs : Programs
        With everything `required` loaded.
    setup : Setup
        How to train.
    data : tuple of Dataset and (Dataset or None)
        To train on, and to evaluate after each epoch.
    options : FitOptions
        The checked arguments.
    history : History
        Each finished epoch is added to it.

    Raises
    ------
    NonFiniteLossError
        If a loss is NaN or infinite; weights and optimizer are as before that step.
    """
    samples, validation = data
    steps = -(-len(samples) // options.batch_size)
    orders = _orders(len(samples), options)
    for epoch in range(options.initial_epoch, options.epochs):
        title = f"Epoch {epoch + 1}/{options.epochs}"
        with Progress(options.verbose, steps, title) as progress:
            logs = _epoch(
                programs, setup, (samples, next(orders)), options, progress, title
            )
            if validation is not None:
                size = options.validation_batch_size
                found = _pass(programs, validation, size).logs(setup.metrics)
                logs |= {f"val_{name}": value for name, value in found.items()}
            progress.finish(logs)
        history.add(epoch, logs)


def evaluate(
    programs: Programs, setup: Setup, data: Dataset, batch_size: int, verbose: int
) -> dict[str, float]:
    """Evaluate a data set.

    Parameters
    ----------
    programs : Programs
        With the programs of these batch sizes loaded.
    setup : Setup
        Names the metrics.
    data : Dataset
        Samples and labels.
    batch_size : int
        Samples a step.
    verbose : int
        0, 1 or 2.

    Returns
    -------
    dict of str to float
        ``loss`` and the metrics.
    """
    steps = -(-len(data) // batch_size)
    with Progress(verbose, steps, "") as progress:
        totals = _pass(programs, data, batch_size, progress)
        logs = totals.logs(setup.metrics)
        progress.finish(logs)
    return logs


def predict(
    programs: Programs,
    x: npt.NDArray[np.float32],
    result: npt.NDArray[np.float32],
    batch_size: int,
    verbose: int,
) -> None:
    """Predict all samples.

    Parameters
    ----------
    programs : Programs
        With the programs of these batch sizes loaded.
    x : numpy.ndarray
        The samples.
    result : numpy.ndarray
        Takes the predictions.
    batch_size : int
        Samples a step.
    verbose : int
        0, 1 or 2.
    """
    with Progress(verbose, -(-len(x) // batch_size), "") as progress:
        for rows in batches(len(x), batch_size):
            predict_step(programs, x, rows, result)
            progress.step({})


def _epoch(
    programs: Programs,
    setup: Setup,
    ordered: tuple[Dataset, npt.NDArray[np.intp] | None],
    options: FitOptions,
    progress: Progress,
    title: str,
) -> dict[str, float]:
    data, order = ordered
    totals = Totals()
    steps = batches(len(data), options.batch_size, order)
    for step, rows in enumerate(steps, start=1):
        outcome = train_step(programs, setup.optimizer, data, rows, guard=options.guard)
        if not outcome.finished:
            raise NonFiniteLossError(
                f"the loss is {outcome.loss} in epoch {title[6:]}, step {step}; "
                "weights and optimizer are as before that step. Lower the learning "
                'rate, look for NaN or large values in x, or pass on_nan="ignore"'
            )
        totals.add(outcome)
        progress.step(totals.logs(setup.metrics))
    return totals.logs(setup.metrics)


def _pass(
    programs: Programs,
    data: Dataset,
    batch_size: int,
    progress: Progress | None = None,
) -> Totals:
    totals = Totals()
    for rows in batches(len(data), batch_size):
        totals.add(evaluate_step(programs, data, rows))
        if progress is not None:
            progress.step({})
    return totals


def _orders(samples: int, options: FitOptions) -> Iterator[npt.NDArray[np.intp] | None]:
    """Yield each epoch's order, in one array that is reused.

    The orders are those of ``default_rng(seed).permutation(samples)``, called once an
    epoch from epoch 0: training that goes on at `initial_epoch` sees what it would
    have seen without the break.
    """
    if not options.shuffle:
        while True:
            yield None
    generator = np.random.default_rng(options.seed)
    identity = np.arange(samples, dtype=np.intp)
    order = identity.copy()
    for epoch in range(options.epochs):
        np.copyto(order, identity)
        generator.shuffle(order)
        if epoch >= options.initial_epoch:
            yield order
