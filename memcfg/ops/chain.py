"""Chains of element-wise ops fused into one op, whose expression is an attribute.

A chain computes the same bits as its ops, and reads and writes each array once.
`join_elementwise` makes its attributes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from memcfg.ops._expression import (
    Expression,
    count_flops,
    evaluate_over,
    instructions,
    operand,
    read,
    read_over,
    scalar,
    write,
)
from memcfg.ops._formula import MAX_NODES, MAX_OPERANDS
from memcfg.ops._op_type import (
    Arrays,
    Attributes,
    OpType,
    Spec,
    common_dtype,
    op_type,
    register,
    require,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__: list[str] = []


class Link(NamedTuple):
    """An op of a chain.

    Parameters
    ----------
    type : str
        An element-wise op type of one output.
    attributes : mapping
        Its attributes.
    inputs : tuple of int
        Its inputs: k for input k of the chain, -1 - k for the output of link k.
    """

    type: str
    attributes: Attributes
    inputs: tuple[int, ...]


def join_elementwise(links: Sequence[Link], scalars: Sequence[bool]) -> str | None:
    """Write the expression of a chain, whose output is that of the last link.

    Parameters
    ----------
    links : sequence of Link
        The ops, each after those that it reads.
    scalars : sequence of bool
        For each input of the chain whether it has shape ().

    Returns
    -------
    str or None
        The attribute ``expression`` of the ``chain`` op; None if it would have more
        than 256 nodes, or more than 32 operands.
    """
    inputs = [
        scalar(str(place)) if single else operand(str(place))
        for place, single in enumerate(scalars)
    ]
    made: list[Expression] = []
    for link in links:
        formula = op_type(link.type).formula
        assert formula is not None
        numbers = formula.kernel_attributes(link.attributes)
        given = [inputs[i] if i >= 0 else made[-1 - i] for i in link.inputs]
        made += read(numbers["expression"], given, numbers)
    if len(scalars) >= MAX_OPERANDS or len(instructions(made[-1:])[0]) > MAX_NODES:
        return None
    return write(made[-1:], [str(place) for place in range(len(scalars))])


def _infer(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    require("expression" in attributes, "chain needs the attribute 'expression'")
    arrays = [spec for spec in inputs if spec.shape]
    require(bool(arrays), "chain needs an array")
    first = arrays[0]
    for spec in arrays:
        require(
            spec.shape == first.shape,
            f"chain: shapes {first.shape} and {spec.shape} differ",
        )
    return [Spec(first.shape, common_dtype(arrays))]


def _chain(attributes: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    dtype = outputs[0].dtype
    (outputs[0][...],) = evaluate_over(attributes["expression"], inputs, dtype)


def _flops(
    inputs: Sequence[Spec], outputs: Sequence[Spec], attributes: Attributes
) -> int:
    each = count_flops(read_over(attributes["expression"], inputs))
    return max(each, 1) * outputs[0].size


register(OpType("chain", None, _infer, _chain, flops=_flops))
