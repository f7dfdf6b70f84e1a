"""Compressing DMA: encoded copies, on top of any method that swaps.

Rhu et al., "Compressing DMA Engine: Leveraging Activation Sparsity for Training Deep
Neural Networks", HPCA 2018.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memcfg.errors import PlanError
from memcfg.plan.format._actions import Action, Encode, SwapOut
from memcfg.plan.format._codec_bytes import LOSSY, SPARSE, code_bytes
from memcfg.plan.format._simulate import simulate, tier_rates, with_tiers
from memcfg.plan.format._tier_choice import ENCODES, tiers_of
from memcfg.plan.methods._vdnn import vdnn_all
from memcfg.plan.search._full_tiers import TierFullError, beyond_limits, within_tiers
from memcfg.plan.search._policy import is_lossless
from memcfg.plan.search._request import by_tier
from memcfg.plan.search.swaps._sparsity import RECTIFIED, Densities

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memcfg.graph import Graph
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy

_LEAST = 1.05  # min. compression ratio of encoded copies


@dataclass(frozen=True)
class _Compressing:
    """Policy that adds codecs to the copies of another policy."""

    base: Policy
    codec: str
    densities: Densities
    swaps = True  # plans copy

    @property
    def name(self) -> str:
        """The method's name."""
        return "cdma"

    @property
    def lossless(self) -> bool:
        """Whether the base policy is lossless."""
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
                f"cdma encodes copies to {ENCODES!r}, but those of {graph.name!r} go "
                f"to {names}"
            )
        simulation = simulate(graph, placed, tier_rates(graph))
        if message := beyond_limits(self.name, graph, simulation):
            raise TierFullError(f"{message} Raise spill_limit, or swap without a codec")
        busy = simulation.seconds + simulation.codec_seconds
        predicted = replace(
            plan.predicted,
            host_peak_bytes=simulation.host_peak_bytes,
            moved_bytes=simulation.moved_bytes,
            stall_seconds=max(simulation.elapsed_seconds - busy, 0.0),
        )
        summary = plan.summary and replace(
            plan.summary, by_tier=by_tier(graph, simulation)
        )
        return replace(placed, method=self.name, predicted=predicted, summary=summary)

    def _coded(self, graph: Graph, plan: Plan) -> tuple[Action, ...]:
        """Return the actions with the codec on copies that it makes smaller."""
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
    """Compress the copies of a swapping method on their way, as cDMA.

    The plan is that of the method, with a codec on the copies of tensors that are
    expected to contain zeros: results of ReLUs and tensors computed from them. These
    copies move fewer bytes, so ops wait less; on the host each reserves its worst-case
    size. A tensor that is denser than expected is copied unencoded.

    Parameters
    ----------
    base : Policy, optional
        The method; None is `vdnn_all`.
    codec : {"zvc", "csr"}, default "zvc"
        The codec.
    density : float or mapping of str to float, default 0.6
        The expected fraction of nonzero elements of a ReLU's result; or a mapping from
        tensor names to fractions, with 0.6 for other tensors. It determines predicted
        times and which copies get the codec.

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
    Rhu et al., HPCA 2018. Tensors that the plan encodes by a lossy codec are dense, so
    their copies get no codec.
    """
    if codec not in SPARSE:
        raise ValueError(f"codec must be one of {SPARSE}, not {codec!r}")
    return _Compressing(base or vdnn_all(), codec, Densities.of(density, RECTIFIED))
