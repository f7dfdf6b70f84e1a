"""The workspaces that models keep between their steps: listed and freed from here.

Models are built on this room, so they register here what they keep. Owns no memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from memcfg._core._live import Living


@dataclass(frozen=True, slots=True)
class ModelWorkspace:
    """A workspace of a model in mode "single" or "separate", when it was listed.

    The model alone opens and fills it; `memcfg.destroy_all_workspaces` frees it.

    Parameters
    ----------
    name : str
        Its name in the model, such as ``"LOOP_EXTERNAL"``.
    model : str
        The name under which the device lists the model's memory.
    nbytes : int
        Its size in bytes.
    thread_id : int or None
        The thread that ran the model's last step: `threading.get_ident`. None if it is
        gone.
    is_open : bool
        Whether that step was running.
    """

    name: str
    model: str
    nbytes: int
    thread_id: int | None
    is_open: bool


class WorkspaceHolder(Protocol):
    """What keeps workspaces between steps."""

    def workspaces(self, *, of_this_thread: bool = False) -> list[ModelWorkspace]:
        """List them without waiting for a step that runs.

        Parameters
        ----------
        of_this_thread : bool, default False
            Only if the running thread ran the last step.
        """

    def free_workspaces(self) -> None:
        """Free them, between two steps; the next one takes memory again.

        Raises
        ------
        RuntimeError
            If the calling thread is amid a step, or another one was when the process
            was forked.
        """


workspace_holders: Living[WorkspaceHolder] = Living()
