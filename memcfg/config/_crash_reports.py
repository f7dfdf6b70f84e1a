"""A setting of where crash reports are written; `reset` puts it back."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from memcfg._checks import count
from memcfg.config._registry import registry
from memcfg.memory.crash._crash_sections import table
from memcfg.memory.crash._crash_setting import (
    MAX_REPORTS,
    Section,
    contributions,
    crash_setting,
)
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
