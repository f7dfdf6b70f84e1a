"""What a loss outside of a module needs, by running it alone on fake tensors.

A plan of its traced graph is too low: for a mean of squares it gave 4 times the outputs
where eager holds 5, since backward formulas in C++ keep what a graph lets go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from memcfg._first_line import first_line
from memcfg.torch.trace._faked import faked, faked_module, in_place_of
from memcfg.torch.trace._kept_functions import kept_in_eager
from memcfg.torch.trace._live_storages import LiveStorages
from memcfg.torch.trace._same_numbers import same_numbers
from memcfg.torch.trace._traced import nbytes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn


def key_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Tell inputs apart by what the bytes of a loss depend on."""

    def told(each: Any) -> Any:
        if isinstance(each, torch.Tensor):
            return (each.dtype, tuple(each.shape), each.stride(), each.device)
        return each

    return repr(tree_map(told, (tuple(args), dict(kwargs))))


def loss_bytes(
    module: nn.Module,
    loss: Callable[[Any], torch.Tensor],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> int:
    """Return what a loss needs beside a module's outputs and their gradients.

    Nothing is computed: module and loss see fake tensors, which live as real ones do.
    What the loss makes is counted, and what it closes over is not; nor is scratch.
    ValueError where the module or the loss cannot be run so, or it not be copied.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    twin = faked_module(mode, module)
    with same_numbers(), kept_in_eager(), mode, torch.enable_grad():
        inputs, by_name = faked(mode, (tuple(args), dict(kwargs)))
        try:
            with in_place_of(module, twin):
                leaves, spec = tree_flatten(twin(*inputs, **by_name))
        except Exception as error:  # whatever the user's code raises
            raise ValueError(
                f"the model does not run on these inputs: {first_line(error)}"
            ) from error
        given, storages = [], {}
        for at, each in enumerate(leaves):
            if isinstance(each, torch.Tensor):
                if each.requires_grad:  # views of one storage have one gradient
                    storages[each.untyped_storage()._cdata] = nbytes_of(each)
                leaves[at] = torch.empty_like(each).requires_grad_(each.requires_grad)
                given.append(leaves[at])
        try:
            with LiveStorages(given) as live:
                made = _gradients(loss, tree_unflatten(leaves, spec), given)
        except Exception as error:  # whatever the user's code raises
            shapes = ", ".join(str(tuple(each.shape)) for each in given)
            raise ValueError(
                f"the loss cannot be traced with outputs of shape {shapes}: "
                f"{first_line(error)}{_hint(error)}"
            ) from error
    own = {each.untyped_storage()._cdata: nbytes_of(each) for each in made}
    planned: int = min(sum(own.values()), sum(storages.values()))
    peak: int = live.peak_bytes
    return max(0, peak - planned)


def _hint(error: Exception) -> str:
    """Say how a loss with targets is written; empty: it wants none."""
    if not isinstance(error, TypeError) or "required positional" not in str(error):
        return ""
    return ". It takes the outputs alone: loss=lambda out: cross_entropy(out, targets)"


def _gradients(
    loss: Callable[[Any], torch.Tensor], outputs: Any, leaves: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Return what the graph behind the loss is handed: memory of its own for each."""
    value = loss(outputs)
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise TypeError("it gives no scalar")
    read = [each for each in leaves if each.requires_grad]
    found = torch.autograd.grad(value, read, allow_unused=True)
    made = []
    for gradient, output in zip(found, read, strict=True):
        if gradient is None:
            made.append(torch.zeros_like(output))
        elif 0 in gradient.stride():  # an expanded one
            made.append(torch.empty_like(output).copy_(gradient))
        else:
            made.append(gradient)
    return made
