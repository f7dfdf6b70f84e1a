"""Weights that lie in sections of a file, read into the memory of a step.

``read_section`` {source, section, shape, dtype, work_bytes} has no inputs. It reads a
section of the source of that name, decodes it into its first output, and needs
`work_bytes` of scratch, its second output, for the section as it lies in the file. It
may run beside compute, on the queue of collectives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memcfg.ops._op_type import Arrays, Attributes, OpType, Spec, register
from memcfg.ops._sources import source_of
from memcfg.ops.collectives import COLLECTIVES

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BESIDE", "READS"]

_NO_WORK = np.zeros(0, np.uint8)


def _infer(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    del inputs
    made = Spec(tuple(attributes["shape"]), attributes["dtype"])
    work = Spec((attributes["work_bytes"],), "uint8", "work", "activation")
    return [made, *[work] * bool(work.size)]


def _read(attributes: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    del inputs
    work = outputs[1] if attributes["work_bytes"] else _NO_WORK
    source = source_of(attributes["source"])
    source.read_section(attributes["section"], outputs[0], work)


register(OpType("read_section", 0, _infer, _read))
READS = ("read_section",)
BESIDE = (*COLLECTIVES, *READS)  # may run beside compute, on a queue of their own
