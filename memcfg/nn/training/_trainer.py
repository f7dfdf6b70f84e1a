"""Passes over data: epochs of training, evaluation, prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.errors import NonFiniteLossError
from memcfg.nn.training._history import History
from memcfg.nn.training._progress import Progress

if TYPE_CHECKING:
    from typing import Any

    from memcfg.nn.inputs._feed import Feed
    from memcfg.nn.training._compile_config import CompileConfig
    from memcfg.nn.training._predictions import Predictions
    from memcfg.nn.training._session import Session

__all__ = ["Totals", "Trainer", "check_on_nan"]


def check_on_nan(on_nan: Any) -> bool:
    """Return whether a loss that is not finite stops training."""
    if on_nan not in ("raise", "ignore"):
        raise ValueError(f'on_nan is "raise" or "ignore", not {on_nan!r}')
    return bool(on_nan == "raise")


class Totals:
    """Sums over the samples of an epoch."""

    def __init__(self, config: CompileConfig) -> None:
        self._metrics = config.metrics
        self._samples = 0
        self._sums = [0.0] * config.value_count

    def add(self, samples: int, values: tuple[float, ...]) -> None:
        """Add one step: its loss, a mean, and what its metrics add up."""
        self._samples += samples
        sums = self._sums
        sums[0] += values[0] * samples
        for i in range(1, len(sums)):
            sums[i] += values[i]

    def logs(self) -> dict[str, float]:
        """Return the means, by name; nothing if there were no samples."""
        if not self._samples:
            return {}
        logs, end = {"loss": self._sums[0] / self._samples}, 1
        for metric in self._metrics:
            begin, end = end, end + metric.count
            logs[metric.name] = metric.result(self._sums[begin:end])
        return logs


class Trainer:
    """The loops of a model over its data, and what the last `fit` found."""

    def __init__(self) -> None:
        self.history: History | None = None
        self.stop_training = False

    def fit(
        self,
        session: Session,
        config: CompileConfig,
        feed: Feed,
        held: Feed | None,
        epochs: range,
        verbose: int,
        guard: bool,  # whether a loss that is not finite stops training
    ) -> History:
        """Train for some epochs, or until the data has ended or a user ends it."""
        self.history = history = History()
        try:
            for epoch in epochs:
                of = f"{epoch + 1}/{epochs.stop}"
                totals = Totals(config)
                with Progress(
                    verbose, feed.steps, f"Epoch {of}", totals.logs
                ) as progress:
                    self._epoch(session, config, feed, guard, progress, totals, of)
                    logs = totals.logs()
                    if logs and held is not None:
                        found = self._pass(session, config, held).logs()
                        logs |= {f"val_{name}": value for name, value in found.items()}
                    progress.finish(logs)
                if logs:
                    history.add(epoch, logs)
                if feed.ran_out or self.stop_training:
                    break
        finally:
            feed.close()
            history.pipeline = feed.source.report()
            if held is not None:
                held.close()
        return history

    def evaluate(
        self, session: Session, config: CompileConfig, feed: Feed, verbose: int
    ) -> dict[str, float]:
        """Evaluate data."""
        with Progress(verbose, feed.steps) as progress:
            logs = self._pass(session, config, feed, progress).logs()
            progress.finish(logs)
        return logs

    def predict(
        self, session: Session, feed: Feed, results: Predictions, verbose: int
    ) -> None:
        """Predict all samples."""
        with Progress(verbose, feed.steps) as progress:
            for batch in feed.epoch():
                rows = results.next_rows(batch.size)
                session.step("predict", batch, results=rows)
                progress.step()

    def _epoch(
        self,
        session: Session,
        config: CompileConfig,
        feed: Feed,
        guard: bool,
        progress: Progress,
        totals: Totals,
        of: str,  # which epoch of how many
    ) -> None:
        optimizer = config.optimizer
        for step, batch in enumerate(feed.epoch(), start=1):
            finished, values = session.step("train", batch, optimizer, guard=guard)
            if not finished:
                raise NonFiniteLossError(
                    f"the loss is {values[0]} in epoch {of}, step {step}; weights and "
                    "optimizer are as before that step. Lower the learning rate, look "
                    'for NaN or large values in x, or pass on_nan="ignore"'
                )
            totals.add(batch.size, values)
            progress.step()
            if self.stop_training:
                break

    def _pass(
        self,
        session: Session,
        config: CompileConfig,
        feed: Feed,
        progress: Progress | None = None,
    ) -> Totals:
        totals = Totals(config)
        for batch in feed.epoch():
            totals.add(batch.size, session.step("evaluate", batch)[1])
            if progress is not None:
                progress.step()
        return totals
