"""The sections of a compressed file, read one by one into the memory of a step."""

from __future__ import annotations

import os
from itertools import chain
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
    from memcfg.compression.coding._integer_sections import IntegerForm
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
        """The scratch of any section: what is not read into its place."""
        if self._handle is None:
            return 0
        return max((_scratch(*each) for each in self._rows), default=0)

    def read_section(
        self,
        section: int,
        out: npt.NDArray[Any],
        work: npt.NDArray[np.uint8],
        part: str | None = None,
    ) -> None:
        """Read and decode a section, or a part of it; FormatError if it is damaged."""
        weight, row = self._rows[section]
        target = out.reshape(-1).view(np.uint8)
        if weight.codec == "plain":
            self._read(section, target)
        elif part == "scales":
            self._read_scales(section, target)
        elif part == "codes":
            self._read_integers(section, out, work)
        elif self._pieces is not None:
            code = np.frombuffer(self._pieces[section], np.uint8)
            self.decode_section(section, code, out)
        else:
            code = work[: row.nbytes]
            self._read(section, code)
            self.decode_section(section, code, out)

    def _read_scales(self, section: int, target: npt.NDArray[np.uint8]) -> None:
        """Read the first bytes of a section; the read of the codes checks them all."""
        weight, row = self._rows[section]
        if self._pieces is not None:
            target[:] = np.frombuffer(self._pieces[section], np.uint8, target.size)
            return
        assert self._handle is not None
        if os.preadv(self._handle.fileno(), [target.data], row.offset) < target.size:
            raise self._damaged(weight)

    def _read_integers(
        self, section: int, out: npt.NDArray[Any], work: npt.NDArray[np.uint8]
    ) -> None:
        """Read the integers of a section as held, checked as by `read_codes`."""
        weight, row = self._rows[section]
        target, scales = out.reshape(-1).view(np.uint8), row.nbytes - out.nbytes
        if self._pieces is not None:
            target[:] = np.frombuffer(self._pieces[section], np.uint8, offset=scales)
        else:
            self._read(section, work[:scales], target)
        assert weight.form is not None
        if section not in self._checked:
            try:
                weight.form.check(out)
            except FormatError as error:
                raise FormatError(f"{weight.key!r} is damaged: {error}") from None
            self._checked.add(section)

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

    def _read(self, section: int, *outs: npt.NDArray[np.uint8]) -> None:
        """Read the bytes of a section, into one array after the other."""
        weight, row = self._rows[section]
        if self._handle is None:
            assert self._pieces is not None
            outs[0][:] = np.frombuffer(self._pieces[section], np.uint8)
            return
        places = [out.data for out in outs]
        read, checksum = os.preadv(self._handle.fileno(), places, row.offset), 0
        for each in places:
            checksum = crc32c(each, checksum)
        if read < row.nbytes or checksum != row.checksum:
            raise self._damaged(weight)

    def _damaged(self, weight: StoredWeight) -> FormatError:
        """Return the error for bytes that are not those that were saved."""
        return FormatError(
            f"{self._file.path} is damaged: the checksum of {weight.key!r} does not "
            "match"
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


def _scratch(weight: StoredWeight, section: Section) -> int:
    """Return the bytes of a section that steps read into scratch."""
    if weight.codec == "plain":
        return 0
    if weight.form is not None and weight.form.has_products(weight.shape):
        return weight.form.scales_bytes(section.shape)
    return section.nbytes


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
        del parts
        sections = self._weight.sections
        size = max(-(-self._source.work_bytes // 4), 1)
        zeros = {"shape": (size,), "value": 0.0, "dtype": "float32"}
        (work,) = builder.apply("fill", (), zeros, name="sections")
        form = self._weight.form
        integers = form if form is not None and form.has_products(shape) else None
        made = []
        for number in range(len(sections)):
            label = name if len(sections) == 1 else f"{name}/section{number}"
            if integers is None:
                made.append(self._read(builder, work, number, label))
            else:
                made.append(self._read_parts(builder, work, number, integers, label))
        if len(made) == 1:
            return made[0]
        axis = {"axis": len(self._weight.shape) - 1}
        (whole,) = builder.apply("concatenate", made, axis, name=name)
        if len(shape) == 2 and builder.integers.keys() >= {*made}:
            own = [builder.integers[each] for each in made]
            builder.integers[whole] = [*chain.from_iterable(own)]
        return whole

    def _read(self, builder: Builder, work: int, number: int, name: str) -> int:
        """Read a section, which may stay in its code."""
        section = self._weight.sections[number]
        attributes: dict[str, Any] = {}
        entries = self._source.entries(self._first + number)
        if entries is not None:
            attributes = {"code_bytes": section.nbytes, "entries": entries}
        attributes |= {"shape": section.shape, "dtype": self._weight.dtype}
        return self._apply(builder, work, number, attributes, name)

    def _read_parts(
        self, builder: Builder, work: int, number: int, form: IntegerForm, name: str
    ) -> int:
        """Read the scales and the codes of a section."""
        shape = self._weight.sections[number].shape
        scales, codes = form.shapes(shape)
        made = [
            self._apply(builder, work, number, attributes, f"{name}/{part}")
            for part, attributes in (
                ("scales", {"part": "scales", "shape": scales, "dtype": "float32"}),
                ("codes", {"part": "codes", "shape": codes, "dtype": form.dtype}),
            )
        ]
        return form.trace(builder, made, shape, name)

    def _apply(
        self,
        builder: Builder,
        work: int,
        number: int,
        attributes: Mapping[str, Any],
        name: str,
    ) -> int:
        """Append the op that reads a section."""
        where = {"source": self._source.name, "section": self._first + number}
        own = {**where, **attributes}
        return builder.apply("read_section", (work,), own, name=name)[1]

    def compute(
        self, parts: Sequence[npt.NDArray[Any]], shape: tuple[int, ...]
    ) -> npt.NDArray[Any]:
        """Read the whole weight."""
        del parts
        value = np.empty(shape, self._weight.dtype)
        begin = 0
        for number, section in enumerate(self._weight.sections, self._first):
            part = np.empty(section.shape, value.dtype)
            work = np.empty(section.nbytes, np.uint8)
            self._source.read_section(number, part, work)
            value[..., begin : begin + section.shape[-1]] = part
            begin += section.shape[-1]
        return value

    def split(
        self, value: npt.NDArray[Any], parts: Sequence[npt.NDArray[Any]]
    ) -> Sequence[npt.NDArray[Any]]:
        """Refuse other values, as files stay as they are."""
        raise ValueError("it lies in a compressed file, which stays as it is")
