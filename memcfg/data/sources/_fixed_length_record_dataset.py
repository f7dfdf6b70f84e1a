"""`FixedLengthRecordDataset`: records of one length in binary files."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._checks import count
from memcfg.data._dataset import Dataset
from memcfg.data.elements._spec import TensorSpec
from memcfg.data.sources._file_reading import files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcfg.data.sources._byte_stream import ByteStream


class FixedLengthRecordDataset(Dataset):
    """Records of one length in binary files, as tf.data's class of this name.

    Parameters
    ----------
    filenames : path, sequence of path, or Dataset of text
        The files.
    record_bytes : int
        Bytes of a record.
    header_bytes : int, optional
        Bytes at the start of a file that are skipped.
    footer_bytes : int, optional
        Bytes at the end of a file that are ignored.
    buffer_size : int, optional
        Bytes of the buffer of a file that is being read: 256 KiB by default, and 4 KiB
        at least. It is an array of the device's pool, and a compressed file has two.
    compression_type : {None, "", "GZIP", "ZLIB"}, optional
        How the files are compressed.
    num_parallel_reads : int, optional
        Number of files read at once by threads, whose records are interleaved, or
        `AUTOTUNE`. None: one file after the other.
    name : str, optional
        Name of the step in messages and reports.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.
    FormatError
        During a pass, if a file is shorter than its header and footer, or does not end
        with a whole record. The records before are delivered.
    OSError
        During a pass, if a file cannot be read.

    Notes
    -----
    An element is a NumPy byte string of exactly the bytes of the record;
    `numpy.frombuffer` makes it an array.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> import memcfg as mc
    >>> path = os.path.join(tempfile.mkdtemp(), "numbers.bin")
    >>> np.arange(6, dtype="<i2").tofile(path)
    >>> data = mc.data.FixedLengthRecordDataset(path, record_bytes=4)
    >>> list(data.map(lambda record: np.frombuffer(record, "<i2")))
    [array([0, 1], dtype=int16), array([2, 3], dtype=int16), array([4, 5], dtype=int16)]
    """

    def __init__(
        self,
        filenames: Any,
        record_bytes: int,
        header_bytes: int | None = None,
        footer_bytes: int | None = None,
        buffer_size: int | None = None,
        compression_type: str | None = None,
        num_parallel_reads: int | None = None,
        name: str | None = None,
    ) -> None:
        read = partial(
            _read_records,
            size=count(record_bytes, "record_bytes"),
            header=count(header_bytes or 0, "header_bytes", minimum=0),
            footer=count(footer_bytes or 0, "footer_bytes", minimum=0),
        )
        node = files(
            filenames,
            read,
            TensorSpec((), "S"),
            compression_type=compression_type,
            buffer_size=buffer_size,
            num_parallel_reads=num_parallel_reads,
            name=name or "fixed_length_record",
        )
        super().__init__(node)


def _read_records(
    stream: ByteStream, size: int, header: int, footer: int
) -> Iterator[np.bytes_]:
    ahead = stream.read(header + footer)
    if len(ahead) < header + footer:
        raise stream.damaged(
            f"it is shorter than a header of {header} and a footer of {footer} bytes"
        )
    ahead = ahead[header:]  # as many bytes as a footer has, which may be the footer
    while part := stream.read(size):
        if len(part) < size:
            raise stream.damaged(
                f"it ends with {len(part)} bytes, and a record has {size}"
            )
        record, ahead = (ahead + part)[:size], (ahead + part)[size:]
        yield np.bytes_(record)
