"""The processor of this machine."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

_MODEL = re.compile(r"^(?:model name|Model|cpu model)\s*:\s*(\S.*)$", re.MULTILINE)


_FACTS = re.compile(
    r"^(?:vendor_id|cpu family|model|model name|flags|Features|CPU part)\s*:.*$",
    re.MULTILINE,
)


def processor_facts() -> str:
    """Return what identifies processors with the same kernel times."""
    first = _read().partition("\n\n")[0]
    isa = os.environ.get("ONEDNN_MAX_CPU_ISA", "")
    return "\n".join([platform.machine(), isa, *_FACTS.findall(first)])


def processor_name() -> str:
    """Return the name of the processor as the system reports it."""
    match = _MODEL.search(_read())
    return match[1] if match else platform.processor() or platform.machine() or "CPU"


def _read() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
