"""``memcfg top``: the memory of running processes that report it."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.text import Text

from memcfg._terminal import WIDTH, write
from memcfg.commands._whole_numbers import positive
from memcfg.commands.watching._top_text import list_reports, report_lines
from memcfg.files import read_held_file
from memcfg.memory.live._live_folders import report_paths
from memcfg.memory.live._live_report import LiveReport

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

_SECONDS = 1.0  # between two looks at a report
_DESCRIPTION = (
    "Show the pools, limits and owners of a running process of yours, once a second "
    "on a terminal, until it ends or Ctrl-C. Without a PID, list the processes that "
    "report their memory: those started with MEMCFG_LIVE_REPORT=1, and those that "
    "called memcfg.config.set_live_report(True)."
)


def add_top(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``memcfg top`` to a parser."""
    parser = subparsers.add_parser(
        "top", help="watch the memory of a running process", description=_DESCRIPTION
    )
    parser.add_argument(
        "pid", nargs="?", type=positive, metavar="PID", help="number of the process"
    )
    parser.add_argument(
        "--once", action="store_true", help="print once, also on a terminal"
    )
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    if args.pid is None:
        return _list()
    report, is_stale = _look(args.pid)
    if report is None:
        why = "it has ended without removing its report, which is removed now"
        if not is_stale and not _runs(args.pid):
            why = "there is no such process"
        elif not is_stale:
            why = (
                "it does not report its memory: start it with MEMCFG_LIVE_REPORT=1, or "
                "call memcfg.config.set_live_report(True) in it"
            )
        raise ProcessLookupError(errno.ESRCH, why, f"process {args.pid}")
    if args.once or sys.stdout is None or not sys.stdout.isatty():
        write("\n".join(report_lines(report, _columns())))
        return 0
    return _watch(report)


def _runs(pid: int) -> bool:
    """Return whether a process of this number runs, of any user."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def _list() -> int:
    """List the processes that report; remove the reports of those that have ended."""
    reports, stale = [], []
    for path in report_paths():
        report = _read(path)
        if report is not None:
            reports.append(report)
        elif path.stem.isdecimal():
            stale.append(path.stem)
    if reports:
        write("\n".join(list_reports(reports, _columns())))
    else:
        write("No process reports its memory: start one with MEMCFG_LIVE_REPORT=1.")
    if stale:
        write(f"Removed reports of processes that were killed: {', '.join(stale)}.")
    return 0


def _watch(report: LiveReport) -> int:
    """Show a process until it ends, or until an interrupt; print what was last seen."""
    last, end = report, ""
    console = Console(markup=False, highlight=False)
    with (
        suppress(KeyboardInterrupt),
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while True:
            columns, lines = shutil.get_terminal_size()
            live.update(Text(_page(last, columns, lines)), refresh=True)
            time.sleep(_SECONDS)
            found, is_stale = _look(report.pid)
            if found is None:
                end = "was killed; its report is removed" if is_stale else "has ended"
                break
            last = found
    write("\n".join(report_lines(last, _columns())))
    if end:
        write(f"Process {report.pid} {end}.")
    return 0


def _page(report: LiveReport, columns: int, lines: int) -> str:
    """Return as many lines as a screen has."""
    shown = report_lines(report, columns)
    if len(shown) > lines:
        shown[lines - 1 :] = [f"{len(shown) - lines + 1} more lines"]
    return "\n".join(shown)


def _look(pid: int) -> tuple[LiveReport | None, bool]:
    """Return what a process reports; None: nothing, and whether it was killed."""
    is_stale = False
    for path in report_paths(pid):
        with suppress(FileNotFoundError):
            report = _read(path)
            if report is not None:
                return report, False
            is_stale = True
    return None, is_stale


def _read(path: Path) -> LiveReport | None:
    """Read a report; None, and it is removed, if its process was killed."""
    data = read_held_file(path)
    return None if data is None else LiveReport.read(data)


def _columns() -> int:
    """Return the columns of the terminal, or of COLUMNS, else 80."""
    if "COLUMNS" in os.environ or (sys.stdout is not None and sys.stdout.isatty()):
        return shutil.get_terminal_size().columns
    return WIDTH
