"""Updates of parameters while backward runs, each as soon as its gradient is there."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary, ref

import torch

from memcfg.torch.state._applied import AppliedGradient
from memcfg.torch.trace._costs import told_by

if TYPE_CHECKING:
    from torch import fx

    from memcfg.torch.state._pieces import PieceStep

_numbers = count(1)
_updates: WeakValueDictionary[int, Update] = WeakValueDictionary()


class Update:
    """A parameter that the optimizer updates as soon as its gradient is there.

    Parameters
    ----------
    parameter : torch.Tensor
        The parameter.
    optimizer : torch.optim.Optimizer
        Its optimizer.
    steps : PieceStep
        Steps it.
    """

    def __init__(
        self,
        parameter: torch.Tensor,
        optimizer: torch.optim.Optimizer,
        steps: PieceStep,
    ) -> None:
        self.number = next(_numbers)
        self.shape, self.stride = tuple(parameter.shape), parameter.stride()
        self.dtype, self.nbytes = parameter.dtype, parameter.nbytes
        self._parameter, self._optimizer = ref(parameter), ref(optimizer)
        self._steps = steps
        _updates[self.number] = self

    @property
    def scratch_bytes(self) -> int:
        """The temporary bytes of the update."""
        optimizer = self._optimizer()
        return 0 if optimizer is None else self._steps.temporary_bytes(optimizer, 1)

    def apply(self, gradient: torch.Tensor) -> torch.Tensor:
        """Update the parameter with a gradient."""
        parameter, optimizer = self._parameter(), self._optimizer()
        if parameter is None or optimizer is None:
            raise RuntimeError("the optimizer of a step in backward is gone")
        if torch._C._current_graph_task_id() != -1 and (
            torch._C._autograd._get_current_graph_task_keep_graph()
        ):
            raise RuntimeError(
                "backward(retain_graph=True) could run again after the optimizer has "
                "stepped: take 'step_in_backward' out of budget(..., offload=...)"
            )
        if parameter.grad is not None:
            raise RuntimeError(
                "a parameter has a gradient already, and 'step_in_backward' adds none "
                "to it: call zero_grad() before each backward, or take it out of "
                "budget(..., offload=...)"
            )
        with torch.no_grad():
            self._steps.update_one(optimizer, parameter, gradient)
        return AppliedGradient(parameter)


def step_in_backward(
    gradient: torch.Tensor, number: int, after: list[torch.Tensor]
) -> torch.Tensor:
    """Update a parameter; return what stands for its gradient."""
    return _updates[number].apply(gradient)


def _fake_step(
    gradient: torch.Tensor, number: int, after: list[torch.Tensor]
) -> torch.Tensor:
    own = _updates[number]
    return torch.empty_strided(own.shape, own.stride, dtype=own.dtype, device="cpu")


_library = torch.library.Library("memcfg", "FRAGMENT")
_library.define(
    "step_in_backward(Tensor gradient, int number, Tensor[] after) -> Tensor"
)
_library.impl("step_in_backward", step_in_backward, "CompositeExplicitAutograd")
torch.library.register_fake("memcfg::step_in_backward", _fake_step, lib=_library)
STEP = torch.ops.memcfg.step_in_backward.default


def _seconds(node: fx.Node) -> tuple[float, int]:
    own = _updates[node.args[1]]
    return 4 * own.nbytes / 1e9, own.scratch_bytes


told_by[STEP] = _seconds
