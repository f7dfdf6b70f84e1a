"""The ops of constraints, which follow the updates of weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg.nn.layers._layer import trace_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memcfg.graph import Builder
    from memcfg.nn._network import Weight

__all__ = ["constrain"]


def constrain(
    builder: Builder,
    updated: Sequence[int],
    weights: Sequence[Weight],
    tensors: Mapping[str, int],
    due: tuple[Callable[[], int], int] = (lambda: 0, 1),
) -> list[int]:
    """Append the constraints of updated weights; return the newest values.

    `due` is the step number and the number of parts of a step, of which the last one
    constrains.
    """
    wanted = {
        tensors[each.name]: each for each in weights if each.constraint is not None
    }
    if not wanted:
        return list(updated)
    result = []
    for tensor in updated:
        weight = wanted.get(builder.overwritten(tensor))
        result.append(
            tensor if weight is None else _constrained(builder, tensor, weight, due)
        )
    return result


def _constrained(
    builder: Builder, tensor: int, weight: Weight, due: tuple[Callable[[], int], int]
) -> int:
    """Append the constraint of a weight."""
    constraint: Any = weight.constraint
    phase, group, dtype = builder.phase, builder.group, builder.compute_dtype
    builder.phase, builder.group = "backward", f"{weight.name}/constraint"
    builder.compute_dtype = None
    made = constraint.trace(builder, tensor)
    if made is None:
        name = type(constraint).__name__
        made = trace_whole(constraint, builder, name, tensor)
    builder.phase, builder.group, builder.compute_dtype = phase, group, dtype
    name = f"{weight.name}/constrained"
    step, parts = due
    if parts == 1:
        return builder.apply("assign", (tensor, made), name=name, phase="update")[0]
    operands = (tensor, made, step())
    a = {"parts": parts}
    return builder.apply("assign_last", operands, a, name=name, phase="update")[0]
