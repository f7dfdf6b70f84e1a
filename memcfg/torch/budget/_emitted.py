"""A plan as a traced graph: nodes in its order, repeated where it recomputes."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from memcfg.plan import Compute, Free, SwapIn, SwapOut, Wait
from memcfg.torch.budget._boxed import MODULE
from memcfg.torch.budget._swaps import (
    spill_region,
    spill_region_again,
    swap_in,
    swap_out,
    swapped_in,
    swapped_out,
)
from memcfg.torch.trace._generator_states import (
    run_and_save_state,
    run_with_state,
    state_before,
)
from memcfg.torch.trace._lengths import is_symbol
from memcfg.torch.trace._traced import RUNS_AS, is_tangent, values_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memcfg.plan import Plan
    from memcfg.torch.trace._traced import Traced


@dataclass
class _Away:
    """A tensor that has left: the nodes that view it, and the token for it."""

    roots: list[fx.Node]
    token: fx.Node
    coming: fx.Node | None = None


@dataclass(frozen=True)
class _Late:
    """A copy out that the plan began before its tensor existed."""

    offset: int | None
    is_waited_for: bool


@dataclass
class _Regions:
    """The places that copies go to: one for a step, which backward may take again."""

    store: int
    nbytes: int
    now: fx.Node | None = None
    is_current: bool = True  # of the phase that is emitted


class Emitter:
    """Writes a plan of a traced graph as a new graph.

    If tensors leave, `spill` is the number of the store that they go to and the bytes
    that they have there.
    """

    def __init__(
        self,
        source: fx.Graph,
        traced: Traced,
        plan: Plan,
        *,
        num_fwd_outputs: int,
        replays: tuple[Any, Any] = (run_and_save_state, run_with_state),
        spill: tuple[int, int] | None = None,
    ) -> None:
        self._source = source
        self._traced = traced
        self._plan = plan
        self._num_forward = num_fwd_outputs
        self._graph = fx.Graph()
        self._now: dict[fx.Node, fx.Node] = {}  # the current node for each source node
        self._of: dict[int, list[fx.Node]] = {}  # nodes by the tensor that they view
        self._roots: set[fx.Node] = set()  # nodes that made their storage, not views
        # the `getitem` nodes of nodes with several outputs
        self._parts: dict[fx.Node, list[fx.Node]] = {}
        # the sizes and other numbers that are read of tensors
        self._symbols: dict[fx.Node, list[fx.Node]] = {}
        for node in source.nodes:
            if node.target is operator.getitem:
                self._parts.setdefault(node.args[0], []).append(node)
            for each in node.all_input_nodes if is_symbol(node) else ():
                if not is_symbol(each):
                    self._symbols.setdefault(each, []).append(node)
        self._first, self._again = replays
        once = traced.unused_states(plan)
        self._states = {  # of the random ops that are replayed
            node: state
            for op, state in traced.states.items()
            if traced.storage_of[state] not in once and (node := traced.nodes[op])
        }
        self._state_tensors = {
            traced.storage_of[each] for each in traced.states.values()
        }
        self._begun: set[fx.Node] = set()
        self._late: dict[int, _Late] = {}  # copies out of states that do not exist yet
        self._at = 0  # the index of the action
        self._regions = None if spill is None else _Regions(*spill)
        self._away: dict[int, _Away] = {}
        self.saved: list[fx.Node] = []
        self.early: set[fx.Node] = set()

    def emit(self) -> fx.Graph:
        """Write the graph, and set `saved` to what backward reads of forward."""
        outputs = next(n for n in self._source.nodes if n.op == "output")
        for node in self._traced.sources:
            self._copy(node)
            self._roots.add(node)
        taken: dict[fx.Node, fx.Node] = {}
        for index, action in enumerate(self._plan.actions):
            self._at = index
            if isinstance(action, Free):
                self._forget(action.tensor)
            if isinstance(action, SwapOut | SwapIn | Wait):
                self._move(action)
            if not isinstance(action, Compute):
                continue
            node = self._traced.nodes[action.op]
            if node is not None and node.target is state_before:
                continue
            if node is not None:
                self._compute(action.op, node)
                continue
            if action.op != self._traced.boundary:  # the optimizer's
                continue
            taken = self._ended_forward(outputs)
        results = [
            taken[each]
            if each in taken and at < self._num_forward
            else self._value(each)
            if isinstance(each, fx.Node)
            else each
            for at, each in enumerate(outputs.args[0])
        ]
        made = self._graph.output(tuple(results))
        made.meta = dict(outputs.meta)
        early = self.early
        self.saved = [
            node
            for node in self._graph.nodes
            if node in early
            and not is_tangent(node)
            and any(user not in early and user is not made for user in node.users)
        ]
        late = [
            each
            for at, each in enumerate(results)
            if at >= self._num_forward and each in early and each not in self.saved
        ]
        self.saved += [node for node in dict.fromkeys(late) if not is_tangent(node)]
        return self._graph

    def _ended_forward(self, outputs: fx.Node) -> dict[fx.Node, fx.Node]:
        """Return the outputs of the forward phase, at its end."""
        taken = {each: self._value(each) for each in self._forward_outputs(outputs)}
        self._forget_views()
        self.early.update(self._graph.nodes)
        if self._regions is not None:
            self._regions.is_current = False
        return taken

    def _forward_outputs(self, outputs: fx.Node) -> Iterator[fx.Node]:
        for each in outputs.args[0][: self._num_forward]:
            if isinstance(each, fx.Node):
                yield each

    def _copy(self, node: fx.Node) -> fx.Node:
        made = self._graph.node_copy(node, self._value)
        self._put(node, made)
        if is_symbol(node):  # it is kept, as it has no bytes
            self._roots.add(node)
        return made

    def _put(self, node: fx.Node, made: fx.Node) -> None:
        """Set the current node for a source node."""
        made.meta = dict(node.meta)
        self._now[node] = made
        tensor = self._traced.storage_of.get(node)
        if tensor is not None:
            self._of.setdefault(tensor, []).append(node)
        for each in self._symbols.get(node, ()):
            if each not in self._now:  # the tensor may be gone when it is read
                self._copy(each)

    def _compute(self, number: int, node: fx.Node) -> None:
        """Write an op and the nodes that select its results."""
        op, made = self._traced.graph.ops[number], self._traced.made[number]
        for tensor in made:
            self._forget(tensor)
        for part in self._parts.get(node, ()):
            self._now.pop(part, None)
        if node in self._states:
            written = self._replay(node, self._states[node])
        else:
            written = self._copy(node)
            written.target = node.meta.get(RUNS_AS, node.target)
        written.meta[MODULE] = op.group if op.phase == "forward" else None
        self._roots.add(node)
        for part in self._parts.get(node, ()):
            if self._traced.storage_of.get(part) in made:
                self._copy(part)
                self._roots.add(part)

    def _replay(self, node: fx.Node, state: fx.Node) -> fx.Node:
        """Write a random op, which saves its state at first and replays it later."""
        args = fx.node.map_arg(node.args, self._value)
        kwargs = fx.node.map_arg(dict(node.kwargs), self._value)
        if node in self._begun:
            given = self._value(state), node.target, *args
            made = self._graph.call_function(self._again, given, kwargs)
            self._put(node, made)
            return made
        self._begun.add(node)
        both = self._graph.call_function(self._first, (node.target, *args), kwargs)
        both.meta = {**node.meta, "val": (state.meta["val"], node.meta["val"])}
        for at, each in enumerate((state, node)):
            self._put(each, self._graph.call_function(operator.getitem, (both, at)))
        self._roots.add(state)
        self._leave_late(self._traced.storage_of[state])
        return both

    def _value(self, node: fx.Node) -> fx.Node:
        """Return the current node for a source node; a view is made when first read."""
        if node not in self._now:
            if node in self._roots:
                raise AssertionError(f"{node} is read and not there")
            self._copy(node)
        return self._now[node]

    def _move(self, action: SwapOut | SwapIn | Wait) -> None:
        """Write the begin of a copy, or the wait for it.

        The state of a generator exists only once its op has run, and cannot be copied
        before that.
        """
        moved = (
            self._plan.actions[action.action] if isinstance(action, Wait) else action
        )
        assert isinstance(moved, SwapOut | SwapIn)
        known = moved.tensor in self._of or moved.tensor in self._away
        if moved.tensor in self._state_tensors and not known:
            if isinstance(moved, SwapOut):
                waits = isinstance(action, Wait)
                self._late[moved.tensor] = _Late(moved.offset, is_waited_for=waits)
            return
        match action:
            case SwapOut(tensor, offset=offset):
                self._away[tensor] = self._left(tensor, offset)
            case SwapIn(tensor):
                away = self._away[tensor]
                away.coming = self._call(swap_in, (away.token,), away.roots[0])
            case Wait(index):
                started = self._plan.actions[index]
                assert isinstance(started, SwapOut | SwapIn)
                away = self._away[started.tensor]
                if isinstance(started, SwapOut):
                    away.token = self._call(swapped_out, (away.token,))
                else:
                    self._returned(started.tensor, away)

    def _leave_late(self, tensor: int) -> None:
        """Write the copy out of a state that now exists, if it is to come back."""
        late = self._late.pop(tensor, None)
        if late is None:
            return
        for action in self._plan.actions[self._at :]:
            if isinstance(action, SwapOut) and action.tensor == tensor:
                return
            if isinstance(action, SwapIn) and action.tensor == tensor:
                self._away[tensor] = away = self._left(tensor, late.offset)
                if late.is_waited_for:
                    away.token = self._call(swapped_out, (away.token,))
                return

    def _left(self, tensor: int, offset: int | None) -> _Away:
        nodes = dict.fromkeys(self._of[tensor])
        roots = [node for node in nodes if node in self._roots]
        values = [self._now[node] for node in roots]
        nbytes = self._traced.graph.tensors[tensor].nbytes
        token = self._call(swap_out, (self._region(), values, offset, nbytes))
        return _Away(roots, token)

    def _returned(self, tensor: int, away: _Away) -> None:
        """Replace the nodes of a tensor by views of the copy that came back."""
        for number, node in enumerate(away.roots):
            given = (away.coming, away.token, number)
            self._now[node] = self._call(swapped_in, given, node)
        self._of.setdefault(tensor, []).extend(away.roots)

    def _region(self) -> fx.Node:
        """Return the place of copies, taken with the first copy of each phase."""
        regions = self._regions
        assert regions is not None, "a plan has tensors leave, and nobody said where to"
        if regions.now is None:
            given = (regions.store, regions.nbytes)
            regions.now = self._call(spill_region, given)
        elif not regions.is_current:
            regions.now = self._call(spill_region_again, (regions.now,))
        regions.is_current = True
        return regions.now

    def _call(
        self,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        like: fx.Node | None = None,
    ) -> fx.Node:
        """Write a call of a function, with the metadata of a node or of a token."""
        made = self._graph.call_function(run, args)
        if like is not None:
            made.meta = dict(like.meta)
        else:
            made.meta["val"] = self._token_value()
        return made

    def _token_value(self) -> torch.Tensor:
        """Return the metadata value of a token in traced graphs."""
        values = (value for node in self._source.nodes for value in values_of(node))
        with next(each.fake_mode for each in values if hasattr(each, "fake_mode")):
            return torch.empty(1, dtype=torch.int64, device="cpu")

    def _forget(self, tensor: int) -> None:
        for node in self._of.pop(tensor, ()):
            self._now.pop(node, None)

    def _forget_views(self) -> None:
        """Forget all nodes but those that ops made, so that only these are saved."""
        for node in [node for node in self._now if node not in self._roots]:
            del self._now[node]
