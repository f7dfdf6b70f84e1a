"""The kernels of the native core, on oneDNN or our own.

Owns the translation of an op (type, attributes, operands) into the numbers of a
native spec; the order of the numbers stands in ``_native/README.md``. Refuses
arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from memcfg._core import Kernel, OneDNN
from memcfg.devices.cpu._contract import OperandSpec
from memcfg.errors import KernelError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["NativeKernels"]

Attributes = Mapping[str, Any]
Specs = Sequence[OperandSpec]
Numbers = tuple[list[int], list[float]]  # integers, reals
Encode = Callable[[Attributes, Specs, Specs], Numbers]

_DTYPES = {"f": "float32", "i": "int32", "l": "int64", "b": "uint8"}


class _Row(NamedTuple):
    """How one type of op is made.

    Parameters
    ----------
    signature : str
        The operands' types, ``inputs>outputs``, a letter of `_DTYPES` each; ``*`` is
        any.
    encode : callable
        Gives the numbers of the spec.
    algorithm : str
        Whose kernel it is.
    """

    signature: str
    encode: Encode
    algorithm: str = "native"


@dataclass(frozen=True)
class _NativeKernel:
    """A native kernel; addresses come with the program's instruction."""

    kernel: Kernel
    algorithm: str

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch that a run needs."""
        return self.kernel.scratch_bytes

    def bind(
        self,
        arena_view: NDArray[np.uint8],
        input_offsets: Sequence[int],
        output_offsets: Sequence[int],
    ) -> Kernel:
        """Return the kernel: `Program.compute` is given the offsets."""
        del arena_view, input_offsets, output_offsets
        return self.kernel

    def run(self, addresses: Sequence[int], scratch: int) -> None:
        """Run once on operands anywhere."""
        self.kernel.run(addresses, scratch)


class NativeKernels:
    """Convolutions and matrix products on oneDNN, all else on our own kernels.

    Parameters
    ----------
    library : OneDNN
        The loaded library.
    """

    name = "onednn"

    def __init__(self, library: OneDNN) -> None:
        self._library = library

    def make(
        self,
        op_type: str,
        attributes: Attributes,
        inputs: Specs,
        outputs: Specs,
    ) -> _NativeKernel:
        """Make the kernel of one op; KernelError if there is none for it."""
        row = _TABLE.get(op_type)
        if row is None:
            raise KernelError(f"there is no kernel of type {op_type!r}")
        _check_dtypes(op_type, row.signature, inputs, outputs)
        integers, reals = row.encode(attributes, inputs, outputs)
        kernel = Kernel(op_type, integers, reals, self._library)
        wanted = [nbytes for nbytes, _ in kernel.operands]
        found = [spec.nbytes for spec in (*inputs, *outputs)]
        if found != wanted:
            raise KernelError(
                f"kernel {op_type!r} has operands of {wanted} bytes, got {found}"
            )
        return _NativeKernel(kernel, row.algorithm)


def _check_dtypes(op_type: str, signature: str, inputs: Specs, outputs: Specs) -> None:
    wanted = [[_DTYPES.get(letter) for letter in side] for side in signature.split(">")]
    for side, specs, dtypes in zip(
        ("inputs", "outputs"), (inputs, outputs), wanted, strict=True
    ):
        found = [spec.dtype for spec in specs]
        fits = len(found) == len(dtypes) and all(
            want in (None, have) for want, have in zip(dtypes, found, strict=True)
        )
        if not fits:
            names = [want or "any" for want in dtypes]
            raise KernelError(f"kernel {op_type!r} has {side} {names}, got {found}")


def _count(a: Attributes, inputs: Specs, outputs: Specs) -> Numbers:
    return [inputs[0].size], []


def _nbytes(a: Attributes, inputs: Specs, outputs: Specs) -> Numbers:
    return [inputs[0].nbytes], []


def _rows(spec: OperandSpec) -> list[int]:
    """Return rows and channels of an array whose last dimension is channels."""
    return [prod(spec.shape[:-1]), spec.shape[-1]]


def _rows_channels(a: Attributes, inputs: Specs, outputs: Specs) -> Numbers:
    return _rows(inputs[0]), []


def _rows_epsilon(a: Attributes, inputs: Specs, outputs: Specs) -> Numbers:
    return _rows(inputs[0]), [a["epsilon"]]


def _convolution(
    a: Attributes, x: OperandSpec, kernel: OperandSpec, y: OperandSpec
) -> Numbers:
    (top, bottom), (left, right) = a["padding"]
    integers = [*x.shape, *y.shape[1:], *kernel.shape[:2], *a["strides"]]
    return [*integers, top, bottom, left, right, *a["dilation"], a["groups"]], []


def _pooling(a: Attributes, x: tuple[int, ...], y: OperandSpec) -> Numbers:
    (top, bottom), (left, right) = a["padding"]
    integers = [*x, *y.shape[1:3], *a["pool_size"], *a["strides"]]
    return [*integers, top, bottom, left, right], []


def _pool(a: Attributes, inputs: Specs, outputs: Specs) -> Numbers:
    return _pooling(a, inputs[0].shape, outputs[0])


def _pool_gradient(a: Attributes, inputs: Specs, outputs: Specs) -> Numbers:
    return _pooling(a, outputs[0].shape, inputs[-1])


def _global_pool(x: OperandSpec) -> Numbers:
    return [x.shape[0], prod(x.shape[1:-1]), x.shape[-1]], []


_TABLE: dict[str, _Row] = {
    "conv2d": _Row("ff>f", lambda a, i, o: _convolution(a, i[0], i[1], o[0]), "onednn"),
    "conv2d_gradient_kernel": _Row(
        "ff>f", lambda a, i, o: _convolution(a, i[0], o[0], i[1]), "onednn"
    ),
    "conv2d_gradient_input": _Row(
        "ff>f", lambda a, i, o: _convolution(a, o[0], i[0], i[1]), "onednn"
    ),
    "dense": _Row(
        "ff>f", lambda a, i, o: ([*_rows(i[0]), i[1].shape[1]], []), "onednn"
    ),
    "dense_gradient_kernel": _Row(
        "ff>f", lambda a, i, o: ([*_rows(i[0]), i[1].shape[-1]], []), "onednn"
    ),
    "dense_gradient_input": _Row(
        "ff>f", lambda a, i, o: ([*_rows(o[0]), i[0].shape[1]], []), "onednn"
    ),
    "bias": _Row("ff>f", _rows_channels),
    "bias_gradient": _Row("f>f", _rows_channels),
    "relu": _Row("f>f", _count),
    "relu_gradient": _Row("ff>f", _count),
    "add": _Row("ff>f", _count),
    "flatten": _Row("*>*", _nbytes),
    "reshape": _Row("*>*", _nbytes),
    "max_pool2d": _Row("f>fb", _pool),
    "max_pool2d_inference": _Row("f>f", _pool),
    "max_pool2d_gradient": _Row("bf>f", _pool_gradient),
    "average_pool2d": _Row("f>f", _pool),
    "average_pool2d_gradient": _Row("f>f", _pool_gradient),
    "global_average_pool2d": _Row("f>f", lambda a, i, o: _global_pool(i[0])),
    "global_average_pool2d_gradient": _Row("f>f", lambda a, i, o: _global_pool(o[0])),
    "batch_normalization": _Row("fff>fff", _rows_epsilon),
    "batch_normalization_inference": _Row("fffff>f", _rows_epsilon),
    "batch_normalization_gradient": _Row("fffff>fff", _rows_epsilon),
    "dropout": _Row("fl>f", lambda a, i, o: ([i[0].size, a["key"]], [a["rate"]])),
    "softmax_cross_entropy": _Row("fi>ff", _rows_channels),
    "softmax_cross_entropy_inference": _Row("fi>f", _rows_channels),
    "softmax_cross_entropy_gradient": _Row("fi>f", _rows_channels),
    "correct_count": _Row("fi>f", _rows_channels),
    "moving_average": _Row("ff>f", lambda a, i, o: ([i[0].size], [a["momentum"]])),
    "sgd": _Row("fff>f", _count),
    "sgd_momentum": _Row(
        "ffff>ff",
        lambda a, i, o: ([i[0].size, int(a["nesterov"])], [a["momentum"]]),
    ),
    "adam": _Row(
        "fffffl>fff",
        lambda a, i, o: ([i[0].size], [a["beta_1"], a["beta_2"], a["epsilon"]]),
    ),
}
