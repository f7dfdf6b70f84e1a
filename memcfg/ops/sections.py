"""Weights that lie in sections of a file, read into the memory of a step.

``read_section`` {source, section, shape, dtype} reads a section of the source of that
name, and decodes it into its second output. The first input is scratch of float32, for
the section as it lies in the file, and the first output hands it on: it gives the reads
of a step one order. With {code_bytes, entries}, the section may stay in its code. With
{part}, it is of integers, and their ``"scales"`` or ``"codes"`` are read.
``read_codes`` {source, section, sections, nbytes} reads consecutive sections as they
are, into its second output. Both may run beside compute, on the queue of collectives.

``coded_dense`` {source, section, ends, columns, units, entries} multiplies the last
axis by a matrix in codes that `read_codes` has read: sections of so many columns, which
end at these bytes. Sums are in the order of the rows, whatever the batch.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from memcfg.ops._op_type import (
    Arrays,
    Attributes,
    OpType,
    Spec,
    register,
    require,
)
from memcfg.ops._section_registry import source_of
from memcfg.ops.collectives import COLLECTIVES

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BESIDE", "READS"]

_FLOPS_OF_AN_ENTRY = 64  # that its decoding takes the time of


def _infer(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    (work,) = inputs
    require(work.dtype == "float32", f"read_section: no scratch of {work.dtype}")
    made = Spec(tuple(attributes["shape"]), attributes["dtype"])
    return [work._replace(suffix="work", role="activation"), made]


def _read(attributes: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    del inputs  # its bytes say nothing
    work, out = outputs
    source = source_of(attributes["source"])
    part = attributes.get("part")
    source.read_section(attributes["section"], out, work.view(np.uint8), part)


def _infer_codes(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    (work,) = inputs
    codes = Spec((attributes["nbytes"],), "uint8")
    return [work._replace(suffix="work", role="activation"), codes]


def _read_codes(attributes: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    del inputs
    source, first = source_of(attributes["source"]), attributes["section"]
    source.read_codes(first, attributes["sections"], outputs[1])


def _infer_coded(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    x, codes = inputs
    require(
        codes.dtype == "uint8" and codes.size >= attributes["ends"][-1],
        f"coded_dense: no codes in {codes.shape} of {codes.dtype}",
    )
    return [Spec((*x.shape[:-1], attributes["units"]), "float32")]


def _coded_dense(attributes: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    x, codes = inputs
    (y,) = outputs
    source, columns = source_of(attributes["source"]), attributes["columns"]
    begin = 0
    for number, end in enumerate(attributes["ends"]):
        own = y[..., number * columns : (number + 1) * columns]
        matrix = np.empty((x.shape[-1], own.shape[-1]), np.float32)
        section = attributes["section"] + number
        source.decode_section(section, codes[begin:end], matrix)
        own[...] = x @ matrix
        begin = end


def _coded_flops(
    inputs: Sequence[Spec], _outputs: Sequence[Spec], attributes: Attributes
) -> int:
    samples: int = prod(inputs[0].shape[:-1])
    entries: int = attributes["entries"]
    return entries * (_FLOPS_OF_AN_ENTRY + 2 * samples)


register(
    OpType("read_section", 1, _infer, _read, in_place=((0, 0),), replayable=False),
    OpType(
        "read_codes", 1, _infer_codes, _read_codes, in_place=((0, 0),), replayable=False
    ),
    OpType("coded_dense", 2, _infer_coded, _coded_dense, flops=_coded_flops),
)
READS = ("read_section", "read_codes")
BESIDE = (*COLLECTIVES, *READS)  # may run beside compute, on a queue of their own
