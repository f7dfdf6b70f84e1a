"""Models that are trained and evaluated on whole data.

Owns `fit` and `evaluate`. Everything a caller gives is checked before memory is taken
and before the first step, as far as it is there; a batch that comes later is checked
before its step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from memcfg.errors import InfeasiblePlanError
from memcfg.nn._compilable import returned
from memcfg.nn._on_batch import OnBatch
from memcfg.nn._outside import outside
from memcfg.nn.inputs._feed import Feed
from memcfg.nn.inputs._reading import source_of
from memcfg.nn.inputs._source import Source, Target
from memcfg.nn.inputs._training_data import Given, training_data
from memcfg.nn.training import _trainer
from memcfg.nn.training._fit_options import FitOptions, fit_options
from memcfg.nn.training._history import History
from memcfg.nn.training._progress import check_verbose
from memcfg.nn.training._steps import programs_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from memcfg.data import Dataset
    from memcfg.nn.training._session import Programs

__all__ = ["Fitting"]

Array = npt.NDArray[Any]


class Fitting(OnBatch):
    """The part of a model that goes over data."""

    __slots__ = ("_history", "_stop_training")

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._history: History | None = None
        self._stop_training = False

    @property
    def history(self) -> History | None:
        """What the last `fit` found; None before."""
        return self._history

    @property
    def stop_training(self) -> bool:
        """Whether `fit` is to end; it begins with False, as in Keras.

        Set to True while `fit` is at work, by a thread or by what makes the data, it
        ends the epoch behind the step of that moment; the epoch's validation and
        numbers come before the end.
        """
        return self._stop_training

    @stop_training.setter
    def stop_training(self, value: bool) -> None:
        self._stop_training = bool(value)

    @outside
    def fit(  # noqa: PLR0913  (Keras's signature)
        self,
        x: Array | Dataset | Iterable[Any],
        y: Array | None = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: str | int = "auto",
        *,
        validation_split: float = 0.0,
        validation_data: tuple[Array, Array] | Dataset | Iterable[Any] | None = None,
        shuffle: bool | None = None,
        seed: int | None = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        on_nan: str = "raise",
    ) -> History:
        """Train.

        Programs of all batch sizes that are known are planned and loaded at once before
        the first step; one of another size before its step. The last batch of an epoch
        may be smaller. Other threads may use the model meanwhile, but not call `fit` or
        `compile`; their steps come between two steps of this call.

        Parameters
        ----------
        x : numpy.ndarray, Dataset or iterable
            float32 samples of shape ``(n, ...)``, never modified; a map of a file is
            read from the file, and not touched. Or batches: a
            `memcfg.data.Dataset` of ``(x, y)``, a `memcfg.data.DataSetIterator`, or
            anything to iterate over that gives ``(x, y)``, `memcfg.data.DataSet` or
            `memcfg.data.MultiDataSet` with one array of features and of labels.
        y : numpy.ndarray, optional
            Integer labels of shape ``(n,)`` or ``(n, 1)``. Not with batches, which have
            theirs.
        batch_size : int, optional
            Samples a step; None: 32. Not with batches.
        epochs : int, default 1
            The number of the last epoch.
        verbose : {"auto", 0, 1, 2}, default "auto"
            0: nothing; 1: a progress bar an epoch; 2: a line an epoch. ``"auto"``: 1 on
            a terminal, 2 elsewhere.
        validation_split : float, default 0.0
            This part of the samples, at their end, is evaluated and not trained on. Not
            with batches.
        validation_data : tuple of numpy.ndarray, Dataset or iterable, optional
            ``(x, y)``, or batches, to evaluate after each epoch.
        shuffle : bool, optional
            Whether each pass over arrays has an order of its own; None: it has. Batches
            have their own order.
        seed : int, optional
            Decides the orders. None: drawn from `set_random_seed`'s sequence. Not with
            batches.
        initial_epoch : int, default 0
            Epochs before it are left out. Arrays are read as if they had been run
            before, batches from their beginning.
        steps_per_epoch : int, optional
            Batches an epoch. A pass over the data goes on over epochs then, and the
            next begins with the epoch behind its end. None: an epoch is a pass.
        validation_steps : int, optional
            Batches a validation; each begins anew if the data can. None: all.
        validation_batch_size : int, optional
            Samples a step of validation on arrays. None: as in training, or 32.
        on_nan : {"raise", "ignore"}, default "raise"
            What a loss that is NaN or infinite does.

        Returns
        -------
        History
            The numbers of each epoch, means over its samples. Its `pipeline` tells what
            AUTOTUNE chose, and how long steps waited for a Dataset.

        Raises
        ------
        RuntimeError
            If the model is not compiled, its device is no longer configured, or another
            thread is training it; nothing changed then.
        TypeError, ValueError
            If the data or an argument is wrong; nothing changed then. If a batch is
            wrong that came later; weights and optimizer are as before its step.
        InfeasiblePlanError
            If no plan fits the device's limit beside what is read ahead. No memory was
            taken then, unless the batch that needs the plan came later.
        ResourceExhaustedError
            If batches do not fit beside the model; the error says what would.
        NonFiniteLossError
            If a loss is NaN or infinite; weights and optimizer are as before that
            step.
        BaseException
            What the data raises, behind the steps of the batches before.

        Warns
        -----
        RuntimeWarning
            If the data ends before `steps_per_epoch` batches of each epoch; training
            ends there. If it ends before `validation_steps`.

        Notes
        -----
        A thread prepares batches in blocks of the device's memory that are used again
        and again, and a step reads them where they lie. A dataset whose last step is
        `prefetch` has its own; any other gets a buffer of two batches, and so does an
        iterable whose ``async_supported`` is not False. However this call ends, threads
        end with it, and blocks are given back. An iterator that was given is not
        closed; what was read ahead of it is lost.

        The plan for batch sizes that are known leaves room for these blocks. Where no
        size is known, as behind a `map` of batches, the first batches come before it.
        """
        with self._in_training():
            self.stop_training = False
            self._compiled("fit")
            options = fit_options(
                {
                    "epochs": epochs,
                    "initial_epoch": initial_epoch,
                    "verbose": verbose,
                    "steps_per_epoch": steps_per_epoch,
                    "validation_steps": validation_steps,
                    "on_nan": on_nan,
                }
            )
            given = Given(
                x,
                y,
                batch_size,
                validation_batch_size,
                shuffle,
                seed,
                validation_split,
                validation_data,
            )
            steps = options.steps_per_epoch
            found = training_data(given, self._pool, options.initial_epoch, steps)
            return self._train(*found, options)

    def _train(
        self, train: Source, held: Source | None, options: FitOptions
    ) -> History:
        setup = self._compiled("fit")
        if held is None and options.validation_steps is not None:
            raise ValueError("validation_steps is for validation_data: there is none")
        epochs = max(1, options.epochs - options.initial_epoch)
        steps, held_steps = options.steps_per_epoch, options.validation_steps
        with Feed(train, steps, "steps_per_epoch", epochs=epochs) as feed:
            wanted, held_feed = [("train", train)], None
            if held is not None:
                name = "validation_steps"
                held_feed = Feed(held, held_steps, name, epochs=epochs, anew=True)
                wanted.append(("evaluate", held))
            # Without a number of steps one pass is over when the next begins.
            add = max if steps is None else sum
            programs = self._loaded_for(wanted, classes=True, add=add)
            self._history = history = History()
            feeds = _trainer.Feeds(feed, held_feed)
            try:
                _trainer.train(
                    programs, setup, feeds, options, history, lambda: self.stop_training
                )
            finally:
                feed.close()
                history.pipeline = train.report()
                if held_feed is not None:
                    held_feed.close()
        return history

    @outside
    def evaluate(
        self,
        x: Array | Dataset | Iterable[Any],
        y: Array | None = None,
        batch_size: int | None = None,
        verbose: str | int = "auto",
        *,
        steps: int | None = None,
        return_dict: bool = False,
    ) -> float | list[float] | dict[str, float]:
        """Return loss and metrics on data, as means over the samples.

        Parameters
        ----------
        x : numpy.ndarray, Dataset or iterable
            float32 samples, or batches, as in `fit`.
        y : numpy.ndarray, optional
            Integer labels. Not with batches, which have theirs.
        batch_size : int, optional
            Samples a step; None: 32. Not with batches.
        verbose : {"auto", 0, 1, 2}, default "auto"
            As in `fit`.
        steps : int, optional
            How many batches are read. None: all.
        return_dict : bool, default False
            Whether to return the numbers by name.

        Returns
        -------
        float, list of float or dict
            The loss; with metrics ``[loss, *metrics]``; or by name.

        Raises
        ------
        RuntimeError
            If the model is not compiled, its device is no longer configured, or another
            thread compiled it meanwhile.
        TypeError, ValueError
            If the data or an argument is wrong.
        InfeasiblePlanError
            If no plan fits the device's limit.
        ResourceExhaustedError
            If batches do not fit beside the model.
        BaseException
            What the data raises.

        Warns
        -----
        RuntimeWarning
            If the data ends before `steps` batches.
        """
        shown = check_verbose(verbose)
        self._compiled("evaluate")
        source = source_of(x, y, batch_size, self._pool, labelled=True)
        with Feed(source, steps, "steps") as feed:
            programs = self._loaded_for([("evaluate", source)], classes=True)
            setup = self._compiled("evaluate")
            logs = _trainer.evaluate(programs, setup, feed, shown)
        return returned(logs, return_dict)

    def _loaded_for(
        self,
        wanted: Sequence[tuple[str, Source]],
        *,
        classes: bool,
        add: Callable[[list[int]], int] = sum,
    ) -> Programs:
        """Build the model if need be, compare data with it, and load programs.

        The lock is not held while a first batch is waited for, whose maker may want it.

        Parameters
        ----------
        wanted : sequence of tuple
            Kinds of programs, and what each reads; what builds the model first.
        classes : bool
            Whether labels are read.
        add : callable, default sum
            What passes take of the device together.

        Returns
        -------
        Programs
            With the programs of all known batch sizes loaded.
        """
        first = wanted[0][1]
        if not first.sizes or (not self.built and first.sample_shape is None):
            first.look()

        def load() -> Programs:
            shape = self._built_network().input_shape
            target = Target(shape, self._classes() if classes else None)
            for _, source in wanted:
                source.aim(target)
            programs = self._built_programs()
            known = [p for kind, each in wanted for p in programs_for(kind, each.sizes)]
            promised = add([source.promised(target) for _, source in wanted])
            try:
                programs.require(known, promised)
            except InfeasiblePlanError as error:
                advised = _advised(error, first, target)
                if advised is None:
                    raise
                raise advised from error
            return programs

        return self._built_for(first.sample_shape, load)


def _advised(
    error: InfeasiblePlanError, source: Source, target: Target
) -> InfeasiblePlanError | None:
    """Say how many batches can be read ahead beside the model, if any can."""
    missing = error.smallest_limit_bytes - (error.limit_bytes or 0)
    fits = source.buffer_that_fits(target, missing)
    if fits is None:
        return None
    fields = {name: getattr(error, name) for name in error._fields}
    fields["hint"] = f"prefetch({fits}) fits. {error.hint}"
    return InfeasiblePlanError(error.message, **fields)
