"""Weights that lie in sections of a file, read into the memory of a step.

``read_section`` {source, section, shape, dtype} reads a section of the source of that
name, and decodes it into its second output. The first input is scratch of float32, for
the section as it lies in the file, and the first output hands it on: it gives the reads
of a step one order. They may run beside compute, on the queue of collectives.
"""

from __future__ import annotations

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


def _infer(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    (work,) = inputs
    require(work.dtype == "float32", f"read_section: no scratch of {work.dtype}")
    made = Spec(tuple(attributes["shape"]), attributes["dtype"])
    return [work._replace(suffix="work", role="activation"), made]


def _read(attributes: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    del inputs  # its bytes say nothing
    work, out = outputs
    source = source_of(attributes["source"])
    source.read_section(attributes["section"], out, work.view(np.uint8))


register(OpType("read_section", 1, _infer, _read, in_place=((0, 0),), replayable=False))
READS = ("read_section",)
BESIDE = (*COLLECTIVES, *READS)  # may run beside compute, on a queue of their own
