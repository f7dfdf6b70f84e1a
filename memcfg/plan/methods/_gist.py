"""Activations that wait for the backward phase encoded: Gist, and ActNN.

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

_MAP = 2  # dimensions that a feature map has at least; statistics have fewer
_OTHER = "share(), which encodes nothing, or auto()"


class _Stash(NamedTuple):
    """A tensor of the forward phase that waits for the backward phase."""

    tensor: int
    last: int  # the op of the forward phase that reads or makes it last
    first: int  # the op that reads it first behind that phase


def _stashes(graph: Graph) -> Iterator[_Stash]:
    """Find the feature maps that nothing reads while some op runs."""
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
    """Which codecs a method takes: a value, so that equal policies are equal."""

    sparse: tuple[str, ...]  # of maps with zeros
    rest: str | None  # of all; None: those that no other makes smaller are kept
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
        """Choose a codec for each map that gets smaller by one."""
        sparse = self.densities.in_graph(graph)
        result = []
        for stash in _stashes(graph):
            pack = self._pack(graph, stash, sparse.get(stash.tensor, 1.0))
            if pack is not None:
                result.append((pack, stash))
        return result

    def _pack(self, graph: Graph, stash: _Stash, density: float) -> Pack | None:
        """Choose what takes the fewest bytes, of codecs alike what loses nothing."""
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
    """List what happens: maps are encoded behind their last use, decoded before one."""
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
    """Encode what waits for the backward phase, as Gist.

    A feature map is encoded behind its last use in the forward phase and decoded before
    its first one in the backward phase: one of which that asks only the sign as a bit a
    number (Gist's binarize), which is what gradients of ReLUs ask; one with zeros, of a
    ReLU or behind it, as rows of those that are not 0 (its sparse storage); all others,
    if `dpr` says so, in fewer bits (its delayed precision reduction).

    Parameters
    ----------
    dpr : {"fp16", "fp10", "fp8"}, optional
        The format of maps that no lossless code makes smaller than it would; None keeps
        them, and all gradients have the same bits. The forward phase has in any case.
    density : float or mapping of str to float, default 0.6
        What part of a ReLU's results is planned not to be 0; or that of tensors by
        name, and 0.6 of others. A map that turns out denser is not encoded in that
        step: it stays as it is, in part on the first tier that has room.
    sparse : {"csr", "zvc"}, optional
        The sparse code: Gist's, or the zero-value code of cDMA. None is what is
        smaller: Gist's where less than a ninth is not 0.

    Returns
    -------
    Policy
        A value that can be compared; calling it with a graph and a limit returns a
        plan, whose `lossy` lists `mask`, too, where only signs are read. It is named
        ``gist``, or ``gist_fp8`` and so on with `dpr`, and then is not `lossless`.

    Raises
    ------
    ValueError
        If `dpr` or `sparse` is none of these, or a density is not between 0 and 1.

    Notes
    -----
    Jain et al., ISCA 2018. Graphs of this library do part of it for every policy: a
    ReLU's result before max pooling is not kept at all, since its gradient asks the
    maxima, pooling keeps a byte a window, and ReLUs work in place.
    """
    if dpr is not None and dpr not in _REDUCED:
        raise ValueError(f"dpr is None or one of {_REDUCED}, not {dpr!r}")
    if sparse is not None and sparse not in SPARSE:
        raise ValueError(f"sparse is None or one of {SPARSE}, not {sparse!r}")
    codes = SPARSE if sparse is None else (sparse,)
    encoder = _Encoder(codes, dpr, Densities.of(density, RECTIFIED))
    if dpr is None:
        return Method("gist", encoder, _OTHER, swaps=True)
    return Method(f"gist_{dpr}", encoder, _OTHER, swaps=True, lossless=False)


_GROUPED = (2, 4, 8)


def actnn(bits: int = 2) -> Policy:
    """Encode what waits for the backward phase in a few bits a number, as ActNN.

    Groups of 256 numbers are rounded at random to levels between their least and their
    largest, so that gradients are right on average; maps of which only the sign is read
    take a bit. Maps are encoded and decoded where `gist` does.

    Parameters
    ----------
    bits : {2, 4, 8}, default 2
        Bits a number.

    Returns
    -------
    Policy
        A value that can be compared; calling it with a graph and a limit returns a
        plan, whose `lossy` lists the codec.

    Raises
    ------
    ValueError
        If `bits` is none of these.

    Notes
    -----
    Chen et al., ICML 2021: its groups, without its per-sample and per-layer choice of
    bits.
    """
    if bits not in _GROUPED:
        raise ValueError(f"bits are one of {_GROUPED}, not {bits!r}")
    encoder = _Encoder((), f"group{bits}", Densities(1.0))
    return Method("actnn", encoder, _OTHER, swaps=True, lossless=False)
