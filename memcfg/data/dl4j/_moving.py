"""Batches of any form, moved between workspaces.

Owns which forms there are: data sets, arrays, and tuples, lists and dicts of them. A
batch of another form is refused, for its arrays would stay where they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg import workspaces
from memcfg.data.dl4j._examples import Examples

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["migrated", "shielded"]


def migrated(batch: Any) -> Any:
    """Take the arrays of a batch to the current workspace.

    Parameters
    ----------
    batch : object
        The batch.

    Returns
    -------
    object
        Of copies of what is elsewhere.

    Raises
    ------
    TypeError
        If it has a form that is not known.
    WorkspaceLeakError, WorkspaceStaleError, ResourceExhaustedError, MemoryError
        What `memcfg.migrate` raises.
    """
    return _moved(batch, workspaces.migrate)


def shielded(batch: Any) -> Any:
    """Take what is in a workspace out of it: into the current one, or out of all.

    Parameters
    ----------
    batch : object
        The batch.

    Returns
    -------
    object
        Of copies of what was attached elsewhere; what was not stays.

    Raises
    ------
    TypeError
        If it has a form that is not known.
    WorkspaceLeakError, WorkspaceStaleError, ResourceExhaustedError, MemoryError
        What `memcfg.detach` raises.
    """
    current = workspaces.current_workspace()
    if current is None:
        return _moved(batch, workspaces.detach)
    return _moved(batch, lambda value: workspaces.leverage_to(value, current))


def _moved(batch: Any, move: Callable[[Any], Any]) -> Any:
    if isinstance(batch, Examples):
        return batch._moved(move(batch._arrays))
    if not isinstance(batch, np.ndarray | np.generic | tuple | list | dict):
        raise TypeError(
            "a batch is a data set, an array, or a tuple, list or dict of them, not "
            f"{batch!r:.80}: its arrays cannot be found"
        )
    return _through(move(batch), move)


def _through(batch: Any, move: Callable[[Any], Any]) -> Any:
    """Move the data sets in a container whose arrays are moved."""
    if isinstance(batch, Examples):
        return batch._moved(move(batch._arrays))
    if isinstance(batch, dict):
        for key, each in batch.items():
            batch[key] = _through(each, move)
    elif isinstance(batch, list):
        batch[:] = [_through(each, move) for each in batch]
    elif isinstance(batch, tuple):
        make = getattr(type(batch), "_make", type(batch))
        return make(_through(each, move) for each in batch)
    return batch
