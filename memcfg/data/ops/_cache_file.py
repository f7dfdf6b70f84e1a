"""The cache file of `Dataset.cache`: writer, reader and format.

A file is complete or does not exist: it is written under its name plus ``.partial``,
under a lock that ends with the process, and renamed when it is complete. Nothing in a
file is executed.

The format is `_MAGIC` followed by records. A record is a letter and its fields, little
endian:

- ``F``: uint32 length, JSON, uint32 CRC-32 of the JSON. Defines the next form of
  elements; forms are numbered from 0. The JSON is a list of the nest and of [dtype,
  number of axes] of each leaf. A nest is ``null`` for a leaf, or a list: ``["tuple",
  child, ...]``, ``["named", class, [field, ...], child, ...]`` or ``["dict", [key,
  ...], child, ...]``.
- ``E``: an element. uint32 form, int64 sizes of all axes of all leaves, the leaves'
  bytes in C order, uint32 CRC-32 of all these.
- ``Z``: the end of the file. uint64 number of elements.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import struct
import zlib
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._core import fork_count
from memcfg.data.elements._convert import as_scalars
from memcfg.data.elements._spec import TensorSpec
from memcfg.data.elements._structure import (
    flatten,
    map_structure,
    pack,
    same_structure,
)
from memcfg.documents import read_count, read_json
from memcfg.errors import FormatError
from memcfg.files import open_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import BufferedReader
    from typing import Self, TypeAlias

    import numpy.typing as npt

    # A nest of specs, in the machine's byte order, and the dtypes in the file.
    _Form: TypeAlias = tuple[Any, list[np.dtype[Any]]]

_MAGIC = b"memcfg.cache/1\n"
_UINT32 = struct.Struct("<I")
_UINT64 = struct.Struct("<Q")
_AXES = 64  # max. axes of an array
_PARTS = 512  # pieces of one writev; Linux accepts 1024
# Numbers, text and dates, as NumPy writes them
_DTYPE = re.compile(r"[<>|][biufcSUmM][0-9]{1,9}(\[[0-9A-Za-z]{1,20}\])?")


class CacheWriter:
    """Writes elements to a cache file."""

    def __init__(self, path: str) -> None:
        self.count = 0
        self._path = path
        self._partial = f"{path}.partial"
        self._forks = fork_count()
        self._forms: dict[str, int] = {}
        self._file = _locked(self._partial)
        _write(self._file, [_MAGIC])

    def add(self, element: Any) -> None:
        element = map_structure(_scalar, element)
        leaves = [np.ascontiguousarray(leaf) for leaf in flatten(element)]
        sizes = [size for leaf in flatten(element) for size in leaf.shape]
        form = _UINT32.pack(self._form(element))
        pieces: list[bytes | memoryview] = [
            form + struct.pack(f"<{len(sizes)}q", *sizes)
        ]
        pieces += [_bytes_of(leaf) for leaf in leaves if leaf.nbytes]
        check = 0
        for piece in pieces:
            check = zlib.crc32(piece, check)
        _write(self._file, [b"E", *pieces, _UINT32.pack(check)])
        self.count += 1

    def finish(self) -> None:
        """Complete the file and rename it."""
        _write(self._file, [b"Z" + _UINT64.pack(self.count)])
        os.fsync(self._file)
        os.replace(self._partial, self._path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Close the file; remove it after a failure, unless in a forked child."""
        try:
            if kind is not None and fork_count() == self._forks:
                os.unlink(self._partial)  # locked, so it is this writer's file
        finally:
            os.close(self._file)

    def _form(self, element: Any) -> int:
        text = _form_text(element)
        if text not in self._forms:
            data = text.encode()
            check = _UINT32.pack(zlib.crc32(data))
            _write(self._file, [b"F", _UINT32.pack(len(data)), data, check])
            self._forms[text] = len(self._forms)
        return self._forms[text]


def read_cache(
    path: str, template: Callable[[], Any], spec: Any = None
) -> Iterator[Any]:
    """Iterate over the elements of a cache file; FormatError if it is damaged."""
    with open_file(path) as file:
        try:
            yield from _Reader(file, template, spec).elements()
        except (
            AttributeError,
            IndexError,
            OverflowError,
            RecursionError,
            TypeError,
            ValueError,
            struct.error,
        ) as error:
            raise FormatError(
                f"{path!r} is not a cache of this dataset, or is damaged ({error}): "
                "remove it to write it again"
            ) from error


class _Reader:
    def __init__(
        self, file: BufferedReader, template: Callable[[], Any], spec: Any
    ) -> None:
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self._template = template
        self._spec = spec
        self._forms: list[_Form] = []

    def elements(self) -> Iterator[Any]:
        if self._file.read(len(_MAGIC)) != _MAGIC:
            raise ValueError(f"it does not begin with {_MAGIC!r}")
        count = 0
        while (letter := self._take(1)) != b"Z":
            if letter == b"E":
                yield self._element()
                count += 1
            elif letter == b"F":
                self._forms.append(self._form())
            else:
                raise ValueError(f"it has an unknown record {letter!r}")
        if self._take(8) != _UINT64.pack(count) or self._left():
            raise ValueError(f"it does not end after {count} elements")

    def _form(self) -> _Form:
        text = self._take(*_UINT32.unpack(self._take(4)))
        self._check(zlib.crc32(text))
        result, dtypes = _read_form(text, self._template)
        if not (self._spec is None or _is_of(result, self._spec)):
            raise ValueError(
                f"its elements are {result}, those of the dataset {self._spec}"
            )
        return result, dtypes

    def _element(self) -> Any:
        head = self._take(4)
        spec, dtypes = self._forms[_UINT32.unpack(head)[0]]
        axes = [leaf.rank for leaf in flatten(spec)]
        shapes = self._take(8 * sum(axes))
        sizes = iter(struct.unpack(f"<{sum(axes)}q", shapes))
        check = zlib.crc32(shapes, zlib.crc32(head))
        leaves = []
        for dtype, rank in zip(dtypes, axes, strict=True):
            leaf, check = self._leaf(list(islice(sizes, rank)), dtype, check)
            exact = dtype.kind == "S" and not rank
            data = leaf.tobytes()[: dtype.itemsize] if exact else b""
            leaves.append(np.bytes_(data) if exact else as_scalars(leaf))
        self._check(check)
        return pack(spec, leaves)

    def _leaf(
        self, shape: list[int], dtype: np.dtype[Any], check: int
    ) -> tuple[npt.NDArray[Any], int]:
        if (
            min(shape, default=0) < 0
            or math.prod(shape) * max(1, dtype.itemsize) > self._left()
        ):
            raise ValueError("an element is larger than the file")
        leaf = np.empty(shape, dtype)
        if not leaf.nbytes:
            return leaf, check
        data = _bytes_of(leaf)
        if self._file.readinto(data) < len(data):
            raise ValueError("it ends early")
        return leaf, zlib.crc32(data, check)

    def _check(self, check: int) -> None:
        if self._take(4) != _UINT32.pack(check):
            raise ValueError("a checksum differs")

    def _take(self, count: int) -> bytes:
        if count > self._left():
            raise ValueError("it ends early")
        return self._file.read(count)

    def _left(self) -> int:
        return self._size - self._file.tell()


def _locked(path: str) -> int:
    """Open, lock and truncate a file; without waiting if it is a pipe."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    while True:
        file = os.open(path, flags, 0o666)
        try:
            _lock(file, path)
            if os.path.samestat(os.fstat(file), os.stat(path)):
                os.ftruncate(file, 0)
                return file
        except FileNotFoundError:
            pass  # its writer has just renamed or removed it: try again
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def _lock(file: int, path: str) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BlockingIOError(
            error.errno,
            "another pass writes this cache: read it to its end first, or give each "
            "its own file",
            path,
        ) from None


def _write(file: int, pieces: list[bytes | memoryview]) -> None:
    """Write non-empty pieces in order."""
    left = [memoryview(piece) for piece in pieces]
    while left:
        done = os.writev(file, left[:_PARTS])
        while left and done >= len(left[0]):
            done -= len(left.pop(0))
        if done:
            left[0] = left[0][done:]


def _scalar(leaf: Any) -> Any:
    """Return a scalar for an array without axes: its bytes are exactly its text."""
    return leaf[()] if type(leaf) is np.ndarray and not leaf.ndim else leaf


def _bytes_of(array: npt.NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _form_text(element: Any) -> str:
    kinds = [[leaf.dtype.str, leaf.ndim] for leaf in flatten(element)]
    return json.dumps([_words(element), kinds])


def _read_form(text: bytes, template: Callable[[], Any]) -> _Form:
    words, kinds = read_json(text, "form")
    named = '["named"' in text.decode()
    nest = _nest(words, template() if named else None)
    if not all(_DTYPE.fullmatch(name) for name, _ in kinds):
        raise ValueError("a form has a dtype that is not allowed in a cache")
    dtypes = [np.dtype(name) for name, _ in kinds]
    ranks = [read_count(number, "a number of axes") for _, number in kinds]
    if max(ranks, default=0) > _AXES:
        raise ValueError("a form has more axes than an array")
    pairs = zip(ranks, dtypes, strict=True)
    return pack(nest, [TensorSpec([None] * rank, kind) for rank, kind in pairs]), dtypes


def _is_of(form: Any, spec: Any) -> bool:
    """Return whether a form is compatible with the specs of a dataset."""
    return same_structure(form, spec) and all(
        wanted.is_compatible_with(leaf)
        for wanted, leaf in zip(flatten(spec), flatten(form), strict=True)
    )


def _words(nest: Any) -> Any:
    if isinstance(nest, Mapping):
        for key in nest:
            if not isinstance(key, str | int):
                raise TypeError(
                    f"a cache file stores dicts with keys of str or int, not {key!r}"
                )
        return ["dict", list(nest), *map(_words, nest.values())]
    if not isinstance(nest, tuple):
        return None
    children = map(_words, nest)
    if hasattr(nest, "_fields"):
        return ["named", type(nest).__name__, list(nest._fields), *children]
    return ["tuple", *children]


def _nest(words: Any, template: Any) -> Any:
    if words is None:
        return 0
    kind, *rest = words
    if kind == "dict":
        keys, *children = rest
        parts = {} if template is None else template
        return {
            key: _nest(child, parts.get(key))
            for key, child in zip(keys, children, strict=True)
        }
    if kind == "tuple":
        return tuple(_nest(*pair) for pair in _paired(rest, template))
    if kind != "named":
        raise ValueError(f"it has an unknown kind of nest {kind!r}")
    name, fields, *children = rest
    if list(getattr(template, "_fields", ())) != fields:
        raise TypeError(f"its elements are {name}, with the fields {fields}")
    return type(template)(*(_nest(*pair) for pair in _paired(children, template)))


def _paired(children: list[Any], template: Any) -> list[tuple[Any, Any]]:
    if template is None:
        return [(child, None) for child in children]
    return list(zip(children, template, strict=True))
