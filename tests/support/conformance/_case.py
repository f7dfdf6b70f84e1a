"""A model of the conformance table: how it is made, its inputs, and its loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

__all__ = ["Case", "loss_of"]


class Case(NamedTuple):
    """One model in training mode, with a small random configuration."""

    library: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]


def loss_of(made: Any) -> torch.Tensor:
    """Return the loss that a model computes, or a sum over what it returns."""
    loss = getattr(made, "loss", None)
    if loss is not None:
        return loss.mean()
    leaves = tree_leaves(list(made.values()) if isinstance(made, Mapping) else made)
    tensors = [e for e in leaves if isinstance(e, torch.Tensor) and e.requires_grad]
    return sum(each.float().square().mean() for each in tensors)
