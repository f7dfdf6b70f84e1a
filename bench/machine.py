"""The machine and the versions of a measurement, as every benchmark writes them."""

from __future__ import annotations

import datetime
import os
import platform
from pathlib import Path

import numpy as np

import memcfg as mc

__all__ = ["facts", "huge_pages", "instructions", "processor"]


def facts() -> dict:
    """Return the date, the machine, the versions, and the load of the last minute."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "glibc": platform.libc_ver()[1],
        "python": platform.python_version(),
        "numpy": np.__version__,
        "memcfg": mc.__version__,
        "load": os.getloadavg()[0],
    }


def processor() -> str:
    """Name the processor, which platform.processor() leaves empty on Linux."""
    pairs = [line.partition(":") for line in _read("/proc/cpuinfo").splitlines()]
    fields = {name.strip(): value.strip() for name, _, value in reversed(pairs)}
    if "model name" not in fields:
        return platform.processor()
    # A name such as "AMD EPYC" stands for processors with vectors of unlike length.
    return (
        f"{fields['model name']} (family {fields.get('cpu family')}, "
        f"model {fields.get('model')})"
    )


def instructions() -> str:
    """Name what matrix products can use of the processor's instructions, on Linux."""
    known = _read("/proc/cpuinfo").split()
    names = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
    return ", ".join(name for name in names if name in known)


def huge_pages() -> str | None:
    """Return the system's setting of transparent huge pages, or None without one."""
    return _read("/sys/kernel/mm/transparent_hugepage/enabled").strip() or None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
