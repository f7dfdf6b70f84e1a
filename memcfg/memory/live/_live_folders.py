"""The folders of live reports: one for processes that run, which their user owns."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from memcfg.files import make_private_folder, require_private_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["live_folders", "make_live_folder", "report_paths"]


def live_folders() -> list[Path]:
    """List the folders in which reports may be; the first is where they are written.

    That is the user's folder of this session, which is emptied when it ends. A process
    without a session, such as one of cron, has a folder among the user's caches.
    """
    session = os.environ.get("XDG_RUNTIME_DIR", "")
    cache = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    folders = [Path(cache, "memcfg", "live")]
    if os.path.isabs(session) and os.path.isdir(session):
        folders.insert(0, Path(session, "memcfg"))
    return folders


def make_live_folder() -> Path:
    """Make the folder of reports, 0700; OSError if others could change it."""
    folder = live_folders()[0]
    make_private_folder(folder)
    require_private_folder(folder)
    return folder


def report_paths(pid: int | None = None) -> Iterator[Path]:
    """Yield the reports of a process, or of all; none of a folder of others."""
    for folder in live_folders():
        if not folder.is_dir():
            continue
        require_private_folder(folder)
        yield from sorted(folder.glob("*.json" if pid is None else f"{pid}.json"))
