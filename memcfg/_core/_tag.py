"""The tag that allocations have when they name none.

Owns the context variable that `engine` reads and `memcfg.memory.tag` sets.
"""

from __future__ import annotations

from contextvars import ContextVar

__all__ = ["current_tag"]

current_tag: ContextVar[str] = ContextVar("memcfg_tag", default="")
