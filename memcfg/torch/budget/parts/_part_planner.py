"""Plans of the graphs of parts, by their shares of the limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memcfg.torch.budget._planner import Planner
from memcfg.torch.budget._step import Step
from memcfg.torch.budget.parts._part_graph import PartGraph

if TYPE_CHECKING:
    from memcfg.torch.budget.parts._shares import Share, Shares
    from memcfg.torch.spill._store import Store
    from memcfg.torch.trace._traced import Traced


@dataclass(frozen=True)
class PartStep(Step):
    """A planned part, and its share of the limit.

    Parameters
    ----------
    share : Share or None
        The share.
    """

    share: Share | None = None


@dataclass(eq=False, repr=False)
class PartPlanner(Planner):
    """Plans the graphs of parts of one class, each by its share of the limit.

    Parameters
    ----------
    shares : Shares or None
        The shares of all parts of the model.
    name : str
        The class of the parts.
    alike : int
        The number of modules of the class in the model.
    trained_bytes : int
        Bytes of the trained parameters of the part that is traced.
    """

    shares: Shares | None = None
    name: str = ""
    alike: int = 1
    trained_bytes: int = 0

    def _known(self, *_: object) -> None:
        """Return no earlier step: shares change."""

    def _planned(
        self, ways: tuple[Traced, ...], overhead: dict[str, int], store: Store | None
    ) -> Step:
        """Plan a graph by its share."""
        assert self.shares is not None
        graph = PartGraph(
            self.name, ways, self.settings.policy, self.trained_bytes, overhead
        )
        share = self.shares.of(graph, self.alike)
        made = share.plan
        traced = ways[made.way]
        return PartStep(traced, made.plan, overhead, None, ways, store, share=share)
