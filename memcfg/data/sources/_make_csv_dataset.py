"""`make_csv_dataset`: batches of the columns of CSV files, by name."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._checks import count, flag
from memcfg.data._dataset import Dataset
from memcfg.data.engine._autotune import AUTOTUNE
from memcfg.data.sources._byte_stream import BUFFER_BYTES, ByteStream
from memcfg.data.sources._csv_dataset import csv_files, dialect_of
from memcfg.data.sources._csv_fields import converter
from memcfg.errors import FormatError
from memcfg.files import matching_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memcfg.data.sources._csv_fields import Dialect

# What a column may be, from the narrowest; whatever is none of these is text.
_KINDS = {name: np.dtype(name) for name in ("int32", "int64", "float32", "float64")}


def make_csv_dataset(
    file_pattern: Any,
    batch_size: int,
    column_names: Sequence[str] | None = None,
    column_defaults: Sequence[Any] | None = None,
    label_name: str | None = None,
    select_columns: Sequence[int | str] | None = None,
    field_delim: str = ",",
    use_quote_delim: bool = True,
    na_value: str = "",
    header: bool = True,
    num_epochs: int | None = None,
    shuffle: bool = True,
    shuffle_buffer_size: int = 10000,
    shuffle_seed: int | None = None,
    prefetch_buffer_size: int | None = None,
    num_parallel_reads: int | None = None,
    sloppy: bool = False,
    num_rows_for_inference: int | None = 100,
    compression_type: str | None = None,
    ignore_errors: bool = False,
) -> Dataset:
    r"""Make batches of the columns of CSV files, as TensorFlow's function of this name.

    Parameters
    ----------
    file_pattern : path or sequence of path
        Shell patterns of the files.
    batch_size : int
        Records of a batch.
    column_names : sequence of str, optional
        The names of all columns. None: those of the header.
    column_defaults : sequence, optional
        The dtypes or default values of the selected columns, as for `CsvDataset`. None:
        they are inferred, and empty fields are 0 or empty.
    label_name : str, optional
        The column that is the label.
    select_columns : sequence of int or str, optional
        The columns that are read. None: all of them.
    field_delim : str, default ","
        The character between fields.
    use_quote_delim : bool, default True
        Whether quotes may enclose fields.
    na_value : str, default ""
        A field that is taken for empty.
    header : bool, default True
        Whether the first record of a file has the names.
    num_epochs : int, optional
        The number of passes over the files. None: without end, in whole batches.
    shuffle : bool, default True
        Whether files and records are shuffled.
    shuffle_buffer_size : int, default 10000
        The records of the buffer that shuffles.
    shuffle_seed : int, optional
        The seed of the order.
    prefetch_buffer_size : int, optional
        Batches that are prepared ahead. None: `AUTOTUNE`.
    num_parallel_reads : int, optional
        Number of files read at once by threads. None: 1.
    sloppy : bool, default False
        Must be False: records come in an order that the seed sets.
    num_rows_for_inference : int, optional
        Records of which dtypes are inferred; None: all.
    compression_type : {None, "", "GZIP", "ZLIB"}, optional
        How the files are compressed.
    ignore_errors : bool, default False
        Must be False: a damaged record is an error.

    Returns
    -------
    Dataset
        Dicts from the names to arrays, or tuples of these and the labels.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type, is out of range, or names no column.
    FileNotFoundError
        If no file matches.
    FormatError
        If a file has no header or another one than the first; during a pass, as for
        `CsvDataset`.

    Examples
    --------
    >>> import os, tempfile
    >>> import memcfg as mc
    >>> path = os.path.join(tempfile.mkdtemp(), "data.csv")
    >>> with open(path, "w") as file:
    ...     _ = file.write("x,y\n1,0.5\n2,1.5\n")
    >>> make = mc.data.experimental.make_csv_dataset
    >>> next(iter(make(path, 2, label_name="y", num_epochs=1, shuffle=False)))
    ({'x': array([1, 2], dtype=int32)}, array([0.5, 1.5], dtype=float32))
    """
    for name, given in (("sloppy", sloppy), ("ignore_errors", ignore_errors)):
        if flag(given, name):
            raise ValueError(f"{name} must be False")
    paths = matching_files(file_pattern)
    dialect = dialect_of(field_delim, use_quote_delim)
    compression = compression_type or ""
    names = _names(paths, column_names, dialect, compression, header=header)
    chosen = _chosen(select_columns, names)
    if column_defaults is None:
        rows = _rows(paths, len(names), dialect, compression, header=header)
        column_defaults = _inferred(
            islice(rows, num_rows_for_inference), chosen, ("", na_value)
        )
    kept = [names[column] for column in chosen]
    if label_name is not None and label_name not in kept:
        raise ValueError(f"label_name {label_name!r} is none of {', '.join(kept)}")
    source = Dataset.from_tensor_slices(np.array(paths))
    if flag(shuffle, "shuffle"):
        source = source.shuffle(len(paths), shuffle_seed)
    reads = 1 if num_parallel_reads is None else num_parallel_reads
    node = csv_files(
        source,
        column_defaults,
        compression_type=compression_type,
        buffer_size=None,
        header=header,
        dialect=dialect,
        na_value=na_value,
        select_cols=chosen,
        num_parallel_reads=None if reads == 1 else reads,
    )
    data = Dataset(node)
    if shuffle:
        data = data.shuffle(shuffle_buffer_size, shuffle_seed)
    if num_epochs != 1:
        data = data.repeat(num_epochs)
    data = data.batch(
        count(batch_size, "batch_size"), drop_remainder=num_epochs is None
    )

    def named(*columns: Any) -> Any:
        features = dict(zip(kept, columns, strict=True))
        return features if label_name is None else (features, features.pop(label_name))

    ahead = AUTOTUNE if prefetch_buffer_size is None else prefetch_buffer_size
    return data.map(named).prefetch(ahead)


def _names(
    paths: list[str],
    given: Sequence[str] | None,
    dialect: Dialect,
    compression: str,
    *,
    header: bool,
) -> list[str]:
    """Return the names of all columns."""
    names = None if given is None else list(given)
    if names is None:
        if not header:
            raise ValueError("column_names is needed for files without a header")
        for path in paths:
            with ByteStream(path, compression, BUFFER_BYTES) as stream:
                fields = next(dialect.records(stream), None)
            if fields is None:
                raise FormatError(f"{path!r} has no header")
            found = [field.decode() for field in fields]
            if names is not None and found != names:
                raise FormatError(f"{path!r} has another header than {paths[0]!r}")
            names = found
    assert names is not None
    if len(set(names)) < len(names):
        raise ValueError(f"the names of columns are repeated: {', '.join(names)}")
    return names


def _chosen(select: Sequence[int | str] | None, names: list[str]) -> list[int]:
    """Return the numbers of the columns that are read, in order."""
    if select is None:
        return list(range(len(names)))
    numbers = []
    for column in select:
        if isinstance(column, str):
            if column not in names:
                raise ValueError(f"there is no column {column!r}: {', '.join(names)}")
            numbers.append(names.index(column))
            continue
        number = count(column, "a column", minimum=0)
        if number >= len(names):
            raise ValueError(f"there is no column {number}: there are {len(names)}")
        numbers.append(number)
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"select_columns repeats a column: {list(select)}")
    return sorted(numbers)


def _rows(
    paths: list[str], columns: int, dialect: Dialect, compression: str, *, header: bool
) -> Iterator[list[bytes]]:
    """Yield the records of all files."""
    for path in paths:
        with ByteStream(path, compression, BUFFER_BYTES) as stream:
            for row in islice(dialect.records(stream), int(header), None):
                if len(row) != columns:
                    raise stream.damaged(
                        f"a record has {len(row)} fields, and there are {columns} "
                        "columns"
                    )
                yield row


def _inferred(
    rows: Iterator[list[bytes]], chosen: list[int], empty: tuple[str, ...]
) -> list[Any]:
    """Return the default value of each column, of the narrowest dtype that fits."""
    missing = {each.encode() for each in empty}
    kinds = [list(_KINDS) for _ in chosen]
    seen = [False] * len(chosen)
    for row in rows:
        for place, column in enumerate(chosen):
            if row[column] in missing:
                continue
            seen[place] = True
            while kinds[place] and not _fits(row[column], kinds[place][0]):
                kinds[place].pop(0)
    return [
        np.zeros(1, _KINDS[left[0]]) if some and left else ""
        for some, left in zip(seen, kinds, strict=True)
    ]


def _fits(field: bytes, kind: str) -> bool:
    dtype = _KINDS[kind]
    try:
        value = converter(dtype)(field)
    except ValueError:
        return False
    return dtype.kind != "f" or bool(value < np.inf)
