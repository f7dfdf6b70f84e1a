"""Passes over data: epochs of training, evaluation, prediction.

Owns the loops and what is said when the loss is not finite. Refuses to know where
batches come from, checks of data, which are done before, and memory: no step allocates
any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from memcfg.errors import NonFiniteLossError
from memcfg.nn.training._progress import Progress
from memcfg.nn.training._steps import Totals, evaluate_step, predict_step, train_step

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.nn.inputs._feed import Feed
    from memcfg.nn.training._compile_config import Setup
    from memcfg.nn.training._fit_options import FitOptions
    from memcfg.nn.training._history import History
    from memcfg.nn.training._predictions import Result
    from memcfg.nn.training._session import Programs

__all__ = ["Feeds", "evaluate", "predict", "train"]


class Feeds(NamedTuple):
    """What `train` reads.

    Parameters
    ----------
    train : Feed
        To train on.
    held : Feed or None
        To evaluate after each epoch.
    """

    train: Feed
    held: Feed | None


def train(
    programs: Programs,
    setup: Setup,
    feeds: Feeds,
    options: FitOptions,
    history: History,
    stopped: Callable[[], bool],
) -> None:
    """Train for some epochs, or until the data has ended or a user ends it.

    Parameters
    ----------
    programs : Programs
        With the programs of all known batch sizes loaded.
    setup : Setup
        How to train.
    feeds : Feeds
        What is read.
    options : FitOptions
        The checked arguments.
    history : History
        Each epoch that had a step is added to it.
    stopped : callable
        Whether to end; asked behind each step and each epoch.

    Raises
    ------
    NonFiniteLossError
        If a loss is NaN or infinite; weights and optimizer are as before that step.
    BaseException
        What the data raises.
    """
    for epoch in range(options.initial_epoch, options.epochs):
        title = f"Epoch {epoch + 1}/{options.epochs}"
        with Progress(options.verbose, feeds.train.steps, title) as progress:
            logs = _epoch(
                programs, setup, feeds.train, options, progress, title, stopped
            )
            if logs and feeds.held is not None:
                found = _pass(programs, feeds.held).logs(setup.metrics)
                logs |= {f"val_{name}": value for name, value in found.items()}
            progress.finish(logs)
        if logs:
            history.add(epoch, logs)
        if feeds.train.ran_out or stopped():
            break


def evaluate(
    programs: Programs, setup: Setup, feed: Feed, verbose: int
) -> dict[str, float]:
    """Evaluate data.

    Parameters
    ----------
    programs : Programs
        With the programs of all known batch sizes loaded.
    setup : Setup
        Names the metrics.
    feed : Feed
        Samples and labels.
    verbose : int
        0, 1 or 2.

    Returns
    -------
    dict of str to float
        ``loss`` and the metrics.
    """
    with Progress(verbose, feed.steps, "") as progress:
        totals = _pass(programs, feed, progress)
        logs = totals.logs(setup.metrics)
        progress.finish(logs)
    return logs


def predict(programs: Programs, feed: Feed, result: Result, verbose: int) -> None:
    """Predict all samples.

    Parameters
    ----------
    programs : Programs
        With the programs of all known batch sizes loaded.
    feed : Feed
        The samples.
    result : Result
        Takes the predictions.
    verbose : int
        0, 1 or 2.
    """
    with Progress(verbose, feed.steps, "") as progress:
        for batch in feed.epoch():
            predict_step(programs, batch, result.room(batch.size))
            progress.step({})


def _epoch(
    programs: Programs,
    setup: Setup,
    feed: Feed,
    options: FitOptions,
    progress: Progress,
    title: str,
    stopped: Callable[[], bool],
) -> dict[str, float]:
    totals = Totals()
    for step, batch in enumerate(feed.epoch(), start=1):
        outcome = train_step(programs, setup.optimizer, batch, guard=options.guard)
        if not outcome.finished:
            raise NonFiniteLossError(
                f"the loss is {outcome.loss} in epoch {title[6:]}, step {step}; "
                "weights and optimizer are as before that step. Lower the learning "
                'rate, look for NaN or large values in x, or pass on_nan="ignore"'
            )
        totals.add(outcome)
        progress.step(totals.logs(setup.metrics))
        if stopped():
            break
    return totals.logs(setup.metrics)


def _pass(programs: Programs, feed: Feed, progress: Progress | None = None) -> Totals:
    totals = Totals()
    for batch in feed.epoch():
        totals.add(evaluate_step(programs, batch))
        if progress is not None:
            progress.step({})
    return totals
