"""Callbacks of `fit`, `evaluate` and `predict`, with Keras's and DL4J's names."""

from __future__ import annotations

import csv
import inspect
import json
import os
import time
import warnings
import weakref
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import numpy as np

from memcfg._caller import outside
from memcfg._html import lines, table
from memcfg.errors import FormatError, NonFiniteLossError
from memcfg.nn._argument_checks import integer, nonnegative, real
from memcfg.nn._keras_arguments import takes_arguments
from memcfg.nn._keras_names import absent
from memcfg.nn._saving import Backup, backup, describe, read_backup, restore
from memcfg.nn.training.progress._progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memcfg.data import PipelineReport
    from memcfg.nn.training.alternatives._fallbacks import Fallback

__all__ = [
    "BackupAndRestore",
    "CSVLogger",
    "Callback",
    "EarlyStopping",
    "History",
    "LambdaCallback",
    "LearningRateScheduler",
    "ModelCheckpoint",
    "PerformanceListener",
    "ProgbarLogger",
    "ReduceLROnPlateau",
    "RemoteMonitor",
    "ScoreIterationListener",
    "SwapEMAWeights",
    "TensorBoard",
    "TerminateOnNaN",
]

if not TYPE_CHECKING:  # otherwise type checkers would accept any name
    __getattr__ = absent(__name__)

Logs = dict[str, Any]
_FORM = "application/x-www-form-urlencoded"
_SECONDS = 10.0  # of waiting for a server


class Callback:
    """Base class of the callbacks, whose hooks `fit`, `evaluate` and `predict` call.

    A subclass overrides the hooks that it needs; hooks that are not overridden cost
    nothing. `logs` holds the loss and the metrics so far, means over the samples of the
    epoch. Later callbacks and the history see the values that a hook adds to it.

    Attributes
    ----------
    model : Model
        The model. A hook may read and write its weights, save it, set its optimizer's
        ``learning_rate`` and its ``stop_training``, and call `evaluate` and `predict`.
    params : dict
        ``verbose``, ``epochs`` and ``steps`` (None if the number is unknown).
    """

    _model: weakref.ref[Any] | None = None  # weak: a model refers to its History

    def __init__(self) -> None:
        self.params: dict[str, Any] = {}

    @property
    def model(self) -> Any:
        """The model; None before a call, and after the model was deleted."""
        return None if self._model is None else self._model()

    @model.setter
    def model(self, model: Any) -> None:
        self._model = weakref.ref(model)

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes of a copy, which belongs to no model."""
        return {**vars(self), "_model": None}

    def set_params(self, params: dict[str, Any]) -> None:
        """Set `params`.

        Parameters
        ----------
        params : dict
            The new value of `params`.
        """
        self.params = params

    def set_model(self, model: Any) -> None:
        """Set `model`.

        Parameters
        ----------
        model : Model
            The model; the callback keeps a weak reference.
        """
        self.model = model

    def resumed_epoch(self) -> int:
        """Return the epoch at which `fit` starts; called before training begins.

        Returns
        -------
        int
            0, unless the callback restores an earlier call of `fit`.
        """
        return 0

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Run at the start of `fit`.

        Parameters
        ----------
        logs : dict
            Empty.
        """

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Run at the end of `fit`, unless an exception ended it.

        Parameters
        ----------
        logs : dict
            The loss and metrics of the last epoch.
        """

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Run at the start of an epoch.

        Parameters
        ----------
        epoch : int
            The number of the epoch, from 0.
        logs : dict
            Empty.
        """

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Run at the end of an epoch, after its validation.

        Parameters
        ----------
        epoch : int
            The number of the epoch, from 0.
        logs : dict
            The loss and metrics of the epoch; those of validation start with ``val_``.
        """

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Run before a training step.

        Parameters
        ----------
        batch : int
            The number of the step in the pass, from 0.
        logs : dict
            Empty.
        """

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Run after a training step.

        Parameters
        ----------
        batch : int
            The number of the step in the pass, from 0.
        logs : dict
            The loss and metrics of the pass so far.
        """

    def on_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Run before a training step; Keras's alias of `on_train_batch_begin`.

        Parameters
        ----------
        batch : int
            The number of the step in the pass, from 0.
        logs : dict
            Empty.
        """

    def on_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Run after a training step; Keras's alias of `on_train_batch_end`.

        Parameters
        ----------
        batch : int
            The number of the step in the pass, from 0.
        logs : dict
            The loss and metrics of the pass so far.
        """

    def on_test_begin(self, logs: Logs | None = None) -> None:
        """Run at the start of `evaluate` or of a validation in `fit`.

        Parameters
        ----------
        logs : dict
            Empty.
        """

    def on_test_end(self, logs: Logs | None = None) -> None:
        """Run at the end of `evaluate` or of a validation in `fit`.

        Parameters
        ----------
        logs : dict
            The loss and metrics of the pass.
        """

    def on_test_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Run before an evaluation step.

        Parameters
        ----------
        batch : int
            The number of the step in the pass, from 0.
        logs : dict
            Empty.
        """

    def on_test_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Run after an evaluation step.

        Parameters
        ----------
        batch : int
            The number of the step in the pass, from 0.
        logs : dict
            The loss and metrics of the pass so far.
        """

    def on_predict_begin(self, logs: Logs | None = None) -> None:
        """Run at the start of `predict`.

        Parameters
        ----------
        logs : dict
            Empty.
        """

    def on_predict_end(self, logs: Logs | None = None) -> None:
        """Run at the end of `predict`.

        Parameters
        ----------
        logs : dict
            Empty.
        """

    def on_predict_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Run before a prediction step.

        Parameters
        ----------
        batch : int
            The number of the step in the pass, from 0.
        logs : dict
            Empty.
        """

    def on_predict_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Run after a prediction step.

        Parameters
        ----------
        batch : int
            The number of the step in the pass, from 0.
        logs : dict
            ``outputs``: arrays that the next step may overwrite.
        """


_HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))
_OTHER_NAMES = {
    "on_train_batch_begin": "on_batch_begin",
    "on_train_batch_end": "on_batch_end",
}


class CallbackList:
    """The callbacks of one call, with the methods that override each hook."""

    def __init__(
        self, members: Sequence[Callback], model: Any, params: dict[str, Any]
    ) -> None:
        self.members = members
        self.stops_at_nan = any(
            isinstance(each, TerminateOnNaN) and not each.raise_error
            for each in self.members
        )
        for each in self.members:
            each.set_params(params)
            each.set_model(model)
        self._hooks = {hook: self._overriding(hook) for hook in _HOOKS}

    def shown(self, verbose: int) -> int:
        """Return what a call itself shows: nothing where a callback does it."""
        replaced = any(isinstance(each, ProgbarLogger) for each in self.members)
        return 0 if replaced else verbose

    def hooks(self, hook: str) -> list[Callable[..., None]]:
        """Return the methods that override a hook, in the order of the callbacks."""
        return self._hooks[hook]

    def __call__(self, hook: str, *arguments: Any) -> None:
        """Call all methods that override a hook."""
        for listener in self._hooks[hook]:
            listener(*arguments)

    def _overriding(self, hook: str) -> list[Callable[..., None]]:
        names = [hook, _OTHER_NAMES[hook]] if hook in _OTHER_NAMES else [hook]
        return [
            getattr(member, name)
            for member in self.members
            for name in names
            if getattr(getattr(member, name), "__func__", None)
            is not getattr(Callback, name)
        ]


def check_callbacks(given: Any) -> list[Callback]:
    """Return callbacks as a list; TypeError for anything that is not a callback."""
    result = [] if given is None else given
    result = list(result) if isinstance(result, list | tuple) else [result]
    for each in result:
        if not isinstance(each, Callback):
            hint = ": call it" if isinstance(each, type) else ""
            raise TypeError(
                "callbacks must be instances of memcfg.nn.callbacks.Callback, got "
                f"{each!r}{hint}"
            )
    return result


class History(Callback):
    """The loss and metrics of each epoch, as `Model.fit` returns them.

    Attributes
    ----------
    epoch : list of int
        The finished epochs, from 0.
    history : dict of str to list of float
        ``loss``, the metrics, and with the prefix ``val_`` those of validation; one
        number per epoch.
    pipeline : PipelineReport or None
        Settings chosen by AUTOTUNE, waiting times and memory of the training data's
        pipeline in its last pass. None if the data was not a `memcfg.data.Dataset`.
    fallbacks : list of Fallback
        What programs that do not fit the limit run as instead, such as a batch in
        micro-batches; empty if all fit. See ``on_oom`` of `Model.compile`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fallbacks: list[Fallback] = []
        self.pipeline: PipelineReport | None = None
        self.epoch: list[int] = []
        self.history: dict[str, list[float]] = {}

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Append the loss and metrics of an epoch."""
        self.epoch.append(epoch)
        for name, value in (logs or {}).items():
            self.history.setdefault(name, []).append(value)

    def __repr__(self) -> str:
        count = len(self.epoch)
        return (
            f"<History of {count} epoch{'s' * (count != 1)}: {', '.join(self.history)}>"
        )

    def _repr_html_(self) -> str:
        """Return the numbers as an HTML table, with a plot of the losses."""
        rows = [
            [str(epoch + 1), *(f"{values[i]:.4g}" for values in self.history.values())]
            for i, epoch in enumerate(self.epoch)
        ]
        losses = {k: v for k, v in self.history.items() if k in ("loss", "val_loss")}
        picture = lines(losses) if len(rows) > 1 else ""
        return table(repr(self).strip("<>"), ["epoch", *self.history], rows, picture)


class _Monitor(Callback):
    """Base class of callbacks that compare a number in the logs with the best."""

    def __init__(
        self, monitor: str, mode: str, best: float | None = None, min_delta: float = 0.0
    ) -> None:
        super().__init__()
        if mode not in ("auto", "min", "max"):
            raise ValueError(f'mode must be "auto", "min" or "max", got {mode!r}')
        if not isinstance(monitor, str):
            raise TypeError(
                f"monitor must be the name of a number in the logs, got {monitor!r}"
            )
        self.monitor = monitor
        self.mode = mode
        self.min_delta = abs(real(min_delta, "min_delta"))
        self.best = best
        self._upward = mode == "max"

    def look_up(self) -> None:
        """Set whether larger is better; ValueError if the model does not say."""
        if self.mode != "auto":
            return
        name = self.monitor.removeprefix("val_")
        own = self.model._own_steps()
        known = self.model._built_session().objectives if own is None else own
        direction = known.direction(name)
        if direction is None:
            raise ValueError(
                f"{type(self).__name__} monitors {self.monitor!r}, but the model does "
                'not say whether larger is better: names are "loss" and those of '
                'metrics, with "val_" in front for validation; for others pass '
                'mode="max" or mode="min"'
            )
        self._upward = direction == "up"

    def is_better(self, value: float, reference: float | None) -> bool:
        """Return whether a number is better than another by more than `min_delta`."""
        if reference is None:
            return True
        if self._upward:
            return value - self.min_delta > reference
        return value + self.min_delta < reference

    def current(self, logs: Mapping[str, Any]) -> float | None:
        """Return the number; None and a warning if the logs lack it."""
        result: float | None = logs.get(self.monitor)
        if result is None:
            warnings.warn(
                f"{type(self).__name__} monitors {self.monitor!r}, which is not in the "
                f"logs; they have {', '.join(logs) or 'nothing'}",
                RuntimeWarning,
                stacklevel=outside(),
            )
        return result


class EarlyStopping(_Monitor):
    """Stop training when a number has stopped improving.

    Parameters
    ----------
    monitor : str, default "val_loss"
        The name of the number in the logs.
    min_delta : float, default 0
        Changes of at most this size do not count as an improvement.
    patience : int, default 0
        Number of epochs without improvement after which training stops.
    verbose : int, default 0
        1: print when training stops and when weights are restored.
    mode : {"auto", "min", "max"}, default "auto"
        Whether smaller (``"min"``) or larger numbers are better. ``"auto"``: smaller
        for losses; for a metric, as its `Metric.direction` says.
    baseline : float, optional
        Improvements must also exceed this number to reset the patience.
    restore_best_weights : bool, default False
        Whether to restore the weights of the best epoch at the end. A copy of them is
        kept in host memory.
    start_from_epoch : int, default 0
        Number of epochs to ignore first.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid. In `fit`: if `mode` is ``"auto"`` and the model does
        not say whether larger numbers are better.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        min_delta: float = 0,
        patience: int = 0,
        verbose: int = 0,
        mode: str = "auto",
        baseline: float | None = None,
        restore_best_weights: bool = False,
        start_from_epoch: int = 0,
    ) -> None:
        super().__init__(monitor, mode, None, min_delta)
        self.patience = integer(patience, "patience", 0)
        self.verbose = verbose
        self.baseline = None if baseline is None else real(baseline, "baseline")
        self.restore_best_weights = restore_best_weights
        self.start_from_epoch = integer(start_from_epoch, "start_from_epoch", 0)
        self._forget()

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Reset the state of an earlier call of `fit`."""
        self.look_up()
        self._forget()

    def _forget(self) -> None:
        self.wait = 0
        self.stopped_epoch = self.best_epoch = 0
        self.best: float | None = None
        self.best_weights: list[np.ndarray] | None = None

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Compare the number with the best; stop training if the patience is over."""
        value = self.current(logs or {})
        if value is None or epoch < self.start_from_epoch:
            return
        self.wait += 1
        better = self.is_better(value, self.best)
        if better:
            self.best, self.best_epoch = value, epoch
        if self.restore_best_weights and (better or self.best_weights is None):
            self.best_weights, self.best_epoch = self.model.get_weights(), epoch
        if better:
            if self.baseline is None or self.is_better(value, self.baseline):
                self.wait = 0
        elif self.wait >= self.patience and epoch > 0:
            self.stopped_epoch = epoch
            self.model.stop_training = True

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Restore the best weights if requested."""
        if self.stopped_epoch and self.verbose:
            print(f"Epoch {self.stopped_epoch + 1}: early stopping")
        if self.restore_best_weights and self.best_weights is not None:
            if self.verbose:
                print(f"Restoring the weights of epoch {self.best_epoch + 1}")
            self.model.set_weights(self.best_weights)


class _Saving:
    """Counts batches until the next save."""

    def __init__(self, save_freq: Any) -> None:
        self.every = 0 if save_freq == "epoch" else integer(save_freq, "save_freq", 1)
        self._seen = 0

    def is_due(self) -> bool:
        """Count a batch and return whether to save after it."""
        self._seen += 1
        if not self.every or self._seen < self.every:
            return False
        self._seen = 0
        return True


class ModelCheckpoint(_Monitor):
    """Save the model, or its weights, after each epoch or every few batches.

    Parameters
    ----------
    filepath : str or path-like
        The file, ending in ``.memcfg`` or, as Keras writes it, ``.keras`` for models,
        and in ``.weights.safetensors`` or ``.weights.h5`` for
        weights. Fields in braces are formatted with the epoch, from 1, and the logs:
        ``"{epoch:02d}-{val_loss:.2f}.memcfg"``. Missing folders are created.
    monitor : str, default "val_loss"
        The name of the number in the logs that decides which model is best.
    verbose : int, default 0
        1: print when the model is saved.
    save_best_only : bool, default False
        Whether to save only if the number is the best so far.
    save_weights_only : bool, default False
        Whether to save weights instead of the model.
    mode : {"auto", "min", "max"}, default "auto"
        Whether smaller or larger numbers are better, as for `EarlyStopping`.
    save_freq : "epoch" or int, default "epoch"
        When to save: after each epoch, or after this number of batches.
    initial_value_threshold : float, optional
        The initial best number: models that are not better are not saved.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid or the file name has another suffix. In `fit`: as
        for `EarlyStopping`, with `save_best_only`.
    OSError, KeyError
        In `fit`: if the file cannot be written, or a field is not in the logs.
    """

    def __init__(
        self,
        filepath: str | os.PathLike[str],
        monitor: str = "val_loss",
        verbose: int = 0,
        save_best_only: bool = False,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        initial_value_threshold: float | None = None,
    ) -> None:
        if initial_value_threshold is not None:
            real(initial_value_threshold, "initial_value_threshold")
        super().__init__(monitor, mode, initial_value_threshold)
        self.filepath = os.fspath(filepath)
        self.verbose = verbose
        self.save_best_only = save_best_only
        self.save_weights_only = save_weights_only
        self.save_freq = save_freq
        self._saving = _Saving(save_freq)
        self._epoch = 0
        what, *suffixes = "models", ".memcfg", ".keras"
        if save_weights_only:
            what, *suffixes = "weights", ".weights.safetensors", ".weights.h5"
        if not self.filepath.endswith(tuple(suffixes)):
            raise ValueError(
                f"ModelCheckpoint saves {what} to files whose names end in "
                f"{suffixes[0]!r} or {suffixes[1]!r}, got {self.filepath!r}"
            )

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Look up the direction of the number; check that the model can be saved."""
        if self.save_best_only:
            self.look_up()
        if not self.save_weights_only:
            describe(self.model)

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Store the number of the epoch."""
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Save after every `save_freq` batches."""
        if self._saving.is_due():
            self._save({"batch": batch + 1, **(logs or {})})

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Save if `save_freq` is ``"epoch"``."""
        if self.save_freq == "epoch":
            self._save(logs or {})

    def _save(self, logs: Mapping[str, Any]) -> None:
        try:
            path = self.filepath.format(epoch=self._epoch + 1, **logs)
        except KeyError as error:
            raise KeyError(
                f"ModelCheckpoint: {self.filepath!r} has the field {error}, but the "
                f"available fields are epoch, {', '.join(logs)}"
            ) from None
        if not self._is_due(logs, path):
            return
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        if self.save_weights_only:
            self.model.save_weights(path)
        else:
            self.model.save(path)

    def _is_due(self, logs: Mapping[str, Any], path: str) -> bool:
        """Return whether to save the model, and print why."""
        message = f"saving to {path}"
        due = True
        if self.save_best_only:
            value = self.current(logs)
            if value is None:
                return True
            before = "None" if self.best is None else f"{self.best:.5f}"
            due = self.is_better(value, self.best)
            if due:
                self.best = value
                message = (
                    f"{self.monitor} improved from {before} to {value:.5f}, {message}"
                )
            else:
                message = f"{self.monitor} did not improve from {before}"
        if self.verbose:
            print(f"Epoch {self._epoch + 1}: {message}")
        return due


class BackupAndRestore(Callback):
    """Back up the state of training, and resume from the backup after a crash.

    If the folder has a backup, `fit` starts with its weights, optimizer state and
    epoch. The backup is deleted at the end of `fit`.

    Parameters
    ----------
    backup_dir : str or path-like
        The folder, created if it is missing.
    save_freq : "epoch" or int, default "epoch"
        When to write a backup: after each epoch, or also after this number of batches.
        From a backup within an epoch, training resumes at the start of the epoch.
    double_checkpoint : bool, default False
        Whether to keep the previous backup as well, and resume from it if the length
        or the checksum of the last one is wrong.
    delete_checkpoint : bool, default True
        Whether to delete the backup at the end of `fit`.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid.
    OSError, FormatError, WeightsError
        In `fit`: if the backup cannot be written or read, or is of another model.
    """

    def __init__(
        self,
        backup_dir: str | os.PathLike[str],
        save_freq: str | int = "epoch",
        double_checkpoint: bool = False,
        delete_checkpoint: bool = True,
    ) -> None:
        super().__init__()
        if not os.fspath(backup_dir):
            raise ValueError("backup_dir must not be empty")
        self.backup_dir = os.fspath(backup_dir)
        self.save_freq = save_freq
        self.double_checkpoint = double_checkpoint
        self.delete_checkpoint = delete_checkpoint
        self._saving = _Saving(save_freq)
        self._epoch = 0
        self._pending: Backup | None = None  # the backup to restore
        names = ("latest.safetensors", "before.safetensors")
        self._paths = [os.path.join(self.backup_dir, name) for name in names]
        self._has_latest = False  # whether the latest file is known to be intact

    def resumed_epoch(self) -> int:
        """Read the backup and return its epoch; 0 if there is no backup."""
        self._pending, self._has_latest = None, False
        damage: FormatError | None = None
        for path in self._paths:
            try:
                self._pending = read_backup(path)
            except FileNotFoundError:
                continue
            except FormatError as error:
                damage = damage or error
                continue
            self._has_latest = path == self._paths[0]
            return self._pending.epoch
        if damage is not None:
            raise damage
        return 0

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Restore weights and optimizer state from the backup."""
        pending, self._pending = self._pending, None
        if pending is not None:
            restore(self.model, pending)

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Store the number of the epoch."""
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Write a backup after every `save_freq` batches."""
        if self._saving.is_due():
            self._write(self._epoch)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Write a backup that resumes with the next epoch."""
        self._write(epoch + 1)

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Delete the backup if `delete_checkpoint` is set."""
        if self.delete_checkpoint:
            for path in self._paths:
                with suppress(FileNotFoundError):
                    os.remove(path)

    def _write(self, epoch: int) -> None:
        os.makedirs(self.backup_dir, exist_ok=True)
        if self.double_checkpoint and self._has_latest:
            self._has_latest = False
            os.replace(*self._paths)
        backup(self.model, self._paths[0], epoch)
        self._has_latest = True


class LearningRateScheduler(Callback):
    """Set the learning rate of each epoch with a function.

    Parameters
    ----------
    schedule : callable
        ``schedule(epoch, learning_rate)`` or ``schedule(epoch)``, which returns the
        learning rate of an epoch as a float. Epochs count from 0.
    verbose : int, default 0
        1: print the rate of each epoch.

    Raises
    ------
    TypeError
        If `schedule` is not callable.
    ValueError
        In `fit`: if `schedule` does not return a float.
    """

    def __init__(self, schedule: Callable[..., float], verbose: int = 0) -> None:
        super().__init__()
        if not callable(schedule):
            raise TypeError(f"schedule must be callable, got {schedule!r}")
        self.schedule = schedule
        self.verbose = verbose
        self._takes_rate = _takes_two(schedule)

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Set the learning rate of the epoch."""
        optimizer = self.model.optimizer
        rates = [float(optimizer.learning_rate)] if self._takes_rate else []
        rate = self.schedule(epoch, *rates)
        if not isinstance(rate, float | np.floating):
            raise ValueError(f"schedule must return a float, got {rate!r}")
        optimizer.learning_rate = float(rate)
        if self.verbose:
            print(f"Epoch {epoch + 1}: learning rate {float(rate)}")

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Add the learning rate to the logs."""
        if logs is not None:
            logs["learning_rate"] = float(self.model.optimizer.learning_rate)


def _takes_two(schedule: Callable[..., Any]) -> bool:
    """Return whether a schedule accepts the epoch and the rate."""
    try:
        signature = inspect.signature(schedule)
    except ValueError:  # a function in C without a signature: pass the epoch alone
        return False
    try:
        signature.bind(0, 0.0)
    except TypeError:
        return False
    return True


class ReduceLROnPlateau(_Monitor):
    """Lower the learning rate when a number has stopped improving.

    Parameters
    ----------
    monitor : str, default "val_loss"
        The name of the number in the logs.
    factor : float, default 0.1
        The factor by which the rate is multiplied, below 1.
    patience : int, default 10
        Number of epochs without improvement after which the rate is lowered.
    verbose : int, default 0
        1: print the new rate.
    mode : {"auto", "min", "max"}, default "auto"
        Whether smaller or larger numbers are better, as for `EarlyStopping`.
    min_delta : float, default 1e-4
        Changes of at most this size do not count as an improvement.
    cooldown : int, default 0
        Number of epochs to wait after lowering the rate before counting again.
    min_lr : float, default 0.0
        The lower bound of the rate.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid. In `fit`: as for `EarlyStopping`.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        factor: float = 0.1,
        patience: int = 10,
        verbose: int = 0,
        mode: str = "auto",
        min_delta: float = 1e-4,
        cooldown: int = 0,
        min_lr: float = 0.0,
    ) -> None:
        super().__init__(monitor, mode, None, min_delta)
        self.factor = nonnegative(factor, "factor")
        if self.factor >= 1:
            raise ValueError(f"factor must be below 1, got {factor!r}")
        self.patience = integer(patience, "patience", 0)
        self.verbose = verbose
        self.cooldown = integer(cooldown, "cooldown", 0)
        self.min_lr = nonnegative(min_lr, "min_lr")
        self._forget()

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Reset the state of an earlier call of `fit`."""
        self.look_up()
        self._forget()

    def _forget(self) -> None:
        self.best: float | None = None
        self.wait = self.cooldown_counter = 0

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Compare the number with the best; lower the rate if the patience is over."""
        logs = {} if logs is None else logs
        optimizer = self.model.optimizer
        rate = logs["learning_rate"] = float(optimizer.learning_rate)
        value = self.current(logs)
        if value is None:
            return
        if self.cooldown_counter:
            self.cooldown_counter -= 1
            self.wait = 0
        if self.is_better(value, self.best):
            self.best = value
            self.wait = 0
        elif not self.cooldown_counter:
            self.wait += 1
            if self.wait >= self.patience and rate > self.min_lr:
                optimizer.learning_rate = max(rate * self.factor, self.min_lr)
                self.cooldown_counter, self.wait = self.cooldown, 0
                if self.verbose:
                    print(f"Epoch {epoch + 1}: learning rate {optimizer.learning_rate}")


class CSVLogger(Callback):
    """Write the loss and metrics of each epoch to a CSV file.

    Parameters
    ----------
    filename : str or path-like
        The file.
    separator : str, default ","
        The character between two values.
    append : bool, default False
        Whether to append to an existing file, as after a crash, or to replace it.

    Raises
    ------
    TypeError
        If `separator` is not a single character.
    OSError
        In `fit`: if the file cannot be written.
    """

    def __init__(
        self,
        filename: str | os.PathLike[str],
        separator: str = ",",
        append: bool = False,
    ) -> None:
        super().__init__()
        self.filename = os.fspath(filename)
        if not isinstance(separator, str) or len(separator) != 1:
            raise TypeError(f"separator must be a single character, got {separator!r}")
        self.separator = separator
        self.append = append
        self._columns: list[str] = []

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Create or empty the file, unless rows are appended."""
        self._columns = []
        Path(self.filename).open("a" if self.append else "w").close()

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Write a row; the names in the first row are the columns."""
        row = {"epoch": epoch, **(logs or {})}
        with Path(self.filename).open("a", newline="") as file:
            first = not self._columns
            if first:
                names = row.keys() - {"epoch"}
                if self.model._trainer.validates:  # maybe only in later epochs
                    own = {name for name in names if not name.startswith("val_")}
                    names |= {f"val_{name}" for name in own - {"learning_rate"}}
                self._columns = ["epoch", *sorted(names)]
            writer = csv.DictWriter(
                file,
                self._columns,
                restval="NA",
                extrasaction="ignore",
                delimiter=self.separator,
            )
            if first and file.tell() == 0:
                writer.writeheader()
            writer.writerow(row)


class ProgbarLogger(Callback):
    """Show the progress of `fit`, `evaluate` or `predict`, in their place.

    It shows what ``verbose`` says: nothing, a bar, or a line for each epoch. A subclass
    may show other numbers, by changing the logs that its hooks get.
    """

    def __init__(self) -> None:
        super().__init__()
        self._progress: Progress | None = None
        self._numbers: Logs = {}
        self._fits = False  # whether validation is silent

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Show no validations from now on."""
        self._fits = True

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Show evaluations again."""
        self._fits = False

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Begin the progress of an epoch."""
        self._begin(f"Epoch {epoch + 1}/{self.params['epochs']}")

    def on_test_begin(self, logs: Logs | None = None) -> None:
        """Begin the progress of an evaluation."""
        if not self._fits:
            self._begin()

    def on_predict_begin(self, logs: Logs | None = None) -> None:
        """Begin the progress of a prediction."""
        self._begin()

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Show the numbers so far."""
        self._step(logs)

    def on_test_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Show the numbers so far."""
        if not self._fits:
            self._step(logs)

    def on_predict_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Show one more step."""
        self._step(None)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Show the numbers of the epoch, with those of its validation."""
        self._end(logs)

    def on_test_end(self, logs: Logs | None = None) -> None:
        """Show the numbers of the evaluation."""
        if not self._fits:
            self._end(logs)

    def on_predict_end(self, logs: Logs | None = None) -> None:
        """End the progress of a prediction."""
        self._end(None)

    def _begin(self, title: str = "") -> None:
        self._end(None)  # one that an error ended
        verbose, steps = self.params["verbose"], self.params["steps"]
        self._numbers = {}
        made = Progress(verbose, steps, title, lambda: self._numbers)
        self._progress = made.__enter__()

    def _step(self, logs: Logs | None) -> None:
        self._numbers = dict(logs or {})
        if self._progress is not None:
            self._progress.step()

    def _end(self, logs: Logs | None) -> None:
        progress, self._progress = self._progress, None
        if progress is not None:
            progress.finish(dict(logs or {}))
            progress.__exit__()


class TerminateOnNaN(Callback):
    """Stop training when the loss is NaN or infinite, instead of raising an error.

    The model keeps the weights from before that step, unless `fit` was called with
    ``on_nan="ignore"``.

    Parameters
    ----------
    raise_error : bool, default False
        Whether to raise NonFiniteLossError instead, as `fit` does without the callback.
    """

    @takes_arguments
    def __init__(self, raise_error: bool = False) -> None:
        super().__init__()
        self.raise_error = bool(raise_error)

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Stop training if the loss is not finite."""
        loss = (logs or {}).get("loss")
        if loss is not None and not isfinite(loss):
            if self.raise_error:  # fit ignores it
                raise NonFiniteLossError(f"batch {batch}: the loss is {loss}")
            print(f"Batch {batch}: the loss is {loss}, stopping training")
            self.model.stop_training = True


class LambdaCallback(Callback):
    """Call given functions as hooks.

    Parameters
    ----------
    on_epoch_begin, on_epoch_end : callable, optional
        Called with ``(epoch, logs)``.
    on_train_begin, on_train_end : callable, optional
        Called with ``(logs)``.
    on_train_batch_begin, on_train_batch_end : callable, optional
        Called with ``(batch, logs)``.
    **kwargs : callable
        Other hooks of `Callback` by name.

    Raises
    ------
    TypeError
        If `Callback` has no hook of a name, or a value is not callable.
    """

    def __init__(
        self,
        on_epoch_begin: Callable[..., Any] | None = None,
        on_epoch_end: Callable[..., Any] | None = None,
        on_train_begin: Callable[..., Any] | None = None,
        on_train_end: Callable[..., Any] | None = None,
        on_train_batch_begin: Callable[..., Any] | None = None,
        on_train_batch_end: Callable[..., Any] | None = None,
        **kwargs: Callable[..., Any],
    ) -> None:
        super().__init__()
        given = {
            "on_epoch_begin": on_epoch_begin,
            "on_epoch_end": on_epoch_end,
            "on_train_begin": on_train_begin,
            "on_train_end": on_train_end,
            "on_train_batch_begin": on_train_batch_begin,
            "on_train_batch_end": on_train_batch_end,
            **kwargs,
        }
        for hook, function in given.items():
            if hook not in _HOOKS:
                raise TypeError(f"LambdaCallback: there is no hook named {hook!r}")
            if function is not None and not callable(function):
                raise TypeError(
                    f"LambdaCallback: {hook} must be callable, got {function!r}"
                )
            if function is not None:
                setattr(self, hook, function)


class SwapEMAWeights(Callback):
    """Have the moving averages of weights in the model while it is evaluated.

    The optimizer keeps them: ``use_ema=True``. Meanwhile this callback keeps the
    weights, as arrays. Before the first step nothing is swapped.

    Parameters
    ----------
    swap_on_epoch : bool, default False
        Whether the averages are in the model at the end of each epoch, too, so that
        `ModelCheckpoint` behind this callback saves them. Training goes on with the
        weights.
    """

    def __init__(self, swap_on_epoch: bool = False) -> None:
        super().__init__()
        self.swap_on_epoch = bool(swap_on_epoch)
        self._kept: dict[str, np.ndarray] = {}

    def _swap(self, *, averages: bool) -> None:
        """Have the averages in the model, or the weights."""
        optimizer = self.model.optimizer
        if not optimizer.use_ema:
            raise ValueError("SwapEMAWeights needs an optimizer with use_ema=True")
        if averages and not self._kept:
            self._kept = optimizer.take_averages()
        elif not averages and self._kept:
            optimizer.put_back(self._kept)
            self._kept = {}

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Put the weights back."""
        del epoch, logs
        if self.swap_on_epoch:
            self._swap(averages=False)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Put the averages into the model."""
        del epoch, logs
        if self.swap_on_epoch:
            self._swap(averages=True)

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Forget the weights: `fit` ends with the averages."""
        del logs
        self._kept = {}

    def on_test_begin(self, logs: Logs | None = None) -> None:
        """Put the averages into the model."""
        del logs
        self._swap(averages=True)

    def on_test_end(self, logs: Logs | None = None) -> None:
        """Put the weights back."""
        del logs
        self._swap(averages=False)

    def on_predict_begin(self, logs: Logs | None = None) -> None:
        """Put the averages into the model."""
        del logs
        self._swap(averages=True)

    def on_predict_end(self, logs: Logs | None = None) -> None:
        """Put the weights back."""
        del logs
        self._swap(averages=False)


class RemoteMonitor(Callback):
    """Send the logs of each epoch to a server, by an HTTP POST.

    Parameters
    ----------
    root : str, default "http://localhost:9000"
        The server.
    path : str, default "/publish/epoch/end/"
        The path.
    field : str, default "data"
        The field of a form that has the logs as JSON.
    headers : dict of str, optional
        More headers of the request.
    send_as_json : bool, default False
        Whether the request is JSON itself, and no form.

    Raises
    ------
    ValueError
        If the server's scheme is neither ``http`` nor ``https``.

    Warns
    -----
    RuntimeWarning
        If the server does not take the logs.
    """

    def __init__(
        self,
        root: str = "http://localhost:9000",
        path: str = "/publish/epoch/end/",
        field: str = "data",
        headers: dict[str, str] | None = None,
        send_as_json: bool = False,
    ) -> None:
        super().__init__()
        if not root.startswith(("http://", "https://")):
            raise ValueError(
                f"RemoteMonitor: root must be an HTTP server, got {root!r}"
            )
        self.root = root
        self.path = path
        self.field = field
        self.headers = headers
        self.send_as_json = bool(send_as_json)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Send the logs."""
        numbers = {key: float(value) for key, value in (logs or {}).items()}
        sent: dict[str, float] = {"epoch": epoch, **numbers}
        text, kind = json.dumps(sent), "application/json"
        if not self.send_as_json:
            text, kind = urlencode({self.field: text}), _FORM
        request = Request(
            self.root + self.path,
            text.encode(),
            {"Content-Type": kind, **(self.headers or {})},
            method="POST",
        )
        try:
            with urlopen(request, timeout=_SECONDS):
                pass
        except OSError as error:
            warnings.warn(
                f"RemoteMonitor: {self.root} does not take the logs: {error}",
                RuntimeWarning,
                stacklevel=outside(),
            )


class TensorBoard(Callback):
    """Write the loss and metrics of each epoch for TensorBoard.

    Needs tensorboardX (``pip install tensorboardX``), which writes the files.

    Parameters
    ----------
    log_dir : str or path-like, default "logs"
        The folder; training is logged in its subfolder ``train``, validation in
        ``validation``.
    update_freq : "epoch", "batch" or int, default "epoch"
        How often the numbers of training are written: after each epoch, or also after
        each batch or after this number of batches.

    Raises
    ------
    ImportError
        If tensorboardX is not installed.
    TypeError, ValueError
        If `update_freq` is invalid.
    """

    @takes_arguments
    def __init__(
        self,
        log_dir: str | os.PathLike[str] = "logs",
        *,
        update_freq: str | int = "epoch",
    ) -> None:
        super().__init__()
        self.log_dir = os.fspath(log_dir)
        self.update_freq = update_freq
        frequency = 1 if update_freq == "batch" else update_freq
        self._saving = _Saving(frequency)
        self._writer_class = _tensorboard()
        self._writers: dict[str, Any] = {}
        self._step = 0

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Write the loss and metrics so far after every `update_freq` batches."""
        self._step += 1
        if self._saving.is_due():
            for name, value in (logs or {}).items():
                self._write("train", f"batch_{name}", value, self._step)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Write the loss and metrics of the epoch and the learning rate."""
        rates = np.asarray(self.model.optimizer.rates, np.float64)
        names = [f"learning_rate_{i}" for i in range(rates.size)]
        if rates.ndim == 0:
            names = ["learning_rate"]
        logs = {**(logs or {}), **dict(zip(names, rates.ravel().tolist(), strict=True))}
        for name, value in logs.items():
            short = name.removeprefix("val_")
            run = "train" if short == name else "validation"
            self._write(run, f"epoch_{short}", value, epoch)
        for writer in self._writers.values():
            writer.flush()

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()
        self._writers = {}

    def _write(self, run: str, name: str, value: float, step: int) -> None:
        if run not in self._writers:
            self._writers[run] = self._writer_class(os.path.join(self.log_dir, run))
        self._writers[run].add_scalar(name, value, step)


def _tensorboard() -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise ImportError(
            "TensorBoard needs tensorboardX to write its files: pip install "
            "tensorboardX"
        ) from None
    return SummaryWriter


class ScoreIterationListener(Callback):
    """Print the loss every few steps, as DL4J's listener of the same name does.

    Parameters
    ----------
    print_iterations : int, default 10
        Number of steps between two lines.
    """

    def __init__(self, print_iterations: int = 10) -> None:
        super().__init__()
        self.print_iterations = integer(print_iterations, "print_iterations")
        self._iteration = 0

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Print the mean loss of the epoch so far."""
        if self._iteration % self.print_iterations == 0:
            loss = (logs or {}).get("loss", float("nan"))
            print(f"Score at iteration {self._iteration} is {loss:.6g}")
        self._iteration += 1


class PerformanceListener(Callback):
    """Print the training speed every few steps, as DL4J's listener does.

    Parameters
    ----------
    frequency : int, default 1
        Number of steps between two lines.
    report_score : bool, default False
        Whether to print the loss as well.
    """

    def __init__(self, frequency: int = 1, report_score: bool = False) -> None:
        super().__init__()
        self.frequency = integer(frequency, "frequency")
        self.report_score = report_score
        self._iteration = 0
        self._since = 0.0

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Start the clock."""
        self._since = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Print the speed since the last line."""
        self._iteration += 1
        if self._iteration % self.frequency:
            return
        now = time.perf_counter()
        seconds = (now - self._since) / self.frequency
        self._since = now
        text = (
            f"iteration {self._iteration}; iteration time: {1e3 * seconds:.3f} ms; "
            f"batches/sec: {1 / seconds:.3f}"
        )
        if self.report_score:
            text += f"; score: {(logs or {}).get('loss', float('nan')):.6g}"
        print(text)
