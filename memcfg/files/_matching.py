"""The files that match shell patterns."""

from __future__ import annotations

import os
from glob import glob
from typing import Any

__all__ = ["matching_files"]


def matching_files(file_pattern: Any) -> list[str]:
    """List the files that match patterns, sorted; FileNotFoundError if none does."""
    one = isinstance(file_pattern, str | bytes | os.PathLike)
    patterns = [os.fsdecode(each) for each in ([file_pattern] if one else file_pattern)]
    paths = {
        path for pattern in patterns for path in glob(pattern, include_hidden=True)
    }
    if not paths:
        raise FileNotFoundError(f"no file matches {' or '.join(map(repr, patterns))}")
    return sorted(paths)
