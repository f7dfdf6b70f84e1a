"""A backward graph that runs as memcfg compiles it, or not at all.

PyTorch's compiled autograd copies backward graphs into a graph of its own, which frees,
drops and recomputes nothing as planned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import fx


def runs_as_planned(_: torch.Tensor) -> torch.Tensor:
    """Mark a graph that memcfg compiles; raise RuntimeError if the mark runs."""
    raise RuntimeError(
        "compiled autograd replaced the planned backward phase: disable "
        "torch._dynamo.compiled_autograd"
    )


def guard(graph: fx.Graph) -> None:
    """Make a graph raise RuntimeError before it computes."""
    sources = [node for node in graph.nodes if node.op == "placeholder"]
    read = next((node for node in sources if node.users), None)
    if read is None:
        return
    with graph.inserting_after(sources[-1]):
        node = graph.call_function(runs_as_planned, (read,))
    node.meta = dict(read.meta)
    read.replace_all_uses_with(node, delete_user_cb=lambda user: user is not node)


def unguard(graph: fx.Graph) -> None:
    """Let a guarded graph run."""
    for node in list(graph.nodes):
        if node.target is runs_as_planned:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
