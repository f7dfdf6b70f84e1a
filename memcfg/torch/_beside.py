"""What a step has in use beside its graph: optimizer state, gradients, workspaces."""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._python_dispatch import _disable_current_modes

from memcfg.torch._traced import nbytes_of, rounded

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import fx

_aten = torch.ops.aten
_PRODUCTS = {_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm}
_workspaces: dict[torch.device, int] = {}

_ELEMENTS = 7  # of the parameter that an optimizer is tried with: like nothing else


def optimizer_bytes(optimizer: torch.optim.Optimizer | None) -> int:
    """Return the bytes of the state of an optimizer once it has stepped.

    Raises
    ------
    TypeError
        If it is no optimizer.
    ValueError
        If it has not stepped, and what it makes cannot be tried.
    """
    if optimizer is None:
        return 0
    if not isinstance(optimizer, torch.optim.Optimizer):
        kind = type(optimizer).__name__
        raise TypeError(f"optimizer is a torch.optim.Optimizer, not {kind}")
    total = 0
    for group in optimizer.param_groups:
        own = [each for each in group["params"] if each.requires_grad]
        stepped = [each for each in own if optimizer.state.get(each)]
        for parameter in stepped:
            total += sum(map(nbytes_of, tensors_in(optimizer.state[parameter])))
        fresh = [each for each in own if not optimizer.state.get(each)]
        tried = _tried(optimizer, group) if fresh else []
        total += sum(_scaled(each, parameter) for parameter in fresh for each in tried)
    return total


def _tried(
    optimizer: torch.optim.Optimizer, group: dict[str, Any]
) -> list[torch.Tensor]:
    """Return the state that a step makes for a tiny parameter, by a twin."""
    parameter = torch.nn.Parameter(torch.zeros(_ELEMENTS))
    parameter.grad = torch.zeros(_ELEMENTS)
    name = type(optimizer).__name__
    fused = {"fused": None} if "fused" in group else {}
    twin = twin_of(optimizer, [{**group, "params": [parameter], **fused}])
    try:
        twin.step()
    except Exception as error:
        raise ValueError(
            f"what {name} keeps cannot be tried ({error}): let it step once before"
        ) from error
    return tensors_in(twin.state[parameter])


def twin_of(
    optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]
) -> torch.optim.Optimizer:
    """Return an optimizer without state that may step, of other parameters.

    ValueError where that would let another optimizer step.
    """
    held = vars(optimizer)
    if any(isinstance(each, torch.optim.Optimizer) for each in held.values()):
        name = type(optimizer).__name__
        raise ValueError(
            f"what {name} keeps cannot be tried (it holds another optimizer): let it "
            "step once before"
        )
    twin = object.__new__(type(optimizer))
    twin.__dict__.update((key, copy.copy(each)) for key, each in held.items())
    twin.__dict__.pop("step", None)  # a scheduler's, which steps the optimizer itself
    twin.__dict__.update((key, OrderedDict()) for key in held if key.endswith("_hooks"))
    twin.state = defaultdict(dict)
    twin.param_groups = groups
    return twin


def _scaled(state: torch.Tensor, parameter: torch.Tensor) -> int:
    if state.numel() != _ELEMENTS:
        return nbytes_of(state)
    return rounded(parameter.numel() * state.itemsize, parameter.device)


def tensors_in(state: Mapping[Any, Any]) -> list[torch.Tensor]:
    """List the tensors of a parameter's state."""
    return [each for each in state.values() if isinstance(each, torch.Tensor)]


def gradient_bytes(module: torch.nn.Module) -> int:
    """Return the bytes of the gradients that parameters have."""
    return sum(
        nbytes_of(each.grad) for each in module.parameters() if each.grad is not None
    )


def workspace_bytes(nodes: Iterable[fx.Node]) -> int:
    """Return the bytes that cuBLAS keeps of PyTorch's allocator for a graph's products.

    It and cuBLASLt have workspaces for each of the two threads that multiply: the one
    that runs forward, and autograd's.
    """
    found = {
        value.device
        for node in nodes
        if getattr(node.target, "overloadpacket", None) in _PRODUCTS
        for value in [node.meta["val"]]
        if value.device.type == "cuda"
    }
    for device in found - _workspaces.keys():
        _workspaces[device] = _measured_workspace(device)
    return 2 * sum(_workspaces[device] for device in found)


def _measured_workspace(device: torch.device) -> int:
    """Return the bytes that products of one thread leave in use."""
    with (
        unset_fake_temporarily(),
        _disable_current_modes(),
        torch.no_grad(),
        torch._C._DisableAutocast(),
    ):
        torch._C._cuda_clearCublasWorkspaces()
        before = torch.cuda.memory_allocated(device)
        x = torch.ones(64, 64, device=device)
        x @ torch.nn.functional.linear(x, x, x[0])
        del x
        torch.cuda.synchronize(device)
        left = torch.cuda.memory_allocated(device) - before
        torch._C._cuda_clearCublasWorkspaces()
    return int(left)
