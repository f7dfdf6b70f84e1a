"""Modules and inputs with fake tensors: nothing is computed, and nothing changed."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeCopyMode
from torch.utils._pytree import tree_map

from memcfg._first_line import first_line
from memcfg.torch.trace._replaced import Replaced

if TYPE_CHECKING:
    from torch import nn
    from torch._subclasses import FakeTensorMode


def faked(mode: FakeTensorMode, tree: Any) -> Any:
    """Return a tree with fake tensors for real ones."""

    def one(each: Any) -> Any:
        return mode.from_tensor(each) if isinstance(each, torch.Tensor) else each

    return tree_map(one, tree)


def faked_module(mode: FakeTensorMode, module: nn.Module) -> nn.Module:
    """Return a copy of a module with fake tensors, gradients too.

    What the module's own Python sets while it runs is the copy's. ValueError if it
    cannot be copied.
    """
    try:
        with FakeCopyMode(mode):
            twin: nn.Module = copy.deepcopy(module)
    except Exception as error:  # whatever the user's objects raise
        name = type(module).__name__
        raise ValueError(f"the {name} cannot be copied: {first_line(error)}") from error
    for own, other in zip(module.parameters(), twin.parameters(), strict=True):
        if own.grad is not None:
            with mode:
                other.grad = torch.empty_like(other)
    return twin


def state_of(module: nn.Module) -> list[torch.Tensor]:
    """Return the parameters and buffers of a module."""
    return [*module.parameters(), *module.buffers()]


def in_place_of(module: nn.Module, twin: nn.Module) -> Replaced:
    """Have a copy's tensors read where functions close over those of the module."""
    return Replaced(zip(state_of(module), state_of(twin), strict=True))
