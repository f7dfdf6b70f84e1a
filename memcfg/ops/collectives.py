"""Collectives of the ranks of a group: what several devices compute together.

All ops have the attributes ``group``, the name of the group on this rank, ``ranks``,
their number, and ``work_bytes``, the scratch that the communicator needs, which is the
last output if there is any. With ``staged_bytes`` it has so many bytes where a device
copies the operands, and is no output.

``all_reduce`` replaces tensors by their sums over the ranks. With {encoded: True} all
are float32 and have the values 0, T and -T, and ranks send encodings of them.
``reduce_scatter`` gives each rank its part of the sum of a flattened tensor; parts have
equal lengths, and zeros behind the end. ``all_gather`` {shape} makes a tensor of the
parts of all ranks; with a third input of that shape it takes its bytes. ``broadcast``
{root} replaces tensors by those of one rank.

The first input of each is a token, and its first output the next one. A chain of tokens
gives the collectives of all ranks the same order, whatever that of other ops is. With
{alone: True}, an `all_gather` gives an empty one, which no other reads.

``part`` {rank, ranks} is no collective and has no token: it copies what
`reduce_scatter` would give a rank of a tensor that is summed already.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from memcfg.ops._groups import group_of
from memcfg.ops._op_type import (
    Array,
    Arrays,
    Attributes,
    OpType,
    Spec,
    register,
    require,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["COLLECTIVES", "MOST_TENSORS", "TOKEN"]

TOKEN = Spec((1,), "float32")
MOST_TENSORS = 64  # of one `all_reduce` or `broadcast`; each may be in place
_DTYPES = ("float32", "float64", "int32", "int64")
_NO_WORK = np.zeros(0, np.uint8)


def _checked(kind: str, inputs: Sequence[Spec]) -> Sequence[Spec]:
    """Return the inputs behind the token; GraphError if they are not for `kind`."""
    token, *specs = inputs
    require(token[:2] == TOKEN[:2], f"{kind}: the first input is a token")
    require(
        0 < len(specs) <= MOST_TENSORS,
        f"{kind}: 1 to {MOST_TENSORS} tensors, not {len(specs)}",
    )
    for spec in specs:
        known = ", ".join(_DTYPES)
        require(spec.dtype in _DTYPES, f"{kind}: one of {known}, not {spec.dtype}")
    return specs


def _with_work(results: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    """Return the token, the results and the scratch, if any."""
    named = [
        Spec(spec.shape, spec.dtype, "" if i == 0 else str(i))
        for i, spec in enumerate(results)
    ]
    work = Spec((attributes["work_bytes"],), "uint8", "work", "activation")
    token = TOKEN._replace(suffix="token")
    if attributes.get("alone"):
        token = token._replace(shape=(0,))
    return [token, *named, *[work] * bool(work.size)]


def _infer_same(
    kind: str, inputs: Sequence[Spec], attributes: Attributes
) -> Sequence[Spec]:
    if kind == "broadcast":
        root, ranks = attributes["root"], attributes["ranks"]
        require(0 <= root < ranks, f"broadcast: there is no rank {root} of {ranks}")
    specs = _checked(kind, inputs)
    if attributes.get("encoded"):
        for spec in specs:
            require(spec.dtype == "float32", f"{kind}: no encoding of {spec.dtype}")
    return _with_work(specs, attributes)


def _part(size: int, ranks: int) -> int:
    """Return the elements of each rank's part of a tensor."""
    return -(-size // ranks)


def _infer_reduce_scatter(
    inputs: Sequence[Spec], attributes: Attributes
) -> Sequence[Spec]:
    specs = _checked("reduce_scatter", inputs)
    require(len(specs) == 1, f"reduce_scatter: one tensor, not {len(specs)}")
    (whole,) = specs
    part = Spec((_part(whole.size, attributes["ranks"]),), whole.dtype)
    return _with_work([part], attributes)


def _infer_all_gather(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    part, *into = _checked("all_gather", inputs)
    whole = Spec(tuple(attributes["shape"]), part.dtype)
    size = _part(whole.size, attributes["ranks"])
    require(
        part.shape == (size,),
        f"all_gather: parts of {whole.shape} are {(size,)}, not {part.shape}",
    )
    require(
        all(spec[:2] == whole[:2] for spec in into) and len(into) < 2,
        f"all_gather: bytes of one tensor of {whole.shape} in {whole.dtype} are taken",
    )
    return _with_work([whole], attributes)


def _same(kind: str, attributes: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    """Copy what is not in place, and call the communicator."""
    communicator = group_of(attributes["group"])
    arrays = outputs[1 : len(inputs)]
    for source, target in zip(inputs[1:], arrays, strict=True):
        if source.ctypes.data != target.ctypes.data:
            target[...] = source
    if kind == "broadcast":
        communicator.broadcast(arrays, attributes["root"])
    elif attributes.get("encoded"):
        communicator.all_reduce_encoded(arrays, _work(attributes, outputs))
    else:
        communicator.all_reduce(arrays, _work(attributes, outputs))
    outputs[0][...] = 0


def _work(attributes: Attributes, outputs: Arrays) -> Array:
    return outputs[-1] if attributes["work_bytes"] else _NO_WORK


def _reduce_scatter(attributes: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    communicator = group_of(attributes["group"])
    work = _work(attributes, outputs)
    communicator.reduce_scatter(inputs[1].reshape(-1), outputs[1], work)
    outputs[0][...] = 0


def _all_gather(attributes: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    communicator = group_of(attributes["group"])
    work = _work(attributes, outputs)
    communicator.all_gather(inputs[1], outputs[1].reshape(-1), work)
    outputs[0][...] = 0


def _infer_part(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    rank, ranks = attributes["rank"], attributes["ranks"]
    require(0 <= rank < ranks, f"part: there is no rank {rank} of {ranks}")
    return [Spec((_part(inputs[0].size, ranks),), inputs[0].dtype)]


def _take_part(attributes: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    (part,) = outputs
    begin = attributes["rank"] * part.size
    own = inputs[0].reshape(-1)[begin : begin + part.size]
    part[: own.size] = own
    part[own.size :] = 0


def _flops(
    inputs: Sequence[Spec], outputs: Sequence[Spec], attributes: Attributes
) -> int:
    """Count additions: one a rank and element, shared by the ranks."""
    del outputs, attributes
    return sum(prod(spec.shape) for spec in inputs[1:])


_EACH = tuple((i, i) for i in range(MOST_TENSORS + 1))

register(
    OpType(
        "all_reduce",
        None,
        partial(_infer_same, "all_reduce"),
        partial(_same, "all_reduce"),
        in_place=_EACH,
        flops=_flops,
        replayable=False,
    ),
    OpType(
        "broadcast",
        None,
        partial(_infer_same, "broadcast"),
        partial(_same, "broadcast"),
        in_place=_EACH,
        flops=_flops,
        replayable=False,
    ),
    OpType(
        "reduce_scatter",
        2,
        _infer_reduce_scatter,
        _reduce_scatter,
        in_place=((0, 0),),
        flops=_flops,
        replayable=False,
    ),
    OpType(
        "all_gather",
        None,
        _infer_all_gather,
        _all_gather,
        in_place=((0, 0), (2, 1)),
        flops=_flops,
        float32_inputs=None,
    ),
    OpType("part", 1, _infer_part, _take_part),
)
COLLECTIVES = ("all_reduce", "broadcast", "reduce_scatter", "all_gather")
