"""What an optimizer keeps, and what its step has in use for a while, by a twin."""

from __future__ import annotations

import copy
import warnings
from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses import FakeTensorMode
from torch.optim import optimizer as optimizers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from memcfg._caller import outside
from memcfg._first_line import first_line
from memcfg.torch.trace._live_storages import LiveStorages
from memcfg.torch.trace._traced import nbytes_of, rounded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_WRAPPED = 128  # bytes of numbers that ops wrap as tensors, which no mode is told of
_STEPS = 100  # that a counter says: a step that is none of the first few
_ELEMENTS = 7  # of the parameter that an optimizer is tried with: like nothing else
_SWITCHES = (  # options that decide which tensors there are: None, or off where false
    "amsgrad",
    "centered",
    "differentiable",
    "foreach",
    "fused",
    "momentum",
    "nesterov",
    "weight_decay",
)


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
    # Also of parameters that are frozen or were replaced since.
    total = sum(map(nbytes_of, tensors_in(optimizer.state)))
    for group in optimizer.param_groups:
        own = [each for each in group["params"] if each.requires_grad]
        fresh: dict[Any, list[torch.Tensor]] = {}  # by all that state depends on
        for each in own:
            if not optimizer.state.get(each):
                like = each.shape, each.stride(), each.dtype, each.device
                fresh.setdefault(like, []).append(each)
        alike = list(fresh.values())
        made = _tried(optimizer, group, [each[0] for each in alike]) if alike else []
        total += sum(
            len(each) * nbytes for each, nbytes in zip(alike, made, strict=True)
        )
    return total


def _tried(
    optimizer: torch.optim.Optimizer,
    group: dict[str, Any],
    parameters: Sequence[torch.Tensor],
) -> list[int]:
    """Return the bytes of state that a step makes for each of some parameters.

    A twin steps with fake ones. What does not run so is tried with real ones of a few
    elements, and state like these is as large as a parameter.
    """
    group = {**group, "params": list(parameters)}
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with mode, _Counters():
            faked = _faked(mode, group)
            twin = twin_of(optimizer, [faked])
            twin.step()
        return [
            sum(map(nbytes_of, tensors_in(twin.state[each])))
            for each in faked["params"]
        ]
    except Exception:  # whatever a step of the user's own raises
        return [_tried_small(optimizer, group, each) for each in parameters]


def _tried_small(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], like: torch.Tensor
) -> int:
    with torch.enable_grad():
        small = torch.zeros(_ELEMENTS, dtype=like.dtype, device=like.device)
        small.requires_grad_().grad = torch.zeros_like(small)
    name = type(optimizer).__name__
    fused = {"fused": None} if "fused" in group else {}
    try:
        twin = twin_of(optimizer, [{**group, "params": [small], **fused}])
        twin.step()
    except Exception as error:
        raise ValueError(
            f"what {name} keeps cannot be tried ({first_line(error)}): let it step "
            "once before"
        ) from error
    return sum(
        nbytes_of(each)
        if each.numel() != _ELEMENTS
        else rounded(like.numel() * each.itemsize, like.device)
        for each in tensors_in(twin.state[small])
    )


def twin_of(
    optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]
) -> torch.optim.Optimizer:
    """Return an optimizer without state that may step, of other parameters.

    ValueError where that would let another optimizer step.
    """
    held = vars(optimizer)
    if any(isinstance(each, torch.optim.Optimizer) for each in held.values()):
        name = type(optimizer).__name__
        raise ValueError(f"{name} holds another optimizer")
    twin = object.__new__(type(optimizer))
    twin.__dict__.update((key, copy.copy(each)) for key, each in held.items())
    twin.__dict__.pop("step", None)  # a scheduler's, which steps the optimizer itself
    twin.__dict__.update((key, OrderedDict()) for key in held if key.endswith("_hooks"))
    twin.state = defaultdict(dict)
    twin.param_groups = groups
    return twin


def tensors_in(state: Mapping[Any, Any]) -> list[torch.Tensor]:
    """List the tensors of a state."""
    leaves = tree_leaves(list(state.values()))
    return [each for each in leaves if isinstance(each, torch.Tensor)]


def stepped_by(optimizer: torch.optim.Optimizer) -> list[tuple[Any, ...]]:
    """Return what the bytes of a step depend on: each group's parameters and options.

    A key that is equal means that they are the same.
    """
    return [
        (
            *((key, _switch(group[key])) for key in _SWITCHES if key in group),
            *map(_key_of, group["params"]),
        )
        for group in optimizer.param_groups
    ]


def _switch(value: Any) -> bool | None:
    return None if value is None else bool(value)


def _key_of(each: torch.Tensor) -> tuple[Any, ...]:
    return id(each), each.requires_grad, each.dtype, each.shape, each.device


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
