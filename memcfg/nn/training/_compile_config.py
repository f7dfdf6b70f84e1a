"""What `compile` was told, and the modes that it may choose from."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from memcfg import plan as planning
from memcfg._checks import check_policy, unknown
from memcfg.graph import TIMES
from memcfg.workspaces import WorkspaceMode

if TYPE_CHECKING:
    from memcfg.nn.optimizers import Optimizer
    from memcfg.nn.training._objectives import Goals
    from memcfg.plan import Policy

__all__ = [
    "PLANNED",
    "CompileConfig",
    "Modes",
    "get_modes",
    "get_policy",
    "get_times",
]


class Modes(NamedTuple):
    """The workspace modes of a model: of training steps, and of everything else."""

    training: WorkspaceMode
    inference: WorkspaceMode

    def of(self, kind: str) -> WorkspaceMode:
        """Return the mode of a program: ``train``, ``evaluate`` or ``predict``."""
        return self.training if kind == "train" else self.inference


PLANNED = Modes(WorkspaceMode.ENABLED, WorkspaceMode.ENABLED)


@dataclass(frozen=True)
class CompileConfig:
    """How a model is trained; `device` is the name of that which has its arena.

    `frozen` names the weights that are not, as the layers said when it was compiled.
    """

    optimizer: Optimizer
    goals: Goals
    policy: Policy
    modes: Modes
    device: str
    frozen: frozenset[str] = frozenset()
    times: str = TIMES[0]


def get_policy(memory: Any) -> Policy:
    """Return the policy that `compile`'s argument means: an object, a name, or None."""
    if memory is None:
        return planning.auto()
    if isinstance(memory, str):
        if memory not in planning.NAMED_POLICIES:
            raise unknown("memory policy", memory, planning.NAMED_POLICIES)
        return planning.NAMED_POLICIES[memory]()
    for name, factory in planning.NAMED_POLICIES.items():
        if memory is factory:
            raise TypeError(f"memory is a policy: call it, or write its name, {name!r}")
    if not callable(memory) or inspect.isclass(memory):
        raise TypeError(
            f"memory is a policy such as plan.auto(), or its name, not {memory!r}"
        )
    check_policy(memory)
    found: Policy = memory
    return found


def get_modes(training: Any, inference: Any, memory: Any) -> Modes:
    """Return the workspace modes that `compile`'s arguments mean."""
    modes = Modes(
        _mode(training, "training_workspace_mode"),
        _mode(inference, "inference_workspace_mode"),
    )
    if memory is not None and WorkspaceMode.ENABLED not in modes:
        raise ValueError(
            f"memory={memory!r} has nothing to plan: programs are planned in workspace "
            f"mode 'enabled' only, and the modes are {modes.training.value!r} for "
            f"training and {modes.inference.value!r} for inference. Leave memory out, "
            "or set one of the modes to 'enabled'"
        )
    return modes


def get_times(times: Any, modes: Modes) -> str:
    """Return the times of ops that `compile`'s argument means."""
    if not isinstance(times, str):
        raise TypeError(f"times is one of {', '.join(TIMES)}, not {times!r}")
    if times not in TIMES:
        raise unknown("times", times, TIMES)
    if times != TIMES[0] and WorkspaceMode.ENABLED not in modes:
        raise ValueError(
            f"times={times!r} has nothing to plan: programs are planned in workspace "
            f"mode 'enabled' only, and the modes are {modes.training.value!r} for "
            f"training and {modes.inference.value!r} for inference"
        )
    return str(times)


def _mode(mode: Any, what: str) -> WorkspaceMode:
    try:
        return WorkspaceMode(mode)
    except ValueError:
        known = ", ".join(repr(each.value) for each in WorkspaceMode)
        raise ValueError(f"{what} is one of {known}, not {mode!r}") from None
