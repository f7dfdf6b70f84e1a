"""Budgets in the Trainer of transformers."""

from __future__ import annotations

from typing import Any

from memcfg.errors import MissingDependencyError
from memcfg.torch.integrations._loop_budget import LoopBudget

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise MissingDependencyError(
        f"this callback is of transformers: `pip install transformers` ({error})"
    ) from None

__all__ = ["BudgetCallback"]


class BudgetCallback(TrainerCallback):  # type: ignore[misc]
    """Trains the model of a transformers Trainer within a limit.

    The budget is on the model from the start of `train` to its end. Each entry of the
    Trainer's log history gets the predicted peak of a step,
    ``memory/predicted_peak_bytes``, and the measured one since the last entry,
    ``memory/measured_peak_bytes``, on a GPU or under `limit_cpu`. They are passed on to
    callbacks that come after this one. The error of a batch that does not fit names the
    largest one that does, and ``auto_find_batch_size`` tries smaller ones.

    Parameters
    ----------
    limit : int, float or str
        The most bytes of a training step, such as ``"8GiB"``.
    **options
        Other arguments of `memcfg.torch.budget`. The optimizer is that of the Trainer.

    Raises
    ------
    TypeError, ValueError
        If the limit is not a number of bytes, or `optimizer` is given. What `budget`
        raises is raised by `Trainer.train`.
    """

    def __init__(self, limit: float | str, **options: Any) -> None:
        self._budget = LoopBudget(limit, options)

    def on_train_begin(
        self,
        args: Any,
        state: Any,
        control: Any,
        model: Any = None,
        optimizer: Any = None,
        **_: Any,
    ) -> None:
        """Put the budget on."""
        # Which is tried again with smaller batches, and need not know the largest.
        searches = not args.auto_find_batch_size
        self._budget.put_on(model, optimizer, searches=searches)
        self._budget.reset()

    def on_log(
        self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any
    ) -> None:
        """Add the peaks to what is logged."""
        found = self._budget.memory()
        if logs is not None:
            logs.update(found)
        if state.log_history:
            state.log_history[-1].update(found)
        self._budget.reset()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Take the budget off."""
        self._budget.take_off()
