"""A tensor without bytes that a forward graph saves for its backward.

Autograd frees it with the other saved tensors, after backward or with the graph. While
its storage lives, backward may still run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import fx

_empty = torch.ops.aten.empty.memory_format


def add_token(forward: fx.Graph, backward: fx.Graph, outputs: int) -> None:
    """Save a token after the outputs and before the other saved tensors."""
    output = forward.output_node()
    first = next(iter(backward.nodes))
    values = (node.meta.get("val") for node in (*forward.nodes, *backward.nodes))
    with next(each.fake_mode for each in values if hasattr(each, "fake_mode")):
        value = torch.empty(0, device="cpu")
    with forward.inserting_before(output):
        made = forward.call_function(_empty, ([0],), {"device": value.device})
    with backward.inserting_before(first):
        taken = backward.placeholder("pass_token")
    for node in (made, taken):
        node.meta["val"] = value
    results = list(output.args[0])
    output.args = ((*results[:outputs], made, *results[outputs:]),)
    if "desc" in output.meta:
        told = list(output.meta["desc"])
        output.meta["desc"] = [*told[:outputs], None, *told[outputs:]]
