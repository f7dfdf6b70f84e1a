"""The base class of the evaluators."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from memcfg import config
from memcfg._html import Row, Section, report
from memcfg.documents import (
    Key,
    read_count,
    read_document,
    read_flag,
    read_or_null,
    read_text,
    write_json,
)
from memcfg.errors import FormatError
from memcfg.evaluation._evaluated_rows import EvaluatedRows
from memcfg.memory import numpy_allocator

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Self

    from memcfg.evaluation._evaluated_rows import Block

__all__ = ["Evaluator", "label_name", "not_evaluated"]

_FORMAT = "memcfg-evaluation-1"
_TAG = "evaluation"  # the holder of the state, in a pool's statistics


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FormatError(f"{where} should be an object")
    return value


_KEYS = {
    "kind": Key(read_text),
    "settings": Key(_object),
    "columns": Key(read_or_null(read_count)),
    "count": Key(read_count),
    "weighted": Key(read_flag),
    "state": Key(_object),
}


class Evaluator:
    """Base class of the evaluators: numbers of a pass over data, batch by batch.

    An evaluator holds counts and sums, and no samples, except for an exact `ROC`. Its
    arrays are in the pool of the current device, under the tag ``evaluation``, and
    count under its limit. A call that raises leaves it as it was.

    Parameters
    ----------
    **settings
        The arguments of a subclass, which `new_instance` and JSON repeat.

    See Also
    --------
    memcfg.nn.Model.do_evaluation : One pass for any number of evaluators.
    """

    __slots__ = ("_columns", "_count", "_settings", "_weighted")

    _indices: ClassVar[bool] = False  # whether labels may be indices of classes
    _by_output: ClassVar[bool] = False  # whether outputs may have masks of their own
    _kinds: ClassVar[dict[str, type[Evaluator]]] = {}

    def __init__(self, **settings: Any) -> None:
        self._settings = settings  # the arguments that make an equal one elsewhere
        self._columns: int | None = None  # outputs of a prediction
        self._count = 0
        self._weighted = False

    def __init_subclass__(cls, **options: Any) -> None:
        """Register a class for `from_json`."""
        super().__init_subclass__(**options)
        cls._kinds.setdefault(cls.__name__, cls)

    def eval(
        self,
        labels: Any,
        predictions: Any,
        mask: Any = None,
        *,
        sample_weight: Any = None,
    ) -> None:
        """Add a batch.

        Parameters
        ----------
        labels : array_like
            Of the shape of `predictions`, one-hot for classes. Evaluators of classes
            also take the indices of classes, of shape ``(samples,)`` or
            ``(samples, steps)``.
        predictions : array_like
            Of shape ``(samples, outputs)`` or, for time series,
            ``(samples, steps, outputs)``; ``(samples,)`` for one output.
        mask : array_like, optional
            Ones, and zeros for what does not count, of shape ``(samples,)`` or
            ``(samples, steps)``. Evaluators of separate outputs also take the shape of
            `predictions`. Masked values may be anything, also NaN.
        sample_weight : array_like, optional
            How often each sample, or step, counts; shapes as of a mask, or
            ``(samples,)`` for time series.

        Raises
        ------
        TypeError
            If the arrays are not of numbers.
        ValueError
            If shapes do not fit, or values are not what the evaluator reads.
        ResourceExhaustedError
            If the state does not fit the limit of the device, or its own.
        """
        rows = EvaluatedRows(
            labels,
            predictions,
            mask,
            sample_weight,
            indices=self._indices,
            by_output=self._by_output,
        )
        if self._columns not in (None, rows.columns):
            raise ValueError(
                f"{self._name} has evaluated predictions of {self._columns} outputs, "
                f"and these have {rows.columns}: use a new one, or reset()"
            )
        self._check_columns(rows.columns)
        with self._memory():
            blocks: Any = list(rows) if rows.is_single else rows
            count = 0
            for block in blocks:
                self._check_block(block)
                count += len(block.predictions)
            if count:
                self._take(blocks, rows.columns)
                self._columns = rows.columns
                self._count += count
                self._weighted |= rows.weighted

    def merge(self, other: Self) -> None:
        """Add what another evaluator of the same class and arguments has seen.

        Parameters
        ----------
        other : Evaluator
            Such as that of another worker. It stays as it is. Both may spill to other
            folders.

        Raises
        ------
        TypeError
            If it is of another class.
        ValueError
            If it was made with other arguments, or for another number of outputs.
        ResourceExhaustedError
            If the result does not fit.
        """
        if type(other) is not type(self):
            raise TypeError(f"{self._name} merges with its own class, not {other!r}")
        if other._settings != self._settings:
            raise ValueError(f"{self._name}: both were made with different arguments")
        if None not in (self._columns, other._columns) and (
            self._columns != other._columns
        ):
            raise ValueError(
                f"{self._name}: one has {self._columns} outputs and the other "
                f"{other._columns}"
            )
        if other._columns is None:
            return
        with self._memory():
            self._join(other)
        self._columns = other._columns
        self._count += other._count
        self._weighted |= other._weighted

    def reset(self) -> None:
        """Forget all batches; the arguments stay."""
        self._columns, self._count, self._weighted = None, 0, False
        self._clear()

    def new_instance(self) -> Self:
        """Return an evaluator with the same arguments and no batches.

        Returns
        -------
        Evaluator
            Of the same class.
        """
        return type(self)(**self._settings, **self._local())

    @property
    def count(self) -> int:
        """The number of rows evaluated: samples, or time steps that count."""
        return self._count

    @property
    def state_bytes(self) -> int:
        """The bytes of the state in memory."""
        raise NotImplementedError(f"{self._name} does not say its bytes")

    def stats(self) -> str:
        """Return the numbers as text for a terminal of 80 columns.

        Returns
        -------
        str
            Lines of text, without colours.
        """
        raise NotImplementedError(f"{self._name} has no text")

    def get_value(self, metric: str) -> float:
        """Return a number by the name of its method.

        Parameters
        ----------
        metric : str
            Such as ``"accuracy"``; see `metrics`.

        Returns
        -------
        float
            What the method returns.

        Raises
        ------
        ValueError
            If there is no such number.
        RuntimeError
            If nothing was evaluated.
        """
        if metric not in self.metrics:
            raise ValueError(
                f"{self._name} has no metric {metric!r}: {', '.join(self.metrics)}"
            )
        method = getattr(self, metric, None) or getattr(self, f"calculate_{metric}")
        return float(method())

    metrics: ClassVar[tuple[str, ...]] = ()  # names that `get_value` takes

    def to_json(self) -> str:
        """Return the arguments and the state as JSON.

        Returns
        -------
        str
            One line, which `from_json` reads.

        Raises
        ------
        ValueError
            If an exact ROC has spilled scores to a file.
        """
        return write_json(
            {
                "format": _FORMAT,
                "kind": self._name,
                "settings": self._settings,
                "columns": self._columns,
                "count": self._count,
                "weighted": self._weighted,
                "state": self._written() if self._columns is not None else {},
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return an evaluator from JSON.

        Parameters
        ----------
        text : str
            What `to_json` returned. `Evaluator.from_json` reads all classes.

        Returns
        -------
        Evaluator
            With the same arguments and state.

        Raises
        ------
        FormatError
            If the text is no such document, or one of another class.
        """
        kind = "memcfg evaluator"
        fields = read_document(text, kind, _FORMAT, _KEYS)
        own = fields["kind"] == cls.__name__
        made = cls if own else cls._kinds.get(fields["kind"])
        if made is None or not issubclass(made, cls):
            raise FormatError(f"{fields['kind']!r} is no {cls.__name__}")
        try:
            result = made(**fields["settings"])
        except (TypeError, ValueError) as error:
            raise FormatError(f"{kind}: wrong settings: {error}") from error
        for name in fields["settings"].keys() - result._settings.keys():
            raise FormatError(f"{kind}: wrong settings: {name!r} is none of them")
        columns = fields["columns"]
        if columns is not None:
            try:
                result._check_columns(columns)
            except ValueError as error:
                raise FormatError(f"{kind}: {error}") from error
            with result._memory():
                result._read(fields["state"], columns)
        result._columns, result._count = columns, fields["count"]
        result._weighted = fields["weighted"]
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as JSON, as between the processes of workers."""
        return type(self).from_json, (self.to_json(),)

    def __repr__(self) -> str:
        """Return the class, its arguments and how much it has seen."""
        given = self._settings | self._local()
        shown = ", ".join(f"{k}={v!r}" for k, v in given.items())
        return f"<{self._name}({shown}): {self._count} rows, {self.state_bytes} bytes>"

    def _repr_html_(self) -> str:
        rows = [
            Row(name.replace("_", " "), f"{self.get_value(name):.4f}")
            for name in (self.metrics if self._count else ())
        ]
        head = f"{self._name}, {self._count} rows"
        return report(head, [Section("", rows)], self._pictures())

    def _pictures(self) -> str:
        """Return drawings for a notebook, as HTML."""
        return ""

    def _parts(self) -> Iterator[Self]:
        """Yield evaluators that merge to this one, each with JSON of bounded length."""
        yield self

    # What a subclass defines

    def _local(self) -> dict[str, Any]:
        """Return arguments that hold in this process alone, such as folders."""
        return {}

    @property
    def _name(self) -> str:
        return type(self).__name__

    @contextmanager
    def _memory(self) -> Iterator[None]:
        """Allocate arrays in the pool of the current device."""
        pool = config.logical_device(None).host_pool
        with numpy_allocator(pool, tag=_TAG):
            yield

    def _check_columns(self, columns: int) -> None:
        """Raise ValueError if predictions cannot have as many outputs."""

    def _check_block(self, block: Block) -> None:
        """Raise ValueError for values that cannot be evaluated."""

    def _take(self, blocks: Iterable[Block], columns: int) -> None:
        """Add checked blocks, or raise and leave the state as it was."""
        raise NotImplementedError(f"{self._name} adds nothing")

    def _join(self, other: Self) -> None:
        """Add the state of another, or raise and leave both as they were."""
        raise NotImplementedError(f"{self._name} cannot be merged")

    def _clear(self) -> None:
        """Drop the state."""

    def _written(self) -> dict[str, Any]:
        """Return the state as values of JSON."""
        return {}

    def _read(self, state: dict[str, Any], columns: int) -> None:
        """Take the state from values of JSON."""

    def _require_data(self) -> int:
        """Return the number of outputs; RuntimeError before the first batch."""
        if self._columns is None:
            raise not_evaluated(self._name)
        return self._columns

    def _place(self, index: int, what: str) -> int:
        """Return an index of an output or a class; ValueError if there is none."""
        columns = self._wide()
        if isinstance(index, bool) or not 0 <= index < columns:
            raise ValueError(f"{what} is from 0 to {columns - 1}, not {index!r}")
        return index

    def _wide(self) -> int:
        """Return the number of outputs or classes that metrics are of."""
        return self._require_data()


def not_evaluated(name: str) -> RuntimeError:
    """Return the error of asking for numbers before there are any."""
    return RuntimeError(
        f"{name}: no evaluation has been performed, so there is no data: eval must be "
        "called first, or model.do_evaluation"
    )


def label_name(labels: Any, index: int) -> str:
    """Return the name of a class or an output, its number by default."""
    return str(index) if labels is None else str(labels[index])
