"""The commands of ``memcfg``: each calls the library and prints the result."""

from __future__ import annotations

__all__: list[str] = []
