"""Updates of kernels without a full gradient.

The gradient of a layer's kernel is computed a block at a time, and the optimizer's
formula is applied to each block before the next one. Inputs are x and dy, as for the
op that computes the gradient, then those of the update except its gradient; outputs
are the update's. If x and dy are bfloat16, the gradient is float32, as the state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.ops._expression import count_flops, evaluate_over, read_over
from memcfg.ops._op_type import (
    Arrays,
    Attributes,
    OpType,
    Spec,
    op_type,
    register,
    require,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.ops._expression import Expression

__all__: list[str] = []

TILED = {  # op that computes the gradient: op of the tiled update
    "dense_gradient_kernel": "dense_update",
    "conv2d_gradient_kernel": "conv2d_update",
}
_PRODUCT = 2  # inputs of the gradient op


def update_attributes(
    update: str, attributes: Attributes, place: int
) -> dict[str, Any]:
    """Return the attributes that a tiled update has besides those of the gradient.

    Parameters
    ----------
    update : str
        An element-wise update op type, such as ``"sgd"``.
    attributes : mapping
        Its attributes.
    place : int
        Position of the gradient among the update's operands.

    Returns
    -------
    dict
        The update's attributes with its ``expression``, and ``gradient``, the position.
    """
    formula = op_type(update).formula
    assert formula is not None
    return {**formula.kernel_attributes(attributes), "gradient": place}


def _operands(
    inputs: Sequence[Any], attributes: Attributes, gradient: Any
) -> list[Any]:
    """Return the update's operands, with the gradient inserted at its position."""
    operands = list(inputs[_PRODUCT:])
    operands.insert(attributes["gradient"], gradient)
    return operands


def _formula(attributes: Attributes, operands: Sequence[Any]) -> tuple[Expression, ...]:
    return read_over(attributes["expression"], operands, attributes)


def _tiled(product: str, name: str) -> OpType:
    """Return the op type of tiled updates with the gradients of op `product`."""

    def infer(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
        require(len(inputs) > _PRODUCT, f"{name} reads x, dy and what it updates")
        (gradient,) = op_type(product).infer(inputs[:_PRODUCT], attributes)
        operands = _operands(inputs, attributes, gradient)
        for spec in operands:
            require(
                spec.shape in ((), gradient.shape),
                f"{name}: a gradient of {gradient.shape} and state of {spec.shape}",
            )
        count = len(_formula(attributes, operands))
        return [
            Spec(gradient.shape, gradient.dtype, f"new{i}" if i else "")
            for i in range(count)
        ]

    def meaning(attributes: Attributes, inputs: Arrays, outputs: Arrays) -> None:
        gradient = np.empty_like(outputs[0])
        op_type(product).numpy(attributes, inputs[:_PRODUCT], [gradient])
        operands = _operands(inputs, attributes, gradient)
        text, dtype = attributes["expression"], outputs[0].dtype
        results = evaluate_over(text, operands, dtype, attributes)
        for output, each in zip(
            outputs, [each.copy() for each in results], strict=True
        ):
            output[...] = each

    def flops(
        inputs: Sequence[Spec], outputs: Sequence[Spec], attributes: Attributes
    ) -> int:
        operands = _operands(inputs, attributes, outputs[0])
        each = count_flops(_formula(attributes, operands))
        flops = op_type(product).flops(inputs[:_PRODUCT], outputs[:1], attributes)
        return flops + each * outputs[0].size

    return OpType(
        name, None, infer, meaning, flops=flops, replayable=False, contraction=True
    )


register(*(_tiled(*names) for names in TILED.items()))
