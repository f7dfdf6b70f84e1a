"""Workspace modes as ways to run programs.

Owns the two ways that need workspaces, and which way a mode is. Refuses layouts, which
have modules of their own, and plans: a mode without a way is planned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from memcfg.nn.training._separate import separate_layout
from memcfg.nn.training._single import single_layout
from memcfg.nn.training._workspace_allocator import WorkspacePlacer
from memcfg.runtime import OwnBlocks, Walk, Way, graph_order, with_margin
from memcfg.workspaces import WorkspaceMode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memcfg.devices import Device
    from memcfg.graph import Graph
    from memcfg.nn.training._layout import Layout
    from memcfg.runtime import Placer

__all__ = ["PLANNED", "Modes", "check_mode", "way_of"]


@dataclass(frozen=True)
class _InWorkspaces:
    """A way in which tensors live in workspaces; see `memcfg.runtime.Way`."""

    name: str
    layout: Callable[[Walk], Layout]

    def order(self, graph: Graph) -> Sequence[int]:
        """Keep the order: no update can be followed by a lack of memory."""
        return graph_order(graph)

    def needed_bytes(self, walk: Walk) -> int:
        """Return the sum of the pages."""
        return sum(self.layout(walk).sizes(walk).values())

    def enough_bytes(self, walk: Walk) -> int:
        """Return that, and what the ends of the pages may cost."""
        sizes = self.layout(walk).sizes(walk)
        return with_margin(sum(sizes.values()), len(sizes))

    def placer(self, walk: Walk, device: Device, owner: str) -> Placer:
        """Make the placer."""
        layout = self.layout(walk)
        return WorkspacePlacer(walk, layout, layout.sizes(walk), device.pool, owner)


_WAYS: dict[WorkspaceMode, Way | None] = {
    WorkspaceMode.NONE: OwnBlocks(),
    WorkspaceMode.ENABLED: None,
    WorkspaceMode.SINGLE: _InWorkspaces("single", single_layout),
    WorkspaceMode.SEPARATE: _InWorkspaces("separate", separate_layout),
}


class Modes(NamedTuple):
    """The workspace modes of a model.

    Parameters
    ----------
    training : WorkspaceMode
        Of training steps.
    inference : WorkspaceMode
        Of evaluation and prediction.
    """

    training: WorkspaceMode
    inference: WorkspaceMode

    def of(self, kind: str) -> WorkspaceMode:
        """Return the mode of a program.

        Parameters
        ----------
        kind : str
            ``train``, ``evaluate`` or ``predict``.

        Returns
        -------
        WorkspaceMode
            The mode.
        """
        return self.training if kind == "train" else self.inference


PLANNED = Modes(WorkspaceMode.ENABLED, WorkspaceMode.ENABLED)


def way_of(mode: WorkspaceMode) -> Way | None:
    """Return the way in which programs of a mode run.

    Parameters
    ----------
    mode : WorkspaceMode
        The mode.

    Returns
    -------
    Way or None
        None where they are planned and compiled.
    """
    return _WAYS[mode]


def check_mode(mode: Any, what: str) -> WorkspaceMode:
    """Return the mode that an argument of `compile` means.

    Parameters
    ----------
    mode : WorkspaceMode or str
        What was given.
    what : str
        The argument's name.

    Returns
    -------
    WorkspaceMode
        The mode.

    Raises
    ------
    ValueError
        If it is none.
    """
    try:
        return WorkspaceMode(mode)
    except ValueError:
        known = ", ".join(repr(each.value) for each in WorkspaceMode)
        raise ValueError(f"{what} is one of {known}, not {mode!r}") from None
