"""What a device makes of a graph's ops.

Owns the step from ops to kernels: scratch sizes go into the graph before it is
planned, addresses into the kernels after.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from memcfg.devices import Device, OperandSpec, Packing, UnboundKernel
from memcfg.errors import GraphError, KernelError
from memcfg.graph import NOMINAL_COPY, Algorithm, Graph, Op, Tensor, Tier

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Copied", "Kernels"]


class Copied(NamedTuple):
    """The key of the seconds that a byte takes to a tier, or back, if that is more."""

    tier: str


_NOTHING: Mapping[object, float] = MappingProxyType({})


class Kernels:
    """The kernels of a graph's ops, not yet bound to addresses.

    Those of each op's default algorithm are made at once, others when they are named.
    With `times` "measured" each algorithm runs on the device, where it has not yet, and
    graphs are given its seconds; RuntimeError on a simulated device. Lanes copy to the
    tiers that plans swap to, likewise. What ops `took` in steps, by their `key`, and
    bytes, by `Copied`, counts more.
    """

    def __init__(
        self,
        graph: Graph,
        device: Device,
        times: str = "nominal",
        took: Mapping[object, float] = _NOTHING,
    ) -> None:
        if times == "measured" and device.space == "addresses":
            raise RuntimeError(
                f"{device.name} is simulated: nothing runs there that could be "
                "measured. Use times='nominal'"
            )
        if not device.takes_bfloat16:
            _refuse_bfloat16(graph, device)
        self._table = device.kernels
        measured = times == "measured"
        self._tiers = _tiers(device)
        self._spill = device.spill
        self._copy_rates = _copy_rates(device) if measured else {}
        self._times = times
        self._took = took
        self._specs = [
            (
                op.type,
                op.attributes,
                _specs(graph, op.inputs),
                _specs(graph, op.outputs),
            )
            for op in graph.ops
        ]
        self._made: dict[tuple[int, str | None], UnboundKernel] = {}
        self._packings: Mapping[int, Packing] = {}  # by op
        for index in range(len(graph.ops)):
            self.get(index)
        self._rows = [self._list(index, measured) for index in range(len(graph.ops))]
        # By how much this device is slower than the nominal one.
        self._factor = self._slowness(graph) if measured else 1.0

    def get(self, op: int, algorithm: str | None = None) -> UnboundKernel:
        """Return the kernel of an op; KernelError if there is no such algorithm."""
        if op in self._packings:
            kernel = self._packings[op].kernel
            if algorithm not in (None, kernel.algorithm):
                raise KernelError(f"packed weights are not for {algorithm!r}")
            return kernel
        key = (op, algorithm)
        if key not in self._made:
            self._made[key] = self._table.make(*self._specs[op], algorithm)
        return self._made[key]

    def packing(self, op: int) -> Packing | None:
        """Say how an op would read an input packed; None where that gains nothing."""
        return self._table.packing(*self._specs[op])

    def signature(self, op: int) -> object:
        """Return what an op's kernels depend on: those of equal ops pack alike."""
        op_type, attributes, inputs, outputs = self._specs[op]
        return op_type, repr(sorted(attributes.items())), inputs, outputs

    def key(self, op: int) -> object:
        """Return what an op's seconds depend on, with its default algorithm."""
        return self.signature(op), op in self._packings

    def with_seconds(self, took: Mapping[object, float]) -> Kernels:
        """Return the same kernels, with seconds that ops took in steps."""
        made = copy(self)
        made._took = took
        return made

    def with_packed(self, packings: Mapping[int, Packing]) -> Kernels:
        """Return the same kernels, where these ops read an input packed."""
        made = copy(self)
        made._packings = packings
        return made

    def annotate(self, graph: Graph) -> Graph:
        """Return the graph with the algorithms and scratch sizes of its kernels."""
        ops = tuple(map(self._with, range(len(graph.ops)), graph.ops))
        return replace(graph, ops=ops, times=self._times, tiers=self._known_tiers())

    def _known_tiers(self) -> tuple[Tier, ...]:
        """Return the tiers, as fast as is known by now."""
        if self._times != "measured":
            return self._tiers
        return tuple(map(self._known_tier, self._tiers))

    def _known_tier(self, tier: Tier) -> Tier:
        took = self._took.get(Copied(tier.name))
        rate = 1 / took if took else self._copy_rates.get(tier.name, 0.0)
        if 0 < rate < (self._spill.at(tier.name).bandwidth or math.inf):
            return replace(tier, bytes_per_second=rate, is_measured=True)
        return tier

    def _list(self, op: int, measured: bool) -> list[tuple[str, int, float]]:
        """List name, scratch and seconds of an op's algorithms; 0: not known."""
        list_ = self._table.measure if measured else self._table.algorithms
        return list_(*self._specs[op])

    def _slowness(self, graph: Graph) -> float:
        """Compare the measured seconds with the nominal ones of the same ops."""
        pairs = [
            (row[0][2], op.seconds)
            for row, op in zip(self._rows, graph.ops, strict=True)
            if row[0][2]
        ]
        nominal = sum(stated for _, stated in pairs)
        return sum(taken for taken, _ in pairs) / nominal if nominal else 1.0

    def _with(self, index: int, op: Op) -> Op:
        rows = self._rows[index]
        if self._times == "measured":
            alone = rows[0][2] or self._factor * op.seconds
            seconds = self._took.get(self.key(index), alone)
            scale = seconds / alone if alone else 1.0
            (name, size, _), *others = rows
            others = [(other, most, scale * taken) for other, most, taken in others]
            # Of an algorithm that is not measured it is not known to be faster.
            slowest = max([seconds, *(taken for *_, taken in others)])
            op = replace(op, seconds=seconds)
            rows = [
                (name, size, seconds),
                *((other, most, taken or slowest) for other, most, taken in others),
            ]
        if index in self._packings:
            kernel = self._packings[index].kernel
            own = Algorithm(kernel.algorithm, op.seconds, kernel.scratch_bytes)
            return replace(op, scratch_bytes=own.scratch_bytes, algorithms=(own,))
        result = tuple(
            Algorithm(name, seconds or op.seconds, scratch)
            for name, scratch, seconds in rows
        )
        return replace(op, scratch_bytes=result[0].scratch_bytes, algorithms=result)


def _tiers(device: Device) -> tuple[Tier, ...]:
    """Return what a device has of tiers; nominal bandwidths where none is stated."""
    spill = device.spill
    result = []
    for name in device.tiers:
        place = spill.at(name)
        nominal = NOMINAL_COPY.get(name, NOMINAL_COPY["file"])  # one of several
        rate = place.bandwidth or nominal
        stated = bool(spill.places)
        result.append(Tier(name, rate, place.limit_bytes, is_stated=stated))
    return tuple(result)


def _copy_rates(device: Device) -> dict[str, float]:
    """Measure the tiers that plans swap to: those stated, or the first; 0: unknown."""
    names = [place.tier for place in device.spill.places] or [*device.tiers][:1]
    return {name: device.copy_rate(name) for name in names}


def _refuse_bfloat16(graph: Graph, device: Device) -> None:
    """Raise KernelError if a tensor is bfloat16."""
    if any(tensor.dtype == "bfloat16" for tensor in graph.tensors):
        raise KernelError(
            f"{device.name} takes no bfloat16: models of dtype 'mixed_bfloat16' run on "
            "a CPU; on a GPU use dtype 'float32'"
        )


def _specs(graph: Graph, tensors: tuple[int, ...]) -> tuple[OperandSpec, ...]:
    return tuple(_spec(graph.tensors[tensor]) for tensor in tensors)


def _spec(tensor: Tensor) -> OperandSpec:
    if tensor.shape is None or tensor.dtype is None:
        raise GraphError(f"tensor {tensor.name!r} has no shape: it cannot be run")
    spec = OperandSpec(tensor.shape, tensor.dtype)
    if spec.nbytes > tensor.nbytes:
        raise GraphError(
            f"tensor {tensor.name!r} has {tensor.nbytes} B, and its {tensor.dtype} of "
            f"shape {tensor.shape} take {spec.nbytes} B"
        )
    return spec
