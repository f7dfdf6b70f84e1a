"""One step: a batch in, a loss out.

Owns the feeding of a program's inputs and the sums over an epoch. Refuses loops and
words. A step holds its model's lock from the first input to the last output, so that
steps of several threads follow one another; between two steps weights are whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from memcfg.nn.training._tracing import Program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import numpy.typing as npt

    from memcfg.nn.inputs._batch import Batch
    from memcfg.nn.optimizers import Optimizer
    from memcfg.nn.training._session import Programs

__all__ = [
    "Outcome",
    "Totals",
    "evaluate_step",
    "predict_step",
    "programs_for",
    "train_step",
]


_T = TypeVar("_T")


class Outcome(NamedTuple):
    """What one step found.

    Parameters
    ----------
    samples : int
        Size of the batch.
    loss : float
        Its mean loss.
    correct : float
        How many answers were right; 0 when they are not counted.
    finished : bool
        False if a loss that is not finite stopped the step before its update.
    """

    samples: int
    loss: float
    correct: float
    finished: bool = True


class Totals:
    """Sums over the samples of an epoch."""

    def __init__(self) -> None:
        self.samples = 0
        self._loss = 0.0
        self._correct = 0.0

    def add(self, outcome: Outcome) -> None:
        """Add one step.

        Parameters
        ----------
        outcome : Outcome
            What it found.
        """
        self.samples += outcome.samples
        self._loss += outcome.loss * outcome.samples
        self._correct += outcome.correct

    def logs(self, metrics: tuple[str, ...]) -> dict[str, float]:
        """Return the means.

        Parameters
        ----------
        metrics : tuple of str
            Names under which the part of right answers is told.

        Returns
        -------
        dict of str to float
            ``loss`` first; empty where there was no sample.
        """
        if not self.samples:
            return {}
        accuracy = self._correct / self.samples
        return {"loss": self._loss / self.samples} | dict.fromkeys(metrics, accuracy)


def programs_for(kind: str, sizes: Sequence[int]) -> list[Program]:
    """Return the programs that a pass over the data needs.

    Parameters
    ----------
    kind : str
        ``train``, ``evaluate`` or ``predict``.
    sizes : sequence of int
        The batch sizes, that of a full batch first.

    Returns
    -------
    list of Program
        In that order.
    """
    return [Program(kind, size) for size in sizes]


def train_step(
    programs: Programs, optimizer: Optimizer, batch: Batch, *, guard: bool
) -> Outcome:
    """Train on a batch.

    Parameters
    ----------
    programs : Programs
        Runs the program of this batch size; loaded if it is new, or if another thread's
        call took its place.
    optimizer : Optimizer
        Gives the learning rate and counts the step.
    batch : Batch
        Samples and labels.
    guard : bool
        Whether a loss that is not finite stops the step.

    Returns
    -------
    Outcome
        What it found.
    """
    program = Program("train", batch.size)

    def act() -> Outcome:
        _feed(programs, program, batch, optimizer)
        finished = programs.run(program, guard=guard, counter=optimizer.counter)
        return _outcome(programs, program)._replace(finished=finished)

    return _step(programs, program, act)


def evaluate_step(programs: Programs, batch: Batch) -> Outcome:
    """Evaluate a batch.

    Parameters
    ----------
    programs : Programs
        Runs the program of this batch size; loaded if it is new, or if another thread's
        call took its place.
    batch : Batch
        Samples and labels.

    Returns
    -------
    Outcome
        What it found.
    """
    program = Program("evaluate", batch.size)

    def act() -> Outcome:
        _feed(programs, program, batch)
        programs.run(program)
        return _outcome(programs, program)

    return _step(programs, program, act)


def predict_step(
    programs: Programs, batch: Batch, result: npt.NDArray[np.float32]
) -> None:
    """Predict a batch.

    Parameters
    ----------
    programs : Programs
        Runs the program of this batch size; loaded if it is new, or if another thread's
        call took its place.
    batch : Batch
        Samples.
    result : numpy.ndarray
        Takes their predictions.
    """
    program = Program("predict", batch.size)

    def act() -> None:
        _feed(programs, program, batch)
        programs.run(program)
        result[...] = programs.outputs(program)["output"]

    _step(programs, program, act)


def _step(programs: Programs, program: Program, act: Callable[[], _T]) -> _T:
    """Do a step with a loaded program; if its end is interrupted, end it once more."""
    with programs.lock.step():
        programs.ensure(program)
        try:
            try:
                return act()
            finally:
                programs.finish(program)
        except BaseException:
            programs.finish(program)
            raise


def _feed(
    programs: Programs,
    program: Program,
    batch: Batch,
    optimizer: Optimizer | None = None,
) -> None:
    """Hand inputs over, and keep no room beyond that.

    The rooms come first: to ask for one ends what is bound.
    """
    rooms = programs.inputs(program)
    samples = batch.in_place()
    if samples is None or not programs.bind(program, "x", samples):
        batch.copy("x", rooms["x"])
    if "y" in rooms:
        batch.copy("y", rooms["y"])
    if optimizer is None:
        return
    if "learning_rate" in rooms:
        rooms["learning_rate"][...] = optimizer.learning_rate
    if "step" in rooms:
        rooms["step"][...] = optimizer.iterations


def _outcome(programs: Programs, program: Program) -> Outcome:
    found = programs.outputs(program)
    correct = float(found["correct_count"]) if "correct_count" in found else 0.0
    return Outcome(program.batch_size, float(found["loss"]), correct)
