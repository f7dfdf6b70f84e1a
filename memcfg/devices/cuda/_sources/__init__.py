"""CUDA sources of the kernels of all op types, and how they are launched.

Pure text: nothing of CUDA is imported or loaded. Sources know ranks and dtypes;
lengths and attributes come as arguments, so that an op of another batch size is the
same source. Results are the same bits in every run: no sum is in an order that
threads decide.
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
