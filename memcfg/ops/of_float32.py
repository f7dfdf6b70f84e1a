"""Products of bfloat16 with a float32 kernel, which is rounded when it is read.

They replace a cast of a large kernel and the product that reads it: a device rounds a
block of the kernel at a time, so there is no full bfloat16 copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.ops._dtypes import BFLOAT16, round_to_bfloat16, widen
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

__all__: list[str] = []

OF_FLOAT32 = {  # the product's type: position of the kernel
    "dense": 1,
    "dense_bias": 1,
    "dense_gradient_input": 0,
}


def _of_float32(product: str, kernel: int) -> OpType:
    """Return the op type of `product` with a float32 kernel that is rounded."""

    def rounded(inputs: Sequence[Spec]) -> list[Spec]:
        specs = list(inputs)
        specs[kernel] = Spec(specs[kernel].shape, BFLOAT16)
        return specs

    def infer(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
        require(
            inputs[kernel].dtype == "float32" and inputs[1 - kernel].dtype == BFLOAT16,
            f"{product}_of_float32: the kernel is float32 and the rest bfloat16",
        )
        return op_type(product).infer(rounded(inputs), attributes)

    def meaning(attributes: Attributes, inputs: Arrays, outputs: Arrays) -> None:
        arrays = list(inputs)
        arrays[kernel] = widen(round_to_bfloat16(arrays[kernel]))
        op_type(product).numpy(attributes, arrays, outputs)

    def flops(
        inputs: Sequence[Spec], outputs: Sequence[Spec], attributes: Attributes
    ) -> int:
        return op_type(product).flops(rounded(inputs), outputs, attributes)

    arity = 3 if product.endswith("bias") else 2
    return OpType(
        f"{product}_of_float32", arity, infer, meaning, flops=flops, contraction=True
    )


register(*(_of_float32(*each) for each in OF_FLOAT32.items()))
