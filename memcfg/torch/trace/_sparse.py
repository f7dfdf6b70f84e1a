"""The refusal of tensors that have no storage to plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from memcfg.torch.trace._traced import module_of, values_of

if TYPE_CHECKING:
    from torch import fx


class SparseRefusedError(ValueError):
    """A step has sparse tensors."""


def check_dense(graph: fx.Graph) -> None:
    """Raise SparseRefusedError if something in a graph is sparse."""
    for node in graph.nodes:
        for value in values_of(node):
            if value.layout is not torch.strided:
                module = module_of(node)
                where = f" of module {module!r}" if module else ""
                kind = str(value.layout).removeprefix("torch.")
                raise SparseRefusedError(
                    f"the step has a tensor that is {kind} ({node.name}{where}), and "
                    "plans are of dense ones: pass sparse=False to embeddings"
                )
