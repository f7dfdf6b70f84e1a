"""Devices that are not here, as rooflines: what a step would take on them.

Williams et al., "Roofline", CACM 2009. Rates are the peaks of data sheets, which no
kernel reaches, so only ratios of times mean something.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from memcfg.graph._cost import nominal_seconds_of
from memcfg.ops import Spec, op_type
from memcfg.ops._dtypes import item_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memcfg.graph._graph import Graph, Op

__all__ = ["PROFILES", "Profile", "with_profile"]


@dataclass(frozen=True)
class Profile:
    """The rates of a device.

    Parameters
    ----------
    name : str
        The device.
    kind : {"CPU", "GPU"}
        What it is.
    flops_per_second : float
        Of float32.
    bytes_per_second : float
        To and from its memory.
    seconds_per_op : float
        To begin an op.
    copy_bytes_per_second : float
        To the host, and back.
    """

    name: str
    kind: str
    flops_per_second: float
    bytes_per_second: float
    seconds_per_op: float
    copy_bytes_per_second: float


PROFILES: Mapping[str, Profile] = MappingProxyType(
    {
        each.name: each
        for each in (
            # the reference machine of nominal times
            Profile("cpu", "CPU", 100e9, 10e9, 1e-6, 5e9),
            # NVIDIA's data sheets: float32, memory, PCIe in each direction
            Profile("t4", "GPU", 8.1e12, 320e9, 5e-6, 16e9),
            Profile("a100", "GPU", 19.5e12, 2039e9, 5e-6, 32e9),
            Profile("h100", "GPU", 67e12, 3350e9, 5e-6, 64e9),
            Profile("h200", "GPU", 67e12, 4800e9, 5e-6, 64e9),
        )
    }
)
"""The known profiles by name."""


def with_profile(graph: Graph, profile: Profile) -> Graph:
    """Return a graph with the times of another device.

    Parameters
    ----------
    graph : Graph
        A traced step.
    profile : Profile
        The device.

    Returns
    -------
    Graph
        The same graph with other seconds of ops and algorithms, and another rate of
        copies to the host unless it is stated. Scratch stays that of the kernels for
        which it was traced.
    """
    ops = tuple(_timed(graph, op, profile) for op in graph.ops)
    tiers = tuple(
        tier
        if tier.is_stated or tier.name != "host"
        else replace(tier, bytes_per_second=profile.copy_bytes_per_second)
        for tier in graph.tiers
    )
    return replace(graph, ops=ops, tiers=tiers)


def _timed(graph: Graph, op: Op, profile: Profile) -> Op:
    kind = op_type(op.type)
    tensors = [graph.tensors[i] for i in (*op.inputs, *op.outputs)]
    specs = [Spec(each.shape or (), each.dtype or "float32") for each in tensors]
    count = len(op.inputs)
    flops = kind.flops(specs[:count], specs[count:], op.attributes)
    traffic = sum(spec.size * item_bytes(spec.dtype) for spec in specs)
    seconds = profile.seconds_per_op + max(
        flops / profile.flops_per_second, traffic / profile.bytes_per_second
    )
    nominal = nominal_seconds_of(graph, kind, op.inputs, op.outputs, op.attributes)
    factor = seconds / nominal
    algorithms = tuple(
        replace(each, seconds=each.seconds * factor) for each in op.algorithms
    )
    return replace(op, seconds=op.seconds * factor, algorithms=algorithms)
