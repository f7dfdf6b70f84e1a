"""Functions of one's own as planned programs, and their gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg.nn.functions._assignments import apply_gradients, assign
from memcfg.nn.functions._at_once import at_once, update_at_once
from memcfg.nn.functions._derivatives import (
    GradientTape,
    derivatives,
    grad,
    value_and_grad,
)
from memcfg.nn.functions._eager_tape import active_tape
from memcfg.nn.functions._function import Function, function
from memcfg.nn.functions._losses import adds_losses, keep_loss, losses_of
from memcfg.nn.functions._measures import measure, note_call, result_of
from memcfg.nn.functions._of_number import OfNumber
from memcfg.nn.functions._own_steps import OwnSteps
from memcfg.nn.functions._recorder import current
from memcfg.nn.layers._layer import (
    SymbolicTensor,
    Variable,
    current_call,
)
from memcfg.nn.layers._operators import constant_tensor
from memcfg.nn.optimizers.schedules import LearningRateSchedule

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Functions:
    """What weights, layers and ops ask of functions."""

    def __init__(self) -> None:
        self.adds_losses = adds_losses
        self.assign = assign
        self.apply_gradients = apply_gradients
        self.at_once = at_once
        self.constant = constant_tensor
        self.derivatives = derivatives
        self.keep_loss = keep_loss
        self.losses_of = losses_of
        self.measure = measure
        self.note_call = note_call
        self.own_steps = OwnSteps
        self.result_of = result_of
        self.update_at_once = update_at_once

    @staticmethod
    def is_taped() -> bool:
        """Return whether a tape notes what is computed at once."""
        return active_tape() is not None

    @staticmethod
    def watched(array: Any) -> Any:
        """Return an array, whose operators a tape sees if there is one."""
        tape = active_tape()
        return array if tape is None else tape.watched(array)

    @staticmethod
    def value(variable: Variable) -> Any:
        """Return a weight's value, which a tape may see."""
        tape = active_tape()
        return variable.numpy() if tape is None else tape.value(variable)

    @staticmethod
    def is_tracing() -> bool:
        """Return whether a function is being traced."""
        return current() is not None

    @staticmethod
    def is_measured_later(tensors: Sequence[SymbolicTensor]) -> bool:
        """Note and return whether steps call again what updates a metric by tensors."""
        call = current_call()
        if call is None or call.measured is None:
            return False
        call.measured.extend(tensors)
        return True

    @staticmethod
    def count_effects() -> int:
        """Return how many updates of weights and metrics the function has so far."""
        recording = current()
        return 0 if recording is None else recording.effects

    @staticmethod
    def symbol(variable: Variable) -> SymbolicTensor | None:
        """Return a weight's value in the function or `call`; None outside of one."""
        if (call := current_call()) is not None:
            return call.symbol(variable)
        recording = current()
        return None if recording is None else recording.symbol(variable)


# Variables reach functions through this, since modules import only downward.
Variable.functions = _Functions()
LearningRateSchedule.of_number = OfNumber

__all__ = [
    "Function",
    "GradientTape",
    "function",
    "grad",
    "value_and_grad",
]
