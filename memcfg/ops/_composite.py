"""Composites: op types that do at once what several ops do, and find them in graphs.

A composite is written as the ops that it stands for. From those come its shapes, its
meaning in NumPy and its cost, and the pattern that `memcfg.graph.fuse_ops` looks for.
Composites are made of finished graphs, so that none has a gradient.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from memcfg._cached import cached_property
from memcfg.ops._op_type import (
    Arrays,
    Attributes,
    OpType,
    Part,
    Spec,
    Value,
    op_type,
    register,
    require,
)

__all__ = ["Call", "Value", "composite"]

_INPUT = -1  # the part of values that come from outside


Call: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class _Composite:
    """The ops that a composite stands for; the last one follows from all others."""

    name: str
    inputs: int
    parts: tuple[Part, ...]
    outputs: tuple[Value, ...]
    for_inference: bool

    @cached_property
    def main(self) -> int:
        """The first part that is not element-wise, after which its ops are named."""
        return next(
            i for i, part in enumerate(self.parts) if op_type(part.type).formula is None
        )

    def attributes_of(self, part: int, attributes: Attributes) -> Attributes:
        """Return the attributes of a part; those of others may be among them."""
        kind = op_type(self.parts[part].type)
        return attributes if kind.formula is None else {}

    def specs(
        self, inputs: Sequence[Spec], attributes: Attributes
    ) -> dict[Value, Spec]:
        """Return the specs of all values."""
        require(
            len(inputs) == self.inputs, f"{self.name} takes {self.inputs} inputs here"
        )
        specs = {Value(_INPUT, place): spec for place, spec in enumerate(inputs)}
        for index, part in enumerate(self.parts):
            made = op_type(part.type).infer(
                [specs[value] for value in part.inputs],
                self.attributes_of(index, attributes),
            )
            for place, spec in enumerate(made):
                specs[Value(index, place)] = spec
        return specs

    def infer(self, inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
        """Give the outputs, under names that differ."""
        specs = self.specs(inputs, attributes)
        made = [specs[value] for value in self.outputs]
        taken = [spec.suffix for spec in made]
        return [
            spec._replace(suffix=f"output{i}") if spec.suffix in taken[:i] else spec
            for i, spec in enumerate(made)
        ]

    def numpy(self, attributes: Attributes, inputs: Arrays, outputs: Arrays) -> None:
        """Fill the outputs, when all inputs have been read."""
        read = [Spec(array.shape, array.dtype.name) for array in inputs]
        specs = self.specs(read, attributes)
        arrays = {Value(_INPUT, place): array for place, array in enumerate(inputs)}
        for index, part in enumerate(self.parts):
            made = [Value(index, place) for place in range(part.outputs)]
            for value in made:
                arrays[value] = np.empty(specs[value].shape, specs[value].dtype)
            op_type(part.type).numpy(
                self.attributes_of(index, attributes),
                [arrays[value] for value in part.inputs],
                [arrays[value] for value in made],
            )
        for output, value in zip(outputs, self.outputs, strict=True):
            output[...] = arrays[value]

    def flops(
        self, inputs: Sequence[Spec], _: Sequence[Spec], attributes: Attributes
    ) -> int:
        """Count the operations of all parts."""
        specs = self.specs(inputs, attributes)
        return sum(
            op_type(part.type).flops(
                [specs[value] for value in part.inputs],
                [specs[Value(index, place)] for place in range(part.outputs)],
                self.attributes_of(index, attributes),
            )
            for index, part in enumerate(self.parts)
        )


def composite(
    name: str,
    trace: Callable[..., Any],
    in_place: Sequence[tuple[int, int]] = (),
    *,
    for_inference: bool = False,
) -> OpType:
    """Register a composite; its parts that are element-wise have no attributes.

    Parameters
    ----------
    name : str
        The type's name.
    trace : callable
        ``trace(call, *inputs)`` names the ops in order: ``call(type, *inputs)`` gives
        an output, ``call(type, *inputs, outputs=n)`` several. It returns the outputs.
        Names of its other parameters are those of the inputs.
    in_place : sequence of (int, int), default ()
        Pairs (input, output), by position, of which kernels allow for each one.
    for_inference : bool, default False
        Whether it stands in programs alone that train nothing, where the device has
        a kernel of it.

    Returns
    -------
    OpType
        The type.

    Raises
    ------
    ValueError
        If there is already a type of this name.
    """
    parts: list[Part] = []

    def call(kind: str, *inputs: Value, outputs: int = 1) -> Any:
        parts.append(Part(kind, inputs, outputs))
        made = tuple(Value(len(parts) - 1, place) for place in range(outputs))
        return made if outputs > 1 else made[0]

    arity = len(inspect.signature(trace).parameters) - 1
    results = trace(call, *(Value(_INPUT, place) for place in range(arity)))
    single = isinstance(results, Value)
    outputs = (results,) if single else results
    made = _Composite(name, arity, tuple(parts), outputs, for_inference)
    kind = OpType(
        name,
        arity,
        made.infer,
        made.numpy,
        tuple(in_place),
        flops=made.flops,
        composite=made,
    )
    register(kind)
    return kind
