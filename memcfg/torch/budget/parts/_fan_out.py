"""Inputs that a part reads several times, as an input for each.

Autograd adds the gradients of a tensor one after the other, in the reverse order of the
ops that read it. A part would add those of its own ops first, and the sum to those of
ops outside: other bits. So each op of a part reads an alias of its own, and autograd
adds their gradients as in eager mode.
"""

from __future__ import annotations

from collections import Counter
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._dynamo.source import LocalSource
from torch._guards import TracingContext
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_ALIAS = "memcfg_alias"


class RoundedError(ValueError):
    """A part would round gradients otherwise than eager mode."""


def fan_out(
    module: fx.GraphModule, inputs: Sequence[Any]
) -> tuple[fx.GraphModule, list[Any], Callable[[Any], Any]]:
    """Give each op that reads an input an alias of it, if there are several.

    Parameters
    ----------
    module : fx.GraphModule
        The graph that Dynamo traced.
    inputs : sequence
        Its inputs.

    Returns
    -------
    fx.GraphModule
        The graph with aliases.
    list
        Its inputs, and tensors without data that stand for aliases.
    callable
        Makes a function of the inputs of one that takes aliases, too.

    Raises
    ------
    RoundedError
        If one op reads an input several times, in an order that is not known, or the
        memory of an output is laid out otherwise than its gradient will be.
    """
    module = _copy(module)
    graph = module.graph
    sources = [node for node in graph.nodes if node.op == "placeholder"]
    last = sources[-1] if sources else None
    places: list[int] = []
    fakes: list[torch.Tensor] = []
    with _fake_mode():
        for at, (node, value) in enumerate(zip(sources, inputs, strict=True)):
            if not isinstance(value, torch.Tensor) or not value.requires_grad:
                continue
            reads = _reads(node)
            # Each is an alias: a gradient of the input itself would be added first.
            for user, argument in reads if len(reads) > 1 else ():
                with graph.inserting_after(last):
                    last = graph.placeholder(f"{node.name}_{_ALIAS}_{len(places)}")
                last.meta = dict(node.meta)
                last._dynamo_source = LocalSource(last.name)
                _replace(user, argument, node, last)
                places.append(at)
                fakes.append(_like(value))
    graph.lint()
    module.recompile()
    _check(module, [*inputs, *fakes])

    def wrapped(run: Callable[..., Any]) -> Callable[..., Any]:
        if not places:
            return run

        def with_aliases(*given: Any) -> Any:
            aliases = [given[at].view_as(given[at]) for at in places]
            return run(*given, *aliases)

        return with_aliases

    return module, [*inputs, *fakes], wrapped


def _copy(module: fx.GraphModule) -> fx.GraphModule:
    """Return a copy of a graph: Dynamo reads its own after it is compiled."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(module.graph, copies))
    for old, new in copies.items():
        if hasattr(old, "_dynamo_source"):
            new._dynamo_source = old._dynamo_source
    made = fx.GraphModule(module, graph)
    made.meta = module.meta
    return made


def _fake_mode() -> Any:
    context = TracingContext.try_get()
    assert context is not None
    assert context.fake_mode is not None
    return context.fake_mode


def _like(value: torch.Tensor) -> torch.Tensor:
    """Return a leaf without data."""
    made = torch.empty_strided(
        value.shape, value.stride(), dtype=value.dtype, device=value.device
    )
    return made.requires_grad_(value.requires_grad)


def _reads(node: fx.Node) -> list[tuple[fx.Node, int | None]]:
    """Return the ops that read an input, and which argument it is, in their order.

    Backward adds their gradients in the reverse order, but those of the arguments of
    one op in theirs. A function of Python is one reader with all of its arguments
    (None), since it may compare them.
    """
    found: list[tuple[fx.Node, int | None]] = []
    for user in node.users:
        if user.op == "output" or isinstance(user.target, FunctionType):
            found.append((user, None))
            continue
        places = [at for at, each in enumerate(user.args) if each is node]
        if len(places) == _occurrences(user, node):
            found += [(user, at) for at in reversed(places)]
        else:  # in a list, or by name
            found.append((user, None))
    order = {each: at for at, each in enumerate(node.graph.nodes)}
    return sorted(found, key=lambda each: order[each[0]])


def _occurrences(user: fx.Node, node: fx.Node) -> int:
    """Return how often a node is an argument of another."""
    seen: Counter[fx.Node] = Counter()

    def see(each: fx.Node) -> fx.Node:
        seen[each] += 1
        return each

    fx.map_arg((user.args, user.kwargs), see)
    return seen[node]


def _replace(user: fx.Node, argument: int | None, old: fx.Node, new: fx.Node) -> None:
    """Let an op read another input."""
    if argument is None:
        user.replace_input_with(old, new)
    else:
        user.update_arg(argument, new)


def _check(module: fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Raise RoundedError if a gradient is not that of eager mode.

    It is not if autograd adds gradients of an input within the graph. Neither is it if
    an output is not contiguous: the compiler copies the gradient to its layout.
    """
    mode = _fake_mode()
    with mode, torch.enable_grad():
        given = [
            _like(each)
            if isinstance(each, torch.Tensor) and each.layout is torch.strided
            else each
            for each in inputs
        ]
        made = module(*given)
    edges: Counter[Any] = Counter()
    outputs = [each for each in tree_leaves(made) if isinstance(each, torch.Tensor)]
    outputs = [each for each in outputs if each.grad_fn is not None]
    if not all(each.is_contiguous() for each in outputs):
        raise RoundedError("an output is not contiguous")
    left = [each.grad_fn for each in outputs]
    known = set(left)
    while left:
        for following, _ in left.pop().next_functions:
            if following is None:
                continue
            edges[following] += 1
            if following not in known:
                known.add(following)
                left.append(following)
    own = {id(each) for each in given}
    for node, count in edges.items():
        variable = getattr(node, "variable", None)
        if count > 1 and variable is not None and id(variable) in own:
            raise RoundedError("an op reads an input several times")
