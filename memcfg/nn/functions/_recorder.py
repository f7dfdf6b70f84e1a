"""What a function of symbolic tensors does while it is traced."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from memcfg.nn.functions._readings import read_moving
from memcfg.nn.layers._layer import (
    Node,
    SymbolicTensor,
    Variable,
    WeightTensor,
    next_order,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcfg.nn.layers._layer import Layer

__all__ = ["Recording", "current", "recorded", "recording", "resumed"]

_current: ContextVar[Recording | None] = ContextVar("recording", default=None)


@dataclass(eq=False)
class Recording:
    """The weights that a function reads and writes, in the order of its calls."""

    read: dict[tuple[Layer, int], WeightTensor] = field(default_factory=dict)
    # The values that updates have given to weights, oldest first.
    written: dict[tuple[Layer, int], list[SymbolicTensor]] = field(default_factory=dict)
    calls: list[Node] = field(default_factory=list)  # with effects: updates of weights
    differentiates: bool = False
    begin: int = field(default_factory=next_order)  # its calls have higher numbers
    losses: list[SymbolicTensor] = field(default_factory=list)  # with gradients
    # Metrics with the tensors that are added to their sums when the program has run.
    measured: list[tuple[Any, tuple[SymbolicTensor, ...]]] = field(default_factory=list)
    # Calls of layers and models, which may contain others.
    noted: list[Node] = field(default_factory=list)
    # Losses that calls of models have added, which are not of their layers.
    added: dict[Layer, list[SymbolicTensor]] = field(default_factory=dict)
    moves: bool = True  # whether calls move the averages of layers
    # Of calls that were computed at once: the order where each begins, and the number
    # by which it has drawn.
    segments: list[tuple[int, int]] = field(default_factory=list)

    @property
    def effects(self) -> int:
        """The number of updates of weights and metrics."""
        return len(self.calls) + len(self.measured)

    def symbol(self, variable: Variable) -> SymbolicTensor:
        """Return the value of a weight at this place of the function."""
        key = variable._layer, variable._index
        before = self.before(variable)
        if self.moves and variable.name in variable._layer._moving:
            return read_moving(variable)
        return self.written[key][-1] if key in self.written else before

    def values(self, variable: Variable) -> list[SymbolicTensor]:
        """Return all values of a weight up to this place of the function."""
        key = variable._layer, variable._index
        return [self.before(variable), *self.written.get(key, ())]

    def write(self, variable: Variable, value: SymbolicTensor) -> None:
        """Note a new value of a weight, which an update has made."""
        key = variable._layer, variable._index
        self.written.setdefault(key, []).append(value)

    def before(self, variable: Variable) -> WeightTensor:
        """Return the value of a weight at the begin of the function."""
        key = variable._layer, variable._index
        if key not in self.read:
            self.read[key] = WeightTensor(variable._spec, variable._layer)
        return self.read[key]


def current() -> Recording | None:
    """Return the recording of the function that is being traced, or None."""
    return _current.get()


def recorded(what: str) -> Recording:
    """Return the current recording; RuntimeError outside of a function."""
    result = _current.get()
    if result is None:
        raise RuntimeError(
            f"{what} needs a function that memcfg traces: decorate the one that calls "
            "it with memcfg.function"
        )
    return result


@contextmanager
def recording() -> Iterator[Recording]:
    """Record a function that a ``with`` block calls."""
    with resumed(Recording()) as made:
        yield made


@contextmanager
def resumed(made: Recording) -> Iterator[Recording]:
    """Record what a ``with`` block calls behind what was recorded before."""
    token = _current.set(made)
    try:
        yield made
    finally:
        _current.reset(token)
