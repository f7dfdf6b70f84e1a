"""Records of allocations as files of NumPy's.

Owns the layout: the columns by name, and the names of tags and calls as JSON, since
NumPy's strings lose zeros at their end. Refuses pickles.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from memcfg.errors import FormatError
from memcfg.files import open_file, write_atomically

if TYPE_CHECKING:
    import os

    from memcfg.memory._trace import Trace

__all__ = ["read", "write"]

T = TypeVar("T", bound="Trace")

_VERSION = 1
_COLUMNS = ("action", "address", "nbytes", "thread", "seconds", "tag", "stack")


def write(path: str | os.PathLike[str], trace: Trace, *, overwrite: bool) -> None:
    """Write a record."""
    names = json.dumps({"tags": trace.tags, "stacks": trace.stacks})
    stream = io.BytesIO()
    np.savez_compressed(
        stream,
        allow_pickle=False,
        memcfg_trace=np.array(_VERSION),
        names=np.frombuffer(names.encode("ascii"), np.uint8),
        **{name: getattr(trace, name) for name in _COLUMNS},
    )
    write_atomically(path, stream.getvalue(), overwrite=overwrite)


def read(path: str | os.PathLike[str], kind: type[T]) -> T:
    """Read a record; FormatError where the file is none, or damaged."""
    with open_file(path) as file:
        if not zipfile.is_zipfile(file):
            raise FormatError(f"{path} is no saved trace: no .npz archive")
        file.seek(0)
        try:
            with np.load(file, allow_pickle=False) as archive:
                version = int(archive["memcfg_trace"])
                if version != _VERSION:
                    raise ValueError(f"version {version} is none that is known")
                names = json.loads(archive["names"].tobytes())
                columns = {name: archive[name] for name in _COLUMNS}
            return kind(tags=names["tags"], stacks=names["stacks"], **columns)
        except (
            AttributeError,
            EOFError,
            KeyError,
            TypeError,
            ValueError,
            zipfile.BadZipFile,
            zlib.error,
        ) as error:
            raise FormatError(f"{path} is no saved trace: {error}") from None
