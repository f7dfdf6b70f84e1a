"""The update of a matrix whose gradient never exists whole.

A dense layer's gradient of the kernel is computed a block of rows at a time, and each
block is used up by the optimizer's formula before the next one. Inputs are x [..., K]
and dy [..., N], then those of the update but its gradient; outputs are the update's. Of
x and dy of bfloat16 the gradient is float32, as the state.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from memcfg.ops._expression import (
    count_flops,
    evaluate_over,
    operand,
    read,
    read_over,
    scalar,
    write,
)
from memcfg.ops._op_type import (
    Arrays,
    Attributes,
    OpType,
    Spec,
    gradient_dtype,
    op_type,
    register,
    require,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__: list[str] = []

_PRODUCT = 2  # inputs


def update_attributes(
    update: str, attributes: Attributes, place: int
) -> dict[str, Any]:
    """Return the attributes of a `dense_update`.

    Parameters
    ----------
    update : str
        An element-wise update op type, such as ``"sgd"``.
    attributes : mapping
        Its attributes.
    place : int
        Which of its operands is the gradient.

    Returns
    -------
    dict
        ``expression``, whose operand `place` is the gradient, and ``gradient``, the
        place.
    """
    formula = op_type(update).formula
    assert formula is not None
    numbers = formula.kernel_attributes(attributes)
    single = {
        words.split(" ")[1]
        for words in numbers["expression"].split("; ")
        if words.startswith("scalar ")
    }
    names = [str(i) for i in range(len(formula.operands))]
    leaves = [scalar(name) if name in single else operand(name) for name in names]
    outputs = read(numbers["expression"], leaves, numbers)
    return {"expression": write(outputs, names), "gradient": place}


def _operands(
    inputs: Sequence[Any], attributes: Attributes, gradient: Any
) -> list[Any]:
    """Return the update's operands: those given, and its gradient between them."""
    found = list(inputs[_PRODUCT:])
    found.insert(attributes["gradient"], gradient)
    return found


def _infer(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    require(len(inputs) > _PRODUCT, "dense_update reads x, dy and what it updates")
    x, dy = inputs[:_PRODUCT]
    rows = (prod(x.shape[:-1]), prod(dy.shape[:-1]))
    require(
        len(x.shape) > 1 and len(dy.shape) > 1 and rows[0] == rows[1],
        f"dense_update: cannot multiply {x.shape} by {dy.shape}",
    )
    gradient = Spec((x.shape[-1], dy.shape[-1]), gradient_dtype([x, dy]))
    operands = _operands(inputs, attributes, gradient)
    for spec in operands:
        require(
            spec.shape in ((), gradient.shape),
            f"dense_update: a gradient of {gradient.shape} and state of {spec.shape}",
        )
    count = len(read_over(attributes["expression"], operands))
    return [gradient._replace(suffix=f"new{i}" if i else "") for i in range(count)]


def _dense_update(attributes: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    x, dy = (each.reshape(-1, each.shape[-1]) for each in inputs[:_PRODUCT])
    operands = _operands(inputs, attributes, x.T @ dy)
    found = evaluate_over(attributes["expression"], operands, outputs[0].dtype)
    for output, each in zip(outputs, [each.copy() for each in found], strict=True):
        output[...] = each


def _flops(
    inputs: Sequence[Spec], outputs: Sequence[Spec], attributes: Attributes
) -> int:
    x = inputs[0]
    operands = _operands(inputs, attributes, outputs[0])
    formula = count_flops(read_over(attributes["expression"], operands))
    return (2 * prod(x.shape[:-1]) + formula) * outputs[0].size


register(
    OpType(
        "dense_update",
        None,
        _infer,
        _dense_update,
        flops=_flops,
        replayable=False,
        contraction=True,
    )
)
