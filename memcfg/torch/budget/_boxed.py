"""A traced graph as a function, whose ops allocate under the names of their modules."""

from __future__ import annotations

import operator
import re
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.fx.graph import CodeGen

from memcfg._core import intern_tag, swap_thread_tag
from memcfg.torch.limit._cpu_limit import module_tags

if TYPE_CHECKING:
    from collections.abc import Callable
    from weakref import ref

    from memcfg.torch.limit._module_tags import ModuleTags

# in the metadata of a node that computes: the path of its module, or None
MODULE = "memcfg.module"
_OP = r"torch\.ops\.(aten\.\w+\.\w+)(?=\()"
_BEFORE = "tag_before"  # the input that holds the number of the previous tag


class _CodeGen(CodeGen):  # type: ignore[misc]
    """Generates code that takes a list and empties it, so that inputs can be freed."""

    def gen_fn_def(
        self, free_vars: list[str], maybe_return_annotation: str, **_: Any
    ) -> str:
        """Return the head of the function."""
        names = [each.split(":")[0].split("=")[0].strip() for each in free_vars]
        names = [name for name in names if name != "self"]
        head = f"def {self._func_name}(self, boxed){maybe_return_annotation}:"
        if names:
            head += f"\n    {', '.join(names)}, = boxed"
        return f"{head}\n    boxed.clear()"


class Title:
    """The name of the outermost module of a step, under which its ops allocate.

    The forward graph sets it. The backward graph, which runs outside of any module,
    reads it.

    Parameters
    ----------
    text : str
        The name, until a wrapper around the module runs.
    module : weakref.ref or None, default None
        The module, if it is known.
    """

    def __init__(self, text: str, module: ref[torch.nn.Module] | None = None) -> None:
        self._text = text
        self._module = module

    def now(self, tags: ModuleTags) -> str:
        """Return the name of now."""
        module = None if self._module is None else self._module()
        if module is not None:
            return tags.text_of(module)
        self._text = tags.compiled() or self._text
        return self._text


def boxed(module: fx.GraphModule, title: Title) -> Callable[[list[Any]], Any]:
    """Return a graph as a function of a list, which it empties.

    While modules tag their allocations (`limit_cpu`), each op allocates under the tag
    of its module, as it would outside the graph. Backward ops have no module.
    """
    plain = _function(module, module.graph)
    tagged: dict[str, Callable[[list[Any]], Any]] = {}  # by the title

    def call(arguments: list[Any]) -> Any:
        tags = module_tags()
        if tags is None:
            return plain(arguments)
        text = title.now(tags)
        if text not in tagged:
            tagged[text] = _function(module, _tagged(module.graph, text))
        before = swap_thread_tag(0)
        swap_thread_tag(before)
        arguments.append(before)
        try:
            return tagged[text](arguments)
        finally:
            swap_thread_tag(before)

    call._boxed_call = True  # type: ignore[attr-defined] # what AOTAutograd asks
    return call


def _function(module: fx.GraphModule, graph: fx.Graph) -> Callable[[list[Any]], Any]:
    """Compile a graph.

    Ops and the graph are called without their Python wrappers, which saves 3 % of a
    step of a small GPT.
    """
    graph.set_codegen(_CodeGen())
    code = graph.python_code("self")
    known = dict(code.globals)

    def named(match: re.Match[str]) -> str:
        name = match[0].replace(".", "_")
        known[name] = operator.attrgetter(match[1])(torch.ops)._op
        return name

    exec(compile(re.sub(_OP, named, code.src), "<planned step>", "exec"), known)
    made: Callable[[list[Any]], Any] = partial(known["forward"], module)
    return made


def _tagged(graph: fx.Graph, title: str) -> fx.Graph:
    """Return a graph that sets the tag wherever the module changes."""
    made = fx.Graph()
    now: dict[fx.Node, fx.Node] = {}
    before, turn = None, ""
    for node in graph.nodes:
        if before is None and node.op != "placeholder":
            before = made.placeholder(_BEFORE)
        path = node.meta.get(MODULE)
        text = "" if path is None else ".".join(filter(None, (title, path)))
        if MODULE in node.meta and text != turn:
            number = intern_tag(text) if text else before
            made.call_function(swap_thread_tag, (number,))
            turn = text
        now[node] = made.node_copy(node, now.__getitem__)
    return made
