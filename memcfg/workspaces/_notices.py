"""What a workspace tells of by itself, when a cycle begins or ends.

Owns the words, and whether they are a warning or an error. Refuses to notice anything:
the native core does.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from memcfg._caller import outside
from memcfg.config import EscapePolicy
from memcfg.errors import (
    WorkspaceLeakError,
    WorkspaceLeakWarning,
    WorkspaceSpillWarning,
)
from memcfg.units import format_bytes
from memcfg.workspaces._escapes import describe_escapes

if TYPE_CHECKING:
    from memcfg.errors import ResourceExhaustedError
    from memcfg.workspaces._workspace import Workspace

__all__ = ["tell_of_disabled", "tell_of_escapes", "tell_of_no_page"]


def tell_of_escapes(workspace: Workspace, count: int) -> None:
    """Warn of arrays that are alive behind their cycle, or raise."""
    text = describe_escapes(workspace, count)
    if workspace.config.on_escape is EscapePolicy.ERROR:
        raise WorkspaceLeakError(text)
    warnings.warn(text, WorkspaceLeakWarning, stacklevel=outside())


def tell_of_no_page(workspace: Workspace, error: ResourceExhaustedError) -> None:
    """Warn that there is no page for a cycle."""
    size = format_bytes(workspace.stats().size)
    warnings.warn(
        f"workspace {workspace.name!r} cannot have its page of {size}, so each array "
        f"of this cycle gets a block of its own ({error}). Free memory, raise the "
        "limit, or lower max_size.",
        WorkspaceSpillWarning,
        stacklevel=outside(),
    )


def tell_of_disabled(workspace: Workspace) -> None:
    """Warn that a workspace was left disabled."""
    warnings.warn(
        f"workspace {workspace.name!r} was left disabled, and is enabled again: use "
        "`with workspace.disabled():`, which ends by itself",
        WorkspaceSpillWarning,
        stacklevel=outside(),
    )
