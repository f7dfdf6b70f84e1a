"""The sections of a crash report that need no model: the request, the holders.

Each is made by a function of its own. None takes memory of a pool, or waits for a lock
that is held during an allocation of another thread.
"""

from __future__ import annotations

import linecache
import os
import resource as system_limits
import sys
import textwrap
import threading
import traceback
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._core import get_host_limits, live_resources, resident_bytes, tracked_bytes
from memcfg._core._machine import cores
from memcfg._terminal import WIDTH, printable, shorten
from memcfg._version import __version__
from memcfg.memory._census import kind_of, label_of
from memcfg.memory._recording import TrackingResource
from memcfg.memory._reports import list_live, occupancy, summary
from memcfg.memory.crash._crash_setting import Asked, Section
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

__all__ = ["sections_after", "sections_before", "table", "wrapped"]

_BLOCKS = 20  # the largest ones are listed
_EVENTS = 20  # the last ones of each tracking resource are listed
_OUTER, _INNER = 12, 24  # calls at the two ends of a stack that are listed
_LABEL = 16  # columns
_LIBRARIES = ("tensorflow", "torch", "keras", "jax", "onnx", "scipy", "pandas")
_ROOT = os.path.join(str(Path(__file__).parents[3]), "")
_ACTIONS = ("took", "freed", "was refused")

Call = tuple[str, int, str, bool]  # file, line, function, whether it is memcfg's


def sections_before(error: BaseException | None, asked: Asked) -> list[Section]:
    """Return the sections that come first."""
    sections = [
        Section("calls", "Where in the program", partial(_calls, error, asked)),
        Section("memory", "Who holds the memory", _memory),
        Section("occupancy", "Where it lies", _occupancy),
        Section("blocks", "The largest blocks", _blocks),
    ]
    if error is not None:
        section = Section("error", "The error", partial(_error, error, asked))
        sections.insert(0, section)
    if any(isinstance(each, TrackingResource) for each in live_resources.alive()):
        sections.append(Section("events", "The last events", _events))
    return sections


def sections_after() -> list[Section]:
    """Return the sections that come last."""
    return [
        Section("host", "Process and machine", _host),
        Section("environment", "Environment", _environment),
        Section("versions", "Versions", _versions),
    ]


def wrapped(text: str, indent: str = "") -> str:
    """Return lines of at most 80 columns."""
    lines = []
    for line in text.splitlines():
        lines += textwrap.wrap(
            printable(line),
            WIDTH,
            initial_indent=indent,
            subsequent_indent=f"{indent}  ",
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return "\n".join(lines)


def table(rows: dict[str, Any]) -> str:
    """Return a line for each label and value that is not empty; long ones wrap."""
    space = " " * _LABEL
    return "\n".join(
        line
        for label, value in rows.items()
        if value not in (None, "")
        for line in textwrap.wrap(
            printable(str(value)),
            WIDTH,
            initial_indent=f"{label:<{_LABEL}}",
            subsequent_indent=space,
            break_on_hyphens=False,
        )
    )


def _error(error: BaseException, asked: Asked) -> tuple[str, Any]:
    """Return the error with its fields, and where it was raised."""
    calls = _stack(error, asked)
    users = [call for call in calls if not call[3]]
    file, line, function, _ = users[-1] if users else ("", 0, "", False)
    at = f"{file}:{line} in {function}" if file else ""
    rows = {
        "asked": asked.call,
        "by": asked.owner,
        "at": at,
        "thread": threading.current_thread().name,
        "program": getattr(error, "program", ""),
    }
    text = f"{wrapped(f'{type(error).__name__}: {error}')}\n\n{table(rows)}"
    names = getattr(error, "_fields", ())
    fields = {name: getattr(error, name) for name in names}
    data = {
        "type": type(error).__name__,
        "message": getattr(error, "message", str(error)),
        "text": str(error),
        **rows,
        **fields,
        "causes": [f"{type(each).__name__}: {each}" for each in _causes(error)],
    }
    return text, data


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen = {id(error)}
    while True:
        hidden = error.__suppress_context__
        cause = error.__cause__ or (None if hidden else error.__context__)
        if cause is None or id(cause) in seen:
            return
        seen.add(id(cause))
        yield cause
        error = cause


def _calls(error: BaseException | None, asked: Asked) -> tuple[str, Any]:
    """Return the calls that led to the error, the outermost first."""
    calls = _stack(error, asked)
    lines = []
    for index, (file, line, function, ours) in enumerate(calls):
        if index == _OUTER and len(calls) > _OUTER + _INNER:
            lines.append(f"  … {len(calls) - _OUTER - _INNER} calls")
        if _OUTER <= index < len(calls) - _INNER:
            continue
        place = f":{line} in {function}"
        lines.append(f"  {shorten(file, WIDTH - 2 - len(place), keep='end')}{place}")
        source = "" if ours else linecache.getline(file, line).strip()
        if source:
            lines.append(shorten(f"      {source}", WIDTH, keep="start"))
    data = [{"file": f, "line": n, "function": name} for f, n, name, _ in calls]
    return "\n".join(lines) or "No calls are known.", data


def _stack(error: BaseException | None, asked: Asked) -> list[Call]:
    """Return the calls, the outermost first."""
    trace = None if error is None else error.__traceback__
    inner: list[Call] = []
    outer = asked.frame
    if outer is None and trace is not None:
        inner = [_call(frame, line) for frame, line in traceback.walk_tb(trace)]
        outer = trace.tb_frame.f_back
    before = [_call(frame, line) for frame, line in traceback.walk_stack(outer)]
    return [*reversed(before if outer is not None else []), *inner]


def _call(frame: FrameType, line: int) -> Call:
    file, code = frame.f_code.co_filename, frame.f_code
    ours = str(frame.f_globals.get("__name__", "")).partition(".")[0] == "memcfg"
    if ours and file.startswith(_ROOT):
        file = file.removeprefix(_ROOT)
    return file, line, code.co_name, ours


def _memory() -> tuple[str, Any]:
    resources = [
        {
            "name": label_of(each),
            "kind": kind_of(each),
            **asdict(each.stats()),
            "owners": each.owners(),
        }
        for each in live_resources.alive()
    ]
    return summary(), resources


def _occupancy() -> tuple[str, Any]:
    text = occupancy()
    return text, text.splitlines()


def _blocks() -> tuple[str, Any]:
    blocks = list_live(top=_BLOCKS)
    return "\n".join(map(str, blocks)) or "None.", [asdict(each) for each in blocks]


def _events() -> tuple[str, Any]:
    lines, data = [], []
    for resource in live_resources.alive():
        if not isinstance(resource, TrackingResource):
            continue
        trace, name = resource.trace(), label_of(resource)
        begin = max(0, len(trace.action) - _EVENTS)
        many = f"{len(trace.action)} events, in seconds before the last"
        lines.append(f"{shorten(name, 30)}, {many}")
        last = float(trace.seconds[-1]) if len(trace.action) else 0.0
        for i in range(begin, len(trace.action)):
            action = _ACTIONS[int(trace.action[i])]
            nbytes, ago = int(trace.nbytes[i]), last - float(trace.seconds[i])
            tag = trace.tags[int(trace.tag[i])] if trace.tag[i] >= 0 else ""
            size = format_bytes(nbytes)
            lines.append(f"  {ago:9.3f}  {action:<11} {size:>11}  {tag}".rstrip())
            data.append(
                {
                    "resource": name,
                    "action": action,
                    "nbytes": nbytes,
                    "tag": tag,
                    "seconds": float(trace.seconds[i]),
                }
            )
    return "\n".join(lines), data


def _host() -> tuple[str, Any]:
    tracked, resident = tracked_bytes(), resident_bytes()
    limits = get_host_limits()
    threads = [each.name for each in threading.enumerate()]
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    available, cgroup, addresses = _available(), _cgroup_limit(), _address_limit()
    data = {
        "program": sys.argv[0] if sys.argv else "",
        "folder": os.getcwd(),
        "threads": threads,
        "tracked_bytes": tracked,
        "resident_bytes": resident,
        "tracked_limit_bytes": limits[0],
        "resident_limit_bytes": limits[1],
        "machine_bytes": machine,
        "available_bytes": available,
        "cgroup_limit_bytes": cgroup,
        "address_limit_bytes": addresses,
        "processors": cores(),
    }
    rows = {
        "program": data["program"],
        "threads": ", ".join(threads),
        "pools": f"{_size(tracked)}, limit {_size(limits[0])}",
        "resident": f"{_size(resident)}, limit {_size(limits[1])}",
        "machine": f"{_size(machine)}, {_size(available)} available",
        "cgroup": f"limit {_size(cgroup)}",
        "addresses": f"limit {_size(addresses)} (ulimit -v)",
        "processors": data["processors"],
    }
    return table(rows), data


def _size(nbytes: int | None) -> str:
    return "none" if nbytes is None else format_bytes(nbytes)


def _available() -> int | None:
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _cgroup_limit() -> int | None:
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            text = file.read().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _address_limit() -> int | None:
    limit, _ = system_limits.getrlimit(system_limits.RLIMIT_AS)
    return None if limit == system_limits.RLIM_INFINITY else limit


def _environment() -> tuple[str, Any]:
    prefixes = ("MEMCFG_", "OMP_", "GOMP_", "MALLOC_", "CUDA_")
    data = {k: v for k, v in sorted(os.environ.items()) if k.startswith(prefixes)}
    lines = "\n".join(f"{name}={value}" for name, value in data.items())
    return wrapped(lines) or "No variable that memcfg or OpenMP reads is set.", data


def _versions() -> tuple[str, Any]:
    system = os.uname()
    data = {
        "memcfg": __version__,
        "Python": sys.version.split()[0],
        "NumPy": np.__version__,
        "system": f"{system.sysname} {system.release} {system.machine}",
    }
    for name in _LIBRARIES:
        module = sys.modules.get(name)
        version = None if module is None else getattr(module, "__version__", None)
        if version is not None:
            data[name] = str(version)
    return table(data), data
