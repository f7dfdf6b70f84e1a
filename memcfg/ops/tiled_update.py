"""Updates of kernels whose gradients never exist whole.

A layer's gradient of its kernel is computed a block at a time, and each block is used
up by the optimizer's formula before the next one. Inputs are x and dy, as those of the
op that would compute the gradient, then those of the update but its gradient; outputs
are the update's. Of x and dy of bfloat16 the gradient is float32, as the state.
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

TILED = {  # by the op that computes the gradient whole
    "dense_gradient_kernel": "dense_update",
    "conv2d_gradient_kernel": "conv2d_update",
}
_PRODUCT = 2  # inputs


def update_attributes(
    update: str, attributes: Attributes, place: int
) -> dict[str, Any]:
    """Return the attributes that a tiled update adds to those of the gradient.

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
        The update's, with its ``expression``, and ``gradient``, the place.
    """
    formula = op_type(update).formula
    assert formula is not None
    return {**formula.kernel_attributes(attributes), "gradient": place}


def _operands(
    inputs: Sequence[Any], attributes: Attributes, gradient: Any
) -> list[Any]:
    """Return the update's operands: those given, and its gradient between them."""
    operands = list(inputs[_PRODUCT:])
    operands.insert(attributes["gradient"], gradient)
    return operands


def _formula(attributes: Attributes, operands: Sequence[Any]) -> tuple[Expression, ...]:
    return read_over(attributes["expression"], operands, attributes)


def _tiled(product: str, name: str) -> OpType:
    """Return the type of the updates whose gradients are `product`'s."""

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
