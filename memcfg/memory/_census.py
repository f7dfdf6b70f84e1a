"""The resources of a report, with their memory counted once.

Owns the selection of resources, and which of their memory is also another's. Reports
turn the numbers into text.

An adaptor has no memory: its blocks belong to the resource below all adaptors, its
*base*. A pool on a resource that hands out whole blocks holds some of these as its
segments. The bytes of several resources therefore cannot be added up; those of the
*roots* without the segments can.
"""

from __future__ import annotations

import re
from collections import Counter
from copy import copy
from typing import TYPE_CHECKING, NamedTuple

from memcfg._core import (
    CudaResource,
    FailureCallbackResource,
    Pool,
    Resource,
    SimulatedResource,
    arena_of,
    blocks_of,
    layout_of,
    live_arenas,
    live_resources,
)
from memcfg.memory._recording import TrackingResource

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from memcfg._core import LiveBlock

__all__ = ["Row", "Selection", "arena_rows", "base_of", "kind_of", "label_of"]


class Row(NamedTuple):
    """A block or an arena, with the resource whose memory it is."""

    nbytes: int
    address: int
    rounded_bytes: int
    tag: str
    base: Resource
    kind: str = "block"


def kind_of(resource: Resource) -> str:
    """Return the kind of a resource, in a word or two."""
    name = type(resource).__name__.removesuffix("Resource")
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


def label_of(resource: Resource) -> str:
    """Return the name of a resource, or its kind if it has none."""
    return resource.name or kind_of(resource)


def base_of(resource: Resource) -> Resource:
    """Return the resource whose memory an adaptor hands out, or the resource itself."""
    below = _below(resource)
    return resource if below is None else base_of(below)


def _below(resource: Resource) -> Resource | None:
    """Return the resource below an adaptor; None for one with memory of its own."""
    return None if isinstance(resource, Pool) else resource.upstream


class Selection:
    """The resources of a report, each once; by default all but adaptors."""

    def __init__(self, chosen: tuple[Resource, ...]) -> None:
        for each in chosen:
            if not isinstance(each, Resource):
                raise TypeError(f"a report is about resources, not {each!r}")
        every = live_resources.alive()
        named = chosen or tuple(each for each in every if base_of(each) is each)
        self.resources = list(dict.fromkeys(named))
        self.trackers = [each for each in every if isinstance(each, TrackingResource)]

    def bases(self) -> list[Resource]:
        """List the resources that own the memory, each once."""
        return list(dict.fromkeys(base_of(each) for each in self.resources))

    def of_bases(self) -> Selection:
        """Replace adaptors by the resources that they stand on."""
        other = copy(self)
        other.resources = self.bases()
        return other

    def roots(self) -> list[Resource]:
        """List resources that have each block of the selection, and none twice."""
        sources = dict.fromkeys(_source_of(each) for each in self.resources)
        return [each for each in sources if not _stands_on_one(each, sources)]

    def rows(self) -> Iterator[Row]:
        """Yield every block and arena of the selection once, in any order."""
        for root in self.roots():
            yield from self.blocks(root)
            yield from arena_rows(root)

    def blocks(self, root: Resource) -> list[Row]:
        """List the blocks of a resource that are not segments of a selected pool."""
        return self._divide(root)[1]

    def segment_bytes(self, root: Resource) -> int:
        """Return the bytes of a resource that are segments of selected pools."""
        if not self._pools_on(base_of(root)):
            return 0
        return sum(row.rounded_bytes for row in self._divide(root)[0])

    def _divide(self, root: Resource) -> tuple[list[Row], list[Row]]:
        """Divide the blocks of a resource into segments of pools, and others."""
        base = base_of(root)
        pools = self._pools_on(base)
        starts = _addresses_in(pools)
        blocks = [
            Row(nbytes, address, rounded, tag, base)
            for address, nbytes, rounded, tag in blocks_of(root)
        ]
        # another thread may have taken a segment meanwhile
        starts |= _addresses_in(pools)
        parts: tuple[list[Row], list[Row]] = [], []
        for row in blocks:
            parts[row.address not in starts].append(row)
        return parts

    def _pools_on(self, base: Resource) -> list[Pool]:
        """List the selected pools whose segments are blocks of a base."""
        if isinstance(base, SimulatedResource) or (
            isinstance(base, CudaResource) and base.page_bytes > 1
        ):
            return []  # it provides pages, not blocks
        pools = (each for each in self.resources if isinstance(each, Pool))
        return [
            each
            for each in pools
            if each.upstream is not None and base_of(each.upstream) is base
        ]

    def owners(self) -> dict[str, int]:
        """Return the bytes in use by tag, each block once and rounded up to 64."""
        sums: Counter[str] = Counter()
        for root in self.roots():
            if not self._pools_on(base_of(root)):
                sums.update(root.owners())
                continue
            for row in self.blocks(root):
                sums[row.tag or "unnamed"] += row.rounded_bytes
            for row in arena_rows(root):
                sums[row.tag or "unnamed"] += row.rounded_bytes
        return dict(sums)

    def noted(self, base: Resource) -> dict[int, LiveBlock]:
        """Return the records of tracking resources on a base's blocks, by address."""
        known: dict[int, LiveBlock] = {}
        for tracker in self.trackers:
            if base_of(tracker) is base:
                for block in tracker.live():
                    if block.stack or block.address not in known:
                        known[block.address] = block
        return known

    def trackers_of(self, base: Resource) -> list[TrackingResource]:
        """List the tracking resources on a base that stand on no other of them."""
        return [
            each
            for each in self.trackers
            if base_of(each) is base and not _stands_on_one(each, self.trackers)
        ]


def arena_rows(resource: Resource) -> Iterator[Row]:
    """Yield the non-empty arenas of a pool; other resources have none."""
    for arena in live_arenas.alive():
        if arena.pool is resource:
            address, nbytes, rounded, tag = arena_of(arena)
            if nbytes > 0:
                yield Row(nbytes, address, rounded, tag, resource, "arena")


def _addresses_in(pools: list[Pool]) -> set[int]:
    """Return the start addresses of ranges in pools, including all segments'."""
    return {row[1] for pool in pools for row in layout_of(pool)}


def _source_of(resource: Resource) -> Resource:
    """Return the resource below adaptors without metadata, which share its blocks."""
    while isinstance(resource, FailureCallbackResource):
        assert resource.upstream is not None
        resource = resource.upstream
    return resource


def _stands_on_one(resource: Resource, others: Container[Resource]) -> bool:
    """Return whether a resource below, down to the base, is among the others."""
    return any(below in others for below in _chain(resource))


def _chain(resource: Resource) -> Iterator[Resource]:
    """Yield the resources below an adaptor, down to its base."""
    below = _below(resource)
    while below is not None:
        yield below
        below = _below(below)
