"""Shared libraries in installed packages."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path


def packaged_library(package: str, name: str) -> str | None:
    """Return the path of a library of an installed package; None if it has none."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        path = Path(str(file.locate()))
        if file.name == name and path.is_file():
            return str(path)
    return None
