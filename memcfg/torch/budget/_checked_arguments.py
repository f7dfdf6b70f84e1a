"""Checks of the arguments that users give to budgets and estimates."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.parameter import is_lazy

from memcfg import plan as plans
from memcfg._checks import check_policy, unknown
from memcfg.torch.plans._kept_auto import KeptAuto
from memcfg.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from memcfg.plan import Policy

# An allocator gives each tensor its own bytes, so holes of an arena do not count.
ALLOCATED = KeptAuto(places=False)
ON_NEW_SHAPE = "bucket", "replan", "saved_tensors", "raise"


def checked_limit(limit: float | str) -> int | None:
    """Return the bytes of a limit, or None if it is infinite."""
    if isinstance(limit, float) and limit == math.inf:
        return None
    limit_bytes = parse_bytes(limit)  # type: ignore[arg-type] # which it checks
    if limit_bytes == 0:
        raise ValueError("a limit is more than 0 bytes; math.inf is no limit")
    return limit_bytes


def checked_policy(policy: Policy | None) -> Policy:
    """Return the policy, by default the best for bytes in use, or raise TypeError."""
    if policy is None:
        return ALLOCATED
    if not callable(policy) or isinstance(policy, type):
        raise TypeError(f"policy is a policy such as plan.auto(), not {policy!r}")
    name = getattr(policy, "__name__", "")
    # the user gave a class or function that makes a policy
    if getattr(plans, name, None) is policy:
        raise TypeError(f"policy is a policy: call plan.{name}()")
    check_policy(policy)
    return policy


def checked_on_new_shape(given: Any) -> str:
    """Return what to do with inputs of another shape, or raise ValueError."""
    if given not in ON_NEW_SHAPE:
        raise unknown("on_new_shape", given, ON_NEW_SHAPE)
    return str(given)


def checked_example(
    example: Any, example_kwargs: Any
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the positional and the keyword inputs, or raise TypeError."""
    if example is not None and not isinstance(example, (list, tuple)):
        kind = type(example).__name__
        raise TypeError(f"example is a sequence of inputs, such as (x,), not {kind}")
    if example_kwargs is not None and not isinstance(example_kwargs, Mapping):
        kind = type(example_kwargs).__name__
        raise TypeError(
            f"example_kwargs are inputs by name, such as {{'x': x}}, not {kind}"
        )
    return example or (), example_kwargs or {}


def check_module(model: Any) -> None:
    """Raise TypeError for what is no module."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model is a torch.nn.Module, not {type(model).__name__}")


def check_fits(
    model: nn.Module,
    inputs: tuple[Sequence[Any], Mapping[str, Any]] | None,
    optimizer: torch.optim.Optimizer | None = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
) -> None:
    """Raise TypeError or ValueError for what does not fit the model."""
    check_module(model)
    if loss is not None and not callable(loss):
        raise TypeError(
            "loss is a function of what the model returns, such as "
            f"lambda out: cross_entropy(out, targets), not {loss!r}"
        )
    if any(map(is_lazy, (*model.parameters(), *model.buffers()))):
        raise ValueError(
            "the model has lazy layers without shapes: run it once, then make the plan"
        )
    if inputs is not None:
        args, kwargs = inputs
        try:
            inspect.signature(model.forward).bind(*args, **kwargs)
        except TypeError as error:
            name = type(model).__name__
            raise TypeError(f"the example is not what {name} takes: {error}") from None
    if optimizer is None or not hasattr(optimizer, "param_groups"):
        return
    own = {id(each) for each in model.parameters()}
    steps = {id(each) for group in optimizer.param_groups for each in group["params"]}
    if own and not own & steps:
        raise ValueError("the optimizer has none of the model's parameters")
