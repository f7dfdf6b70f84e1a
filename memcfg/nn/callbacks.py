"""What a user hangs into `fit`, `evaluate` and `predict`: Keras's and DL4J's."""

from __future__ import annotations

import csv
import inspect
import os
import time
import warnings
import weakref
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._caller import outside
from memcfg._html import lines, table
from memcfg.errors import FormatError
from memcfg.nn._argument_checks import integer, nonnegative, real
from memcfg.nn._keras_arguments import takes_arguments
from memcfg.nn._keras_names import absent
from memcfg.nn._saving import Backup, backup, describe, read_backup, restore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memcfg.data import PipelineReport

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
    "ReduceLROnPlateau",
    "ScoreIterationListener",
    "TensorBoard",
    "TerminateOnNaN",
]

if not TYPE_CHECKING:  # otherwise type checkers would accept any name
    __getattr__ = absent(__name__)

Logs = dict[str, Any]


class Callback:
    """Base class of what is called amid `fit`, `evaluate` and `predict`.

    A subclass overrides the hooks that it needs; those that nobody overrides cost
    nothing. `logs` are the numbers so far, means over the epoch's samples; what a hook
    writes into them, later callbacks and the history see.

    Attributes
    ----------
    model : Model
        The model that is trained. A hook may read and write its weights, save it, set
        its optimizer's ``learning_rate`` and its ``stop_training``, and call `evaluate`
        and `predict`.
    params : dict
        ``verbose``, ``epochs`` and ``steps`` (None where the number is not known).
    """

    _model: weakref.ref[Any] | None = None  # the model has the history, which is one

    def __init__(self) -> None:
        self.params: dict[str, Any] = {}

    @property
    def model(self) -> Any:
        """The model; None before, and when nobody else has it any more."""
        return None if self._model is None else self._model()

    @model.setter
    def model(self, model: Any) -> None:
        self._model = weakref.ref(model)

    def __getstate__(self) -> dict[str, Any]:
        """Return a copy's attributes; it belongs to no model yet."""
        return {**vars(self), "_model": None}

    def set_params(self, params: dict[str, Any]) -> None:
        """Receive the numbers of epochs and steps.

        Parameters
        ----------
        params : dict
            What `params` becomes.
        """
        self.params = params

    def set_model(self, model: Any) -> None:
        """Receive the model.

        Parameters
        ----------
        model : Model
            It becomes `model`.
        """
        self.model = model

    def resumed_epoch(self) -> int:
        """Return the epoch that `fit` is to go on from; it asks before it begins.

        Returns
        -------
        int
            0 unless a callback has kept an earlier call of `fit`.
        """
        return 0

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Begin a call of `fit`.

        Parameters
        ----------
        logs : dict
            Empty.
        """

    def on_train_end(self, logs: Logs | None = None) -> None:
        """End a call of `fit` that was not ended by an error.

        Parameters
        ----------
        logs : dict
            The numbers of the last epoch.
        """

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Begin an epoch; the first is 0.

        Parameters
        ----------
        epoch : int
            Its number, from 0.
        logs : dict
            Empty.
        """

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """End an epoch, behind its validation.

        Parameters
        ----------
        epoch : int
            Its number, from 0.
        logs : dict
            The numbers of the epoch, validation's with ``val_`` before them.
        """

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Begin a step of training; the first of an epoch is 0.

        Parameters
        ----------
        batch : int
            Its number in the pass, from 0.
        logs : dict
            Empty.
        """

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """End a step of training.

        Parameters
        ----------
        batch : int
            Its number in the pass, from 0.
        logs : dict
            The numbers of the pass so far.
        """

    def on_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Begin a step of training, under Keras's other name.

        Parameters
        ----------
        batch : int
            Its number in the pass, from 0.
        logs : dict
            Empty.
        """

    def on_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """End a step of training, under Keras's other name.

        Parameters
        ----------
        batch : int
            Its number in the pass, from 0.
        logs : dict
            The numbers of the pass so far.
        """

    def on_test_begin(self, logs: Logs | None = None) -> None:
        """Begin an evaluation, or a validation of `fit`.

        Parameters
        ----------
        logs : dict
            Empty.
        """

    def on_test_end(self, logs: Logs | None = None) -> None:
        """End it.

        Parameters
        ----------
        logs : dict
            The numbers of the pass.
        """

    def on_test_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Begin a step of evaluation.

        Parameters
        ----------
        batch : int
            Its number in the pass, from 0.
        logs : dict
            Empty.
        """

    def on_test_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """End a step of evaluation.

        Parameters
        ----------
        batch : int
            Its number in the pass, from 0.
        logs : dict
            The numbers of the pass so far.
        """

    def on_predict_begin(self, logs: Logs | None = None) -> None:
        """Begin a prediction.

        Parameters
        ----------
        logs : dict
            Empty.
        """

    def on_predict_end(self, logs: Logs | None = None) -> None:
        """End it.

        Parameters
        ----------
        logs : dict
            Empty.
        """

    def on_predict_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Begin a step of prediction.

        Parameters
        ----------
        batch : int
            Its number in the pass, from 0.
        logs : dict
            Empty.
        """

    def on_predict_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """End a step of prediction.

        Parameters
        ----------
        batch : int
            Its number in the pass, from 0.
        logs : dict
            ``outputs``, arrays that the next step may overwrite.
        """


_HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))
_OTHER_NAMES = {
    "on_train_batch_begin": "on_batch_begin",
    "on_train_batch_end": "on_batch_end",
}


class CallbackList:
    """The callbacks of one call; a hook that nobody overrides is an empty list."""

    def __init__(
        self, members: Sequence[Callback], model: Any, params: dict[str, Any]
    ) -> None:
        self.members = members
        self.stops_at_nan = any(
            isinstance(each, TerminateOnNaN) for each in self.members
        )
        for each in self.members:
            each.set_params(params)
            each.set_model(model)
        self._hooks = {hook: self._overriding(hook) for hook in _HOOKS}

    def hooks(self, hook: str) -> list[Callable[..., None]]:
        """Return who listens to a hook, in the order in which they were given."""
        return self._hooks[hook]

    def __call__(self, hook: str, *arguments: Any) -> None:
        """Call a hook of all who listen."""
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
    """Return callbacks as a list; TypeError for what is none."""
    result = [] if given is None else given
    result = list(result) if isinstance(result, list | tuple) else [result]
    for each in result:
        if not isinstance(each, Callback):
            hint = ": call it" if isinstance(each, type) else ""
            raise TypeError(
                f"callbacks are instances of memcfg.nn.callbacks.Callback, not {each!r}"
                + hint
            )
    return result


class History(Callback):
    """The numbers of each epoch, as `Model.fit` returns them.

    Attributes
    ----------
    epoch : list of int
        The epochs that were finished, from 0.
    history : dict of str to list of float
        ``loss``, the metrics, and the same with ``val_`` before them; one number
        an epoch.
    pipeline : PipelineReport or None
        What AUTOTUNE chose for the training data in its last pass, how long was waited
        for it, and what it held. None where it was no `memcfg.data.Dataset`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pipeline: PipelineReport | None = None
        self.epoch: list[int] = []
        self.history: dict[str, list[float]] = {}

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Note the numbers of an epoch."""
        self.epoch.append(epoch)
        for name, value in (logs or {}).items():
            self.history.setdefault(name, []).append(value)

    def __repr__(self) -> str:
        count = len(self.epoch)
        return (
            f"<History of {count} epoch{'s' * (count != 1)}: {', '.join(self.history)}>"
        )

    def _repr_html_(self) -> str:
        """Return a table of the numbers for notebooks, and a picture of the losses."""
        rows = [
            [str(epoch + 1), *(f"{values[i]:.4g}" for values in self.history.values())]
            for i, epoch in enumerate(self.epoch)
        ]
        losses = {k: v for k, v in self.history.items() if k in ("loss", "val_loss")}
        picture = lines(losses) if len(rows) > 1 else ""
        return table(repr(self).strip("<>"), ["epoch", *self.history], rows, picture)


class _Monitor(Callback):
    """Follow a number of the logs, and tell when it is better than the best."""

    def __init__(
        self, monitor: str, mode: str, best: float | None = None, min_delta: float = 0.0
    ) -> None:
        super().__init__()
        if mode not in ("auto", "min", "max"):
            raise ValueError(f'mode is "auto", "min" or "max", not {mode!r}')
        if not isinstance(monitor, str):
            raise TypeError(f"monitor is the name of a number, not {monitor!r}")
        self.monitor = monitor
        self.mode = mode
        self.min_delta = abs(real(min_delta, "min_delta"))
        self.best = best
        self._upward = mode == "max"

    def look_up(self) -> None:
        """Find out whether larger is better; ValueError if the model does not know."""
        if self.mode != "auto":
            return
        name = self.monitor.removeprefix("val_")
        direction = self.model._built_session().objectives.direction(name)
        if direction is None:
            raise ValueError(
                f"{type(self).__name__} follows {self.monitor!r}, and the model does "
                'not say whether larger is better: pass mode="max" or mode="min"'
            )
        self._upward = direction == "up"

    def is_better(self, value: float, reference: float | None) -> bool:
        """Return whether a number is better than another by more than `min_delta`."""
        if reference is None:
            return True
        if self._upward:
            return value - self.min_delta > reference
        return value + self.min_delta < reference

    def current(self, logs: Mapping[str, Any], what: str) -> float | None:
        """Return the number; None, with a warning, where the logs have none."""
        result: float | None = logs.get(self.monitor)
        if result is None:
            warnings.warn(
                f"{type(self).__name__} {what} {self.monitor!r}, which is not "
                f"available; available are {', '.join(logs) or 'none'}",
                RuntimeWarning,
                stacklevel=outside(),
            )
        return result


class EarlyStopping(_Monitor):
    """Stop when a number has not become better for some epochs.

    Parameters
    ----------
    monitor : str, default "val_loss"
        The number of the logs to follow.
    min_delta : float, default 0
        What counts as better is better by more than this.
    patience : int, default 0
        How many epochs may pass without a better number.
    verbose : int, default 0
        1: say what happens.
    mode : {"auto", "min", "max"}, default "auto"
        Which is better; ``"auto"``: smaller for losses, and as the metric of that name
        says.
    baseline : float, optional
        Numbers that are no better than this count as no progress.
    restore_best_weights : bool, default False
        Whether the model ends with the weights of the best epoch. A copy of them lies
        in the memory of the host meanwhile.
    start_from_epoch : int, default 0
        Epochs before it are not looked at.

    Raises
    ------
    TypeError, ValueError
        If an argument has no meaning; amid `fit`: if `mode` is ``"auto"`` and no loss
        or metric has the name.
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
        """Forget what another call of `fit` has found."""
        self.look_up()
        self._forget()

    def _forget(self) -> None:
        self.wait = 0
        self.stopped_epoch = self.best_epoch = 0
        self.best: float | None = None
        self.best_weights: list[np.ndarray] | None = None

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Look at the number; end training if it has not become better in time."""
        value = self.current(logs or {}, "stops by")
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
        """Restore the best weights if that was asked for."""
        if self.stopped_epoch and self.verbose:
            print(f"Epoch {self.stopped_epoch + 1}: early stopping")
        if self.restore_best_weights and self.best_weights is not None:
            if self.verbose:
                print(f"Restoring the weights of epoch {self.best_epoch + 1}")
            self.model.set_weights(self.best_weights)


class _Saving:
    """Count batches towards the next save."""

    def __init__(self, save_freq: Any) -> None:
        self.every = 0 if save_freq == "epoch" else integer(save_freq, "save_freq", 1)
        self._seen = 0

    def is_due(self) -> bool:
        """Count a batch, and tell whether to save behind it."""
        self._seen += 1
        if not self.every or self._seen < self.every:
            return False
        self._seen = 0
        return True


class ModelCheckpoint(_Monitor):
    """Save the model, or its weights, after each epoch or some batches.

    Parameters
    ----------
    filepath : str or path-like
        ``"….memcfg"`` for models, ``"….weights.safetensors"`` for weights alone. Fields
        in braces are filled with the epoch, from 1, and the numbers of the logs:
        ``"{epoch:02d}-{val_loss:.2f}.memcfg"``. Folders that are missing are made.
    monitor : str, default "val_loss"
        The number that tells which is best.
    verbose : int, default 0
        1: say what happens.
    save_best_only : bool, default False
        Whether to save only when the number is better than ever.
    save_weights_only : bool, default False
        Whether to save weights instead of the model.
    mode : {"auto", "min", "max"}, default "auto"
        Which number is better, as for `EarlyStopping`.
    save_freq : "epoch" or int, default "epoch"
        When to save: after each epoch, or after so many batches.
    initial_value_threshold : float, optional
        Numbers no better than this are not saved.

    Raises
    ------
    TypeError, ValueError
        If an argument has no meaning, or the name ends in another format's suffix.
    OSError, KeyError
        Amid `fit`: if the file cannot be written, or a field is not in the logs.
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
        suffix = ".weights.safetensors" if save_weights_only else ".memcfg"
        if not self.filepath.endswith(suffix):
            raise ValueError(
                f"ModelCheckpoint writes {'weights' if save_weights_only else 'models'}"
                f" to files that end in {suffix!r}, got {self.filepath!r}"
            )

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Find out which number is better, and whether the model can be saved."""
        if self.save_best_only:
            self.look_up()
        if not self.save_weights_only:
            describe(self.model)

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Note which epoch it is."""
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Save if enough batches have passed."""
        if self._saving.is_due():
            self._save({"batch": batch + 1, **(logs or {})})

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Save if that is done after epochs."""
        if self.save_freq == "epoch":
            self._save(logs or {})

    def _save(self, logs: Mapping[str, Any]) -> None:
        try:
            path = self.filepath.format(epoch=self._epoch + 1, **logs)
        except KeyError as error:
            raise KeyError(
                f"ModelCheckpoint: no {error} for the name {self.filepath!r}; there "
                f"are epoch, {', '.join(logs)}"
            ) from None
        if not self._is_due(logs, path):
            return
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        if self.save_weights_only:
            self.model.save_weights(path)
        else:
            self.model.save(path)

    def _is_due(self, logs: Mapping[str, Any], path: str) -> bool:
        """Return whether this state is to be saved, and print why."""
        message = f"saving to {path}"
        due = True
        if self.save_best_only:
            value = self.current(logs, "saves the best by")
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
    """Keep the state of training in a folder, and go on from it after a crash.

    `fit` begins with the weights, the optimizer's state and the epoch of the last
    backup, if the folder has one. The backup goes when `fit` has come to its end.

    Parameters
    ----------
    backup_dir : str or path-like
        The folder; it is made if it is missing.
    save_freq : "epoch" or int, default "epoch"
        When to write: after each epoch, or also after so many batches, from which
        training goes on with the epoch's beginning.
    double_checkpoint : bool, default False
        Whether to keep the backup before the last one, and take it if the last one is
        damaged: its length and a checksum of all its bytes are compared.
    delete_checkpoint : bool, default True
        Whether to delete the backup at the end of `fit`.

    Raises
    ------
    TypeError, ValueError
        If an argument has no meaning.
    OSError, FormatError, WeightsError
        Amid `fit`: if the backup cannot be written or read, or is of another model.
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
            raise ValueError("backup_dir is empty")
        self.backup_dir = os.fspath(backup_dir)
        self.save_freq = save_freq
        self.double_checkpoint = double_checkpoint
        self.delete_checkpoint = delete_checkpoint
        self._saving = _Saving(save_freq)
        self._epoch = 0
        self._found: Backup | None = None  # until training begins
        names = ("latest.safetensors", "before.safetensors")
        self._paths = [os.path.join(self.backup_dir, name) for name in names]
        self._has_latest = False  # whether the last one is known to be whole

    def resumed_epoch(self) -> int:
        """Read the backup, if there is one, and return its epoch; 0 without one."""
        self._found, self._has_latest = None, False
        damage: FormatError | None = None
        for path in self._paths:
            try:
                self._found = read_backup(path)
            except FileNotFoundError:
                continue
            except FormatError as error:
                damage = damage or error
                continue
            self._has_latest = path == self._paths[0]
            return self._found.epoch
        if damage is not None:
            raise damage
        return 0

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Put what was read into the model: values and the optimizer's state."""
        found, self._found = self._found, None
        if found is not None:
            restore(self.model, found)

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Note which epoch it is."""
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Write a backup if enough batches have passed."""
        if self._saving.is_due():
            self._write(self._epoch)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Write a backup, from which the next epoch begins."""
        self._write(epoch + 1)

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Delete the backup: training has come to its end."""
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
    """Set the learning rate of each epoch by a function.

    Parameters
    ----------
    schedule : callable
        ``schedule(epoch, learning_rate)`` returns the rate of an epoch, the first of
        which is 0; also ``schedule(epoch)``.
    verbose : int, default 0
        1: say the rate.
    """

    def __init__(self, schedule: Callable[..., float], verbose: int = 0) -> None:
        super().__init__()
        if not callable(schedule):
            raise TypeError(f"schedule is a function of the epoch, not {schedule!r}")
        self.schedule = schedule
        self.verbose = verbose
        self._takes_rate = _takes_two(schedule)

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Set the rate."""
        optimizer = self.model.optimizer
        rates = [float(optimizer.learning_rate)] if self._takes_rate else []
        rate = self.schedule(epoch, *rates)
        if not isinstance(rate, float | np.floating):
            raise ValueError(f"schedule returns a float, not {rate!r}")
        optimizer.learning_rate = float(rate)
        if self.verbose:
            print(f"Epoch {epoch + 1}: learning rate {float(rate)}")

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Note the rate in the logs."""
        if logs is not None:
            logs["learning_rate"] = float(self.model.optimizer.learning_rate)


def _takes_two(schedule: Callable[..., Any]) -> bool:
    """Return whether a schedule can be called with the epoch and the rate."""
    try:
        signature = inspect.signature(schedule)
    except ValueError:  # of a function in C: as the documentation has it
        return False
    try:
        signature.bind(0, 0.0)
    except TypeError:
        return False
    return True


class ReduceLROnPlateau(_Monitor):
    """Lower the learning rate when a number has stopped becoming better.

    Parameters
    ----------
    monitor : str, default "val_loss"
        The number of the logs to follow.
    factor : float, default 0.1
        What the rate is multiplied by; below 1.
    patience : int, default 10
        How many epochs may pass without a better number.
    verbose : int, default 0
        1: say what happens.
    mode : {"auto", "min", "max"}, default "auto"
        Which is better, as for `EarlyStopping`.
    min_delta : float, default 1e-4
        What counts as better is better by more than this.
    cooldown : int, default 0
        Epochs that are not counted after the rate was lowered.
    min_lr : float, default 0.0
        The rate is not lowered below this.

    Raises
    ------
    TypeError, ValueError
        If an argument has no meaning.
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
            raise ValueError(f"factor is below 1, not {factor!r}")
        self.patience = integer(patience, "patience", 0)
        self.verbose = verbose
        self.cooldown = integer(cooldown, "cooldown", 0)
        self.min_lr = nonnegative(min_lr, "min_lr")
        self._forget()

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Forget what another call of `fit` has found."""
        self.look_up()
        self._forget()

    def _forget(self) -> None:
        self.best: float | None = None
        self.wait = self.cooldown_counter = 0

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Look at the number; lower the rate if it has not become better in time."""
        logs = {} if logs is None else logs
        optimizer = self.model.optimizer
        rate = logs["learning_rate"] = float(optimizer.learning_rate)
        value = self.current(logs, "lowers the learning rate by")
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
    """Write the numbers of each epoch to a file of comma-separated values.

    Parameters
    ----------
    filename : str or path-like
        The file; it is replaced, or with `append` continued.
    separator : str, default ","
        Stands between two values.
    append : bool, default False
        Whether a file that exists is continued, as after a crash.

    Raises
    ------
    TypeError
        If `separator` is not one character.
    OSError
        Amid `fit`: if the file cannot be written.
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
            raise TypeError(f"separator is one character, not {separator!r}")
        self.separator = separator
        self.append = append
        self._columns: list[str] = []

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Empty the file, unless it is continued; each row opens it again."""
        self._columns = []
        Path(self.filename).open("a" if self.append else "w").close()

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Write a row; the names of the first are the columns."""
        row = {"epoch": epoch, **(logs or {})}
        with Path(self.filename).open("a", newline="") as file:
            first = not self._columns
            if first:
                names = row.keys() - {"epoch"}
                if self.model._trainer.validates:  # perhaps after later epochs
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


class TerminateOnNaN(Callback):
    """Stop training when the loss is NaN or infinite, instead of an error.

    The step that gave it changes nothing: the model keeps the weights before it, unless
    `fit` was called with ``on_nan="ignore"``.
    """

    @takes_arguments
    def __init__(self) -> None:
        super().__init__()

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Look at the loss."""
        loss = (logs or {}).get("loss")
        if loss is not None and not isfinite(loss):
            print(f"Batch {batch}: the loss is {loss}, training ends")
            self.model.stop_training = True


class LambdaCallback(Callback):
    """Call functions that were given.

    Parameters
    ----------
    on_epoch_begin, on_epoch_end : callable, optional
        Called with ``(epoch, logs)``.
    on_train_begin, on_train_end : callable, optional
        Called with ``(logs)``.
    on_train_batch_begin, on_train_batch_end : callable, optional
        Called with ``(batch, logs)``.
    **kwargs : callable
        Any other hook of `Callback` by its name.

    Raises
    ------
    TypeError
        If a name is none of a hook, or a hook cannot be called.
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
                raise TypeError(f"LambdaCallback: there is no hook {hook!r}")
            if function is not None and not callable(function):
                raise TypeError(f"LambdaCallback: {hook} is a function: {function!r}")
            if function is not None:
                setattr(self, hook, function)


class TensorBoard(Callback):
    """Write the numbers of each epoch as scalars that TensorBoard shows.

    Needs ``pip install tensorboardX``, which writes the files.

    Parameters
    ----------
    log_dir : str or path-like, default "logs"
        The folder; training goes into its ``train``, validation into ``validation``.
    update_freq : "epoch", "batch" or int, default "epoch"
        ``"batch"`` or a number: the numbers of training are written after so many
        batches as well.

    Raises
    ------
    ImportError
        If tensorboardX is not installed.
    TypeError, ValueError
        If `update_freq` has no meaning.
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
        """Write the numbers so far, if that is asked for."""
        self._step += 1
        if self._saving.is_due():
            for name, value in (logs or {}).items():
                self._write("train", f"batch_{name}", value, self._step)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Write the numbers of the epoch, and the learning rate."""
        rate = float(self.model.optimizer.learning_rate)
        logs = {**(logs or {}), "learning_rate": rate}
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
            "TensorBoard writes its files with tensorboardX: pip install tensorboardX"
        ) from None
    return SummaryWriter


class ScoreIterationListener(Callback):
    """Print the loss every so many steps, as ND4J's listener of that name does.

    Parameters
    ----------
    print_iterations : int, default 10
        Steps between two lines.
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
    """Print the speed of training every so many steps, as DL4J's listener does.

    Parameters
    ----------
    frequency : int, default 1
        Steps between two lines.
    report_score : bool, default False
        Whether a line has the loss.
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
