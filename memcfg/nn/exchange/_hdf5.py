"""HDF5 files, read so that nothing outside of them is opened and sizes are checked.

A file may link to datasets of other files, state shapes larger than memory, name its
groups in a circle, or need filters that are plugins. All of that is refused. A dataset
is read only if its shape is that of the weight that it is for.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from memcfg.errors import FormatError, WeightsError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from memcfg.nn._network import Weight
    from memcfg.nn._weight_files import Entry

__all__ = ["Hdf5File", "Stored", "refusing", "the_library"]

_MOST = 2**18  # groups and datasets of a file
_FILTERS = (None, "gzip", "lzf")
_CHUNK = 2**22  # most elements of a chunk of a dataset that is smaller
_TEXT = 2**26  # bytes of an attribute


class Stored(NamedTuple):
    """A dataset of a file."""

    path: str
    shape: tuple[int, ...]


def the_library() -> Any:
    """Return h5py; ImportError with advice if it is not installed."""
    try:
        import h5py
    except ImportError as error:
        raise ImportError(
            "files of Keras need h5py, which reads and writes HDF5: pip install "
            "memcfg[h5]"
        ) from error
    return h5py


@contextmanager
def refusing(where: str) -> Iterator[None]:
    """Raise FormatError for what the library finds damaged."""
    try:
        yield
    except (ImportError, MemoryError, FormatError, WeightsError):
        raise
    except Exception as error:
        problem = str(error).partition("\n")[0]
        raise FormatError(f"{where} is a damaged HDF5 file: {problem}") from None


class Hdf5File:
    """An open HDF5 file: its datasets, and the attributes of its groups."""

    def __init__(self, file: IO[bytes], where: str) -> None:
        self.where = where
        library = the_library()
        with refusing(where):
            self._file = library.File(file, "r")
        try:
            with refusing(where):
                self._groups: dict[str, Any] = {}
                self.datasets = dict(self._walk(library))
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _walk(self, library: Any) -> Iterator[tuple[str, Stored]]:
        """Yield all datasets, without following links out of the file."""
        left, met = [("", self._file)], set()
        while left:
            path, group = left.pop()
            place = library.h5o.get_info(group.id).addr
            if place in met or len(self._groups) > _MOST:
                raise FormatError(f"{self.where}: its groups are a circle, or too many")
            met.add(place)
            self._groups[path.rstrip("/")] = group
            for name in group:
                if not isinstance(group.get(name, getlink=True), library.HardLink):
                    raise FormatError(f"{self.where}: {path + name!r} is a link")
                each = group[name]
                if isinstance(each, library.Group):
                    left.append((f"{path}{name}/", each))
                elif isinstance(each, library.Dataset):
                    yield path + name, Stored(path + name, self._checked(each))

    def _checked(self, dataset: Any) -> tuple[int, ...]:
        """Return the shape of a dataset that lies in the file, in known filters."""
        what = f"{self.where}: {dataset.name!r}"
        if dataset.external or dataset.is_virtual:
            raise FormatError(f"{what} is in another file")
        if dataset.compression not in _FILTERS or dataset.scaleoffset is not None:
            raise FormatError(f"{what} is compressed in an unknown way")
        shape = tuple(map(int, dataset.shape or ()))
        most = max(_CHUNK, int(np.prod(shape, dtype=object)))
        if dataset.chunks and int(np.prod(dataset.chunks, dtype=object)) > most:
            raise FormatError(f"{what} has chunks that are larger than itself")
        return shape

    def groups(self, path: str) -> list[str]:
        """Return the names of the groups in a group; empty if there is none."""
        group = self._groups.get(path, ())
        return [name for name in group if f"{path}/{name}".strip("/") in self._groups]

    def text(self, path: str, name: str) -> str | None:
        """Return an attribute of a group as text, or None."""
        group = self._groups.get(path)
        with refusing(self.where):
            value = None if group is None else group.attrs.get(name)
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        return value if isinstance(value, str) and len(value) <= _TEXT else None

    def names(self, path: str, name: str) -> list[str] | None:
        """Return an attribute that lists names, in one piece or several; or None."""
        group = self._groups.get(path)
        if group is None:
            return None
        with refusing(self.where):
            found = group.attrs.get(name)
            parts = [] if found is None else [found]
            while found is None and f"{name}{len(parts)}" in group.attrs:
                parts.append(group.attrs[f"{name}{len(parts)}"])
            if not parts:
                return None
            listed = [each for part in parts for each in np.asarray(part).tolist()]
            if not all(isinstance(each, str | bytes) for each in listed):
                raise FormatError(f"{self.where}: {name} of {path!r} lists no names")
            return [
                each.decode() if isinstance(each, bytes) else each for each in listed
            ]

    def count(self, stored: Stored) -> int:
        """Return a dataset that is one number of steps."""
        with refusing(self.where):
            dataset = self._file[stored.path]
            if stored.shape or dataset.dtype.kind not in "iu":
                raise FormatError(
                    f"{self.where}: {stored.path!r} is no number of steps"
                )
            result = int(dataset[()])
            if not 0 <= result < 2**62:
                raise FormatError(f"{self.where}: {stored.path!r} is {result}")
        return result

    def read(self, stored: Stored, weight: Weight | Entry) -> np.ndarray:
        """Return a dataset as a weight; WeightsError if it has another shape."""
        if stored.shape != weight.shape:
            raise WeightsError(
                f"{self.where}: {stored.path!r} has shape {stored.shape}, but "
                f"{weight.name!r} has {weight.shape} in the model"
            )
        with refusing(self.where):
            dataset = self._file[stored.path]
            if dataset.dtype.kind not in "fiu":
                raise FormatError(f"{self.where}: {stored.path!r} is {dataset.dtype}")
            value: np.ndarray = np.asarray(dataset[()]).astype(weight.dtype)
        return value
