"""`TextLineDataset`: the lines of text files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.data._dataset import Dataset
from memcfg.data.elements._spec import TensorSpec
from memcfg.data.sources._file_reading import files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcfg.data.sources._byte_stream import ByteStream


class TextLineDataset(Dataset):
    r"""The lines of text files, as tf.data's class of this name.

    Parameters
    ----------
    filenames : path, sequence of path, or Dataset of text
        The files.
    compression_type : {None, "", "GZIP", "ZLIB"}, optional
        How the files are compressed.
    buffer_size : int, optional
        Bytes of the buffer of a file that is being read: 256 KiB by default, and 4 KiB
        at least. It is an array of the device's pool, and a compressed file has two.
    num_parallel_reads : int, optional
        Number of files read at once by threads, whose lines are interleaved, or
        `AUTOTUNE`. None: one file after the other.
    name : str, optional
        Name of the step in messages and reports.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.
    FormatError
        During a pass, if a file cannot be decompressed.
    OSError
        During a pass, if a file cannot be read.

    Notes
    -----
    An element is a NumPy byte string without the end of the line and, as in tf.data,
    without any ``"\r"``; ``decode()`` makes it text.

    Examples
    --------
    >>> import os, tempfile
    >>> import memcfg as mc
    >>> path = os.path.join(tempfile.mkdtemp(), "words.txt")
    >>> with open(path, "w") as file:
    ...     _ = file.write("one\ntwo\n")
    >>> [line.decode() for line in mc.data.TextLineDataset(path)]
    ['one', 'two']
    """

    def __init__(
        self,
        filenames: Any,
        compression_type: str | None = None,
        buffer_size: int | None = None,
        num_parallel_reads: int | None = None,
        name: str | None = None,
    ) -> None:
        node = files(
            filenames,
            _read_lines,
            TensorSpec((), "S"),
            compression_type=compression_type,
            buffer_size=buffer_size,
            num_parallel_reads=num_parallel_reads,
            name=name or "text_line",
        )
        super().__init__(node)


def _read_lines(stream: ByteStream) -> Iterator[np.bytes_]:
    for line in stream.lines():
        yield np.bytes_(line.replace(b"\r", b""))
