"""Nominal time of an op, by the roofline model of a nominal machine.

Williams et al., "Roofline", CACM 2009. Nominal times are the same on every machine, so
plans do not depend on the load; the runtime measures real times.

See docs/decisions/0002-plans-count-work.md.
"""

from __future__ import annotations

from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from memcfg.graph._graph import Link
from memcfg.ops import Spec
from memcfg.ops._dtypes import item_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memcfg.graph._graph import Graph
    from memcfg.ops import OpType

__all__ = [
    "NOMINAL_CODECS",
    "NOMINAL_COPY",
    "NOMINAL_LINK",
    "CodecSpeed",
    "memory_seconds",
    "nominal_seconds",
    "nominal_seconds_of",
]

_FLOPS_PER_SECOND = 100e9  # two AVX2 cores
_BYTES_PER_SECOND = 10e9  # one memory channel
_SECONDS_PER_OP = 1e-6  # kernel launch
NOMINAL_COPY: Mapping[str, float] = MappingProxyType(
    {"host": 5e9, "file": 1e9}  # bytes/s: half the memory bandwidth; a disk
)
NOMINAL_LINK = Link(50e-6, 1.25e9)  # Ethernet of 10 Gbit/s


class CodecSpeed(NamedTuple):
    """Bytes of the unencoded tensor that a codec processes per second."""

    encode: float
    decode: float


# Measured on one core (bench/results/codecs.json), sparse codecs at a density of 0.5,
# and capped at the nominal memory bandwidth for the bytes read and written.
NOMINAL_CODECS: Mapping[str, CodecSpeed] = MappingProxyType(
    {
        "codebook": CodecSpeed(1e9, 5e9),
        "csr": CodecSpeed(6e9, 5e9),
        "fp10": CodecSpeed(7e9, 7e9),
        "fp16": CodecSpeed(6e9, 6e9),
        "fp8": CodecSpeed(6e9, 8e9),
        "group2": CodecSpeed(1e9, 4e9),
        "group4": CodecSpeed(1e9, 3e9),
        "group8": CodecSpeed(0.7e9, 2e9),
        "mask": CodecSpeed(9e9, 9e9),
        "planes_zstd": CodecSpeed(0.3e9, 1e9),
        "rle": CodecSpeed(4e9, 5e9),
        "zvc": CodecSpeed(6e9, 6e9),
    }
)


def nominal_seconds(
    kind: OpType,
    inputs: Sequence[Spec],
    outputs: Sequence[Spec],
    attributes: Mapping[str, Any],
) -> float:
    """Estimate the seconds of an op on the nominal machine."""
    flops = kind.flops(inputs, outputs, attributes)
    specs = (*inputs, *outputs)
    traffic = sum([prod(spec.shape) * item_bytes(spec.dtype) for spec in specs])
    return max(flops / _FLOPS_PER_SECOND + _SECONDS_PER_OP, memory_seconds(traffic))


def memory_seconds(nbytes: int) -> float:
    """Estimate the seconds of an op that is bound by memory bandwidth.

    Parameters
    ----------
    nbytes : int
        The bytes of its inputs and outputs.

    Returns
    -------
    float
        Seconds on the nominal machine, as in traced graphs.
    """
    return nbytes / _BYTES_PER_SECOND + _SECONDS_PER_OP


def nominal_seconds_of(
    graph: Graph,
    kind: OpType,
    inputs: Sequence[int],
    outputs: Sequence[int],
    attributes: Mapping[str, Any],
) -> float:
    """Estimate the seconds of an op on tensors of a graph.

    Parameters
    ----------
    graph : Graph
        The graph.
    kind : OpType
        The op's type.
    inputs, outputs : sequence of int
        Ids of its operands, whose shapes and dtypes must be known.
    attributes : mapping
        The op's attributes.

    Returns
    -------
    float
        Seconds on the nominal machine, as in traced graphs.
    """
    tensors = [graph.tensors[tensor] for tensor in (*inputs, *outputs)]
    specs = [Spec(each.shape or (), each.dtype or "float32") for each in tensors]
    return nominal_seconds(kind, specs[: len(inputs)], specs[len(inputs) :], attributes)
