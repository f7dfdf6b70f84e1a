"""The budget of a model while a loop trains it, and what the loop's logger gets."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from memcfg._caller import outside
from memcfg._first_line import first_line
from memcfg.torch.budget._budgeted import ModelBudget, budget, get_budget
from memcfg.torch.budget._checked_arguments import checked_limit
from memcfg.torch.budget._peak_watch import meter_of
from memcfg.torch.estimate._estimate import traced_step
from memcfg.torch.estimate._fitting_batch import BatchSearch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from memcfg.torch.budget._step import Step
    from memcfg.torch.trace._infeasible import InfeasibleStepError

PREDICTED, MEASURED = "memory/predicted_peak_bytes", "memory/measured_peak_bytes"


class LoopBudget:
    """The budget of a model from the start to the end of a training loop.

    Parameters
    ----------
    limit : int, float or str
        As of `budget`.
    options : mapping
        Other arguments of `budget`.
    """

    def __init__(self, limit: float | str, options: Mapping[str, Any]) -> None:
        checked_limit(limit)  # before the loop starts
        if "optimizer" in options:
            raise TypeError("the optimizer is that of the loop: leave it out")
        self._limit, self._options = limit, dict(options)
        self._model: nn.Module | None = None
        self._largest: dict[str, int | None] = {}

    def put_on(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        *,
        searches: bool = True,
    ) -> None:
        """Put the budget on a model; a refusal names the largest batch that fits."""
        optimizer = getattr(optimizer, "optimizer", optimizer)  # in a loop's wrapper
        budget(model, self._limit, optimizer=optimizer, **self._options)
        self._model = model
        if searches:
            own = get_budget(model)

            def explain(error: InfeasibleStepError, args: Any, kwargs: Any) -> None:
                self._explain(own, optimizer, error, (args, kwargs))

            own.on_refusal = explain

    def take_off(self) -> None:
        """Take the budget off."""
        if self._model is not None:
            budget(self._model, None)
            self._model = None

    def reset(self) -> None:
        """Measure from now on."""
        meter = self._meter()
        if meter is not None:
            meter.reset()

    def memory(self) -> dict[str, float]:
        """Return the predicted peak of a step, and the measured one if it is known."""
        if self._model is None:
            return {}
        found = {PREDICTED: float(get_budget(self._model).predicted_peak_bytes)}
        meter = self._meter()
        if meter is not None:
            found[MEASURED] = float(meter.peak())
        return found

    @property
    def is_planned(self) -> bool:
        """Whether a step of the model was planned; True without a budget."""
        model = self._model
        return model is None or get_budget(model).memory_plan is not None

    def _meter(self) -> Any:
        """Return the meter of the model's device; None if nothing counts its bytes."""
        if self._model is None:
            return None
        devices = {each.device for each in self._model.parameters()}
        return meter_of(devices.pop()) if len(devices) == 1 else None

    def _explain(
        self,
        own: ModelBudget,
        optimizer: torch.optim.Optimizer | None,
        error: InfeasibleStepError,
        inputs: tuple[Sequence[Any], Mapping[str, Any]],
    ) -> None:
        """Add the largest batch that fits to the error of one that does not."""
        size = batch_of(inputs)
        limit = own.limit_bytes
        if size is None or size < 2 or limit is None:
            return

        def trace(batch: int) -> Step:
            loss, times = (self._options.get(each) for each in ("loss", "times"))
            parts = of_batch(inputs, size, batch)
            return traced_step(
                None, own.module, parts, times or "measured", optimizer, loss
            )[1]

        try:
            error.largest_batch = BatchSearch(trace, limit, size).run()
        except Exception as reason:  # of the model, which may not take a smaller batch
            warnings.warn(
                f"the largest batch that fits is not known: {first_line(reason)}",
                RuntimeWarning,
                stacklevel=outside("torch"),
            )
            return
        error.args = (error._text(),)


def batch_of(inputs: Any) -> int | None:
    """Return the size that the first axis of all inputs has, or None."""
    tensors = [e for e in tree_leaves(inputs) if isinstance(e, torch.Tensor)]
    sizes = {each.shape[0] for each in tensors if each.ndim}
    return sizes.pop() if len(sizes) == 1 else None


def of_batch(inputs: Any, size: int, batch: int) -> Any:
    """Return inputs with so many samples of the first ones."""

    def part(each: Any) -> Any:
        if not isinstance(each, torch.Tensor) or not each.ndim:
            return each
        return torch.cat([each] * math.ceil(batch / size))[:batch]

    return tree_map(part, inputs)
