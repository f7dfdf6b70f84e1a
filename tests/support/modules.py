"""The modules of memcfg that can be imported here."""

from __future__ import annotations

import pkgutil
from importlib.util import find_spec

import memcfg

HAS_TORCH = find_spec("torch") is not None


def module_names() -> list[str]:
    """Name all but ``__main__``, and memcfg.torch where there is no PyTorch."""
    names = (each.name for each in pkgutil.walk_packages(memcfg.__path__, "memcfg."))
    return sorted(
        name
        for name in names
        if name != "memcfg.__main__"
        and (HAS_TORCH or name.split(".")[:2] != ["memcfg", "torch"])
    )
