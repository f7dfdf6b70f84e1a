"""The resident memory of the process under a limit: what lies beside tensors.

A budget counts tensors; a process has code, the interpreter's objects, what libraries
allocate themselves, and what its allocator keeps. All of that is measured, and planned
around: see `limit_process`.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from memcfg._core._machine import machine_bytes
from memcfg.errors import ResourceExhaustedError
from memcfg.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

_KEPT = 2**20  # bytes: larger blocks go back to the system when they are freed
_TRIM, _MAPPED = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of mallopt(3)
_STATUS = Path("/proc/self/status")
_WAYS = ("cgroup", "samples")  # in which the system ends a process
_WATCH = """
import os, signal, sys, time
pid, limit = int(sys.argv[1]), int(sys.argv[2])
page = os.sysconf("SC_PAGE_SIZE")
try:
    while True:
        with open(f"/proc/{pid}/statm") as file:
            resident = int(file.read().split()[1]) * page
        if resident > limit:
            sys.stderr.write(
                f"memcfg: {resident} bytes are resident, the limit is {limit}: "
                f"process {pid} is ended\\n"
            )
            os.kill(pid, signal.SIGKILL)
            break
        if os.getppid() != pid:
            break
        time.sleep(0.01)
except (OSError, IndexError):
    pass
"""


def resident() -> dict[str, int]:
    """Return the bytes of the process: ``now`` and ``peak``, and of which kind.

    ``anonymous`` is memory, ``mapped`` the resident pages of files.
    """
    names = {
        "VmRSS": "now",
        "VmHWM": "peak",
        "RssAnon": "anonymous",
        "RssFile": "mapped",
        "RssShmem": "shared",
    }
    found = dict.fromkeys(names.values(), 0)
    for line in _STATUS.read_text().splitlines():
        name, _, value = line.partition(":")
        if name in names:
            found[names[name]] = int(value.split()[0]) * 1024
    return found


def reset_peak() -> None:
    """Reset the peak of resident memory to what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def _c_library() -> ctypes.CDLL | None:
    """Return the C library if it is GNU's."""
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") else None


class ProcessLimit:
    """The limit of the resident memory of this process, made by `limit_process`.

    Parameters
    ----------
    limit_bytes : int
        The most resident bytes.

    Attributes
    ----------
    limit_bytes : int
        The most resident bytes.
    baseline_bytes : int
        What was resident when the limit was set.
    enforced_by : str or None
        ``"cgroup"``, ``"samples"``, or None if the limit is only planned for.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.trim()
        self.baseline_bytes = resident()["now"]
        self.enforced_by: str | None = None
        self._marks: list[tuple[str, int]] = [
            ("limit_process was called", self.baseline_bytes)
        ]

    @property
    def peak_bytes(self) -> int:
        """The most that was resident since the limit was set, or a step was measured.

        The kernel counts it: anonymous memory and resident pages of files.
        """
        return resident()["peak"]

    def trim(self) -> None:
        """Return to the system what the C library keeps of freed memory."""
        library = _c_library()
        if library is not None:
            library.malloc_trim(0)

    def beside(self, tensor_bytes: int, when: str) -> int:
        """Measure what lies beside tensors now, and return its bytes.

        Parameters
        ----------
        tensor_bytes : int
            The bytes of tensors that are in memory and counted by themselves.
        when : str
            What has happened, for the report.
        """
        self.trim()
        nbytes = max(0, resident()["now"] - tensor_bytes)
        if self._marks[-1][0] == when:
            self._marks.pop()
        self._marks.append((when, nbytes))
        return nbytes

    def lines(self) -> list[str]:
        """Return lines of a report: what lies beside tensors, and since when."""
        now = resident()
        lines = [
            f"Resident now: {format_bytes(now['now'])} (memory "
            f"{format_bytes(now['anonymous'])}, files {format_bytes(now['mapped'])}), "
            f"at most {format_bytes(now['peak'])}, limit "
            f"{format_bytes(self.limit_bytes)}"
        ]
        before = 0
        for when, nbytes in self._marks:
            grown = nbytes - before
            sign = "" if not before else "+" if grown >= 0 else "-"
            lines.append(
                f"Beside tensors when {when}: {sign}{format_bytes(abs(grown))}"
            )
            before = nbytes
        return lines

    def __str__(self) -> str:
        return "\n".join(self.lines())


def limit_process(
    limit: int | str, *, above_now: bool = False, enforce: bool | str = False
) -> ProcessLimit:
    """Plan budgets so that the resident memory of the process stays within a limit.

    Call it after the imports, and give what it returns to `budget` as its limit. What
    lies beside tensors (the interpreter, libraries, their threads, what oneDNN keeps)
    is measured when a step is planned, after each of its ops has run once, and counted
    as "beside tensors". The second step is measured as a whole: if the process then
    had more resident than the limit, the step is planned again with less.

    From now on the C library returns freed blocks above 1 MiB to the system at once,
    since resident memory would otherwise be what it keeps. That costs page faults.

    Parameters
    ----------
    limit : int or str
        The most resident bytes, anonymous memory and pages of mapped files together
        (RssAnon + RssFile): a number, or a string such as ``"8GiB"`` or ``"50%"``.
    above_now : bool, default False
        Whether the limit is of what comes in addition to what is resident now.
    enforce : bool or {"cgroup", "samples"}, default False
        Whether the system also ends the process above the limit: by a control group
        (``"cgroup"``) for what is allocated from now on, or by another process
        (``"samples"``), which reads the resident memory every 10 ms. True takes the
        first if this process may make one, or else the second.

    Returns
    -------
    ProcessLimit
        The limit; printing it tells what lies beside tensors and since when.

    Raises
    ------
    NotImplementedError
        If the system is not Linux.
    OSError
        If `enforce` is ``"cgroup"`` and this process may not make one.
    ResourceExhaustedError
        If more is resident already.
    TypeError, ValueError
        If `limit` is not a size, or is zero, or `enforce` is something else.

    Examples
    --------
    >>> import memcfg.torch as mt, torch
    >>> process = mt.limit_process("8GiB")
    >>> model = mt.budget(torch.nn.Linear(8, 4), process)
    >>> mt.get_budget(model).limit_bytes
    8589934592
    """
    if not _STATUS.exists():
        raise NotImplementedError("limit_process reads /proc, which Linux has")
    nbytes = parse_bytes(limit, total_bytes=machine_bytes())
    if nbytes == 0:
        raise ValueError("a limit is more than 0 bytes")
    if enforce not in {False, True, *_WAYS}:
        raise ValueError(
            f"enforce is True, False, 'cgroup' or 'samples', not {enforce!r}"
        )
    made = ProcessLimit(nbytes)
    if above_now:
        made.limit_bytes = nbytes = nbytes + made.baseline_bytes
    if made.baseline_bytes >= nbytes:
        raise ResourceExhaustedError(
            "The process has more resident than the limit already.",
            requested_bytes=0,
            in_use_bytes=made.baseline_bytes,
            limit_bytes=nbytes,
            device="process",
            hint="Raise the limit, or import less.",
        )
    library = _c_library()
    if library is not None:
        library.mallopt(_MAPPED, _KEPT)
        library.mallopt(_TRIM, _KEPT)
    reset_peak()
    if enforce:
        ways = _WAYS if enforce is True else (str(enforce),)
        made.enforced_by = _enforced(nbytes, nbytes - made.baseline_bytes, ways)
    return made


def _enforced(limit: int, more: int, ways: tuple[str, ...]) -> str:
    """Let the system end this process above a limit; return how."""
    for folder, name in _groups() if "cgroup" in ways else ():
        group = folder / f"memcfg-{os.getpid()}"
        with suppress(OSError):
            group.mkdir()
            try:
                (group / name).write_text(str(more))
                (group / "cgroup.procs").write_text(str(os.getpid()))
            except OSError:
                group.rmdir()
                raise
            atexit.register(_leave, folder, group, os.getpid())
            return "cgroup"
    if "samples" not in ways:
        raise OSError("this process may make no control group for memory")
    watch = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _WATCH, str(os.getpid()), str(limit)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    atexit.register(watch.terminate)
    return "samples"


def _groups() -> Iterable[tuple[Path, str]]:
    """Yield folders of control groups that may hold one for memory, and its file."""
    root = Path("/sys/fs/cgroup")
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            below = path.lstrip("/")
            if "memory" in controllers.split(","):
                yield root / "memory" / below, "memory.limit_in_bytes"
                yield root / "memory", "memory.limit_in_bytes"
            elif number == "0" and not controllers:
                yield root / below, "memory.max"


def _leave(folder: Path, group: Path, pid: int) -> None:
    """Leave a control group and remove it."""
    if pid == os.getpid():
        with suppress(OSError):
            (folder / "cgroup.procs").write_text(str(pid))
            group.rmdir()
