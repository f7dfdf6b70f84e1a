"""A backward graph that runs as memcfg compiles it, or not at all.

PyTorch's compiled autograd copies the backward graphs of what it finds into one of its
own, where nothing frees, drops or computes again as planned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import fx


def runs_as_planned(_: torch.Tensor) -> torch.Tensor:
    """Stand where a graph is memcfg's to compile; RuntimeError if it runs."""
    raise RuntimeError(
        "the backward phase of a planned step was compiled by another than memcfg: "
        "switch torch._dynamo.compiled_autograd off"
    )


def guard(graph: fx.Graph) -> None:
    """Let a graph raise RuntimeError when it runs, before it computes."""
    sources = [node for node in graph.nodes if node.op == "placeholder"]
    read = next((node for node in sources if node.users), None)
    if read is None:
        return
    with graph.inserting_after(sources[-1]):
        node = graph.call_function(runs_as_planned, (read,))
    node.meta = dict(read.meta)
    read.replace_all_uses_with(node, delete_user_cb=lambda user: user is not node)


def unguard(graph: fx.Graph) -> None:
    """Let a graph run that was guarded."""
    for node in list(graph.nodes):
        if node.target is runs_as_planned:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
