"""Copies that are encoded on their way: compressing DMA, over any method that swaps.

Rhu et al., "Compressing DMA Engine: Leveraging Activation Sparsity for Training Deep
Neural Networks", HPCA 2018.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memcfg.errors import PlanError
from memcfg.plan.format._actions import Action, Encode, SwapOut
from memcfg.plan.format._codec_bytes import LOSSY, SPARSE, code_bytes
from memcfg.plan.format._simulate import simulate, with_tiers
from memcfg.plan.format._tier_choice import ENCODES, tiers_of
from memcfg.plan.methods._vdnn import vdnn_all
from memcfg.plan.search._full_tiers import TierFullError, beyond_limits, within_tiers
from memcfg.plan.search._policy import is_lossless
from memcfg.plan.search._request import by_tier, tier_rates
from memcfg.plan.search.swaps._sparsity import RECTIFIED, Densities

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memcfg.graph import Graph
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy

_LEAST = 1.05  # ratio below which bytes are copied as they are


@dataclass(frozen=True)
class _Compressing:
    """A policy of others' copies: a value, so that equal ones are equal."""

    base: Policy
    codec: str
    densities: Densities
    swaps = True  # not ops alone

    @property
    def name(self) -> str:
        """The method's name."""
        return "cdma"

    @property
    def lossless(self) -> bool:
        """Whether the method whose copies it encodes is."""
        return is_lossless(self.base)

    def __call__(self, graph: Graph, limit_bytes: int | None = None) -> Plan:
        """Plan a graph; see `Policy`."""
        return within_tiers(self.name, graph, limit_bytes, self._plan)

    def _plan(self, graph: Graph, limit_bytes: int | None) -> Plan:
        plan = self.base(graph, limit_bytes=limit_bytes)
        coded = self._coded(graph, plan)
        if coded == plan.actions:
            return replace(plan, method=self.name)
        tiers = tiers_of(graph)
        placed = with_tiers(graph, replace(plan, actions=coded), tiers)
        if not any(isinstance(a, SwapOut) and a.codec for a in placed.actions):
            names = " and ".join(repr(tier.name) for tier in tiers)
            raise PlanError(
                f"cdma encodes copies to {ENCODES!r}, and those of {graph.name!r} go "
                f"to {names}"
            )
        found = simulate(graph, placed, tier_rates(graph))
        if told := beyond_limits(self.name, graph, found):
            raise TierFullError(f"{told} Raise spill_limit, or swap without codes")
        busy = found.seconds + found.codec_seconds
        predicted = replace(
            plan.predicted,
            host_peak_bytes=found.host_peak_bytes,
            moved_bytes=found.moved_bytes,
            stall_seconds=max(found.elapsed_seconds - busy, 0.0),
        )
        summary = plan.summary and replace(plan.summary, by_tier=by_tier(graph, found))
        return replace(placed, method=self.name, predicted=predicted, summary=summary)

    def _coded(self, graph: Graph, plan: Plan) -> tuple[Action, ...]:
        """Return the actions with a codec for copies that it makes smaller."""
        sparse = self.densities.in_graph(graph)
        dense = {
            action.tensor
            for action in plan.actions
            if isinstance(action, Encode) and action.codec in LOSSY
        }
        actions = list(plan.actions)
        for index, action in enumerate(actions):
            if not isinstance(action, SwapOut) or action.tensor in dense:
                continue
            nbytes = graph.tensors[action.tensor].nbytes
            room = code_bytes(self.codec, nbytes, sparse.get(action.tensor, 1.0))
            if room * _LEAST <= nbytes:
                actions[index] = replace(action, codec=self.codec, nbytes=room)
        return tuple(actions)


def cdma(
    base: Policy | None = None,
    codec: str = "zvc",
    density: float | Mapping[str, float] = RECTIFIED,
) -> Policy:
    """Have lanes encode what a swapping method copies, as cDMA.

    The plan is that of the method, with codecs on the copies of tensors that are
    expected to have zeros: those of ReLUs, and what is made of them. They move fewer
    bytes, so that fewer ops wait; on the host each keeps the bytes that it may need at
    worst. A copy that turns out denser is moved as it is.

    Parameters
    ----------
    base : Policy, optional
        The method; None is `vdnn_all`.
    codec : {"zvc", "csr"}, default "zvc"
        The code.
    density : float or mapping of str to float, default 0.6
        What part of a ReLU's results is expected not to be 0; or that of tensors by
        name, and 0.6 of others. It decides times that are predicted, and which copies
        have a codec.

    Returns
    -------
    Policy
        A value that can be compared; calling it with a graph and a limit returns a
        plan.

    Raises
    ------
    ValueError
        If `codec` is neither, or a density is not between 0 and 1.

    Notes
    -----
    Rhu et al., HPCA 2018. Where backward reads a tensor encoded by a lossy codec, its
    copies have none: they are dense.
    """
    if codec not in SPARSE:
        raise ValueError(f"codec is one of {SPARSE}, not {codec!r}")
    return _Compressing(base or vdnn_all(), codec, Densities.of(density, RECTIFIED))
