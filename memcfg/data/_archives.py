"""Data sets as files of NumPy's.

Owns the layout of the archive: each array under its name. Refuses pickles.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from typing import TYPE_CHECKING

import numpy as np

from memcfg.errors import FormatError
from memcfg.files import open_file, write_atomically

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from memcfg.data._example_arrays import Array

__all__ = ["read", "write"]


def write(
    path: str | os.PathLike[str], arrays: Mapping[str, Array], *, overwrite: bool
) -> None:
    """Write arrays by name; the file is there whole or not at all."""
    stream = io.BytesIO()
    np.savez(stream, allow_pickle=False, **arrays)
    write_atomically(path, stream.getvalue(), overwrite=overwrite)


def read(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Read arrays by name; FormatError where the file is no archive, or damaged."""
    with open_file(path) as file:
        if not zipfile.is_zipfile(file):
            raise FormatError(f"{path} is no saved data set: no .npz archive")
        file.seek(0)
        try:
            with np.load(file, allow_pickle=False) as archive:
                return dict(archive)
        except (
            EOFError,
            KeyError,
            ValueError,
            zipfile.BadZipFile,
            zlib.error,
        ) as error:
            raise FormatError(f"{path} is no saved data set: {error}") from None
