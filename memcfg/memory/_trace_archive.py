"""Records of allocations as files of NumPy's.

Owns the layout: the columns by name, and the names of tags and calls as JSON, since
NumPy's strings lose zeros at their end. Refuses the rest of
the archive, which is `memcfg.archives`'.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from memcfg.archives import read_arrays, write_arrays
from memcfg.documents import read_json
from memcfg.errors import FormatError
from memcfg.files import write_atomically

if TYPE_CHECKING:
    import os

    from memcfg.memory._trace import Trace

__all__ = ["read", "write"]

T = TypeVar("T", bound="Trace")

_VERSION = 1
_WHAT = "saved trace"
_COLUMNS = ("action", "address", "nbytes", "thread", "seconds", "tag", "stack")


def write(path: str | os.PathLike[str], trace: Trace, *, overwrite: bool) -> None:
    """Write a record."""
    names = json.dumps({"tags": trace.tags, "stacks": trace.stacks})
    arrays = {
        "memcfg_trace": np.array(_VERSION),
        "names": np.frombuffer(names.encode("ascii"), np.uint8),
        **{name: getattr(trace, name) for name in _COLUMNS},
    }
    write_atomically(path, write_arrays(arrays, compress=True), overwrite=overwrite)


def read(path: str | os.PathLike[str], kind: type[T]) -> T:
    """Read a record; FormatError where the file is none, or damaged."""
    (version,) = read_arrays(path, _WHAT, ["memcfg_trace"]).values()
    try:
        if int(version) != _VERSION:
            raise ValueError(f"version {version} is none that is known")
        arrays = read_arrays(path, _WHAT, ("names", *_COLUMNS))
        names = read_json(arrays.pop("names").tobytes(), "trace")
        return kind(tags=names["tags"], stacks=names["stacks"], **arrays)
    except (
        AttributeError,
        KeyError,
        OverflowError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise FormatError(f"{path} is no saved trace: {error}") from None
