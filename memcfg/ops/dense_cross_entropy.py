"""Softmax cross-entropy of a dense layer, without a full matrix of logits.

Hsu et al., "Liger Kernel", 2024: logits, loss and gradients are computed for a block of
rows at a time, in one pass. Inputs are x [..., D], labels [...], a kernel [D, V] (or
[V, D] if ``transposed``) and optionally a bias [V]. Outputs are the mean loss and the
gradients of x, of the kernel and of the bias; for inference only the loss. If x and the
kernel are bfloat16, so is the gradient of x; all other outputs are float32.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from memcfg.ops._op_type import (
    Arrays,
    Attributes,
    OpType,
    Spec,
    common_dtype,
    gradient_dtype,
    op_type,
    parameter_dtype,
    register,
    require,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__: list[str] = []

_BIASED = 4  # inputs with a bias


def _infer(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    require(
        len(inputs) in (_BIASED - 1, _BIASED),
        "dense_cross_entropy reads x, labels, a kernel and perhaps a bias",
    )
    x, labels, kernel, *bias = inputs
    require(
        len(x.shape) > 1 and len(kernel.shape) == 2,
        f"dense_cross_entropy: cannot multiply {x.shape} by {kernel.shape}",
    )
    depth, classes = kernel.shape[:: -1 if attributes["transposed"] else 1]
    require(
        x.shape[-1] == depth and prod(x.shape[:-1]) == prod(labels.shape),
        f"dense_cross_entropy: {x.shape} and {labels.shape} by {kernel.shape}",
    )
    require(labels.dtype == "int32", f"labels are int32, not {labels.dtype}")
    require(
        all(each.shape == (classes,) for each in bias),
        f"dense_cross_entropy: no bias of {classes}",
    )
    dtype = parameter_dtype(x._replace(dtype=common_dtype([x, kernel])), bias)
    return [Spec((), dtype, role="output")]


def _infer_all(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    loss = _infer(inputs, attributes)
    x, _, kernel, *bias = inputs
    dtype = gradient_dtype([x, kernel])
    made = [
        *loss,
        Spec(x.shape, x.dtype, "input", role="activation_gradient"),
        Spec(kernel.shape, dtype, "kernel", role="gradient"),
    ]
    return made + [Spec(each.shape, dtype, "bias", role="gradient") for each in bias]


def _dense_cross_entropy(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    x, labels, kernel, *bias = inputs
    rows = x.reshape(-1, x.shape[-1])
    logits = rows @ (kernel.T if a["transposed"] else kernel)
    for each in bias:
        logits += each
    labels = labels.reshape(-1)
    kind = "softmax_cross_entropy"
    op_type(kind).numpy({}, [logits, labels], [outputs[0], logits])
    if len(outputs) == 1:
        return
    op_type(f"{kind}_gradient").numpy({}, [logits, labels], [logits])
    product = logits @ (kernel if a["transposed"] else kernel.T)
    outputs[1][...] = product.reshape(x.shape)
    outputs[2][...] = logits.T @ rows if a["transposed"] else rows.T @ logits
    for output in outputs[3:]:
        output[...] = logits.sum(axis=0)


def _flops(
    inputs: Sequence[Spec], _outputs: Sequence[Spec], attributes: Attributes
) -> int:
    x, _, kernel = inputs[:3]
    rows = prod(x.shape[:-1])
    classes = kernel.shape[0 if attributes["transposed"] else 1]
    return rows * (6 * kernel.size + 9 * classes)


def _flops_of_loss(
    inputs: Sequence[Spec], outputs: Sequence[Spec], attributes: Attributes
) -> int:
    rows = prod(inputs[0].shape[:-1])
    return _flops(inputs, outputs, attributes) - 4 * rows * inputs[2].size


register(
    OpType(
        "dense_cross_entropy",
        None,
        _infer_all,
        _dense_cross_entropy,
        flops=_flops,
        contraction=True,
    ),
    OpType(
        "dense_cross_entropy_inference",
        None,
        _infer,
        _dense_cross_entropy,
        flops=_flops_of_loss,
        contraction=True,
    ),
)
