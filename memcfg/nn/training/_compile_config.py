"""What `compile` was told."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memcfg.nn.losses import SparseCategoricalCrossentropy, get_loss, get_metrics
from memcfg.nn.optimizers import Optimizer, get_optimizer
from memcfg.nn.training._execution_modes import Modes, check_mode
from memcfg.plan import POLICIES, auto
from memcfg.workspaces import WorkspaceMode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memcfg.plan import Policy

__all__ = ["Setup", "get_modes", "get_policy", "make_setup"]


@dataclass(frozen=True)
class Setup:
    """How a model is trained.

    Parameters
    ----------
    optimizer : Optimizer
        Moves the weights.
    loss : SparseCategoricalCrossentropy
        Is minimised.
    metrics : tuple of str
        Names under which right answers are told.
    policy : Policy
        Plans the memory.
    modes : Modes
        Whether it is planned, or else where tensors live.
    device : str
        The name of the device that has the arena.
    """

    optimizer: Optimizer
    loss: SparseCategoricalCrossentropy
    metrics: tuple[str, ...]
    policy: Policy
    modes: Modes
    device: str


def get_policy(memory: Any) -> Policy:
    """Return the policy that `compile`'s argument means.

    Parameters
    ----------
    memory : Policy, str or None
        A policy such as ``memcfg.plan.share()``, its name, or None for ``auto``.

    Returns
    -------
    Policy
        The policy.

    Raises
    ------
    TypeError
        If it is none of these.
    ValueError
        If the name is unknown.
    """
    if memory is None:
        return auto()
    if isinstance(memory, str):
        if memory not in POLICIES:
            raise ValueError(
                f"unknown memory policy {memory!r}; known: {', '.join(POLICIES)}"
            )
        return POLICIES[memory]()
    if any(memory is factory for factory in POLICIES.values()):
        raise TypeError(f"memory is a policy: call it, as in plan.{memory.__name__}()")
    if not callable(memory) or inspect.isclass(memory):
        raise TypeError(
            f"memory is a policy such as plan.auto(), or its name, not {memory!r}"
        )
    found: Policy = memory
    return found


def get_modes(training: Any, inference: Any, memory: Any) -> Modes:
    """Return the workspace modes that `compile`'s arguments mean.

    Parameters
    ----------
    training, inference : WorkspaceMode or str
        As given.
    memory : Policy, str or None
        The policy as given: there must be something for it to plan.

    Returns
    -------
    Modes
        The modes.

    Raises
    ------
    ValueError
        If a mode is unknown, or a policy is given and nothing is planned.
    """
    modes = Modes(
        check_mode(training, "training_workspace_mode"),
        check_mode(inference, "inference_workspace_mode"),
    )
    if memory is not None and WorkspaceMode.ENABLED not in modes:
        raise ValueError(
            f"memory={memory!r} has nothing to plan: programs are planned in workspace "
            f"mode 'enabled' only, and the modes are {modes.training.value!r} for "
            f"training and {modes.inference.value!r} for inference. Leave memory out, "
            "or set one of the modes to 'enabled'"
        )
    return modes


def make_setup(
    optimizer: Any,
    loss: Any,
    metrics: Sequence[str] | None,
    memory: Any,
    modes: tuple[Any, Any],
    device: Callable[[], str],
) -> Setup:
    """Read `compile`'s arguments.

    Parameters
    ----------
    optimizer, loss, metrics, memory : object
        As `Model.compile` documents them.
    modes : tuple of object
        The workspace modes of training and of inference, as it documents them.
    device : callable
        Returns the device's name; called when all else is known to be right.

    Returns
    -------
    Setup
        What they mean.

    Raises
    ------
    TypeError, ValueError
        If one cannot be honoured.
    """
    return Setup(
        get_optimizer(optimizer),
        get_loss(loss),
        get_metrics(metrics),
        get_policy(memory),
        get_modes(*modes, memory),
        device(),
    )
