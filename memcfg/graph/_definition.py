"""What an op type means to the graph: shapes, gradient, in-place pairs, cost.

Owns the record and the helpers that families of ops share. Refuses kernels:
how an op is computed is the device's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, Protocol

from memcfg.errors import GraphError

__all__ = [
    "Adjoint",
    "Attributes",
    "Definition",
    "Emitter",
    "Spec",
    "like",
    "no_flops",
    "require",
]

Attributes = Mapping[str, Any]


class Spec(NamedTuple):
    """Shape and dtype of an operand; for an output also its name and role."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    suffix: str = ""  # of the tensor's name; "" for an op's first output
    role: str | None = None  # None: the role that the op's phase gives

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)


class Emitter(Protocol):
    """The part of `Builder` that gradient rules use."""

    def apply(
        self,
        type: str,  # noqa: A002  (the field's name)
        inputs: Sequence[int],
        attributes: Attributes | None = None,
        *,
        name: str = "",
        phase: str = "forward",
    ) -> tuple[int, ...]:
        """Append an op and return the ids of its outputs."""

    def shape(self, tensor: int) -> tuple[int, ...]:
        """Return a tensor's shape."""


@dataclass(frozen=True, slots=True)
class Adjoint:
    """One op seen from reverse mode.

    `dys` holds the gradient of each output (None: the loss does not depend on it,
    or the output is the loss itself); `needs` says which inputs want a gradient.
    """

    emitter: Emitter
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attributes: Attributes
    dys: tuple[int | None, ...]
    needs: tuple[bool, ...]

    @property
    def dy(self) -> int:
        """Gradient of the first output."""
        if self.dys[0] is None:
            raise GraphError(f"op {self.name!r}: the loss must be the last op")
        return self.dys[0]

    def emit(
        self,
        type: str,  # noqa: A002  (the field's name)
        inputs: Sequence[int],
        attributes: Attributes | None = None,
        suffix: str = "gradient",
    ) -> tuple[int, ...]:
        """Append a backward op named after the op it belongs to."""
        return self.emitter.apply(
            type, inputs, attributes, name=f"{self.name}/{suffix}", phase="backward"
        )

    def shape_of(self, position: int) -> tuple[int, ...]:
        """Shape of the input at `position`."""
        return self.emitter.shape(self.inputs[position])


Infer = Callable[[Sequence[Spec], Attributes], Sequence[Spec]]
Flops = Callable[[Sequence[Spec], Sequence[Spec], Attributes], int]
Rule = Callable[[Adjoint], Sequence[int | None]]


def no_flops(_inputs: Sequence[Spec], outputs: Sequence[Spec], _: Attributes) -> int:
    """One operation per output element: the op is bound by memory."""
    return sum(spec.size for spec in outputs)


@dataclass(frozen=True, slots=True)
class Definition:
    """An op type.

    `in_place` holds (input position, output position) pairs; `gradient` is the
    reverse-mode rule, None when the op has none; `arity` the number of inputs.
    """

    type: str
    arity: int
    infer: Infer
    in_place: tuple[tuple[int, int], ...] = ()
    gradient: Rule | None = None
    flops: Flops = no_flops
    replayable: bool = True


def like(position: int = 0) -> Infer:
    """Infer one output of the shape and dtype of an input."""

    def infer(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
        return [Spec(inputs[position].shape, inputs[position].dtype)]

    return infer


def require(condition: bool, message: str) -> None:
    """Raise GraphError with that message unless the condition holds."""
    if not condition:
        raise GraphError(message)
