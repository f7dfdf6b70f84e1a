"""What a step has in use beside its graph: optimizer state, earlier gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from memcfg.torch._traced import nbytes_of, rounded

if TYPE_CHECKING:
    from collections.abc import Iterable

_ELEMENTS = 7  # of the parameter that an optimizer is tried with: like nothing else


def optimizer_bytes(optimizer: torch.optim.Optimizer | None) -> int:
    """Return the bytes of the state of an optimizer once it has stepped."""
    if optimizer is None:
        return 0
    total = 0
    for group in optimizer.param_groups:
        fresh = [each for each in group["params"] if each.requires_grad]
        tried = _tried(optimizer, group) if fresh else []
        for parameter in fresh:
            state = optimizer.state.get(parameter)
            if state:
                total += sum(map(nbytes_of, _tensors(state.values())))
            else:
                total += sum(_scaled(each, parameter) for each in tried)
    return total


def _tried(
    optimizer: torch.optim.Optimizer, group: dict[str, Any]
) -> list[torch.Tensor]:
    """Return the state that a step makes for a tiny parameter."""
    parameter = torch.nn.Parameter(torch.zeros(_ELEMENTS))
    parameter.grad = torch.zeros(_ELEMENTS)
    options = {k: v for k, v in group.items() if k in optimizer.defaults}
    options.pop("fused", None)
    other = type(optimizer)([parameter], **options)
    other.step()
    return _tensors(other.state[parameter].values())


def _scaled(state: torch.Tensor, parameter: torch.Tensor) -> int:
    if state.numel() != _ELEMENTS:
        return nbytes_of(state)
    return rounded(parameter.numel() * state.itemsize, parameter.device)


def _tensors(values: Iterable[Any]) -> list[torch.Tensor]:
    return [each for each in values if isinstance(each, torch.Tensor)]


def gradient_bytes(module: torch.nn.Module) -> int:
    """Return the bytes of the gradients that parameters have."""
    return sum(
        nbytes_of(each.grad) for each in module.parameters() if each.grad is not None
    )
