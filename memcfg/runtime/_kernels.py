"""Kernels of a graph's ops on a device.

Owns the mapping from ops to kernels: scratch sizes enter the graph before planning,
addresses enter the kernels afterwards.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from memcfg.devices import Device, OperandSpec, Packing, UnboundKernel
from memcfg.errors import GraphError, KernelError
from memcfg.graph import NOMINAL_COPY, Algorithm, Graph, Op, Tier, memory_seconds
from memcfg.ops.collectives import COLLECTIVES

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Copied", "Kernels"]


class Copied(NamedTuple):
    """Key of the seconds per byte copied to or from a tier, whichever is slower."""

    tier: str


_NOTHING: Mapping[object, float] = MappingProxyType({})


class Kernels:
    """The kernels of a graph's ops, not yet bound to addresses.

    The kernel of each op's default algorithm is created immediately, others on demand.
    With ``times="measured"``, each algorithm not yet measured runs on the device,
    copies to the tiers used for swapping are measured likewise, and annotated graphs
    contain these seconds. Raises RuntimeError on a simulated device. `took` holds
    seconds measured in steps, per op by its `key` and per byte by `Copied`; they take
    precedence.
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
        used = {tensor for op in graph.ops for tensor in (*op.inputs, *op.outputs)}
        specs = {tensor: _operand_spec(graph, tensor) for tensor in sorted(used)}
        spec_of = specs.__getitem__
        self._specs = [
            (
                op.type,
                op.attributes,
                tuple(map(spec_of, op.inputs)),
                tuple(map(spec_of, op.outputs)),
            )
            for op in graph.ops
        ]
        self._made: dict[tuple[int, str | None], UnboundKernel] = {}
        self._packings: Mapping[int, Packing] = {}  # by op
        self._packable: dict[int, Packing | None] = {}  # by op
        for index in range(len(graph.ops)):
            self.get(index)
        self._rows = [self._list(index, measured) for index in range(len(graph.ops))]
        # Ratio of this device's op times to the nominal ones.
        self._factor = self._slowness(graph) if measured else 1.0

    def get(self, op: int, algorithm: str | None = None) -> UnboundKernel:
        """Return the kernel of an op; raise KernelError for an unknown algorithm."""
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
        """Return how an op would read a packed input, or None if that gains nothing."""
        if op not in self._packable:
            self._packable[op] = self._table.packing(*self._specs[op])
        return self._packable[op]

    def signature(self, op: int) -> object:
        """Return a key of all that an op's kernels and packing depend on."""
        op_type, attributes, inputs, outputs = self._specs[op]
        return op_type, repr(sorted(attributes.items())), inputs, outputs

    def key(self, op: int) -> object:
        """Return a key of all that the seconds of the default algorithm depend on."""
        return self.signature(op), op in self._packings

    def with_seconds(self, took: Mapping[object, float]) -> Kernels:
        """Return a copy with seconds that ops took in steps."""
        made = copy(self)
        made._took = took
        return made

    def with_packed(self, packings: Mapping[int, Packing]) -> Kernels:
        """Return a copy in which the given ops, too, read a packed input."""
        made = copy(self)
        made._packings = {**self._packings, **packings}
        return made

    def packing_seconds(self, nbytes: int) -> float:
        """Estimate how long an op reads and writes so many bytes to pack a weight."""
        return self._factor * (memory_seconds(nbytes) - memory_seconds(0))

    def annotate(self, graph: Graph) -> Graph:
        """Return the graph with the algorithms and scratch sizes of its kernels."""
        ops = tuple(map(self._with, range(len(graph.ops)), graph.ops))
        return replace(graph, ops=ops, times=self._times, tiers=self._known_tiers())

    def _known_tiers(self) -> tuple[Tier, ...]:
        """Return the tiers with the best known rates."""
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
        """List name, scratch bytes and seconds of an op's algorithms; 0 is unknown.

        Collectives are not measured: they wait for other ranks.
        """
        measured = measured and self._specs[op][0] not in COLLECTIVES
        list_ = self._table.measure if measured else self._table.algorithms
        return list_(*self._specs[op])

    def _slowness(self, graph: Graph) -> float:
        """Return the ratio of measured to nominal seconds over the measured ops."""
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
            # An unmeasured algorithm is assumed to be as slow as the slowest one.
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
        result = [
            Algorithm(name, seconds or op.seconds, scratch)
            for name, scratch, seconds in rows
        ]
        scratch_bytes = result[0].scratch_bytes
        return replace(op, scratch_bytes=scratch_bytes, algorithms=tuple(result))


def _tiers(device: Device) -> tuple[Tier, ...]:
    """Return the tiers of a device, with nominal bandwidths where none is stated."""
    spill = device.spill
    result = []
    for name in device.tiers:
        place = spill.at(name)
        nominal = NOMINAL_COPY.get(name, NOMINAL_COPY["file"])  # one of several files
        rate = place.bandwidth or nominal
        stated = bool(spill.places)
        result.append(Tier(name, rate, place.limit_bytes, is_stated=stated))
    return tuple(result)


def _copy_rates(device: Device) -> dict[str, float]:
    """Measure the copy rates of the stated tiers, or of the first; 0 is unknown."""
    names = [place.tier for place in device.spill.places] or [*device.tiers][:1]
    return {name: device.copy_rate(name) for name in names}


def _refuse_bfloat16(graph: Graph, device: Device) -> None:
    """Raise KernelError if a tensor is bfloat16."""
    if any(tensor.dtype == "bfloat16" for tensor in graph.tensors):
        raise KernelError(
            f"{device.name} takes no bfloat16: models of dtype 'mixed_bfloat16' run on "
            "a CPU; on a GPU use dtype 'float32'"
        )


def _operand_spec(graph: Graph, number: int) -> OperandSpec:
    tensor = graph.tensors[number]
    if tensor.shape is None or tensor.dtype is None:
        raise GraphError(f"tensor {tensor.name!r} has no shape: it cannot be run")
    spec = OperandSpec(tensor.shape, tensor.dtype)
    if spec.nbytes > tensor.nbytes and number not in graph.outside:
        raise GraphError(
            f"tensor {tensor.name!r} has {tensor.nbytes} B, but {tensor.dtype} of "
            f"shape {tensor.shape} needs {spec.nbytes} B"
        )
    return spec
