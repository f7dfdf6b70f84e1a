"""`CsvDataset`: the records of CSV files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._checks import count, flag
from memcfg.data._dataset import Dataset
from memcfg.data.elements._spec import TensorSpec
from memcfg.data.sources._csv_fields import Dialect, converter
from memcfg.data.sources._file_reading import Files, files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from memcfg.data.sources._byte_stream import ByteStream

_DTYPES = ("float32", "float64", "int32", "int64")


class CsvDataset(Dataset):
    r"""The records of CSV files, as TensorFlow's class of this name.

    Parameters
    ----------
    filenames : path, sequence of path, or Dataset of text
        The files.
    record_defaults : sequence
        One for each column that is read: a dtype (float32, float64, int32, int64 or
        bytes, which is also ``"string"``), if the field is required; otherwise the
        value, or a list with the value, that an empty field has.
    compression_type : {None, "", "GZIP", "ZLIB"}, optional
        How the files are compressed.
    buffer_size : int, optional
        Bytes of the buffer of a file that is being read: 256 KiB by default, and 4 KiB
        at least. It is an array of the device's pool, and a compressed file has two.
    header : bool, default False
        Whether the first record of a file is skipped.
    field_delim : str, default ","
        The character between fields.
    use_quote_delim : bool, default True
        Whether quotes may enclose fields.
    na_value : str, default ""
        A field that is taken for empty.
    select_cols : sequence of int, optional
        The columns that are read, in increasing order. None: all of them.
    exclude_cols : sequence of int, optional
        The columns that are not read. Not with `select_cols`.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.
    FormatError
        During a pass, if a record has too few or too many fields, quotes are wrong, a
        required field is empty, or a field is no number of its dtype: the error names
        the file and the byte.
    OSError
        During a pass, if a file cannot be read.

    Notes
    -----
    An element is a tuple of scalars; text is a NumPy byte string.

    Examples
    --------
    >>> import os, tempfile
    >>> import memcfg as mc
    >>> path = os.path.join(tempfile.mkdtemp(), "data.csv")
    >>> with open(path, "w") as file:
    ...     _ = file.write('1,"a, b"\n2,\n')
    >>> list(mc.data.experimental.CsvDataset(path, ["int32", "none"]))
    [(np.int32(1), np.bytes_(b'a, b')), (np.int32(2), np.bytes_(b'none'))]
    """

    def __init__(
        self,
        filenames: Any,
        record_defaults: Sequence[Any],
        compression_type: str | None = None,
        buffer_size: int | None = None,
        header: bool = False,
        field_delim: str = ",",
        use_quote_delim: bool = True,
        na_value: str = "",
        select_cols: Sequence[int] | None = None,
        exclude_cols: Sequence[int] | None = None,
    ) -> None:
        node = csv_files(
            filenames,
            record_defaults,
            compression_type=compression_type,
            buffer_size=buffer_size,
            header=header,
            dialect=dialect_of(field_delim, use_quote_delim),
            na_value=na_value,
            select_cols=select_cols,
            exclude_cols=exclude_cols,
        )
        super().__init__(node)


def dialect_of(field_delim: Any, use_quote_delim: Any) -> Dialect:
    """Return how fields are separated, from the arguments of tf.data's."""
    if not isinstance(field_delim, str) or len(field_delim.encode()) != 1:
        raise ValueError(f"field_delim must be one character, not {field_delim!r}")
    return Dialect(field_delim.encode(), flag(use_quote_delim, "use_quote_delim"))


def csv_files(
    filenames: Any,
    record_defaults: Sequence[Any],
    *,
    compression_type: Any,
    buffer_size: Any,
    header: Any,
    dialect: Dialect,
    na_value: str,
    select_cols: Sequence[int] | None,
    exclude_cols: Sequence[int] | None = None,
    num_parallel_reads: int | None = None,
) -> Files:
    """Make the step that reads the records of CSV files."""
    columns = [_column(each) for each in record_defaults]
    if not columns:
        raise ValueError("record_defaults needs one entry a column, and is empty")
    reader = _Reader(
        columns=tuple(columns),
        dialect=dialect,
        header=flag(header, "header"),
        na_value=na_value.encode(),
        selected=_selected(select_cols, exclude_cols, len(columns)),
        excluded=frozenset(
            count(each, "exclude_cols", minimum=0) for each in exclude_cols or ()
        ),
    )
    return files(
        filenames,
        reader.elements,
        tuple(TensorSpec((), column.dtype) for column in columns),
        compression_type=compression_type,
        buffer_size=buffer_size,
        num_parallel_reads=num_parallel_reads,
        name="csv",
    )


@dataclass(frozen=True)
class _Column:
    """A column: what makes a scalar of a field, and that of an empty one."""

    dtype: np.dtype[Any]
    convert: Callable[[bytes], Any]
    default: Any  # None: the field is required


@dataclass(frozen=True)
class _Reader:
    """Reads the records of one file."""

    columns: tuple[_Column, ...]
    dialect: Dialect
    header: bool
    na_value: bytes
    selected: tuple[int, ...] | None  # None: all that are not excluded
    excluded: frozenset[int]

    def elements(self, stream: ByteStream) -> Iterator[tuple[Any, ...]]:
        records = self.dialect.records(stream)
        if self.header and next(records, None) is None:
            raise stream.damaged("it has no header")
        begin = stream.offset
        for fields in records:
            yield self._element(fields, stream, begin)
            begin = stream.offset

    def _element(
        self, fields: list[bytes], stream: ByteStream, begin: int
    ) -> tuple[Any, ...]:
        chosen = self._chosen(fields)
        if len(chosen) != len(self.columns):
            raise stream.damaged(
                f"a record has {len(chosen)} fields of the columns, not "
                f"{len(self.columns)}: {fields!r:.80}",
                begin,
            )
        element = []
        for number, (field, column) in enumerate(
            zip(chosen, self.columns, strict=True)
        ):
            if not field or field == self.na_value:
                if column.default is None:
                    raise stream.damaged(
                        f"field {number}, which is required, is empty in a record: "
                        f"{fields!r:.80}",
                        begin,
                    )
                element.append(column.default)
                continue
            try:
                element.append(column.convert(field))
            except ValueError:
                raise stream.damaged(
                    f"field {number} of a record is no {column.dtype}: {field!r:.40}",
                    begin,
                ) from None
        return tuple(element)

    def _chosen(self, fields: list[bytes]) -> list[bytes]:
        if self.selected is not None:
            return [fields[i] for i in self.selected if i < len(fields)]
        if self.excluded:
            return [f for i, f in enumerate(fields) if i not in self.excluded]
        return fields


def _column(given: Any) -> _Column:
    """Return the column of a dtype or a default value."""
    name = getattr(given, "name", given)
    if given is bytes or name == "string":
        return _Column(np.dtype("S"), np.bytes_, None)
    if isinstance(given, type | np.dtype) or name in _DTYPES:
        dtype = np.dtype(given)
        if dtype.name not in _DTYPES:
            raise TypeError(f"a column is {', '.join(_DTYPES)} or bytes, not {dtype}")
        return _Column(dtype, converter(dtype), None)
    if isinstance(given, list | tuple | np.ndarray) and np.size(given) != 1:
        raise ValueError(f"a default value is one value, not {given!r}")
    value = np.ravel(given)[0] if isinstance(given, list | tuple) else given
    if isinstance(value, str | bytes):
        data = value.encode() if isinstance(value, str) else value
        return _Column(np.dtype("S"), np.bytes_, np.bytes_(data))
    array = np.asarray(value).reshape(-1)[0]
    if not isinstance(given, np.ndarray | np.generic):  # tf.data's dtypes of numbers
        array = array.astype(np.int32 if array.dtype.kind == "i" else np.float32)
    if array.dtype.name not in _DTYPES:
        raise TypeError(
            f"a column is {', '.join(_DTYPES)} or bytes, not {array.dtype}: {given!r}"
        )
    return _Column(array.dtype, converter(array.dtype), array)


def _selected(
    select: Sequence[int] | None, exclude: Sequence[int] | None, columns: int
) -> tuple[int, ...] | None:
    if select is None:
        return None
    if exclude is not None:
        raise ValueError("give either select_cols or exclude_cols")
    numbers = tuple(count(each, "select_cols", minimum=0) for each in select)
    if list(numbers) != sorted(set(numbers)):
        raise ValueError(f"select_cols must be increasing, not {list(numbers)}")
    if len(numbers) != columns:
        raise ValueError(
            f"select_cols has {len(numbers)} columns, and record_defaults {columns}"
        )
    return numbers
