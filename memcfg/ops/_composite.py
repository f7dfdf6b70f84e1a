"""Composites: op types that fuse several ops, and the patterns to find these.

A composite is defined by the ops that it replaces. Its shapes, its NumPy meaning, its
cost and the pattern that `memcfg.graph.fuse_ops` matches are derived from them. Fusion
runs after differentiation, so composites have no gradients.
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

_INPUT = -1  # `part` of values that are inputs of the composite


Call: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class _Composite:
    """The ops that a composite replaces; the last one depends on all others."""

    name: str
    inputs: int
    parts: tuple[Part, ...]
    outputs: tuple[Value, ...]
    for_inference: bool

    @cached_property
    def main(self) -> int:
        """The first part that is not element-wise; its op gives the fused op's name."""
        return next(
            i for i, part in enumerate(self.parts) if op_type(part.type).formula is None
        )

    def attributes_of(self, part: int, attributes: Attributes) -> Attributes:
        """Return the attributes of a part; they may include those of other parts."""
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
        """Return the specs of the outputs, with distinct suffixes."""
        specs = self.specs(inputs, attributes)
        made = [specs[value] for value in self.outputs]
        taken = [spec.suffix for spec in made]
        return [
            spec._replace(suffix=f"output{i}") if spec.suffix in taken[:i] else spec
            for i, spec in enumerate(made)
        ]

    def numpy(self, attributes: Attributes, inputs: Arrays, outputs: Arrays) -> None:
        """Compute the outputs; all inputs are read before an output is written."""
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
    """Register a composite; its element-wise parts must have no attributes.

    Parameters
    ----------
    name : str
        The type's name.
    trace : callable
        ``trace(call, *inputs)`` calls the ops in order: ``call(type, *inputs)`` returns
        an output, ``call(type, *inputs, outputs=n)`` several. It returns the outputs.
        The names of its other parameters are those of the inputs.
    in_place : sequence of (int, int), default ()
        Pairs (input, output), by position; kernels must support each of them.
    for_inference : bool, default False
        Whether it is used only in programs without training, and only if the device
        has a kernel for it.

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
