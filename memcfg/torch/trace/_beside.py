"""What a step has in use beside its graph: gradients and workspaces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._python_dispatch import _disable_current_modes

from memcfg.torch.trace._traced import nbytes_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import fx

_aten = torch.ops.aten
_PRODUCTS = {_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm}
_workspaces: dict[torch.device, int] = {}


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
