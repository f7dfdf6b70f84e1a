"""The step that reads the elements of files, one after the other or several at once."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._checks import count
from memcfg.data._dataset import Dataset
from memcfg.data.elements._structure import is_nest
from memcfg.data.engine._autotune import AUTOTUNE
from memcfg.data.ops._interleave import Interleave
from memcfg.data.ops._node import UNKNOWN, Node, UnaryNode
from memcfg.data.ops._sources import sliced
from memcfg.data.sources._byte_stream import BUFFER_BYTES, WINDOW_BITS, ByteStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memcfg.data.engine._run import Run


@dataclass(frozen=True, eq=False)
class Files(UnaryNode):
    """The elements of all files, whose specs are known without reading one.

    The source interleaves the elements of the files.
    """

    source: Interleave
    spec: Any
    name: str

    is_probed = False

    @property
    def inputs(self) -> tuple[Node, ...]:
        return self.source.inputs

    @property
    def element_spec(self) -> Any:
        return self.spec

    @property
    def cardinality(self) -> int:
        return UNKNOWN

    @property
    def repeats(self) -> bool:
        return self.source.source.repeats

    def elements(self, run: Run) -> Iterator[Any]:
        return self.source.elements(run)


@dataclass(frozen=True, eq=False)
class _File(Node):
    """The elements of one file."""

    path: str
    read: Callable[[ByteStream], Iterator[Any]]
    compression: str
    buffer_bytes: int
    spec: Any
    name: str

    @property
    def element_spec(self) -> Any:
        return self.spec

    def elements(self, run: Run) -> Iterator[Any]:
        return self._elements()

    def _elements(self) -> Iterator[Any]:
        with ByteStream(self.path, self.compression, self.buffer_bytes) as stream:
            yield from self.read(stream)


def files(
    filenames: Any,
    read: Callable[[ByteStream], Iterator[Any]],
    spec: Any,
    *,
    compression_type: Any,
    buffer_size: Any,
    num_parallel_reads: Any = None,
    name: str,
) -> Files:
    """Make the step that reads files, from the arguments that tf.data's sources take.

    `read` yields the elements of an open file.
    """
    compression = "" if compression_type is None else compression_type
    if compression not in WINDOW_BITS:
        raise ValueError(
            f"compression_type must be None, 'GZIP' or 'ZLIB', not {compression_type!r}"
        )
    size = (
        BUFFER_BYTES
        if buffer_size is None
        else count(buffer_size, "buffer_size", minimum=0)
    )

    def opened(path: Any) -> Node:
        return _File(str(os.fsdecode(path)), read, compression, size, spec, name)

    cycle, calls = _parallel(num_parallel_reads)
    inner = Interleave(_names(filenames), opened, cycle, 1, calls, None, name)
    return Files(inner, spec, name)


def _parallel(reads: Any) -> tuple[int | None, int | None]:
    """Return the length of the cycle of files, and the threads that read them."""
    if reads is None:
        return 1, None
    number = count(reads, "num_parallel_reads", minimum=None)
    if number == AUTOTUNE:
        return None, AUTOTUNE
    return (count(number, "num_parallel_reads"),) * 2


def _names(filenames: Any) -> Node:
    if isinstance(filenames, Dataset):
        node = filenames._node
        if not node.is_probed:
            _check(node.element_spec)
        return node
    if isinstance(filenames, str | bytes | os.PathLike):
        filenames = [filenames]
    if not isinstance(filenames, np.ndarray):
        filenames = [os.fspath(path) for path in filenames]
    names = np.asarray(filenames) if len(filenames) else np.array([], "U")
    node = sliced(names, "filenames")
    _check(node.element_spec)
    return node


def _check(spec: Any) -> None:
    if is_nest(spec) or spec.dtype.kind not in "SU" or spec.shape not in ((), None):
        raise TypeError(f"filenames must be text, one a file, not {spec}")
