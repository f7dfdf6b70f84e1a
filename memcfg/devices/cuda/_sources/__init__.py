"""CUDA sources of the kernels of all op types, and their launches.

This package only writes text and imports nothing of CUDA. Sources depend on ranks and
dtypes; lengths and attributes are arguments, so that ops with other batch sizes share a
source. Results are deterministic: the order of sums does not depend on the schedule of
threads.

See docs/decisions/0029-gpu-code-runs-on-the-host.md.
"""

from __future__ import annotations

from memcfg.devices.cuda._sources._launch import (
    Argument,
    CudaSource,
    Launch,
    Number,
    Operand,
    Scratch,
)
from memcfg.devices.cuda._sources._make import cuda_source, has_source
from memcfg.devices.cuda._sources._prelude import COMPILER_OPTIONS

__all__ = [
    "COMPILER_OPTIONS",
    "Argument",
    "CudaSource",
    "Launch",
    "Number",
    "Operand",
    "Scratch",
    "cuda_source",
    "has_source",
]
