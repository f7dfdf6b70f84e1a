"""One step: rows in, a loss out.

Owns the feeding of a program's inputs and the sums over an epoch. Refuses loops and
words. A step holds its model's lock from the first input to the last output, so that
steps of several threads follow one another; between two steps weights are whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from memcfg.nn._data import Dataset, Rows, gather
from memcfg.nn._graphs import Program

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from memcfg.nn._optimizers import Optimizer
    from memcfg.nn._programs import Programs

__all__ = [
    "Outcome",
    "Totals",
    "evaluate_step",
    "predict_step",
    "programs_for",
    "train_step",
]


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
            ``loss`` first.
        """
        accuracy = self._correct / self.samples
        return {"loss": self._loss / self.samples} | dict.fromkeys(metrics, accuracy)


def programs_for(kind: str, samples: int, batch_size: int) -> list[Program]:
    """Return the programs that a pass over the data needs.

    Parameters
    ----------
    kind : str
        ``train``, ``evaluate`` or ``predict``.
    samples : int
        Number of samples.
    batch_size : int
        Samples of a full batch.

    Returns
    -------
    list of Program
        That of a full batch, if there is one, and that of a shorter last one.
    """
    sizes = [batch_size] if samples >= batch_size else []
    if samples % batch_size:
        sizes.append(samples % batch_size)
    return [Program(kind, size) for size in sizes]


def train_step(
    programs: Programs,
    optimizer: Optimizer,
    data: Dataset,
    rows: Rows,
    *,
    guard: bool,
) -> Outcome:
    """Train on a batch.

    Parameters
    ----------
    programs : Programs
        Runs the program of this batch size; loaded again if another thread's call
        took its place.
    optimizer : Optimizer
        Gives the learning rate and counts the step.
    data : Dataset
        Samples and labels.
    rows : slice or numpy.ndarray
        The batch.
    guard : bool
        Whether a loss that is not finite stops the step.

    Returns
    -------
    Outcome
        What it found.
    """
    program = Program("train", _count(rows))
    with programs.lock:
        programs.ensure(program)
        try:
            _feed(programs, program, data, rows)
            _feed_scalars(programs, program, optimizer)
            finished = programs.run(program, guard=guard)
            if finished:
                optimizer.advance()
            return _outcome(programs, program)._replace(finished=finished)
        finally:
            programs.finish(program)


def evaluate_step(programs: Programs, data: Dataset, rows: Rows) -> Outcome:
    """Evaluate a batch.

    Parameters
    ----------
    programs : Programs
        Runs the program of this batch size; loaded again if another thread's call
        took its place.
    data : Dataset
        Samples and labels.
    rows : slice or numpy.ndarray
        The batch.

    Returns
    -------
    Outcome
        What it found.
    """
    program = Program("evaluate", _count(rows))
    with programs.lock:
        programs.ensure(program)
        try:
            _feed(programs, program, data, rows)
            programs.run(program)
            return _outcome(programs, program)
        finally:
            programs.finish(program)


def predict_step(
    programs: Programs,
    x: npt.NDArray[np.float32],
    rows: Rows,
    result: npt.NDArray[np.float32],
) -> None:
    """Predict a batch.

    Parameters
    ----------
    programs : Programs
        Runs the program of this batch size; loaded again if another thread's call
        took its place.
    x : numpy.ndarray
        All samples.
    rows : slice or numpy.ndarray
        The batch.
    result : numpy.ndarray
        All predictions; those of the batch are written.
    """
    program = Program("predict", _count(rows))
    with programs.lock:
        programs.ensure(program)
        try:
            gather(x, rows, programs.inputs(program)["x"])
            programs.run(program)
            result[rows] = programs.outputs(program)["output"]
        finally:
            programs.finish(program)


def _feed(programs: Programs, program: Program, data: Dataset, rows: Rows) -> None:
    inputs = programs.inputs(program)
    gather(data.x, rows, inputs["x"])
    gather(data.y, rows, inputs["y"])


def _feed_scalars(programs: Programs, program: Program, optimizer: Optimizer) -> None:
    inputs = programs.inputs(program)
    if "learning_rate" in inputs:
        inputs["learning_rate"][...] = optimizer.learning_rate
    if "step" in inputs:
        inputs["step"][...] = optimizer.iterations


def _outcome(programs: Programs, program: Program) -> Outcome:
    found = programs.outputs(program)
    correct = float(found["correct_count"]) if "correct_count" in found else 0.0
    return Outcome(program.batch_size, float(found["loss"]), correct)


def _count(rows: Rows) -> int:
    return rows.stop - rows.start if isinstance(rows, slice) else len(rows)
