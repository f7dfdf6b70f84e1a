"""Registry of the workspaces that models keep between their steps.

Models depend on this package, so they register here what it lists and frees. The
registry owns no memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from memcfg._core._live import Living


@dataclass(frozen=True, slots=True)
class ModelWorkspace:
    """Snapshot of a workspace of a model in mode "single" or "separate".

    Only the model opens and fills the workspace. `memcfg.destroy_all_workspaces` frees
    it.

    Parameters
    ----------
    name : str
        Name in the model, such as ``"LOOP_EXTERNAL"``.
    model : str
        Name under which the device lists the model's memory.
    nbytes : int
        Size in bytes.
    thread_id : int or None
        Identifier (`threading.get_ident`) of the thread that ran the model's last step;
        None if the thread has ended.
    is_open : bool
        Whether that step was running when the workspace was listed.
    """

    name: str
    model: str
    nbytes: int
    thread_id: int | None
    is_open: bool


class WorkspaceHolder(Protocol):
    """Protocol of an object that keeps workspaces between steps."""

    def workspaces(self, *, of_this_thread: bool = False) -> list[ModelWorkspace]:
        """List the workspaces without waiting for a running step.

        Parameters
        ----------
        of_this_thread : bool, default False
            List them only if the calling thread ran the last step.
        """

    def free_workspaces(self) -> None:
        """Free the workspaces between two steps; the next step allocates them again.

        Raises
        ------
        RuntimeError
            If the calling thread is running a step, or another thread was running one
            when the process was forked.
        """


workspace_holders: Living[WorkspaceHolder] = Living()
