"""Models as the bytes of a compressed file, in memory or on a disk."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from memcfg._core.rows import crc32c
from memcfg.compression._choice import check_model
from memcfg.compression._quantization import QuantizedWeight
from memcfg.compression._strip import strip
from memcfg.compression.coding import Coding, EncodedArray, encode
from memcfg.compression.coding._compressed_file import (
    CompressedFile,
    Section,
    StoredWeight,
    section_shapes,
)
from memcfg.compression.coding._section_source import SectionSource
from memcfg.errors import FormatError, WeightsError
from memcfg.nn._saving import describe, entries, set_values
from memcfg.nn.models import model_from_description
from memcfg.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from memcfg.compression._stage_report import Report
    from memcfg.nn import Model
    from memcfg.nn._weight_files import Entry
    from memcfg.nn.layers._parametrization import Parametrization

__all__ = ["CodedWeight", "CompressedModel", "load"]

_CODECS = {"none": "codebook", "huffman": "codebook", "range": "range"}
_CODERS = {  # in the sections of a codec
    "codebook": ("none", "huffman", "plain"),
    "range": ("range", "plain"),
}
_MULTIPLES = (64, 16, 1)  # of columns, that kernels work on at a time


class CodedWeight(NamedTuple):
    """A weight of a compressed model, and its bytes.

    Parameters
    ----------
    name : str
        Its name in files, such as ``"dense/kernel"``.
    shape : tuple of int
        Its shape.
    codec : {"plain", "codebook", "range", "integers"}
        How its sections are stored.
    nbytes : int
        The bytes of its sections.
    dense_bytes : int
        Its bytes when it is decoded.
    """

    name: str
    shape: tuple[int, ...]
    codec: str
    nbytes: int
    dense_bytes: int


class CompressedModel:
    """A model as the bytes of a compressed file.

    Parameters
    ----------
    model : Model
        A model with weights that were pruned and shared: many values are exactly 0,
        the others take few values.
    settings : mapping of str to Coding, optional
        How weights are coded, by `Variable.path`, such as ``"dense/kernel"``. Weights
        that it does not name are stored as they are, and weights of integers that
        `quantize` made as such. By default, these and all float32 weights of two or
        more dimensions are coded.
    section_bytes : int or str, default "8MiB"
        Matrices larger than this are divided by columns into sections of at most so
        many bytes, decoded, which can be read one by one.

    Raises
    ------
    TypeError, ValueError
        If a setting names no weight or a weight that is not float32, or an argument is
        wrong; or the model has parts that cannot be described, as in `Model.save`, or
        its description and the list of sections take more than 16 MiB.
    RuntimeError
        If the shapes of the model are not known.
    MissingDependencyError
        If a coder needs constriction and it is not installed.

    See Also
    --------
    load : Open a compressed file.

    Notes
    -----
    The file has no optimizer, no compile settings and no random seeds. What is decoded
    has the bits of the weights that were coded.
    """

    def __init__(
        self,
        model: Model,
        settings: Mapping[str, Coding] | None = None,
        *,
        section_bytes: int | str = "8MiB",
    ) -> None:
        check_model(model, "CompressedModel")
        limit = parse_bytes(section_bytes)
        if not limit:
            raise ValueError("section_bytes must be positive, got 0")
        integers = _integers(model)
        if model._built_network().computed:
            model = strip(model)
        with model._lock.turn():
            model._gather()
            session, found = model._built_session(), _values(model)
            codings = _codings(found, settings, integers)
            weights, pieces = [], []
            for entry in found:
                if entry.key in integers and entry.key not in codings:
                    weight, own = _stored_integers(entry, *integers[entry.key], limit)
                else:
                    value = np.asarray(session.read(entry.name))
                    weight, own = _stored(entry, value, codings.get(entry.key), limit)
                weights.append(weight)
                pieces += own
        self._file = CompressedFile(_description(model), weights, pieces)
        self._report: Report | None = None
        self._model: Model | None = None  # that predicts

    @classmethod
    def _of(cls, file: CompressedFile) -> CompressedModel:
        made = cls.__new__(cls)
        made._file = file
        made._report = None
        made._model = None
        return made

    @property
    def nbytes(self) -> int:
        """The size of the file in bytes, everything included."""
        return self._file.nbytes

    @property
    def header_bytes(self) -> int:
        """The bytes of the file before the weights: the architecture and offsets."""
        return self._file.header_bytes

    @property
    def dense_bytes(self) -> int:
        """The bytes of all weights when they are decoded."""
        return sum(weight.dense_bytes for weight in self._file.weights)

    @property
    def weights(self) -> tuple[CodedWeight, ...]:
        """Each weight with its codec and its bytes."""
        return tuple(
            CodedWeight(w.key, w.shape, w.codec, w.nbytes, w.dense_bytes)
            for w in self._file.weights
        )

    def save(self, filepath: str | os.PathLike[str], overwrite: bool = True) -> None:
        """Write the file, as a whole or not at all.

        Parameters
        ----------
        filepath : str or path-like
            The file, such as ``"x.mcz"``.
        overwrite : bool, default True
            Whether an existing file is replaced.

        Raises
        ------
        ValueError
            If the name does not end in ``.mcz``.
        FileExistsError
            If the file exists and `overwrite` is False.
        OSError
            If the file cannot be written.
        FormatError
            If the file that was loaded has been damaged since.
        """
        path = os.fspath(filepath)
        if not path.endswith(".mcz"):
            raise ValueError(
                f"a compressed model's file name must end in '.mcz', got {path!r}"
            )
        self._file.save(path, overwrite=overwrite)

    def model(self, custom_objects: Mapping[str, Any] | None = None) -> Model:
        """Return the model with all weights decoded.

        Weights of integers stay so, as `quantize` made them; `strip` returns a model
        that has none.

        Parameters
        ----------
        custom_objects : mapping of str to type or callable, optional
            Your own classes and functions by name, as in `load_model`.

        Returns
        -------
        Model
            The model, which is not compiled.

        Raises
        ------
        FormatError
            If the file is damaged, or names an unknown class.
        WeightsError
            If the weights in the file are not those of the model.
        TypeError, ValueError
            If a constructor rejects an argument in the file.
        """
        made, _ = self._empty(custom_objects)
        of_integers = {
            each.key: QuantizedWeight(each.shape, each.form)
            for each in self._file.weights
            if each.form is not None
        }
        _parametrize(made, of_integers)
        others = {weight.key for weight in self._file.weights} - of_integers.keys()
        self._fill(made, others)
        self._fill_integers(made, of_integers)
        return made

    def streamed(
        self,
        custom_objects: Mapping[str, Any] | None = None,
        *,
        products: str = "dense",
    ) -> Model:
        """Return a model that reads its weights from the file in each step.

        Each weight that is coded, and each matrix of 64 KiB or more, is an activation
        of the step: read and decoded before the op that needs it, while the ops before
        it compute, and freed after it. Products with a matrix in several sections are
        computed section by section.

        Parameters
        ----------
        custom_objects : mapping of str to type or callable, optional
            As of `model`.
        products : {"dense", "auto"}, default "dense"
            How layers multiply. ``"auto"`` multiplies by codes, entry by entry, where
            that is faster than decoding: in matrices of which few elements are kept,
            and small batches. The matrix is then never dense, in any part. Sums are in
            another order, the same for all batches, so outputs differ by rounding.

        Returns
        -------
        Model
            The model, which is not compiled. Its `predict`, `plan` and limits are those
            of any model; with dense products, its outputs have the bits of those of
            `model`. With NumPy's kernels they differ by rounding where a matrix lies in
            several sections. The file stays open as long as the model exists.

        Raises
        ------
        FormatError, WeightsError, TypeError, ValueError
            As of `model`.

        Notes
        -----
        A step that meets a damaged section raises FormatError, and nothing else is
        lost. The weights that are read cannot be written. Range codes are decoded in
        some 0.7 MB of memory outside of the limit, Huffman codes in none.
        """
        if products not in ("dense", "auto"):
            raise ValueError(f"products must be 'dense' or 'auto', got {products!r}")
        made, entries_of = self._empty(custom_objects)
        source = SectionSource(self._file, sparse=products == "auto")
        stored = source.parametrizations()
        _parametrize(made, stored)
        self._fill(made, entries_of.keys() - stored.keys())
        return made

    def _empty(
        self, custom_objects: Mapping[str, Any] | None
    ) -> tuple[Model, Mapping[str, Entry]]:
        """Return a model whose weights have no values yet, and its entries by key."""
        file = self._file
        where = file.path or "the compressed model"
        text = json.dumps(file.description)
        made = model_from_description(text, where, custom_objects or {})
        wanted = {entry.key: entry for entry in entries(made)}
        _check(wanted, file, where)
        return made, wanted

    def _fill(self, model: Model, keys: Collection[str]) -> None:
        """Decode these weights into a model."""
        with model._lock.turn():
            wanted = {entry.key: entry for entry in entries(model)}
            values = _decoded(self._file, keys)
            set_values(model, ((wanted[key], value) for key, value in values), None)

    def _fill_integers(self, model: Model, by: Mapping[str, QuantizedWeight]) -> None:
        """Read the parts of these weights into a model."""
        if not by:
            return
        with model._lock.turn():
            wanted = {entry.key: entry for entry in entries(model)}
            for key, parts in _integer_parts(self._file, by):
                names = (f"{key}_{part.name}" for part in by[key].parts)
                values = zip((wanted[each] for each in names), parts, strict=True)
                set_values(model, values, None)

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        custom_objects: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the model's outputs, with weights that are read while it computes.

        Parameters
        ----------
        x : numpy.ndarray, Dataset or iterable
            As of `Model.predict`.
        batch_size : int, optional
            Samples a step; None: 32.
        custom_objects : mapping of str to type or callable, optional
            As of `model`; used by the first call.

        Returns
        -------
        numpy.ndarray, or list or tuple of numpy.ndarray
            As of `Model.predict`.

        Raises
        ------
        InfeasiblePlanError
            If no plan fits the limit of the device. The error names the smallest one.
        FormatError, WeightsError, TypeError, ValueError
            As of `streamed` and of `Model.predict`; FormatError also if the file has
            been damaged since it was opened.

        Notes
        -----
        The model of the first call is kept for the next ones.
        """
        if self._model is None:
            self._model = self.streamed(custom_objects)
        return self._model.predict(x, batch_size, verbose=0)

    def close(self) -> None:
        """Give back the memory, and close the file, that `predict` uses."""
        model, self._model = self._model, None
        if model is not None:
            model.close()

    def report(self) -> Report:
        """Return what each stage of `compress` took and gave.

        Returns
        -------
        Report
            Tables to print.

        Raises
        ------
        RuntimeError
            If it was not `compress` that made this object; files have no reports.
        """
        if self._report is None:
            raise RuntimeError(
                "compress returns models with a report; a file has none: see `weights`"
            )
        return self._report

    def __repr__(self) -> str:
        where = f" in {self._file.path!r}" if self._file.path else ""
        return (
            f"<CompressedModel{where}: {self.nbytes} bytes for {self.dense_bytes} "
            "of weights>"
        )


def load(filepath: str | os.PathLike[str]) -> CompressedModel:
    """Open a compressed file; its weights stay on the disk.

    Parameters
    ----------
    filepath : str or path-like
        A file that `CompressedModel.save` wrote. It must not change while it is used.

    Returns
    -------
    CompressedModel
        The compressed model.

    Raises
    ------
    OSError
        If the file cannot be read.
    FormatError
        If it is damaged or not a compressed model.

    Notes
    -----
    Each weight has a checksum, which is verified when it is read. A file whose weights
    take more than 1 GiB and more than 1,000 times its size is refused.
    """
    return CompressedModel._of(CompressedFile.open(filepath))


def _values(model: Model) -> list[Entry]:
    """Return the values that a file has, without an optimizer's."""
    weights = model._built_network().weights
    keys = {entry.name: entry for entry in entries(model)}
    return [keys[weight.name] for weight in weights]


def _parametrize(model: Model, by: Mapping[str, Parametrization]) -> None:
    """Let a new model hold parts of weights, by key."""
    if not by:
        return
    for weight in model._built_network().weights:
        if weight.key in by:
            weight.layer._parametrized[weight.spec_name] = by[weight.key]
    model._renew()


def _integers(
    model: Model,
) -> dict[str, tuple[QuantizedWeight, Sequence[npt.NDArray[Any]]]]:
    """Return the weights of a model that are integers and scales, by key."""
    session = model._built_session()
    return {
        each.weight.key: (each.by, [session.read(part) for part in each.parts])
        for each in model._built_network().computed.values()
        if isinstance(each.by, QuantizedWeight)
    }


def _codings(
    found: list[Entry],
    settings: Mapping[str, Coding] | None,
    integers: Collection[str],
) -> dict[str, Coding]:
    """Return how each weight is coded, by key."""
    if settings is None:
        return {
            each.key: Coding()
            for each in found
            if each.dtype == "float32" and len(each.shape) > 1
            if each.key not in integers
        }
    by_name = {each.name: each for each in found} | {each.key: each for each in found}
    result = {}
    for name, coding in settings.items():
        if name not in by_name:
            known = ", ".join(each.key for each in found)
            raise ValueError(f"the model has no weight {name!r}; it has {known}")
        if not isinstance(coding, Coding):
            raise TypeError(f"the setting of {name!r} must be a Coding, got {coding!r}")
        if by_name[name].dtype != "float32":
            raise ValueError(
                f"{name!r} is {by_name[name].dtype}, and codes are float32"
            )
        result[by_name[name].key] = coding
    return result


def _stored(
    entry: Entry, value: npt.NDArray[Any], coding: Coding | None, limit: int
) -> tuple[StoredWeight, list[bytes]]:
    """Return a weight's place in a file, and the bytes of its sections."""
    columns = _columns(entry, limit)
    shapes = section_shapes(entry.shape, columns)
    pieces, begin = [], 0
    for shape in shapes:
        part = value if columns is None else value[..., begin : begin + shape[-1]]
        begin += shape[-1] if shape else 0
        if coding is None:
            stored = part.astype(part.dtype.newbyteorder("<"), copy=False)
            pieces.append(np.ascontiguousarray(stored).tobytes())
        else:
            code = encode(part, index_bits=coding.index_bits, coder=coding.coder)
            pieces.append(code.data.tobytes())
    sections = tuple(
        Section(0, len(piece), crc32c(piece), shape)
        for piece, shape in zip(pieces, shapes, strict=True)
    )
    codec = "plain" if coding is None else _CODECS[coding.coder]
    weight = StoredWeight(entry.key, entry.shape, entry.dtype, codec, columns, sections)
    return weight, pieces


def _stored_integers(
    entry: Entry,
    by: QuantizedWeight,
    parts: Sequence[npt.NDArray[Any]],
    limit: int,
) -> tuple[StoredWeight, list[bytes]]:
    """Return the place of a weight of integers, and the bytes of its sections."""
    columns, form = _columns(entry, limit), by.form
    scales, codes = parts
    shapes = section_shapes(entry.shape, columns)
    pieces, begin = [], 0
    for shape in shapes:
        pieces.append(form.pack(scales, codes, slice(begin, begin + shape[-1])))
        begin += shape[-1]
    sections = tuple(
        Section(0, len(piece), crc32c(piece), shape)
        for piece, shape in zip(pieces, shapes, strict=True)
    )
    weight = StoredWeight(
        entry.key, entry.shape, entry.dtype, "integers", columns, sections, form
    )
    return weight, pieces


def _integer_parts(
    file: CompressedFile, by: Mapping[str, QuantizedWeight]
) -> Iterator[tuple[str, list[npt.NDArray[Any]]]]:
    """Yield the key of each of these weights, with its scales and integers."""
    found: list[tuple[npt.NDArray[Any], ...]] = []
    for weight, section, data in file.sections(by.keys()):
        assert weight.form is not None
        try:
            found.append(weight.form.unpack(data, section.shape))
        except FormatError as error:
            raise FormatError(f"{weight.key!r} is damaged: {error}") from None
        if section is weight.sections[-1]:
            parts = by[weight.key].parts
            yield (
                weight.key,
                [
                    np.concatenate(own, axis=1).reshape(part.shape)
                    for own, part in zip(zip(*found, strict=True), parts, strict=True)
                ],
            )
            found = []


def _columns(entry: Entry, limit: int) -> int | None:
    """Return the columns of a section of a matrix, or None for a single section."""
    if len(entry.shape) != 2 or entry.nbytes <= limit:
        return None
    fitting = limit // (entry.nbytes // entry.shape[-1])
    for multiple in _MULTIPLES:
        if fitting >= multiple:
            return fitting // multiple * multiple
    return 1


def _description(model: Model) -> dict[str, Any]:
    """Return what a file says of a model: no compile settings, and no seeds."""
    document: dict[str, Any] = json.loads(describe(model))
    document["compile"] = None
    for layer in document["layers"]:
        layer["seed"] = 0
    return document


def _check(wanted: Mapping[str, Entry], file: CompressedFile, where: str) -> None:
    """Raise WeightsError unless a file has the weights of a model."""
    stored = {weight.key: weight for weight in file.weights}
    if wanted.keys() != stored.keys():
        differing = sorted(wanted.keys() ^ stored.keys())
        raise WeightsError(
            f"{where} does not have the weights of its model: {differing[0]!r} is in "
            "one of them only"
        )
    for key, weight in stored.items():
        entry = wanted[key]
        if (weight.shape, weight.dtype) != (entry.shape, entry.dtype):
            raise WeightsError(
                f"{where}: {key!r} has shape {weight.shape} and {weight.dtype}, but "
                f"{entry.shape} and {entry.dtype} in the model"
            )


def _decoded(
    file: CompressedFile, keys: Collection[str]
) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Yield the key and value of weights."""
    value: npt.NDArray[Any] | None = None
    begin = 0
    for weight, section, data in file.sections(keys):
        if value is None:
            value, begin = np.empty(weight.shape, weight.dtype), 0
        part = _part(weight, section, data)
        if weight.columns is None:
            value = part
        else:
            value[..., begin : begin + section.shape[-1]] = part
            begin += section.shape[-1]
        if section is weight.sections[-1]:
            yield weight.key, value
            value = None


def _part(weight: StoredWeight, section: Section, data: bytes) -> npt.NDArray[Any]:
    """Decode a section."""
    if weight.codec == "plain":
        stored = np.frombuffer(data, np.dtype(weight.dtype).newbyteorder("<"))
        return stored.astype(weight.dtype).reshape(section.shape)
    try:
        if weight.form is not None:
            made = np.empty(section.shape, np.float32)
            weight.form.decode(data, made)
            return made
        code = EncodedArray(data, section.shape)
        if code.coder not in _CODERS[weight.codec]:
            raise FormatError(f"it is damaged: {code.coder!r} is not {weight.codec!r}")
        return code.decode()
    except FormatError as error:
        raise FormatError(f"{weight.key!r}: {error}") from None
