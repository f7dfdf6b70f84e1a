"""`TFRecordWriter`: writes TFRecord files."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memcfg._checks import count
from memcfg.data.sources._byte_stream import WINDOW_BITS
from memcfg.data.sources._records import framed

if TYPE_CHECKING:
    import os
    from typing import Self


@dataclass(frozen=True)
class TFRecordOptions:
    """How a TFRecord file is compressed.

    Parameters
    ----------
    compression_type : {None, "", "GZIP", "ZLIB"}, optional
        The compression.
    compression_level : int, optional
        The effort, 0 to 9, or -1 for zlib's default.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.
    """

    compression_type: str | None = None
    compression_level: int | None = None

    def __post_init__(self) -> None:
        if (self.compression_type or "") not in WINDOW_BITS:
            raise ValueError(
                "compression_type must be None, 'GZIP' or 'ZLIB', not "
                f"{self.compression_type!r}"
            )
        level = self.compression_level
        if level is not None and count(level, "compression_level", minimum=-1) > 9:
            raise ValueError(f"compression_level is at most 9, not {level}")


class TFRecordWriter:
    """Write records to a TFRecord file, as TensorFlow's class of this name.

    It is a context manager that closes the file.

    Parameters
    ----------
    path : path
        The file, which is overwritten.
    options : TFRecordOptions or str, optional
        The compression.

    Raises
    ------
    ValueError
        If the compression is unknown.
    OSError
        If the file cannot be written.

    Examples
    --------
    >>> import os, tempfile
    >>> import memcfg as mc
    >>> path = os.path.join(tempfile.mkdtemp(), "data.tfrecord.gz")
    >>> with mc.data.TFRecordWriter(path, "GZIP") as writer:
    ...     writer.write(b"a record")
    >>> [bytes(record) for record in mc.data.TFRecordDataset(path, "GZIP")]
    [b'a record']
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        options: TFRecordOptions | str | None = None,
    ) -> None:
        if not isinstance(options, TFRecordOptions):
            options = TFRecordOptions(options)
        level = options.compression_level
        bits = WINDOW_BITS[options.compression_type or ""]
        self._deflate: Any = None
        if bits:
            self._deflate = zlib.compressobj(-1 if level is None else level, wbits=bits)
        self._file = open(path, "wb")  # noqa: SIM115  closed by close()

    def write(self, record: bytes) -> None:
        """Write a record.

        Parameters
        ----------
        record : bytes
            The record.

        Raises
        ------
        TypeError
            If it is not bytes.
        ValueError
            If the file is closed.
        OSError
            If it cannot be written.
        """
        if not isinstance(record, bytes):
            raise TypeError(f"a record is bytes, not {type(record).__name__}")
        for piece in framed(record):
            self._file.write(self._deflate.compress(piece) if self._deflate else piece)

    def flush(self) -> None:
        """Write what is buffered to the file."""
        if self._deflate is not None:
            self._file.write(self._deflate.flush(zlib.Z_SYNC_FLUSH))
        self._file.flush()

    def close(self) -> None:
        """Complete and close the file; it may be called repeatedly."""
        if self._file.closed:
            return
        try:
            if self._deflate is not None:
                self._file.write(self._deflate.flush())
        finally:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
