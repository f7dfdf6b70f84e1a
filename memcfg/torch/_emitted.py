"""A plan as a traced graph again: nodes in its order, computed as often as it says."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from torch import fx
from torch.fx.graph import CodeGen

from memcfg.plan import Compute, Free
from memcfg.torch._generator_states import (
    run_and_save_state,
    run_with_state,
    state_before,
)
from memcfg.torch._traced import is_tangent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcfg.plan import Plan
    from memcfg.torch._traced import Traced


class BoxedCodeGen(CodeGen):  # type: ignore[misc]
    """Code that takes a list and empties it, so that what it takes can be freed."""

    def gen_fn_def(
        self, free_vars: list[str], maybe_return_annotation: str, **_: Any
    ) -> str:
        """Write the head of the function."""
        names = [each.split(":")[0].split("=")[0].strip() for each in free_vars]
        names = [name for name in names if name != "self"]
        head = f"def {self._func_name}(self, boxed){maybe_return_annotation}:"
        if names:
            head += f"\n    {', '.join(names)}, = boxed"
        return f"{head}\n    boxed.clear()"


def boxed(module: fx.GraphModule) -> Any:
    """Return a graph as a function of a list, which it empties."""
    module.graph.set_codegen(BoxedCodeGen())
    module.recompile()
    run = module.forward

    def call(arguments: list[Any]) -> Any:
        return run(arguments)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


class Emitter:
    """Writes a plan of a traced graph as a new graph."""

    def __init__(
        self,
        source: fx.Graph,
        traced: Traced,
        plan: Plan,
        *,
        num_fwd_outputs: int,
        replays: tuple[Any, Any] = (run_and_save_state, run_with_state),
    ) -> None:
        self._source = source
        self._traced = traced
        self._plan = plan
        self._num_forward = num_fwd_outputs
        self._graph = fx.Graph()
        self._now: dict[fx.Node, fx.Node] = {}  # what a node is at this time
        self._of: dict[int, list[fx.Node]] = {}  # nodes by the tensor that they view
        self._roots: set[fx.Node] = set()  # the nodes that made what they are
        self._parts: dict[fx.Node, list[fx.Node]] = {}  # of nodes with several outputs
        for node in source.nodes:
            if node.target is operator.getitem:
                self._parts.setdefault(node.args[0], []).append(node)
        self._first, self._again = replays
        once = traced.unused_states(plan)
        self._states = {  # of the random ops that are replayed
            node: state
            for op, state in traced.states.items()
            if traced.storage_of[state] not in once and (node := traced.nodes[op])
        }
        self._begun: set[fx.Node] = set()
        self.saved: list[fx.Node] = []
        self.early: set[fx.Node] = set()

    def emit(self) -> fx.Graph:
        """Write the graph; `saved` is then what backward reads of forward."""
        outputs = next(n for n in self._source.nodes if n.op == "output")
        for node in self._traced.sources:
            self._copy(node)
            self._roots.add(node)
        taken: dict[fx.Node, fx.Node] = {}
        early = self.early
        for action in self._plan.actions:
            if isinstance(action, Free):
                self._forget(action.tensor)
            if not isinstance(action, Compute):
                continue
            node = self._traced.nodes[action.op]
            if node is not None and node.target is state_before:
                continue
            if node is not None:
                self._compute(node, self._traced.made[action.op])
                continue
            if action.op != self._traced.boundary:  # the optimizer's
                continue
            for output in self._forward_outputs(outputs):
                taken[output] = self._value(output)
            self._forget_views()
            early.update(self._graph.nodes)
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

    def _forward_outputs(self, outputs: fx.Node) -> Iterator[fx.Node]:
        for each in outputs.args[0][: self._num_forward]:
            if isinstance(each, fx.Node):
                yield each

    def _copy(self, node: fx.Node) -> fx.Node:
        made = self._graph.node_copy(node, self._value)
        self._put(node, made)
        return made

    def _put(self, node: fx.Node, made: fx.Node) -> None:
        """Say what a node is now."""
        made.meta = dict(node.meta)
        self._now[node] = made
        tensor = self._traced.storage_of.get(node)
        if tensor is not None:
            self._of.setdefault(tensor, []).append(node)

    def _compute(self, node: fx.Node, made: list[int]) -> None:
        """Write an op, and what it makes by their own names."""
        for tensor in made:
            self._forget(tensor)
        for part in self._parts.get(node, ()):
            self._now.pop(part, None)
        if node in self._states:
            self._replay(node, self._states[node])
        else:
            self._copy(node)
        self._roots.add(node)
        for part in self._parts.get(node, ()):
            if self._traced.storage_of.get(part) in made:
                self._copy(part)
                self._roots.add(part)

    def _replay(self, node: fx.Node, state: fx.Node) -> None:
        """Write a random op: its state is saved the first time, and read again."""
        args = fx.node.map_arg(node.args, self._value)
        kwargs = fx.node.map_arg(dict(node.kwargs), self._value)
        if node in self._begun:
            given = self._value(state), node.target, *args
            self._put(node, self._graph.call_function(self._again, given, kwargs))
            return
        self._begun.add(node)
        both = self._graph.call_function(self._first, (node.target, *args), kwargs)
        both.meta = {**node.meta, "val": (state.meta["val"], node.meta["val"])}
        for at, each in enumerate((state, node)):
            self._put(each, self._graph.call_function(operator.getitem, (both, at)))
        self._roots.add(state)

    def _value(self, node: fx.Node) -> fx.Node:
        """Return what a node is now; a view is made where it is read first."""
        if node not in self._now:
            if node in self._roots:
                raise AssertionError(f"{node} is read and not there")
            self._copy(node)
        return self._now[node]

    def _forget(self, tensor: int) -> None:
        for node in self._of.pop(tensor, ()):
            self._now.pop(node, None)

    def _forget_views(self) -> None:
        """Forget all but what ops made: no more than that is saved for backward."""
        for node in [node for node in self._now if node not in self._roots]:
            del self._now[node]
