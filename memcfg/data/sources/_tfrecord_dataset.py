"""`TFRecordDataset`: the records of TFRecord files."""

from __future__ import annotations

from typing import Any

from memcfg.data._dataset import Dataset
from memcfg.data.elements._spec import TensorSpec
from memcfg.data.sources._file_reading import files
from memcfg.data.sources._records import read_records


class TFRecordDataset(Dataset):
    """The records of TFRecord files, as tf.data's class of this name.

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
        Number of files read at once by threads, whose records are interleaved, or
        `AUTOTUNE`. None: one file after the other.
    name : str, optional
        Name of the step in messages and reports.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.
    FormatError
        During a pass, if a file is damaged: the error names the file and the byte at
        which the record begins. The records before it are delivered.
    OSError
        During a pass, if a file cannot be read.

    See Also
    --------
    TFRecordWriter : Writes such files.
    parse_single_example : Takes a record apart.

    Notes
    -----
    An element is a NumPy byte string of exactly the bytes of the record, outside of the
    pool; `shuffle` and `cache` keep them in the pool. The records of a batch are an
    array of text, in which NumPy takes zeros at the end for padding: `parse_example`
    handles them, other functions should be applied before `batch`.

    Examples
    --------
    >>> import os, tempfile
    >>> import memcfg as mc
    >>> path = os.path.join(tempfile.mkdtemp(), "data.tfrecord")
    >>> with mc.data.TFRecordWriter(path) as writer:
    ...     writer.write(b"one")
    ...     writer.write(b"two")
    >>> list(mc.data.TFRecordDataset(path))
    [np.bytes_(b'one'), np.bytes_(b'two')]
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
            read_records,
            TensorSpec((), "S"),
            compression_type=compression_type,
            buffer_size=buffer_size,
            num_parallel_reads=num_parallel_reads,
            name=name or "tfrecord",
        )
        super().__init__(node)
