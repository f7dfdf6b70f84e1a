"""The thread that writes the live report of this process, if that is turned on."""

from __future__ import annotations

import atexit
import os
import time
import warnings
from contextlib import suppress
from threading import Event, RLock, Thread

from memcfg._caller import outside
from memcfg._core._environment import first_use, unreadable, value_of
from memcfg.files import HeldFile
from memcfg.memory.live._live_folders import make_live_folder
from memcfg.memory.live._live_report import LiveReport

__all__ = ["reporter"]

_VARIABLE = "MEMCFG_LIVE_REPORT"
_SECONDS, _LONGEST = 1.0, 60.0  # between two reports
_QUIET = 99  # times the seconds that a report took pass before the next one


class Reporter:
    """Writes a file once a second while it is on; there is no thread while it is off.

    A child of a fork does not report until it is turned on there.
    """

    def __init__(self) -> None:
        self._lock = RLock()
        self._file: HeldFile | None = None
        self._stopped = Event()
        self._pause = _SECONDS

    @property
    def is_on(self) -> bool:
        """Whether this process reports."""
        return self._file is not None

    def start(self) -> None:
        """Write the first report, and others from now on; OSError if that fails."""
        with self._lock:
            if self.is_on:
                return
            file = HeldFile(make_live_folder() / f"{os.getpid()}.json")
            file.replace(LiveReport.of_this_process().document())
            self._file, self._stopped = file, Event()
            Thread(
                target=self._run,
                args=(self._stopped,),
                name="memcfg live report",
                daemon=True,
            ).start()

    def stop(self) -> None:
        """Remove the report, and end the thread."""
        with self._lock:
            file, self._file = self._file, None
            self._stopped.set()
            if file is not None:
                file.remove()

    def start_if_asked(self) -> None:
        """Start if the environment says so; warn if that fails."""
        text = value_of(_VARIABLE)
        if text not in ("", "0", "1"):
            raise unreadable(_VARIABLE, "'1' or '0'")
        if text != "1":
            return
        try:
            self.start()
        except OSError as error:
            warnings.warn(
                f"{_VARIABLE}: there is no live report: {error}",
                RuntimeWarning,
                stacklevel=outside(),
            )

    def leave_to_parent(self) -> None:
        """Forget the parent's report in the child of a fork, where no thread runs."""
        self._lock = RLock()
        file, self._file = self._file, None
        if file is not None:
            file.release()

    def _run(self, stopped: Event) -> None:
        while not stopped.wait(self._pause):
            began = time.perf_counter()
            with suppress(Exception):  # such as a full disk: the next one may succeed
                data = LiveReport.of_this_process().document()
                with self._lock:
                    if not stopped.is_set() and self._file is not None:
                        self._file.replace(data)
            took = time.perf_counter() - began
            self._pause = min(max(_SECONDS, _QUIET * took), _LONGEST)


reporter = Reporter()
first_use.append(reporter.start_if_asked)
atexit.register(reporter.stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=reporter.leave_to_parent)
