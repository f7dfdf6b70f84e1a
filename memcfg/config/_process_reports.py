"""Settings of what a process tells of its memory, in files; `reset` puts them back."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from memcfg._checks import count, flag
from memcfg.config._registry import registry
from memcfg.memory.crash._crash_sections import table
from memcfg.memory.crash._crash_setting import (
    MAX_REPORTS,
    Section,
    contributions,
    crash_setting,
)
from memcfg.memory.live._reporter import reporter
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator


def get_crash_reports() -> str | None:
    """Return the folder in which crash reports are made; None if there are none.

    Returns
    -------
    str or None
        What `set_crash_reports` was given, as an absolute path, or the variable
        ``MEMCFG_CRASH_REPORTS`` if it was not called.
    """
    return crash_setting.folder


def set_crash_reports(
    folder: str | os.PathLike[str] | None, *, max_reports: int = MAX_REPORTS
) -> str | None:
    """Write a report when a call runs out of memory, or stop writing them.

    Parameters
    ----------
    folder : str, path-like or None
        Where each report makes a folder; see `memcfg.crash_report`. It is made with the
        first report if it is missing. None, the default of a process, writes none.
    max_reports : int, default 3
        How many reports this process may write from now on, at least 1.

    Returns
    -------
    str or None
        The folder that was set before.

    Raises
    ------
    TypeError
        If `folder` is neither a path nor None, or `max_reports` not an int.
    ValueError
        If `folder` is empty, or `max_reports` is less than 1.

    Notes
    -----
    There is a report when a MemoryError, such as
    `memcfg.errors.ResourceExhaustedError` or `memcfg.errors.InfeasiblePlanError`,
    leaves `fit`, `evaluate`, `predict`, `train_on_batch`, `test_on_batch` or
    `predict_on_batch` of a model, or an allocation that the program itself asks of a
    resource or of NumPy inside one, unless its pool has `retry_seconds`. A note of the
    error and its attribute `crash_report`, a `pathlib.Path`, say where its report is.
    If a report cannot be written, a RuntimeWarning says so, and the error is raised as
    without one.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.config.set_crash_reports("/tmp/crashes")
    >>> mc.config.set_crash_reports(None)
    '/tmp/crashes'
    """
    with registry.lock:
        before = crash_setting.folder
        if folder is not None:
            folder = os.fsdecode(folder)
            if not folder:
                raise ValueError("folder is empty: give a path, or None for no reports")
            folder = os.path.abspath(folder)
        crash_setting.set(folder, count(max_reports, "max_reports"))
        return before


def get_live_report() -> bool:
    """Return whether this process reports its memory to ``memcfg top``.

    Returns
    -------
    bool
        What `set_live_report` was given, or, from the first resource or device on, the
        variable ``MEMCFG_LIVE_REPORT``.
    """
    return reporter.is_on


def set_live_report(enabled: bool) -> bool:
    """Let ``memcfg top`` show the memory of this process while it runs, or stop that.

    Parameters
    ----------
    enabled : bool
        Whether to report, which no process does by default.

    Returns
    -------
    bool
        Whether this process reported before.

    Raises
    ------
    TypeError
        If it is not a bool.
    OSError
        If the report cannot be written, or its folder belongs to another user or can be
        written by others. There is no report then.

    Notes
    -----
    A thread writes the pools of the process, their limits and owners to a file once a
    second, or less often if that takes more than a hundredth of the time. The file is
    in ``memcfg`` in ``$XDG_RUNTIME_DIR``, else in ``memcfg/live`` in
    ``$XDG_CACHE_HOME``, else in ``~/.cache``. Nobody but the user can read it. It is
    removed when the process ends; ``memcfg top`` removes those of processes that were
    killed. The child of a fork does not report until it is turned on there.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.config.set_live_report(True)
    False
    >>> mc.config.set_live_report(False)
    True
    """
    enabled = flag(enabled, "a live report")
    with registry.lock:
        before = reporter.is_on
        if enabled:
            reporter.start()
        else:
            reporter.stop()
        return before


def _sections(error: BaseException | None, owner: str) -> Iterator[Section]:
    """Yield what a crash report says of the devices in use."""
    if registry.made_now:
        yield Section("devices", "Devices", _devices)


def _devices() -> tuple[str, Any]:
    rows: dict[str, Any] = {}
    data = []
    for made in registry.made_now:
        limit, growth = made.limit_bytes, made.specification.memory.growth
        places = [place.tier for place in made.specification.spill.places]
        name = made.logical.name
        bound = "no limit" if limit is None else f"limit {format_bytes(limit)}"
        spills = f", spills to {', '.join(places)}" if places else ""
        rows[name] = f"{bound}, {'grows' if growth else 'reserved at once'}{spills}"
        data.append(
            {"name": name, "limit_bytes": limit, "growth": growth, "spill_to": places}
        )
    return table(rows), data


contributions.append(_sections)
