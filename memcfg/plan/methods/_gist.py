"""Encoded activations between the forward and the backward phase: Gist and ActNN.

Jain et al., "Gist: Efficient Data Encoding for Deep Neural Network Training", ISCA
2018; Chen et al., "ActNN: Reducing Training Memory Footprint via 2-Bit Activation
Compressed Training", ICML 2021.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from memcfg.plan.format._codec_bytes import LOSSY, SPARSE, code_bytes, saves
from memcfg.plan.search._full_tiers import within_tier
from memcfg.plan.search._policy import Method
from memcfg.plan.search.swaps._event_times import clock
from memcfg.plan.search.swaps._sparsity import RECTIFIED, Densities, reads_sign
from memcfg.plan.search.swaps._swap_events import Event, Pack, Run, Unpack, plan_events

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from memcfg.graph import Graph
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy
    from memcfg.plan.search._request import Request

_MAP = 2  # min. rank of a feature map; statistics have a lower rank
_OTHER = "share(), which encodes nothing, or auto()"


class _Stash(NamedTuple):
    """A tensor of the forward phase that the backward phase reads."""

    tensor: int
    last: int  # the last op of the forward phase that reads or produces it
    first: int  # the first op after the forward phase that reads it


def _stashes(graph: Graph) -> Iterator[_Stash]:
    """Yield the float32 feature maps that are unused during at least one op."""
    fixed = {*graph.keep, *graph.losses, *graph.persistent}
    for tensor, maker in enumerate(graph.producer):
        own = graph.tensors[tensor]
        if maker is None or tensor in fixed or len(own.shape or ()) < _MAP:
            continue
        if own.dtype != "float32" or not fixed.isdisjoint(graph.ops[maker].outputs):
            continue
        ahead = [
            op
            for op in (maker, *graph.consumers[tensor])
            if graph.ops[op].phase == "forward"
        ]
        later = [op for op in graph.consumers[tensor] if op not in ahead]
        if ahead and later and max(ahead) + 1 < min(later):
            yield _Stash(tensor, max(ahead), min(later))


@dataclass(frozen=True)
class _Encoder:
    """Planning function with the codecs of a method; a value, for comparison."""

    sparse: tuple[str, ...]  # codecs for maps with zeros
    rest: str | None  # codec for any map; None: other maps are kept unencoded
    densities: Densities

    def __call__(self, request: Request) -> Plan:
        packs = self.packs(request.graph)
        events = _events(request.graph, packs)
        if request.is_slow(clock(request.graph, events).elapsed_seconds):
            return request.ordered(range(len(request.graph.ops)))
        plan = plan_events(request, events, reorders=True)
        used = {pack.codec for pack, _ in packs}
        lossy = tuple(codec for codec in LOSSY if codec in used)
        return within_tier(request, replace(plan, lossy=lossy))

    def packs(self, graph: Graph) -> list[tuple[Pack, _Stash]]:
        """Choose a codec for each map that a codec makes smaller."""
        sparse = self.densities.in_graph(graph)
        result = []
        for stash in _stashes(graph):
            pack = self._pack(graph, stash, sparse.get(stash.tensor, 1.0))
            if pack is not None:
                result.append((pack, stash))
        return result

    def _pack(self, graph: Graph, stash: _Stash, density: float) -> Pack | None:
        """Return the encoding with the fewest bytes, or None; ties go to lossless."""
        tensor, nbytes = stash.tensor, graph.tensors[stash.tensor].nbytes
        readers = [op for op in graph.consumers[tensor] if op >= stash.first]
        codecs = [*self.sparse, self.rest]
        if all(reads_sign(graph.ops[op], tensor) for op in readers):
            codecs = ["mask"]
        packs = [
            Pack(tensor, codec, code_bytes(codec, nbytes, density), codec in SPARSE)
            for codec in codecs
            if codec is not None and saves(codec, nbytes, density)
        ]
        return min(packs, key=lambda pack: pack.nbytes, default=None)


def _events(graph: Graph, packs: list[tuple[Pack, _Stash]]) -> list[Event]:
    """Return the events: ops, each followed by encodings and preceded by decodings."""
    behind: dict[int, list[Event]] = defaultdict(list)
    before: dict[int, list[Event]] = defaultdict(list)
    for pack, stash in packs:
        behind[stash.last].append(pack)
        before[stash.first].append(Unpack(stash.tensor))
    events: list[Event] = []
    for op in range(len(graph.ops)):
        events += [*before[op], Run(op), *behind[op]]
    return events


_REDUCED = ("fp16", "fp10", "fp8")


def gist(
    dpr: str | None = None,
    density: float | Mapping[str, float] = RECTIFIED,
    sparse: str | None = None,
) -> Policy:
    """Encode activations between the forward and the backward phase, as Gist.

    A feature map is encoded after its last use in the forward phase and decoded before
    its first use in the backward phase. If the backward phase only reads signs, as the
    gradient of a ReLU does, one bit per element is kept (Gist's binarize). Maps with
    zeros, of a ReLU or after one, are stored as sparse rows. Other maps are stored in
    fewer bits if `dpr` is given (delayed precision reduction).

    Parameters
    ----------
    dpr : {"fp16", "fp10", "fp8"}, optional
        The format of maps that no lossless codec makes smaller than it does. None keeps
        these maps unencoded, and gradients have the original bits. The forward phase is
        exact in any case.
    density : float or mapping of str to float, default 0.6
        The expected fraction of nonzero elements of a ReLU's result; or a mapping from
        tensor names to fractions, with 0.6 for other tensors. A map that is denser is
        not encoded in that step; the bytes that do not fit go to the first tier that
        has room.
    sparse : {"csr", "zvc"}, optional
        The sparse codec: Gist's, or the zero-value compression of cDMA. None uses the
        smaller one, which is Gist's if less than a ninth of the elements is nonzero.

    Returns
    -------
    Policy
        A value that can be compared; calling it with a graph and a limit returns a
        plan. The plan's `lossy` includes ``"mask"`` if only signs of a map are read.
        The policy's name is ``gist``, or ``gist_fp8`` and so on with `dpr`, in which
        case it is not `lossless`.

    Raises
    ------
    ValueError
        If `dpr` or `sparse` is not in its set, or a density is not between 0 and 1.

    Notes
    -----
    Jain et al., ISCA 2018. memcfg's graphs do part of it under every policy: a ReLU's
    result before max pooling is not kept, since its gradient reads the maxima; pooling
    keeps one byte per window; and ReLUs are in place.
    """
    if dpr is not None and dpr not in _REDUCED:
        raise ValueError(f"dpr must be None or one of {_REDUCED}, not {dpr!r}")
    if sparse is not None and sparse not in SPARSE:
        raise ValueError(f"sparse must be None or one of {SPARSE}, not {sparse!r}")
    codes = SPARSE if sparse is None else (sparse,)
    encoder = _Encoder(codes, dpr, Densities.of(density, RECTIFIED))
    if dpr is None:
        return Method("gist", encoder, _OTHER, swaps=True)
    return Method(f"gist_{dpr}", encoder, _OTHER, swaps=True, lossless=False)


_GROUPED = (2, 4, 8)


def actnn(bits: int = 2) -> Policy:
    """Quantize activations between the forward and the backward phase, as ActNN.

    Groups of 256 elements are stochastically rounded to levels between their minimum
    and maximum, so gradients are unbiased. Maps whose sign alone is read take one bit
    per element. Maps are encoded and decoded at the same positions as by `gist`.

    Parameters
    ----------
    bits : {2, 4, 8}, default 2
        Bits per element.

    Returns
    -------
    Policy
        A value that can be compared; calling it with a graph and a limit returns a
        plan, whose `lossy` lists the codecs.

    Raises
    ------
    ValueError
        If `bits` is not one of these.

    Notes
    -----
    Chen et al., ICML 2021: quantization per group, without adapting the bits to samples
    and layers.
    """
    if bits not in _GROUPED:
        raise ValueError(f"bits must be one of {_GROUPED}, not {bits!r}")
    encoder = _Encoder((), f"group{bits}", Densities(1.0))
    return Method("actnn", encoder, _OTHER, swaps=True, lossless=False)
