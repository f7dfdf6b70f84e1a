"""ONNX files: the nodes of an `Emitter` as protobuf, and arrays in a file beside it."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._version import __version__
from memcfg.files import write_atomically
from memcfg.onnx._emitter import DTYPES, Emitter, Node, Stored, Subgraph
from memcfg.onnx._onnx_library import the_library
from memcfg.onnx._symbolic_lengths import Length

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from memcfg.onnx._symbolic_lengths import Number

__all__ = ["OPSET", "write_file"]

OPSET = 20  # the first one with Gelu
_PAGE = 4096  # arrays of another file begin at multiples of it, to be mapped


def write_file(
    emitter: Emitter,
    path: str | os.PathLike[str],
    name: str,
    *,
    external_data: bool | None = None,
    message_bytes: int = 2**31 - 2**24,
) -> None:
    """Write nodes and arrays to a file.

    Parameters
    ----------
    emitter : Emitter
        What `emit` made.
    path : str or path-like
        The file; it is replaced atomically.
    name : str
        The name of the graph.
    external_data : bool, optional
        Whether arrays go to a file of the same name with ``.data`` appended, an array
        at a time. None: if they do not fit the file.
    message_bytes : int, default 2**31 - 2**24
        The most bytes of arrays in the file: those of a protobuf message, less some
        for the nodes.

    Raises
    ------
    MissingDependencyError
        If onnx is not installed.
    OSError
        If a file cannot be written.
    ValueError
        If arrays do not fit a message, and `external_data` is False.
    """
    onnx = the_library()
    path = Path(path)
    total = sum(each.nbytes for each in emitter.arrays.values())
    if external_data is None:
        external_data = total > message_bytes
    if total > message_bytes and not external_data:
        raise ValueError(
            f"arrays of {total} bytes do not fit an ONNX file, of {message_bytes} at "
            "most: use external_data=True"
        )
    beside = Path(f"{path}.data")
    tensors, constants, offset, order = [], [], 0, []
    for label, stored in emitter.arrays.items():
        tensor = onnx.TensorProto(name=label, dims=stored.shape)
        tensor.data_type = _type(onnx, stored.dtype)
        if external_data and stored.learned and stored.nbytes >= _PAGE:
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in (
                ("location", beside.name),
                ("offset", str(offset)),
                ("length", str(stored.nbytes)),
            ):
                tensor.external_data.add(key=key, value=value)
            order.append(stored)
            offset += -(-stored.nbytes // _PAGE) * _PAGE
        else:
            tensor.raw_data = _bytes(stored)
        # Who reads the file may train its arrays: those that are none are nodes.
        is_constant = not stored.learned and stored.dtype == "float32"
        if is_constant and prod(stored.shape) > 1 and not tensor.data_location:
            constants.append(
                onnx.helper.make_node("Constant", [], [label], label, value=tensor)
            )
        else:
            tensors.append(tensor)
    if order:
        write_atomically(beside, _pieces(order))
    graph = onnx.helper.make_graph(
        [*constants, *(_node(onnx, node) for node in emitter.nodes)],
        name,
        *_ends(onnx, emitter),
        initializer=tensors,
    )
    opset = onnx.helper.make_opsetid("", OPSET)
    model = onnx.helper.make_model(
        graph,
        opset_imports=[opset],
        producer_name="memcfg",
        producer_version=__version__,
        ir_version=onnx.helper.find_min_ir_version_for([opset]),
    )
    write_atomically(path, model.SerializeToString())


def _pieces(order: Sequence[Stored]) -> Iterator[bytes]:
    """Yield arrays one after another, each filled up to a page."""
    for stored in order:
        yield _bytes(stored)
        yield bytes(-stored.nbytes % _PAGE)


def _bytes(stored: Stored) -> bytes:
    array = np.asarray(stored.read(), np.dtype(stored.dtype), order="C")
    if array.nbytes != stored.nbytes or array.shape != stored.shape:
        raise AssertionError(f"{stored.label}: {array.shape} instead of {stored.shape}")
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def _type(onnx: Any, dtype: str) -> int:
    return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def _node(onnx: Any, node: Node) -> Any:
    attributes = dict(node.attributes)
    if "to" in attributes:
        attributes["to"] = _type(onnx, attributes["to"])
    if "body" in attributes:
        attributes["body"] = _body(onnx, attributes["body"])
    return onnx.helper.make_node(
        node.type, node.inputs, node.outputs, name=node.name, **attributes
    )


def _body(onnx: Any, body: Subgraph) -> Any:
    def ends(rows: Sequence[tuple[str, str, int]]) -> list[Any]:
        return [
            onnx.helper.make_tensor_value_info(name, _type(onnx, dtype), [None] * rank)
            for name, dtype, rank in rows
        ]

    nodes = [_node(onnx, node) for node in body.nodes]
    return onnx.helper.make_graph(nodes, "step", ends(body.inputs), ends(body.outputs))


def _ends(onnx: Any, emitter: Emitter) -> list[list[Any]]:
    """Return descriptions of inputs and outputs."""
    pairs = [list(emitter.traces.inputs.items()), list(emitter.traces.outputs)]
    return [
        [
            onnx.helper.make_tensor_value_info(
                name,
                _type(onnx, DTYPES[emitter.traces.value(tensor).dtype]),
                [_dimension(each) for each in emitter.traces.value(tensor).shape],
            )
            for tensor, name in rows
        ]
        for rows in pairs
    ]


def _dimension(length: Number) -> int | str:
    """Return a length as ONNX describes it: a number, or text for others."""
    if not isinstance(length, Length):
        return length
    parts = [*length.symbols]
    if length.factor != 1:
        parts.insert(0, str(length.factor))
    text = "*".join(parts)
    return f"{text} + {length.term}" if length.term else text
