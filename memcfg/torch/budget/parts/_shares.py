"""The shares that planned parts of a model have of its limit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from memcfg.torch.budget._live_passes import LivePasses
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memcfg.torch.budget._live_passes import Planned
    from memcfg.torch.budget.parts._part_graph import PartGraph, PartPlan
    from memcfg.torch.saved._unplanned import Watch

_TIMES = 4  # how often shares are made larger: each time parts are traced again

_SPARE = 32  # the part of what is left that stays free


@dataclass(eq=False)
class Share:
    """The plan that a graph of parts has now.

    Parameters
    ----------
    graph : PartGraph
        The graph.
    plan : PartPlan
        Its plan.
    alike : int
        The number of modules that may be such parts.
    calls : int
        The calls in the running pass, or in the last one.
    """

    graph: PartGraph
    plan: PartPlan
    alike: int
    calls: int = 0

    def line(self) -> str:
        """Say what is planned."""
        nbytes, full = self.plan.nbytes, self.graph.full.nbytes
        kept, running = format_bytes(nbytes.kept), format_bytes(nbytes.running)
        return (
            f"  {self.calls} × {self.graph.name}: each keeps {kept} of "
            f"{format_bytes(full.kept)} for backward, and needs {running} as it runs"
        )


@dataclass(eq=False)
class Shares:
    """The shares of all planned parts of a model.

    It holds nothing that is compiled, since what is compiled holds it.
    """

    watch: Watch | None = None  # of the pass that runs
    ran: list[Share] = field(default_factory=list)  # in the pass, in their order
    is_careful: bool = False  # whether every part needs as little as it can
    _saved: list[Any] = field(default_factory=list)
    _all: list[Share] = field(default_factory=list)
    _known: frozenset[Share] = frozenset()  # those that the room was given to
    _times: int = 0

    def of(self, graph: PartGraph, alike: int) -> Share:
        """Return the share of a graph; a new one is as small as it can be."""
        for each in self._all:
            known = each.graph
            if known.name == graph.name and [e.graph for e in known.ways] == [
                e.graph for e in graph.ways
            ]:
                return each
        made = Share(graph, graph.lean(alike), alike)
        self._all.append(made)
        return made

    @property
    def is_given(self) -> bool:
        """Whether parts have the room that a pass has left."""
        return bool(self._known) and not self.is_careful

    def begin(self, share: Share) -> None:
        """Leave room for the forward phase of a part; raises OutOfMemoryError."""
        if self.watch is not None:
            self.watch.leave(share.plan.nbytes.forward)

    def end(self, share: Share, outputs: Sequence[Any], saved: Sequence[Any]) -> None:
        """Count what the forward phase of a part has made, and is saved next."""
        self.ran.append(share)
        self._saved += saved
        if self.watch is not None:
            self.watch.hold(outputs)
            self.watch.leave()

    def saved(self) -> None:
        """Count what a part keeps for backward, which autograd has saved."""
        if self.watch is not None:
            self.watch.hold(self._saved)
            self.watch.leave()
        self._saved = []

    def stop(self) -> None:
        """Count no more, and keep nothing of a part that an error has ended."""
        self.watch = None
        self._saved = []

    def counted(self) -> None:
        """Count the calls of the pass that has ended."""
        for each in self._all:
            each.calls = 0
        for each in self.ran:
            each.calls += 1

    def give(self, room_bytes: int) -> set[str]:
        """Give parts the room that a pass has left; return the names of the changed.

        What parts keep grows in the same ratio. A set of parts is given room once.
        """
        active = frozenset(each for each in self.ran if each.graph.is_training)
        if self.is_careful or active <= self._known or self._times == _TIMES:
            return set()
        if room_bytes <= 0:
            return set()
        room_bytes -= room_bytes // _SPARE
        self._known, self._times = self._known | active, self._times + 1
        now = max(each.plan.nbytes.running for each in active)
        most = max(each.graph.full.nbytes.running for each in active)
        more = {
            each: each.graph.full.nbytes.kept - each.plan.nbytes.kept for each in active
        }
        wanted = sum(each.calls * nbytes for each, nbytes in more.items())
        fits = wanted + max(0, most - now) <= room_bytes
        changed = set()
        for each in active:
            if fits:
                plan: PartPlan | None = each.graph.full
            else:
                part = min(1.0, max(0, room_bytes) / max(1, wanted))
                kept = each.plan.nbytes.kept + int(part * more[each])
                plan = each.graph.within(kept, now)
            if plan is not None and plan.plan != each.plan.plan:
                each.plan = plan
                changed.add(each.graph.name)
        return changed

    def take_back(self) -> set[str]:
        """Let every part need as little as it can, until room is given again.

        Return the names of those that are changed.
        """
        self._known, changed = frozenset(), set()
        for each in self._all:
            plan = each.graph.lean(max(each.alike, each.calls))
            if plan.plan != each.plan.plan:
                each.plan = plan
                changed.add(each.graph.name)
        return changed

    def make_lean(self) -> set[str]:
        """Let every part need as little as it can from now on."""
        self.is_careful = True
        return self.take_back()

    def lacking(self) -> int:
        """Return the bytes that parts keep which have not run in the pass."""
        left = 0
        for each in set(self.ran):
            left += max(0, each.alike - self.ran.count(each)) * each.plan.nbytes.kept
        return left

    def lines(self) -> list[str]:
        """Say what is planned."""
        return [each.line() for each in self._all if each.calls]


class PartPasses(LivePasses):
    """The passes of parts: each is told to the shares.

    Parameters
    ----------
    shares : Shares
        The shares of all parts.
    """

    def __init__(self, shares: Shares) -> None:
        super().__init__()
        self._shares = shares

    def forward(
        self,
        step: Planned,
        limit: int | None,
        inputs: Sequence[int],
        outputs: int,
        run: Callable[[list[Any]], Any],
    ) -> Callable[[list[Any]], Any]:
        """Return a forward graph that leaves room for what it has in use."""
        share, shares = step.share, self._shares  # type: ignore[attr-defined]

        def call(arguments: list[Any]) -> Any:
            shares.begin(share)
            known = {_key(each) for each in arguments}
            made = run(arguments)
            self.count += 1
            new = [None if _key(each) in known else each for each in made]
            shares.end(share, new[:outputs], new[outputs:])
            return made

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    def backward(
        self, step: Planned, limit: int | None, run: Callable[[list[Any]], Any]
    ) -> Callable[[list[Any]], Any]:
        """Return a backward graph."""
        return run


def _key(value: Any) -> int | None:
    """Return which storage a tensor has; None if it has none."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return int(value.untyped_storage()._cdata)
