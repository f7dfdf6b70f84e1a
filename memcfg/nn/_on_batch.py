"""What a compiled model does with one batch.

Owns training and evaluation of single batches. Refuses passes over data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from memcfg.errors import NonFiniteLossError
from memcfg.nn._compilable import Compilable, returned
from memcfg.nn._outside import outside
from memcfg.nn.inputs._array_checks import check_labels, check_shape, check_x, check_y
from memcfg.nn.inputs._batch import Batch
from memcfg.nn.training._fit_options import check_on_nan
from memcfg.nn.training._steps import Totals, evaluate_step, train_step
from memcfg.nn.training._tracing import Program

if TYPE_CHECKING:
    from memcfg.nn.training._session import Programs

__all__ = ["OnBatch"]

Array = npt.NDArray[Any]


class OnBatch(Compilable):
    """The part of a model that takes batches from its caller."""

    __slots__ = ()

    @outside
    def train_on_batch(
        self,
        x: Array,
        y: Array,
        *,
        return_dict: bool = False,
        on_nan: str = "raise",
    ) -> float | list[float] | dict[str, float]:
        """Train on one batch.

        Parameters
        ----------
        x : numpy.ndarray
            float32 samples.
        y : numpy.ndarray
            Integer labels.
        return_dict : bool, default False
            Whether to return the numbers by name.
        on_nan : {"raise", "ignore"}, default "raise"
            What a loss that is NaN or infinite does.

        Returns
        -------
        float, list of float or dict
            The loss before the update; with metrics ``[loss, *metrics]``; or by name.

        Raises
        ------
        RuntimeError
            If the model is not compiled.
        TypeError, ValueError
            If the data is wrong.
        InfeasiblePlanError
            If no plan fits the device's limit.
        NonFiniteLossError
            If the loss is NaN or infinite; weights and optimizer are as before.
        """
        with self._lock.turn():
            setup, guard = self._compiled("train_on_batch"), check_on_nan(on_nan)
            programs, batch = self._batch("train", x, y)
            outcome = train_step(programs, setup.optimizer, batch, guard=guard)
        if not outcome.finished:
            raise NonFiniteLossError(
                f"the loss is {outcome.loss} in step {setup.optimizer.iterations + 1}; "
                "weights and optimizer are as before that step"
            )
        totals = Totals()
        totals.add(outcome)
        return returned(totals.logs(setup.metrics), return_dict)

    @outside
    def test_on_batch(
        self, x: Array, y: Array, *, return_dict: bool = False
    ) -> float | list[float] | dict[str, float]:
        """Return loss and metrics of one batch.

        Parameters
        ----------
        x : numpy.ndarray
            float32 samples.
        y : numpy.ndarray
            Integer labels.
        return_dict : bool, default False
            Whether to return the numbers by name.

        Returns
        -------
        float, list of float or dict
            The loss; with metrics ``[loss, *metrics]``; or by name.

        Raises
        ------
        RuntimeError
            If the model is not compiled.
        TypeError, ValueError
            If the data is wrong.
        InfeasiblePlanError
            If no plan fits the device's limit.
        """
        totals = Totals()
        with self._lock.turn():
            setup = self._compiled("test_on_batch")
            programs, batch = self._batch("evaluate", x, y)
            totals.add(evaluate_step(programs, batch))
        return returned(totals.logs(setup.metrics), return_dict)

    def _batch(self, kind: str, x: Array, y: Array) -> tuple[Programs, Batch]:
        """Check a batch, and have its program loaded."""
        samples = check_x(x)

        def load() -> tuple[Programs, Batch]:
            classes = self._classes()
            check_shape(samples, self._built_network().input_shape)
            labels = check_labels(check_y(y, len(samples)), classes)
            programs = self._built_programs()
            programs.require([Program(kind, len(samples))])
            rows = slice(0, len(samples))
            return programs, Batch(samples, labels, rows, in_place=True)

        return self._built_for(samples.shape[1:], load)
