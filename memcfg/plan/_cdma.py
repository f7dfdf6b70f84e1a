"""Copies that are encoded on their way: compressing DMA, over any method that swaps.

Rhu et al., "Compressing DMA Engine: Leveraging Activation Sparsity for Training Deep
Neural Networks", HPCA 2018.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memcfg.errors import PlanError
from memcfg.plan._actions import Action, Encode, SwapIn, SwapOut
from memcfg.plan._codec_bytes import LOSSY, SPARSE, code_bytes
from memcfg.plan._gist import RECTIFIED
from memcfg.plan._lifetimes import tier_rates
from memcfg.plan._policy import is_lossless
from memcfg.plan._simulate import simulate, with_copies_placed
from memcfg.plan._sparsity import Densities
from memcfg.plan._vdnn import vdnn_all
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memcfg.graph import Graph
    from memcfg.plan._plan import Plan
    from memcfg.plan._policy import Policy

_TIER = "host"
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
        plan = self.base(graph, limit_bytes=limit_bytes)
        coded = self._coded(graph, plan)
        if coded == plan.actions:
            return replace(plan, method=self.name)
        placed = with_copies_placed(graph, replace(plan, actions=coded))
        found = simulate(graph, placed, tier_rates(graph))
        busy = found.seconds + found.codec_seconds
        predicted = replace(
            plan.predicted,
            host_peak_bytes=found.host_peak_bytes,
            moved_bytes=found.moved_bytes,
            stall_seconds=max(found.elapsed_seconds - busy, 0.0),
        )
        self._check_tier(graph, found.tier_peak_bytes.get(_TIER, 0))
        return replace(placed, method=self.name, predicted=predicted)

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
                if action.tier != _TIER:
                    raise PlanError(
                        f"cdma encodes copies to {_TIER!r}, and those of "
                        f"{graph.name!r} go to {action.tier!r}"
                    )
                actions[index] = replace(action, codec=self.codec, nbytes=room)
        if actions == list(plan.actions):
            return plan.actions
        return tuple(map(_unplaced, actions))

    def _check_tier(self, graph: Graph, nbytes: int) -> None:
        for tier in graph.tiers:
            limit = tier.limit_bytes
            if tier.name == _TIER and limit is not None and nbytes > limit:
                raise PlanError(
                    f"cdma has {format_bytes(nbytes, exact=True)} of {graph.name!r} on "
                    f"{_TIER!r}, whose limit is {format_bytes(limit, exact=True)}. "
                    "Raise spill_limit, or swap without codes"
                )


def _unplaced(action: Action) -> Action:
    if isinstance(action, SwapOut | SwapIn):
        return replace(action, offset=None)
    return action


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
