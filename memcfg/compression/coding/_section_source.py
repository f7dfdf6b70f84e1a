"""The sections of a compressed file, read one by one into the memory of a step."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from weakref import finalize

import numpy as np

from memcfg._core import Kernel, decode_bytes
from memcfg._core.rows import crc32c
from memcfg.compression.coding import EncodedArray
from memcfg.devices import OperandSpec
from memcfg.errors import FormatError, KernelError
from memcfg.files import open_file
from memcfg.nn.layers._parametrization import Parametrization
from memcfg.ops import add_source

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from memcfg.compression.coding._compressed_file import (
        CompressedFile,
        Section,
        StoredWeight,
    )
    from memcfg.graph import Builder

__all__ = ["SectionSource", "StoredParametrization"]

_HEAD = 16  # bytes of a code that say how many entries it has
_LARGE = 65_536  # bytes; smaller weights that are not coded are read once


class SectionSource:
    """The sections of a file, by number, as ops read them.

    The file stays open as long as this exists. Nothing is read before it is needed.
    """

    def __init__(self, file: CompressedFile, *, sparse: bool = False) -> None:
        self._sparse = sparse  # whether products may read codes
        self.name = f"sections {uuid4().hex}"
        self._file = file
        self._rows: list[tuple[StoredWeight, Section]] = [
            (weight, section) for weight in file.weights for section in weight.sections
        ]
        self._handle = None if file.path is None else open_file(file.path)
        if self._handle is not None:
            finalize(self, self._handle.close)
        self._pieces = file.pieces
        self._checked: set[int] = set()  # sections whose codes products can read
        add_source(self.name, self)

    def parametrizations(self) -> Mapping[str, StoredParametrization]:
        """Return how steps read each weight that is coded, or large, by key."""
        result, number = {}, 0
        for weight in self._file.weights:
            is_large = weight.dense_bytes >= _LARGE and len(weight.shape) > 1
            if weight.codec != "plain" or is_large:
                result[weight.key] = StoredParametrization(self, weight, number)
            number += len(weight.sections)
        return result

    def entries(self, section: int) -> int | None:
        """Return the entries of a section that products may read; None: they may not.

        Reads 16 bytes.
        """
        weight, row = self._rows[section]
        if not self._sparse or weight.codec != "codebook" or row.nbytes < _HEAD:
            return None
        if self._pieces is not None:
            head = self._pieces[section]
        else:
            assert self._handle is not None
            head = os.pread(self._handle.fileno(), _HEAD, row.offset)
        return EncodedArray(head, row.shape).entries

    @property
    def work_bytes(self) -> int:
        """The scratch of any section: its code, unless that is in memory."""
        if self._handle is None:
            return 0
        return max(
            (s.nbytes for weight, s in self._rows if weight.codec != "plain"),
            default=0,
        )

    def read_section(
        self, section: int, out: npt.NDArray[Any], work: npt.NDArray[np.uint8]
    ) -> None:
        """Read and decode a section; FormatError if it is damaged."""
        weight, row = self._rows[section]
        target = out.reshape(-1).view(np.uint8)
        if weight.codec == "plain":
            self._read(section, target)
        elif self._pieces is not None:
            code = np.frombuffer(self._pieces[section], np.uint8)
            self.decode_section(section, code, out)
        else:
            code = work[: row.nbytes]
            self._read(section, code)
            self.decode_section(section, code, out)

    def read_codes(self, first: int, count: int, out: npt.NDArray[np.uint8]) -> None:
        """Read consecutive sections as they are; FormatError if one is damaged.

        Codes are checked when they are first read; later, their checksums say that they
        are the same.
        """
        begin = 0
        for number in range(first, first + count):
            size = self._rows[number][1].nbytes
            code = out[begin : begin + size]
            self._read(number, code)
            if number not in self._checked:
                self._check(number, code)
                self._checked.add(number)
            begin += size

    def _check(self, section: int, code: npt.NDArray[np.uint8]) -> None:
        """Raise FormatError for a code that no product can read.

        A product of zeros reads all of it, and makes no matrix.
        """
        weight, row = self._rows[section]
        inputs, units = row.shape
        specs = OperandSpec((1, inputs), "float32"), OperandSpec(code.shape, "uint8")
        made = OperandSpec((1, units), "float32")
        attributes = {"columns": units, "ends": [row.nbytes]}
        kernel = Kernel("coded_dense", attributes, specs, [made], None)
        x, y = np.zeros(inputs, np.float32), np.empty(units, np.float32)
        try:
            kernel.run([each.ctypes.data for each in (x, code, y)])
        except KernelError as error:
            raise FormatError(f"{weight.key!r} is damaged: {error}") from None

    def _read(self, section: int, out: npt.NDArray[np.uint8]) -> None:
        """Read the bytes of a section."""
        weight, row = self._rows[section]
        if self._handle is None:
            assert self._pieces is not None
            out[:] = np.frombuffer(self._pieces[section], np.uint8)
            return
        read = os.preadv(self._handle.fileno(), [out.data], row.offset)
        if read < row.nbytes or crc32c(out.data) != row.checksum:
            raise FormatError(
                f"{self._file.path} is damaged: the checksum of {weight.key!r} does "
                "not match"
            )

    def decode_section(
        self, section: int, code: npt.NDArray[np.uint8], out: npt.NDArray[Any]
    ) -> None:
        """Decode a section; FormatError if it is damaged."""
        weight, _ = self._rows[section]
        target = out.reshape(-1).view(np.uint8)
        try:
            if weight.form is not None:
                weight.form.decode(code, out)
            elif weight.codec == "range":
                EncodedArray(code, out.shape).decode(out)
            else:
                decode_bytes("codebook", code.data, target.data)
        except (FormatError, ValueError) as error:
            raise FormatError(f"{weight.key!r} is damaged: {error}") from None


class StoredParametrization(Parametrization):
    """A weight that each step reads from a file, so that a model holds none of it."""

    __slots__ = ("_first", "_source", "_weight")

    def __init__(self, source: SectionSource, weight: StoredWeight, first: int) -> None:
        self._source = source
        self._weight = weight
        self._first = first  # number of its first section

    def __deepcopy__(self, memo: object) -> StoredParametrization:
        """Return itself, as models may share a file."""
        return self

    @property
    def parts(self) -> tuple[()]:
        """Nothing, as the model holds no part of it."""
        return ()

    def trace(
        self, builder: Builder, parts: Sequence[int], shape: tuple[int, ...], name: str
    ) -> int:
        """Read the sections, and put them together."""
        del parts, shape
        sections = self._weight.sections
        size = max(-(-self._source.work_bytes // 4), 1)
        zeros = {"shape": (size,), "value": 0.0, "dtype": "float32"}
        (work,) = builder.apply("fill", (), zeros, name="sections")
        made = []
        for number, section in enumerate(sections):
            attributes: dict[str, Any] = {
                "source": self._source.name,
                "section": self._first + number,
                "shape": section.shape,
                "dtype": self._weight.dtype,
            }
            entries = self._source.entries(self._first + number)
            if entries is not None:
                attributes |= {"code_bytes": section.nbytes, "entries": entries}
            label = name if len(sections) == 1 else f"{name}/section{number}"
            read = builder.apply("read_section", (work,), attributes, name=label)
            made.append(read[1])
        if len(made) == 1:
            return made[0]
        axis = {"axis": len(self._weight.shape) - 1}
        return builder.apply("concatenate", made, axis, name=name)[0]

    def compute(
        self, parts: Sequence[npt.NDArray[Any]], shape: tuple[int, ...]
    ) -> npt.NDArray[Any]:
        """Read the whole weight."""
        del parts
        value = np.empty(shape, self._weight.dtype)
        begin = 0
        for number, section in enumerate(self._weight.sections, self._first):
            part = np.empty(section.shape, value.dtype)
            work = np.empty(self._source.work_bytes, np.uint8)
            self._source.read_section(number, part, work)
            value[..., begin : begin + section.shape[-1]] = part
            begin += section.shape[-1]
        return value

    def split(
        self, value: npt.NDArray[Any], parts: Sequence[npt.NDArray[Any]]
    ) -> Sequence[npt.NDArray[Any]]:
        """Refuse other values, as files stay as they are."""
        raise ValueError("it lies in a compressed file, which stays as it is")
