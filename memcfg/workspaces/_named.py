"""The workspaces of a thread: created on demand, found by name, destroyed together."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from memcfg._terminal import paragraph, shorten
from memcfg.errors import WorkspaceConfigError, WorkspaceError
from memcfg.memory.crash._crash_setting import Section, contributions
from memcfg.units import format_bytes
from memcfg.workspaces._model_workspaces import ModelWorkspace, workspace_holders
from memcfg.workspaces._workspace import (
    DEFAULT_NAME,
    Workspace,
    all_names,
    checked_config,
    names_here,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcfg.config import WorkspaceConfig
    from memcfg.memory import Resource
    from memcfg.workspaces._model_workspaces import WorkspaceHolder


def workspace(
    name: str = DEFAULT_NAME,
    config: WorkspaceConfig | None = None,
    *,
    resource: Resource | None = None,
) -> Workspace:
    """Return the workspace of this thread with a given name, creating it if needed.

    Parameters
    ----------
    name : str, default "DefaultWorkspace"
        The name. Each thread has its own workspaces.
    config : WorkspaceConfig or None, default None
        The configuration it must have. None accepts that of an existing workspace; a
        new one gets the default of `memcfg.config.set_default_workspace_config`.
    resource : Resource or None, default None
        Source of its memory. None accepts that of an existing workspace; a new one uses
        the pool of the current device.

    Returns
    -------
    Workspace
        The workspace, to be entered: ``with memcfg.workspace("loop") as ws:``.

    Raises
    ------
    TypeError
        If an argument has a wrong type.
    WorkspaceConfigError
        If a workspace of this name has another configuration or resource.
    ValueError, ResourceExhaustedError, OSError, FormatError
        As raised by `Workspace` for a new one.

    Notes
    -----
    A workspace whose device was dropped by `memcfg.config.reset` is replaced.

    Examples
    --------
    >>> import numpy as np
    >>> import memcfg as mc
    >>> for _ in range(3):
    ...     with mc.workspace("loop") as ws:
    ...         total = float((np.arange(1000.0) + 1).sum())
    >>> ws.stats().cycles, ws is mc.workspace("loop")
    (3, True)
    >>> mc.destroy_all_workspaces()
    """
    result = names_here().get(name)
    if result is not None and result._is_orphaned:
        result.destroy()
        result = None
    if result is None:
        return Workspace(config, name, resource=resource)
    if config is not None and checked_config(config) != result.config:
        raise WorkspaceConfigError(
            f"workspace {name!r} has another configuration: "
            f"{_differences(result, config)}. Leave the configuration out, or call "
            f"memcfg.workspace({name!r}).destroy() first."
        )
    if resource is not None and resource is not result.resource:
        raise WorkspaceConfigError(
            f"workspace {name!r} is in {result.resource!r}, not in {resource!r}. Leave "
            f"the resource out, or call memcfg.workspace({name!r}).destroy() first."
        )
    return result


get_workspace = workspace  # ND4J's name


def workspace_exists(name: str, *, is_open: bool = False) -> bool:
    """Return whether this thread has a workspace of a name, without creating one.

    Parameters
    ----------
    name : str
        The name.
    is_open : bool, default False
        Whether it must also be open.
    """
    result = names_here().get(name)
    return result is not None and (result.is_open or not is_open)


def list_workspaces() -> list[Workspace | ModelWorkspace]:
    """List the workspaces of this thread and of the models that it ran last.

    Returns
    -------
    list of Workspace or ModelWorkspace
        The workspaces of the thread in order of creation, followed by read-only
        descriptions of those that models in mode "single" or "separate" keep for their
        next step, if this thread ran their last one.
    """
    result: list[Workspace | ModelWorkspace] = [*names_here().values()]
    for holder in workspace_holders.alive():
        result += holder.workspaces(of_this_thread=True)
    return result


def destroy_all_workspaces(thread: str = "current") -> None:
    """Release the memory of workspaces and drop their names.

    Parameters
    ----------
    thread : str, default "current"
        "current" destroys those of this thread, which `list_workspaces` lists; open
        ones are closed first. "all" destroys those of all threads.

    Raises
    ------
    ValueError
        If `thread` is neither.
    WorkspaceError
        If a workspace of another thread is open, or a model whose workspaces would be
        freed is running a step. Nothing is destroyed then.
    OSError
        If a mapped file cannot be flushed or removed. All other workspaces are
        destroyed.
    RuntimeError
        If another thread was using a model when this process was forked. All other
        workspaces are destroyed.

    Notes
    -----
    Live arrays keep their pages and contents. A model allocates its workspaces again in
    its next step, which computes the same bits.
    """
    if thread not in ("current", "all"):
        raise ValueError(f"thread is 'current' or 'all', not {thread!r}")
    here = names_here()
    doomed = [here]
    if thread == "all":
        doomed += [names for names in all_names() if names is not here]
    others = [each for names in doomed[1:] for each in list(names.values())]
    if still := [each for each in others if each.is_open]:
        shown = ", ".join(f"{each.name!r} of thread {each.thread_id}" for each in still)
        raise WorkspaceError(
            f"{shown} open: only that thread can leave it. Wait until it has."
        )
    holders = _holders_to_free(of_this_thread=thread == "current")
    failures: list[OSError | RuntimeError] = []
    for each in [each for names in doomed for each in reversed(list(names.values()))]:
        try:
            each.destroy()
        except OSError as error:
            failures.append(error)
    for holder in holders:
        try:
            holder.free_workspaces()
        except RuntimeError as error:
            failures.append(error)
    if failures:
        raise failures[0]


def _holders_to_free(*, of_this_thread: bool) -> list[WorkspaceHolder]:
    """Return the models that keep workspaces; raise if one is running a step."""
    result = []
    for holder in workspace_holders.alive():
        kept = holder.workspaces(of_this_thread=of_this_thread)
        if not kept:
            continue
        if kept[0].is_open:
            raise WorkspaceError(
                f"model {kept[0].model!r} is in the middle of a step of thread "
                f"{kept[0].thread_id}, which uses its workspaces. Call this between "
                "two steps."
            )
        result.append(holder)
    return result


def summary() -> str:
    """Return a text that lists the workspaces of this thread and their bytes.

    Returns
    -------
    str
        A line with their number, then one line each. For a workspace of the thread:
        name, state, cycles, and the bytes of its page, of arrays that did not fit the
        page (spilled), and of arrays that did not fit a ring's block (pinned). For one
        of a model: name, model, state and bytes. Lines are wrapped at 80 columns.

    Examples
    --------
    >>> import memcfg as mc
    >>> _ = mc.workspace("loop", mc.WorkspaceConfig(initial_size=1000))
    >>> print(mc.workspaces.summary())
    1 workspace of this thread
    loop: closed, 0 cycles; page 1.27 KiB (1300 B), spilled 0 B, pinned 0 B
    >>> mc.destroy_all_workspaces()
    """
    result = list_workspaces()
    count = f"{len(result) or 'No'} workspace{'s' if len(result) != 1 else ''}"
    return "\n".join([f"{count} of this thread", *map(_line, result)])


def _line(each: Workspace | ModelWorkspace) -> str:
    state = "open" if each.is_open else "closed"
    if isinstance(each, ModelWorkspace):
        title = f"{shorten(each.name, 30)} of model {shorten(each.model, 30)}: "
        return paragraph(title, (f"{state};", _both(each.nbytes)))
    stats = each.stats()
    plural = "" if stats.cycles == 1 else "s"
    facts = (
        f"{state},",
        f"{stats.cycles} cycle{plural};",
        f"page {_both(stats.size)},",
        f"spilled {_both(stats.spilled_bytes)},",
        f"pinned {_both(stats.pinned_bytes)}",
    )
    return paragraph(f"{shorten(each.name, 30)}: ", facts)


def _both(nbytes: int) -> str:
    short = format_bytes(nbytes)
    return short if short.endswith(" B") else f"{short} ({nbytes} B)"


def _differences(existing: Workspace, config: WorkspaceConfig) -> str:
    mine, wanted = existing.config.to_dict(), config.to_dict()
    return ", ".join(
        f"{key}={mine[key]!r}, not {wanted[key]!r}"
        for key in mine
        if mine[key] != wanted[key]
    )


def _crash_sections(error: BaseException | None, owner: str) -> Iterator[Section]:
    """Yield what a crash report says of the workspaces of the thread."""
    if list_workspaces():
        yield Section("workspaces", "Workspaces", _in_crash_report)


def _in_crash_report() -> tuple[str, Any]:
    data = []
    for each in list_workspaces():
        facts: dict[str, Any] = {"name": each.name, "is_open": each.is_open}
        if isinstance(each, ModelWorkspace):
            data.append({**facts, "model": each.model, "nbytes": each.nbytes})
        else:
            data.append({**facts, **asdict(each.stats())})
    return summary(), data


contributions.append(_crash_sections)
