"""What the step of an optimizer has in use for a while, by a twin on fake tensors."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.optim import optimizer as optimizers
from torch.utils._python_dispatch import TorchDispatchMode

from memcfg._caller import outside
from memcfg._first_line import first_line
from memcfg.torch._beside import tensors_in, twin_of
from memcfg.torch._live_storages import LiveStorages

_WRAPPED = 128  # bytes of numbers that ops wrap as tensors, which no mode is told of
_STEPS = 100  # that a counter says: a step that is none of the first few


class _Counters(TorchDispatchMode):  # type: ignore[misc]
    """Gives numbers for what optimizers read of tensors, which are fake."""

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            dtype = args[0].dtype
            if dtype is torch.bool:
                return False
            return float(_STEPS) if dtype.is_floating_point else _STEPS
        return func(*args, **(kwargs or {}))


def update_bytes(optimizer: torch.optim.Optimizer | None) -> int | None:
    """Return the bytes that a step has in use beside parameters, gradients and state.

    Nothing is computed. Counted are the tensors that the optimizer makes, not what ops
    need while they run. None: there is no optimizer, or, with a warning, not known.
    """
    if optimizer is None:
        return None
    try:
        return _traced(optimizer) + _WRAPPED
    except Exception as error:  # whatever a step of the user's own raises
        warnings.warn(
            f"what a step of {type(optimizer).__name__} has in use for a while is not "
            f"known, and not counted: {first_line(error)}",
            RuntimeWarning,
            stacklevel=outside("torch"),
        )
        return None


def _traced(optimizer: torch.optim.Optimizer) -> int:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode, _Counters():
        groups = [_faked(mode, group) for group in optimizer.param_groups]
        twin = twin_of(optimizer, groups)
        twin.step()  # which makes the state
        parameters = [each for group in groups for each in group["params"]]
        gradients = [each.grad for each in parameters if each.grad is not None]
        state = [each for held in twin.state.values() for each in tensors_in(held)]
        with LiveStorages([*parameters, *gradients, *state]) as live:
            twin.step()
    peak: int = live.peak_bytes
    return peak


def _faked(mode: FakeTensorMode, group: dict[str, Any]) -> dict[str, Any]:
    """Return a group of fake parameters, each with a gradient."""
    own, made = group["params"], []
    for each in own:
        fake = mode.from_tensor(each).detach().requires_grad_(each.requires_grad)
        if each.requires_grad:
            fake.grad = torch.empty_like(fake)
        made.append(fake)
    faked = {**group, "params": made}
    if group.get("foreach", False) is None and group.get("fused") is None:
        # What it would choose by the types of its parameters, which are others here.
        faked["foreach"] = optimizers._default_to_fused_or_foreach(
            [each for each in own if each.requires_grad],
            group.get("differentiable", False),
            use_fused=False,
        )[1]
    return faked
