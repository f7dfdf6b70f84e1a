"""Train neural networks inside a hard memory limit.

Owns the names a user reaches through ``import memcfg as mc``. Refuses any work at
import: a room is loaded when its name is first used, so that planning a graph
from a file loads no kernel and training loads no command.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from memcfg._version import __version__

if TYPE_CHECKING:
    from memcfg import (
        config,
        devices,
        errors,
        graph,
        memory,
        nn,
        plan,
        runtime,
        units,
    )
    from memcfg.config import device

__all__ = [
    "__version__",
    "config",
    "device",
    "devices",
    "errors",
    "graph",
    "memory",
    "nn",
    "plan",
    "runtime",
    "units",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'memcfg' has no attribute {name!r}")
    if name == "device":
        return import_module("memcfg.config").device
    return import_module(f"memcfg.{name}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
