"""Passes over data: epochs of training, evaluation, prediction."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from memcfg.errors import NonFiniteLossError
from memcfg.nn.training._loader_share import LoaderShare
from memcfg.nn.training.progress._progress import Progress, shared_cell
from memcfg.workspaces import gc

if TYPE_CHECKING:
    from collections.abc import Callable, Container
    from typing import Any

    from memcfg.nn.callbacks import CallbackList, History
    from memcfg.nn.inputs._feed import Feed
    from memcfg.nn.training._compile_config import CompileConfig
    from memcfg.nn.training._evaluations import Evaluations
    from memcfg.nn.training._predictions import Predictions
    from memcfg.nn.training._session import Session
    from memcfg.nn.training._totals import Totals

__all__ = ["Trainer", "check_on_nan", "non_finite"]


def check_on_nan(on_nan: Any) -> bool:
    """Return whether a loss that is not finite stops training."""
    if on_nan not in ("raise", "ignore"):
        raise ValueError(f'on_nan is "raise" or "ignore", not {on_nan!r}')
    return bool(on_nan == "raise")


def non_finite(session: Session, loss: float, where: str) -> NonFiniteLossError:
    """Return the error for a step that the guard stopped before any update."""
    if session.is_finite():
        text = (
            f"the loss is {loss} in {where}; weights and optimizer are as before that "
            "step. Lower the learning rate, look in x and y for NaN, large values, or "
            'indices that an Embedding has no row for, or pass on_nan="ignore"'
        )
    else:
        text = (
            f"the loss is {loss} in {where}, because weights are not finite since an "
            "earlier step, whose loss was: its update was too large. Start again "
            "from saved weights, with a lower learning rate or with clipnorm"
        )
    return NonFiniteLossError(text)


class Trainer:
    """The loops of a model over its data, and the outcome of the last `fit`."""

    def __init__(self) -> None:
        self.history: History | None = None
        self.stop_training = False
        self.validates = False  # whether the last `fit` had validation data
        self.totals: Totals | None = None  # of the last pass with losses

    def fit(
        self,
        session: Session,
        config: CompileConfig,
        feed: Feed,
        held: Feed | None,
        epochs: range,
        validated: Container[int],
        verbose: int,
        guard: bool,  # whether a loss that is not finite stops training
        callbacks: CallbackList,
        history: History,
    ) -> History:
        """Train for some epochs, or until the data ends or the user stops it."""
        self.history = history
        self.validates = held is not None
        logs: dict[str, float] = {}
        shares = LoaderShare(session, feed)
        cell = shared_cell(verbose)
        try:
            callbacks("on_train_begin", {})
            for epoch in epochs:
                shares.begin_epoch()
                of = f"{epoch + 1}/{epochs.stop}"
                callbacks("on_epoch_begin", epoch, {})
                totals = self.totals = session.totals()
                with Progress(
                    verbose,
                    feed.steps,
                    f"Epoch {of}",
                    totals.logs,
                    pool=lambda: session.pool,
                    cell=cell,
                ) as progress:
                    stopper = self._epoch(
                        session, config, feed, guard, progress, totals, of, callbacks
                    )
                    logs = totals.logs() | stopper
                    if logs and held is not None and epoch in validated:
                        found = self._pass(session, held, callbacks).logs()
                        logs |= {f"val_{name}": value for name, value in found.items()}
                    progress.finish(logs)
                if logs:
                    callbacks("on_epoch_end", epoch, logs)
                if feed.ran_out or self.stop_training:
                    break
                shares.end_epoch(left=epochs.stop - epoch - 1)
            if logs:
                config.optimizer.finalize_variable_values()
            callbacks("on_train_end", logs)
        finally:
            feed.close()
            history.pipeline = feed.source.report()
            history.fallbacks = session.fallbacks_in_force()
            if held is not None:
                held.close()
        return history

    def evaluate(
        self,
        session: Session,
        feed: Feed,
        verbose: int,
        callbacks: CallbackList,
        evaluations: Evaluations | None = None,
    ) -> dict[str, float]:
        """Return loss and metrics on data, which evaluators see in the same pass."""
        with Progress(verbose, feed.steps) as progress:
            totals = self._pass(session, feed, callbacks, progress, evaluations)
            logs = totals.logs()
            progress.finish(logs)
        return logs

    def do_evaluation(
        self,
        add: Callable[[Any], object],  # runs a batch and has its outputs evaluated
        feed: Feed,
        verbose: int,
        callbacks: CallbackList,
    ) -> None:
        """Pass data through the model once for evaluators."""
        begin = callbacks.hooks("on_test_batch_begin")
        end = callbacks.hooks("on_test_batch_end")
        callbacks("on_test_begin", {})
        with Progress(verbose, feed.steps) as progress:
            for step, batch in enumerate(feed.epoch()):
                for hook in begin:
                    hook(step, {})
                add(batch)
                if gc.window.due < inf:  # without a window there is no call
                    gc.between_steps()
                progress.step()
                for hook in end:
                    hook(step, {})
            progress.finish({})
        callbacks("on_test_end", {})

    def predict(
        self,
        session: Session,
        feed: Feed,
        results: Predictions,
        verbose: int,
        callbacks: CallbackList,
        pack: Callable[[Any], Any],
    ) -> None:
        """Predict the outputs of all samples; callbacks get them by `pack`."""
        begin = callbacks.hooks("on_predict_batch_begin")
        end = callbacks.hooks("on_predict_batch_end")
        callbacks("on_predict_begin", {})
        with Progress(verbose, feed.steps) as progress:
            for step, batch in enumerate(feed.epoch()):
                for hook in begin:
                    hook(step, {})
                if batch.lengths:
                    results.at(session.network_at(batch.lengths).outputs)
                rows = results.next_rows(batch.size)
                session.step("predict", batch, results=rows)
                progress.step()
                for hook in end:
                    hook(step, {"outputs": pack(rows)})
        callbacks("on_predict_end", {})

    def _epoch(
        self,
        session: Session,
        config: CompileConfig,
        feed: Feed,
        guard: bool,
        progress: Progress,
        totals: Totals,
        of: str,  # epoch and number of epochs
        callbacks: CallbackList,
    ) -> dict[str, float]:
        """Run the steps; return the non-finite loss that stopped them, if any."""
        optimizer = config.optimizer
        stopper: dict[str, float] = {}
        begin = callbacks.hooks("on_train_batch_begin")
        end = callbacks.hooks("on_train_batch_end")
        for step, batch in enumerate(feed.epoch()):
            for hook in begin:
                hook(step, {})
            finished, values = session.step("train", batch, optimizer, guard=guard)
            if gc.window.due < inf:  # without a window there is no call
                gc.between_steps()
            if finished:
                totals.add(batch.size, values)
                progress.step()
            elif not callbacks.stops_at_nan:
                where = f"epoch {of}, step {step + 1}"
                raise non_finite(session, values[0], where)
            else:
                stopper = {"loss": values[0]}
            if end:
                logs = totals.logs() if finished else stopper
                for hook in end:
                    hook(step, logs)
            if self.stop_training:
                break
        return stopper

    def _pass(
        self,
        session: Session,
        feed: Feed,
        callbacks: CallbackList,
        progress: Progress | None = None,
        evaluations: Evaluations | None = None,
    ) -> Totals:
        totals = self.totals = session.totals()
        begin = callbacks.hooks("on_test_batch_begin")
        end = callbacks.hooks("on_test_batch_end")
        callbacks("on_test_begin", {})
        for step, batch in enumerate(feed.epoch()):
            for hook in begin:
                hook(step, {})
            if evaluations is None:
                totals.add(batch.size, session.step("evaluate", batch)[1])
            else:
                found = evaluations.step(session, "evaluate", batch)
                totals.add(batch.size, found)
            if gc.window.due < inf:  # without a window there is no call
                gc.between_steps()
            if progress is not None:
                progress.step()
            for hook in end:
                hook(step, totals.logs())
        callbacks("on_test_end", totals.logs())
        return totals
