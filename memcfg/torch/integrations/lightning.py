"""Budgets in the Trainer of Lightning."""

from __future__ import annotations

import warnings
from typing import Any

from memcfg._caller import outside
from memcfg.errors import MissingDependencyError
from memcfg.torch.integrations._loop_budget import LoopBudget

try:
    from lightning.pytorch import Callback
except ImportError as error:
    raise MissingDependencyError(
        f"this callback is of Lightning: `pip install lightning` ({error})"
    ) from None

__all__ = ["BudgetCallback"]


class BudgetCallback(Callback):  # type: ignore[misc]
    """Trains a module of Lightning within a limit.

    The budget is on the module from the start of `fit` to its end. The predicted peak
    of a step, ``memory/predicted_peak_bytes``, and, on a GPU or under `limit_cpu`, the
    measured one, ``memory/measured_peak_bytes``, are logged with each batch. The error
    of a batch that does not fit names the largest one that does, and the batch-size
    finder tries smaller ones.

    Parameters
    ----------
    limit : int, float or str
        The most bytes of a training step, such as ``"8GiB"``.
    module : str, default ""
        The path of the module in the LightningModule whose forward ``training_step``
        calls, such as ``"net"``; by default it is the LightningModule itself.
    **options
        Other arguments of `memcfg.torch.budget`. The optimizer is that of the Trainer.

    Raises
    ------
    TypeError, ValueError
        If the limit is not a number of bytes, or `optimizer` is given. What `budget`
        raises is raised by `Trainer.fit`, as is AttributeError if there is no such
        module.
    """

    def __init__(self, limit: float | str, module: str = "", **options: Any) -> None:
        self._budget = LoopBudget(limit, options)
        self._module = module

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Put the budget on."""
        model = pl_module.get_submodule(self._module)
        optimizers = trainer.optimizers
        optimizer = optimizers[0] if len(optimizers) == 1 else None
        self._budget.put_on(model, optimizer)

    def on_train_batch_start(self, *_: Any) -> None:
        """Measure the step."""
        self._budget.reset()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Log the peaks of the step."""
        pl_module.log_dict(self._budget.memory())
        if not self._budget.is_planned:
            self._budget.take_off()
            warnings.warn(
                "training_step does not call the module that has the budget: name the "
                "one that it calls, as in BudgetCallback(limit, module='net')",
                RuntimeWarning,
                stacklevel=outside("torch"),
            )

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Take the budget off."""
        self._budget.take_off()

    def on_exception(self, trainer: Any, pl_module: Any, exception: Any) -> None:
        """Take the budget off."""
        self._budget.take_off()
