"""The source of an op, from its expression or by its family."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg import ops
from memcfg.devices.cuda._sources import (
    _attention_kernels,
    _cell_kernels,
    _elementwise,
    _matrix_kernels,
    _movements,
    _products,
    _reductions,
    _row_kernels,
    _sequence_kernels,
    _sorted_rows,
    _window_kernels,
)
from memcfg.devices.cuda._sources._writer import CTYPES, Writer
from memcfg.errors import GraphError, KernelError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memcfg.devices._contract import OperandSpec
    from memcfg.devices.cuda._sources._launch import CudaSource

__all__ = ["cuda_source", "has_source"]

_FAMILIES: dict[str, Callable[[Writer], None]] = {
    **_attention_kernels.FAMILY,
    **_cell_kernels.FAMILY,
    **_elementwise.FAMILY,
    **_matrix_kernels.FAMILY,
    **_movements.FAMILY,
    **_sorted_rows.FAMILY,
    **_products.FAMILY,
    **_reductions.FAMILY,
    **_row_kernels.FAMILY,
    **_sequence_kernels.FAMILY,
    **_window_kernels.FAMILY,
    "chain": _elementwise.write_elementwise,
}


def has_source(op_type: str) -> bool:
    """Return whether a type has a source other than an expression."""
    return op_type in _FAMILIES


def cuda_source(
    op_type: str,
    attributes: Mapping[str, Any],
    inputs: Sequence[OperandSpec],
    outputs: Sequence[OperandSpec],
) -> CudaSource:
    """Write the CUDA source of one op.

    Parameters
    ----------
    op_type : str
        The op's type, such as ``"conv2d"``.
    attributes : mapping
        The op's attributes.
    inputs, outputs : sequence of OperandSpec
        Its operands.

    Returns
    -------
    CudaSource
        The source and its launches. Outputs may overwrite the inputs of the op type's
        in-place pairs.

    Raises
    ------
    KernelError
        If the type is unknown, or has no kernel for such operands.
    """
    try:
        kind = ops.op_type(op_type)
        numbers = kind.kernel_attributes(attributes)
    except GraphError as error:
        raise KernelError(f"kernel {op_type!r} for CUDA: {error}") from None
    write = (
        _elementwise.write_elementwise
        if kind.formula is not None
        else _FAMILIES.get(op_type)
    )
    if write is None:
        raise KernelError(f"there is no CUDA kernel of type {op_type!r}")
    if kind.arity not in (None, len(inputs)):
        raise KernelError(f"kernel {op_type!r} for CUDA takes {kind.arity} inputs")
    writer = Writer(op_type, numbers, inputs, outputs)
    for spec in (*inputs, *outputs):
        if spec.dtype not in CTYPES:
            raise writer.fail(f"takes no {spec.dtype}")
    if kind.formula is None:
        _check(kind, writer)
    write(writer)
    return writer.finish()


def _check(kind: ops.OpType, writer: Writer) -> None:
    """Raise KernelError if the outputs are not those that the op type infers."""
    try:
        made = kind.infer(
            [ops.Spec(spec.shape, spec.dtype) for spec in writer.inputs],
            writer.attributes,
        )
    except GraphError as error:
        raise writer.fail(f"does not take these operands: {error}") from None
    except KeyError as error:
        raise writer.fail(f"needs the attribute {error}") from None
    wanted = [(spec.shape, spec.dtype) for spec in made]
    actual = [(tuple(spec.shape), spec.dtype) for spec in writer.outputs]
    if actual != wanted:
        raise writer.fail(f"has outputs {wanted}, not {actual}")
