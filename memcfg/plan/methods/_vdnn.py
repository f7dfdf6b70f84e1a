"""Virtualized DNN: layer inputs are swapped out in the forward phase and prefetched.

Rhu et al., "vDNN: Virtualized Deep Neural Networks for Scalable, Memory-Efficient
Neural Network Design", MICRO 2016.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memcfg.ops import op_types
from memcfg.ops.of_float32 import OF_FLOAT32
from memcfg.plan.format._simulate import simulate
from memcfg.plan.methods._swapping import Away, plan_swaps
from memcfg.plan.search._full_tiers import in_own_numbers, tier_excess, within_tier
from memcfg.plan.search._policy import Method, fits
from memcfg.plan.search.algorithms._algorithms import (
    Choice,
    algorithms,
    choose,
    default,
    fastest,
    named,
    thriftiest,
    with_choice,
)
from memcfg.plan.search.recompute._chain import Chain, forward_ops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy
    from memcfg.plan.search._request import Request


class _Layers:
    """The forward ops as layers, with their backward ops and inputs."""

    def __init__(self, request: Request) -> None:
        graph = request.graph
        self.graph = graph
        self.ops = forward_ops(graph)
        self._kinds = {kind: _composites_of(kind) for kind in ("conv2d", "dense")}
        chain = Chain(request, [[op] for op in self.ops])
        backward = [(n, ops) for n, ops in enumerate(chain.backward) if ops][::-1]
        later = [op for _, ops in backward for op in ops]
        self.sequence = chain.finished([*self.ops, *later])
        self.place = {op: place for place, op in enumerate(self.sequence)}
        # Layers in the order of their backward, and the position where it begins.
        self.backward = [(n, min(self.place[op] for op in ops)) for n, ops in backward]
        self.inputs = self._inputs()

    def _inputs(self) -> dict[int, list[int]]:
        """For each layer, the tensors that it reads last and backward reads again."""
        graph, number = self.graph, {op: n for n, op in enumerate(self.ops)}
        fixed = {*graph.persistent, *graph.keep, *graph.losses}
        result: dict[int, list[int]] = defaultdict(list)
        for tensor, readers in enumerate(graph.consumers):
            ahead = [number[reader] for reader in readers if reader in number]
            if tensor not in fixed and ahead and len(ahead) < len(readers):
                result[max(ahead)].append(tensor)
        return result

    def first_use(self, tensor: int) -> int:
        """Return the position of the first op after the layers that reads a tensor."""
        layers = set(self.ops)
        readers = self.graph.consumers[tensor]
        return min(self.place[reader] for reader in readers if reader not in layers)

    def has(self, layer: int, kind: str) -> bool:
        """Return whether a layer is of an op type, or fused with others from it."""
        return self.graph.ops[self.ops[layer]].type in self._kinds[kind]


def _composites_of(kind: str) -> frozenset[str]:
    """Return an op type and the composite types that contain it."""
    composites = {
        result.name
        for result in op_types()
        if result.composite is not None
        and any(part.type == kind for part in result.composite.parts)
    }
    result = {kind, *composites}
    return frozenset(
        {*result, *(f"{each}_of_float32" for each in result & {*OF_FLOAT32})}
    )


def _leaving(layers: _Layers, *, convolutions: bool) -> set[int]:
    """Return the layers whose inputs are swapped: not dense, and not the last one."""
    return {
        layer
        for layer in layers.inputs
        if layer < len(layers.ops) - 1
        and not layers.has(layer, "dense")
        and (not convolutions or layers.has(layer, "conv2d"))
    }


def _swaps(layers: _Layers, leaving: set[int]) -> Iterator[Away]:
    """Yield when inputs are away, with a barrier at the end of each layer.

    While a layer's backward runs, the inputs of the next layer that misses them are
    prefetched, but not beyond the next convolution. An input that was not prefetched is
    copied in when it is needed.
    """
    comes: dict[int, tuple[int, int]] = {}  # layer -> start and end of its copy in
    starts = [place for _, place in layers.backward]
    for index, (layer, begin) in enumerate(layers.backward):
        if layer in leaving and layer not in comes:
            comes[layer] = (begin, begin)
        after = starts[index + 1] if index + 1 < len(starts) else len(layers.sequence)
        wanted = _next_missing(layers, leaving.difference(comes), layer)
        if wanted is not None:
            comes[wanted] = (begin, after)
    for layer in sorted(leaving):
        out = layers.place[layers.ops[layer]]
        for tensor in layers.inputs[layer]:
            use = layers.first_use(tensor)
            arrive, back = comes.get(layer, (use, use))
            arrive, back = min(arrive, use), min(back, use)
            if out + 1 <= arrive:
                yield Away(tensor, out, out + 1, arrive, back)


def layers_away(request: Request, which: str) -> tuple[list[int], list[Away]]:
    """Return vDNN's order of ops, and the swapped inputs of "all", "conv" or "none"."""
    layers = _Layers(request)
    leaving: set[int] = set()
    if which != "none":
        leaving = _leaving(layers, convolutions=which == "conv")
    return layers.sequence, [*_swaps(layers, leaving)]


def _next_missing(layers: _Layers, missing: set[int], layer: int) -> int | None:
    for earlier in reversed(range(layer)):
        if earlier in missing:
            return earlier
        if layers.has(earlier, "conv2d"):
            return None
    return None


# -- policies --------------------------------------------------------------------


def _plan(request: Request, which: str, choice: Choice) -> Plan:
    """Plan with the inputs of all layers, of convolutions or of none swapped out."""
    own = request
    if choice:
        own = replace(request, graph=with_choice(request.graph, choice), known={})
    plan = plan_swaps(own, *layers_away(own, which))
    names = {request.order[index]: each.name for index, each in choice.items()}
    return replace(
        plan,
        actions=named(plan.actions, names),
    )


def _downgraded(request: Request, which: str) -> Plan:
    """Plan with the fastest algorithms, and less scratch where the limit is exceeded.

    Each round gives the op at the peak the next smaller scratch.
    """
    graph = request.graph
    choice = choose(graph, fastest)
    while True:
        plan = _plan(request, which, choice)
        if fits(plan) or request.is_over():
            return plan
        given = in_own_numbers(request, plan)
        at = simulate(graph, given).peak_op
        op = None if at is None else graph.ops[at]
        now = None if op is None else choice.get(at or 0, default(op))
        less = [
            each
            for each in (algorithms(op) if op else ())
            if now is not None and each.scratch_bytes < now.scratch_bytes
        ]
        if at is None or not less:
            return plan
        choice[at] = max(less, key=lambda each: each.scratch_bytes)


def _dynamic(request: Request) -> Plan:
    """Return the first plan of the ladder that fits on the device and its tiers."""
    graph = request.graph
    fast, thrifty = choose(graph, fastest), choose(graph, thriftiest)
    lowest = _plan(request, "all", thrifty)
    if not fits(lowest):
        return lowest
    nothing = _plan(request, "none", fast)
    rungs: Iterable[Callable[[], Plan]] = (
        lambda: nothing,
        lambda: _plan(request, "conv", fast),
        lambda: _plan(request, "all", fast),
        lambda: _downgraded(request, "conv"),
        lambda: _downgraded(request, "all"),
        lambda: _plan(request, "conv", thrifty),
    )
    for rung in rungs:
        plan = rung()
        if fits(plan) and not tier_excess(request, plan):
            return plan
        if request.is_over():
            break
    return within_tier(request, lowest)


_PICKS = {"performance": fastest, "memory": thriftiest}


@dataclass(frozen=True)
class _Static:
    """Planning function of one rung of the ladder; a value, for comparison."""

    which: str
    algorithms: str

    def __post_init__(self) -> None:
        if self.algorithms not in _PICKS:
            known = " or ".join(map(repr, _PICKS))
            raise ValueError(f"algorithms must be {known}, not {self.algorithms!r}")

    def __call__(self, request: Request) -> Plan:
        pick = _PICKS[self.algorithms]
        plan = _plan(request, self.which, choose(request.graph, pick))
        return within_tier(request, plan)


_OTHER = "vdnn_dyn(), which may choose algorithms of less scratch"


def vdnn_all(algorithms: str = "performance") -> Policy:
    """Swap out the inputs of all layers except the classifier's, as vDNN-all.

    Each layer's input is copied out while its last reader in the forward phase runs,
    and prefetched while the backward of a later layer runs. Copies are waited for at
    the end of each layer. An input goes to the first tier that has room.

    Parameters
    ----------
    algorithms : {"performance", "memory"}, default "performance"
        Use the fastest algorithm of each op, as vDNN (p), or the one with the least
        scratch, as vDNN (m). Different algorithms may round differently.

    Returns
    -------
    Policy
        A value that can be compared; calling it with a graph and a limit returns a
        plan.

    Raises
    ------
    ValueError
        If `algorithms` is neither.

    Notes
    -----
    Rhu et al., MICRO 2016. A layer is an op of the forward phase. If several layers
    read a tensor, it is copied out during the last of them.
    """
    return Method("vdnn_all", _Static("all", algorithms), _OTHER, swaps=True)


def vdnn_conv(algorithms: str = "performance") -> Policy:
    """Swap out the inputs of convolutions only, as vDNN-conv; see `vdnn_all`.

    Parameters
    ----------
    algorithms : {"performance", "memory"}, default "performance"
        See `vdnn_all`.

    Returns
    -------
    Policy
        A value that can be compared; calling it with a graph and a limit returns a
        plan.

    Raises
    ------
    ValueError
        If `algorithms` is neither.

    Notes
    -----
    Rhu et al., MICRO 2016.
    """
    return Method("vdnn_conv", _Static("conv", algorithms), _OTHER, swaps=True)


def vdnn_dyn() -> Policy:
    """Choose swapped inputs and algorithms for a limit, as vDNN-dyn.

    The policy returns the first plan that fits: with the fastest algorithms, it swaps
    nothing, the inputs of convolutions, or those of all layers; then it reduces the
    scratch of ops that do not fit one after another; last, it uses the least scratch.

    Returns
    -------
    Policy
        A value that can be compared; calling it with a graph and a limit returns a
        plan.

    Notes
    -----
    Rhu et al., MICRO 2016; the order of candidates is that of the authors' program.
    """
    return Method("vdnn_dyn", _dynamic, swaps=True)
