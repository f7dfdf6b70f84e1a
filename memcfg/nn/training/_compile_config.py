"""The arguments of `compile`, as values."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from memcfg import plan as planning
from memcfg._checks import check_policy, unknown
from memcfg.graph import TIMES
from memcfg.nn._argument_checks import limit_elsewhere
from memcfg.nn.training.alternatives._fallbacks import OnOom
from memcfg.nn.training.modes._named_workspaces import get_layer_workspaces
from memcfg.nn.training.modes._workspace_modes import execution_mode
from memcfg.workspaces import WorkspaceMode

if TYPE_CHECKING:
    from memcfg.config import DebugMode
    from memcfg.nn.optimizers import Optimizer
    from memcfg.nn.training._objectives import Goals
    from memcfg.nn.training.modes._workspace_modes import NamedWorkspaces
    from memcfg.plan import Policy
    from memcfg.runtime import ExecutionMode

__all__ = [
    "PLANNED",
    "CompileConfig",
    "Modes",
    "get_modes",
    "get_policy",
    "get_times",
]


class Modes(NamedTuple):
    """The workspace modes of a model's training steps and of its other programs."""

    training: WorkspaceMode
    inference: WorkspaceMode
    training_layers: NamedWorkspaces | None = None
    inference_layers: NamedWorkspaces | None = None

    def execution(self, kind: str, debug_mode: DebugMode) -> ExecutionMode | None:
        """Return how programs of a kind are laid out; None if a policy plans them.

        A kind is ``train``, ``evaluate`` or ``predict``.
        """
        mode, layers = self._of(kind)
        return execution_mode(mode, layers, debug_mode)

    def is_planned(self, kind: str) -> bool:
        """Return whether a policy plans programs of a kind."""
        mode, layers = self._of(kind)
        return mode is WorkspaceMode.ENABLED and layers is None

    def _of(self, kind: str) -> tuple[WorkspaceMode, NamedWorkspaces | None]:
        if kind == "train":
            return self.training, self.training_layers
        return self.inference, self.inference_layers

    @property
    def plans_nothing(self) -> str:
        """Return the reason why no policy plans any program; empty if one does."""
        if any(map(self.is_planned, ("train", "predict"))):
            return ""
        return (
            "programs are planned in workspace mode 'enabled' without layer_workspaces "
            f"only, and the modes are {self.training.value!r} for training and "
            f"{self.inference.value!r} for inference"
            + (", with layer_workspaces" if any(self[2:]) else "")
        )


PLANNED = Modes(WorkspaceMode.ENABLED, WorkspaceMode.ENABLED)


@dataclass(frozen=True)
class CompileConfig:
    """How a model is trained.

    `device` is the name of the device that holds the arena. `frozen` names the weights
    that were not trainable when the model was compiled.
    """

    optimizer: Optimizer
    goals: Goals
    policy: Policy
    modes: Modes
    device: str
    frozen: frozenset[str] = frozenset()
    times: str = TIMES[0]
    on_oom: OnOom = OnOom(("micro_batch",), None)  # noqa: RUF009


def get_policy(memory: Any) -> Policy:
    """Return the policy for `compile`'s argument: an object, a name, or None."""
    if memory is None:
        return planning.auto()
    if isinstance(memory, int | float | str) and str(memory)[:1].isdigit():
        kind = ValueError if isinstance(memory, str) else TypeError
        raise kind(  # a size or a share: no name of a policy begins with a digit
            f"memory is a policy such as plan.auto(), or its name, not {memory!r}; "
            f"{limit_elsewhere(memory)}"
        )
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
    result: Policy = memory
    return result


def get_modes(training: Any, inference: Any, layers: Any, memory: Any) -> Modes:
    """Return the workspace modes for `compile`'s arguments."""
    train = _mode(training, "training_workspace_mode")
    infer = _mode(inference, "inference_workspace_mode")
    modes = Modes(train, infer, *get_layer_workspaces(layers, train, infer))
    if memory is not None and (why := modes.plans_nothing):
        raise ValueError(
            f"memory={memory!r} has nothing to plan: {why}. Leave memory out, or "
            "use a mode that is planned for one of them"
        )
    return modes


def get_times(times: Any, modes: Modes) -> str:
    """Return the source of op times for `compile`'s argument."""
    if not isinstance(times, str):
        raise TypeError(f"times is one of {', '.join(TIMES)}, not {times!r}")
    if times not in TIMES:
        raise unknown("times", times, TIMES)
    if times != TIMES[0] and (why := modes.plans_nothing):
        raise ValueError(f"times={times!r} has nothing to plan: {why}")
    return str(times)


def _mode(mode: Any, what: str) -> WorkspaceMode:
    try:
        return WorkspaceMode(mode)
    except ValueError:
        known = ", ".join(repr(each.value) for each in WorkspaceMode)
        raise ValueError(f"{what} is one of {known}, not {mode!r}") from None
