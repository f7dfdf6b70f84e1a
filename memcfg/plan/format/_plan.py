"""The plan: actions over a graph, predicted costs, and a summary for people.

Version 2 of the format adds the offsets of copies on their tiers, encoded copies,
encodings that may overflow, lossy codecs, and plans without offsets. Version 3 adds
collectives that run beside compute. A plan is written in the lowest version that has
what it uses.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from memcfg._html import Row, Section, report
from memcfg._terminal import paragraph, shorten, width, writable
from memcfg.documents import (
    Key,
    Reader,
    read_as,
    read_document,
    read_flag,
    read_json,
    read_list,
    read_positive,
    read_text,
    reader_of,
    write_json,
)
from memcfg.errors import FormatError
from memcfg.plan.format._actions import (
    Action,
    Alias,
    Alloc,
    Compute,
    Decode,
    Encode,
    Free,
    Start,
    SwapIn,
    SwapOut,
    Wait,
)
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FORMAT = "memcfg.plan/3"
_SECOND = "memcfg.plan/2"
_FIRST = "memcfg.plan/1"
_LABEL = 13  # width of the first column, in characters


@dataclass(frozen=True)
class Predicted:
    """Predicted memory and time of a plan.

    Parameters
    ----------
    peak_bytes : int
        The highest end of any buffer in the arena, scratch included.
    host_peak_bytes : int, default 0
        The most bytes held on other tiers at a time.
    moved_bytes : int, default 0
        Bytes copied out and in; an encoded copy counts with its planned encoded size.
    seconds : float, default 0.0
        The time of all computed ops, in seconds, without collectives.
    recompute_seconds : float, default 0.0
        The part of `seconds` beyond the first computation of each op.
    lower_bound_bytes : int, default 0
        `lower_bound` of the graph.
    planning_seconds : float, default 0.0
        The time that planning took; ignored in comparisons.
    optimality_gap : float or None, default None
        Upper bound of how much slower the plan is than the fastest within the limit, as
        a fraction of the latter's time; None if unknown. See `time_lower_bound`.
    stall_seconds : float, default 0.0
        How long ops wait for copies and collectives, at the bandwidths of the device's
        tiers and link or at nominal ones; not included in `seconds`.
    codec_seconds : float, default 0.0
        The time of encoding and decoding at nominal speeds; not included in `seconds`.
    """

    peak_bytes: int
    host_peak_bytes: int = 0
    moved_bytes: int = 0
    seconds: float = 0.0
    recompute_seconds: float = 0.0
    lower_bound_bytes: int = 0
    planning_seconds: float = field(default=0.0, compare=False)
    optimality_gap: float | None = None
    stall_seconds: float = 0.0
    codec_seconds: float = 0.0


@dataclass(frozen=True)
class Group:
    """Tensors or ops that a plan treats alike.

    Parameters
    ----------
    count : int, default 0
        The number of members.
    nbytes : int, default 0
        Their total bytes, each rounded up to the alignment.
    names : tuple of str, default ()
        The names of the few largest members.
    """

    count: int = 0
    nbytes: int = 0
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recosted:
    """Result of judging a plan again by the op times measured in real steps.

    Parameters
    ----------
    believed_seconds : float
        The plan's time as predicted before the measurement.
    replaced : str, default ""
        The method of the plan that this one replaced; empty if it replaced none.
    replaced_seconds : float, default 0.0
        The replaced plan's time, from the measured op times.
    refused : str, default ""
        The method of the first plan that could not be tried because others had taken
        the memory meanwhile; empty if there was none.
    tried : tuple of (str, float), default ()
        The methods whose plans ran in training steps for comparison, starting with the
        first plan's, and the shortest time of a step. For a method that learns from
        steps, the entry says which plans are passive and which guided.
    """

    believed_seconds: float
    replaced: str = ""
    replaced_seconds: float = 0.0
    refused: str = ""
    tried: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Summary:
    """Summary of a plan in the names of its graph.

    Parameters
    ----------
    kept : Group
        Tensors of the forward phase that stay resident until the backward phase.
    in_place : Group
        Tensors that took over the buffer of an input.
    recomputed : Group
        Ops that are computed again, and the bytes of their outputs.
    by_role : mapping of str to int
        Bytes in use at the peak, by tensor role; scratch counts as a role.
    peak_op : str
        The op that runs at the peak; empty if the peak is at the start or the end.
    all_bytes : int
        The peak of `keep_all`, in which every tensor has its own buffer.
    chosen_by : str, default ""
        The policy that chose the method, if it is a different one.
    less_scratch : Group, default Group()
        Ops that run with an algorithm of less scratch than the default one, and the
        additional bytes that the policy needs with the default algorithms.
    algorithms : Group, default Group()
        Ops for which the policy chose an algorithm other than the default one, and the
        largest scratch among them.
    times : str, default "nominal"
        The kind of the predicted seconds, see `Graph`.
    unproven : bool, default False
        Whether the search ended early: the method proves its plans optimal but reached
        its limit of work, or `auto` reached its time limit or was cancelled.
    copies_per_second : float, default 0.0
        Measured bytes per second of a lane to and from the tier that the plan swaps to;
        0 if the plan swaps nothing, or at a nominal or stated bandwidth.
    recosted : Recosted or None, default None
        The result of judging the plan again after the first steps; None if it was not.
    by_tier : mapping of str to int, default {}
        Bytes used on each tier by copies and by what encodings may leave over; on a
        device with several tiers it includes unused ones.
    """

    kept: Group
    in_place: Group
    recomputed: Group
    by_role: Mapping[str, int]
    peak_op: str
    all_bytes: int
    chosen_by: str = ""
    less_scratch: Group = Group()
    algorithms: Group = Group()
    times: str = "nominal"
    unproven: bool = False
    copies_per_second: float = 0.0
    recosted: Recosted | None = None
    by_tier: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """Memory plan of one step; ``print`` shows where its bytes went.

    Parameters
    ----------
    graph : str
        The name of the planned graph.
    method : str
        The policy that made the plan.
    limit_bytes : int or None
        The limit that the plan was made for, in bytes; None if there was none.
    alignment : int
        Bytes to which buffers are rounded up and aligned.
    predicted : Predicted
        Predicted memory and time.
    actions : tuple of Action
        The actions in order of execution.
    summary : Summary or None, default None
        What the plan does, in the names of the graph; not written to JSON and ignored
        in comparisons.
    lossy : tuple of str, default ()
        The lossy codecs that actions may use. Such a codec does not restore the
        original bits. A plan that uses a lossy codec not listed here is invalid.
    places : bool, default True
        Whether offsets are addresses in one arena. If False, an allocator chooses
        addresses at run time: the peak is the most bytes in use, and offsets have no
        meaning. Plans of PyTorch steps are of this kind; memcfg's models use an arena.
    """

    graph: str
    method: str
    limit_bytes: int | None
    alignment: int
    predicted: Predicted
    actions: tuple[Action, ...] = field(repr=False)
    summary: Summary | None = field(default=None, compare=False, repr=False)
    lossy: tuple[str, ...] = ()
    places: bool = True

    @property
    def peak_bytes(self) -> int:
        """The highest end of any buffer in use at any time, in bytes; see `places`."""
        return self.predicted.peak_bytes

    @property
    def elapsed_seconds(self) -> float:
        """The predicted time of ops, codecs and waits, in seconds."""
        claims = self.predicted
        return claims.seconds + claims.codec_seconds + claims.stall_seconds

    @property
    def lower_bound_bytes(self) -> int:
        """A lower bound of the peak of any plan of the graph, in bytes."""
        return self.predicted.lower_bound_bytes

    @property
    def gap(self) -> float | None:
        """Upper bound of the relative distance from the fastest plan within the limit.

        A fraction of the fastest plan's time: 0.05 means that the plan takes at most
        5 % longer. 0 if the plan computes each op once; None if it is unknown.
        """
        return self.predicted.optimality_gap

    def __str__(self) -> str:
        costs, *roles = _sections(self)
        lines = [_title(self), *map(_line, costs.rows)]
        for heading, rows in roles:
            op = self.summary.peak_op if self.summary else ""
            lines.append(f"  {heading.replace(op, shorten(op, width() // 2))}")
            lines += map(_role_line, rows)
        return writable("\n".join(lines))  # at most 80 columns

    def _repr_html_(self) -> str:
        """Return the content of ``str(self)`` as HTML for notebooks."""
        return report(f"Plan of '{self.graph}' {_method(self)}", _sections(self))

    def to_json(self) -> str:
        """Return the plan as JSON text in the interchange format.

        The format is ``memcfg.plan/3`` if the plan starts collectives;
        ``memcfg.plan/2`` if it contains offsets of copies on tiers, encoded copies,
        encodings that may overflow or lossy codecs, or if `places` is False; otherwise
        ``memcfg.plan/1``.

        Raises
        ------
        FormatError
            If a number of the plan is NaN or infinite.
        """
        form = self._format()
        head: dict[str, Any] = {
            "format": form,
            "graph": self.graph,
            "method": self.method,
            "limit_bytes": self.limit_bytes,
            "alignment": self.alignment,
            "predicted": _claims(self.predicted),
        }
        if self.lossy:
            head["lossy"] = list(self.lossy)
        if not self.places:
            head["places"] = False
        lines = ",\n  ".join(write_json(_row(action, form)) for action in self.actions)
        return f'{write_json(head)[:-1]},\n "actions": [\n  {lines}]}}\n'

    def _format(self) -> str:
        """Return the lowest version of the format that can represent the plan."""
        if any(isinstance(action, Start) for action in self.actions):
            return _FORMAT
        later = self.lossy or not self.places
        later = later or any(map(_is_of_version_two, self.actions))
        return _SECOND if later else _FIRST

    @staticmethod
    def from_json(text: str) -> Plan:
        """Read a plan in version 1, 2 or 3 of the interchange format.

        Only the syntax is checked; use `validate` to check the plan against a graph.
        The result has no summary.

        Parameters
        ----------
        text : str
            JSON text.

        Raises
        ------
        FormatError
            If the text is not JSON, of another format or version, or has unknown,
            missing or mistyped keys or actions.
        """
        document = read_json(text, "plan")
        given = document.get("format") if isinstance(document, dict) else None
        form = given if given in (_FIRST, _SECOND) else _FORMAT

        actions = Key(read_list(partial(_read_action, form), item="action"))
        keys = _PLAN | {"actions": actions}
        if form != _FIRST:
            keys["lossy"] = Key(read_list(read_text), required=False, default=())
            keys["places"] = Key(read_flag, required=False, default=True)
        return Plan(**read_document(text, "plan", form, keys))


def _claims(predicted: Predicted) -> dict[str, Any]:
    """Return the predicted values, without zeros of keys that older readers lack."""
    return {
        name: value
        for name, value in asdict(predicted).items()
        if value or name not in _OPTIONAL
    }


# -- words ----------------------------------------------------------------------


def _title(plan: Plan) -> str:
    how = shorten(_method(plan), width() // 2)
    graph = shorten(plan.graph, width() - len("Plan of '' ") - len(how))
    return f"Plan of '{graph}' {how}"


def _method(plan: Plan) -> str:
    chosen = plan.summary.chosen_by if plan.summary else ""
    return f"by {plan.method}{f', chosen by {chosen}' if chosen else ''}"


def _line(row: Row) -> str:
    return paragraph(f"  {row.label:<{_LABEL}} {row.value:>10}  ", row.words)


def _role_line(row: Row) -> str:
    return f"    {row.label:<20}{row.value:>10}  {row.words[0]:>6}"


def _sections(plan: Plan) -> list[Section]:
    """Return the sections of the report: costs, actions taken, and the peak by role."""
    rows = _costs(plan)
    if plan.summary is None:
        return [Section("", rows)]
    return [Section("", rows + _deeds(plan.summary)), _roles(plan)]


def _bytes_row(label: str, nbytes: int, *words: str) -> Row:
    return Row(label, format_bytes(nbytes), words)


def _copies(plan: Plan) -> list[Row]:
    predicted, summary = plan.predicted, plan.summary
    if not predicted.moved_bytes:
        return []
    held = f"at most {format_bytes(predicted.host_peak_bytes)} at a time"
    rows = [_bytes_row("moved", predicted.moved_bytes, *held.split())]
    by_tier = summary.by_tier if summary else {}
    for tier, nbytes in by_tier.items() if len(by_tier) > 1 else ():
        rows.append(_bytes_row(f"on {tier}", nbytes, f"({nbytes} B)"))
    words = "of that time ops wait for copies"
    stall = _milliseconds(predicted.stall_seconds)
    rows.append(Row("stall", stall, tuple(words.split())))
    if summary is not None and summary.copies_per_second:
        rate = f"{summary.copies_per_second / 1e9:.3g} GB/s"
        words = "measured, per lane and direction"
        used = [tier for tier, nbytes in by_tier.items() if nbytes]
        words += ", of the slowest tier" if len(used) > 1 else ""
        rows.append(Row("copies", rate, tuple(words.split())))
    return rows


def _beside(plan: Plan) -> list[Row]:
    rows = []
    if plan.predicted.stall_seconds and not plan.predicted.moved_bytes:
        words = "of that time compute waits for ops beside it"
        stall = _milliseconds(plan.predicted.stall_seconds)
        rows.append(Row("stall", stall, tuple(words.split())))
    if started := sum(isinstance(action, Start) for action in plan.actions):
        words = f"{started} ops run beside compute: collectives or reads"
        rows.append(Row("beside", "", tuple(words.split())))
    return rows


def _costs(plan: Plan) -> list[Row]:
    predicted = plan.predicted
    peak = [f"({plan.peak_bytes} B)"]
    if plan.summary and plan.summary.all_bytes:
        share = plan.peak_bytes / plan.summary.all_bytes
        peak = [f"({plan.peak_bytes} B),", *f"{share:.1%} of keep_all".split()]
    limit, bound = plan.limit_bytes, plan.lower_bound_bytes
    rows = [
        _bytes_row("peak", plan.peak_bytes, *peak),
        Row("limit", "no limit")
        if limit is None
        else _bytes_row("limit", limit, f"({limit} B)"),
        _bytes_row("lower bound", bound, f"({bound} B)"),
        _time(plan),
    ]
    if plan.gap is not None:
        words = "above the least possible time, at most"
        if plan.gap == 0:
            words = "no plan that fits takes less time"
        rows.append(Row("gap", f"{plan.gap:.1%}", tuple(words.split())))
    if plan.lossy:
        words = "codecs, which do not restore the same bits"
        rows.append(Row("lossy", "", (f"{', '.join(plan.lossy)}:", *words.split())))
    rows += _copies(plan)
    rows += _beside(plan)
    codes = [each for each in plan.actions if isinstance(each, Encode)]
    if codes:
        names = ", ".join(dict.fromkeys(code.codec for code in codes))
        nbytes = sum(code.nbytes for code in codes)
        words = f"{len(codes)} encodings by {names}"
        rows.append(_bytes_row("encoded", nbytes, *words.split()))
    if any(code.tier is not None for code in codes):
        words = "at most on tiers, for encodings that do not fit"
        rows.append(_bytes_row("overflow", predicted.host_peak_bytes, *words.split()))
    if predicted.codec_seconds:
        coding = _milliseconds(predicted.codec_seconds)
        words = "of that time codecs encode and decode"
        rows.append(Row("codecs", coding, tuple(words.split())))
    return rows


def _time(plan: Plan) -> Row:
    seconds, again = plan.predicted.seconds, plan.predicted.recompute_seconds
    first = seconds - again
    extra = f"recomputation adds {again / first:.1%}" if first > 0 else ""
    if extra and plan.predicted.stall_seconds:
        what = "copies" if plan.predicted.moved_bytes else "waits"
        extra += f", {what} {plan.predicted.stall_seconds / first:.1%}"
    if extra and plan.predicted.codec_seconds:
        extra += f", codecs {plan.predicted.codec_seconds / first:.1%}"
    label = f"{plan.summary.times if plan.summary else 'nominal'} time"
    if seconds == 0:
        return Row(label, "unknown", ("(the", "graph", "has", "no", "times)"))
    return Row(label, _milliseconds(plan.elapsed_seconds), tuple(extra.split()))


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def _deeds(summary: Summary) -> list[Row]:
    rows = [
        _group("kept", summary.kept, "tensors for the backward phase"),
        _group("shared", summary.in_place, "outputs in place"),
        _group("recomputed", summary.recomputed, "ops"),
    ]
    if summary.less_scratch.count:
        what = "ops by other algorithms"
        rows.append(_group("less scratch", summary.less_scratch, what))
    if summary.algorithms.count:
        rows.append(_group("algorithms", summary.algorithms, "ops by others"))
    if summary.unproven:
        words = "the search ended early: the method may have a better plan"
        rows.append(Row("proof", "none", tuple(words.split())))
    if summary.recosted is not None:
        rows += _judged_again(summary.recosted)
        rows += _steps(summary.recosted.tried)
    return rows


def _steps(tried: Sequence[tuple[str, float]]) -> list[Row]:
    """Return the shortest step time of each method that was tried."""
    took: dict[str, list[float]] = defaultdict(list)
    for method, seconds in tried:
        took[method].append(seconds)
    rows: list[Row] = []
    for method, times in took.items():
        words = f"by {method}" + (f", {len(times)} plans" if times[1:] else "")
        label = "" if rows else "a step took"
        rows.append(Row(label, _milliseconds(min(times)), tuple(words.split())))
    return rows


def _judged_again(recosted: Recosted) -> list[Row]:
    """Return the row that reports the result of judging the plan again."""
    believed = _milliseconds(recosted.believed_seconds)
    if not recosted.replaced:
        message = "expected before the first steps"
        if recosted.refused:
            message += f"; no memory was left to try a plan by {recosted.refused}"
        return [Row("re-costed", believed, tuple(message.split()))]
    message = f"by {recosted.replaced}; expected: {believed}"
    took = _milliseconds(recosted.replaced_seconds)
    return [Row("replaces", took, tuple(message.split()))]


def _group(label: str, group: Group, what: str) -> Row:
    if group.count == 0:
        return Row(label, "nothing")
    words = f"{group.count} {what}:".split()
    words += [f"{name}," for name in group.names[:-1]]
    more = ", ..." if group.count > len(group.names) else ""
    words += [f"{name}{more}" for name in group.names[-1:]]
    return _bytes_row(label, group.nbytes, *words)


def _roles(plan: Plan) -> Section:
    summary = plan.summary
    assert summary is not None  # checked by `_sections`
    when = f"while '{summary.peak_op}' runs" if summary.peak_op else "at rest"
    entries = dict(summary.by_role)
    entries["unused"] = plan.peak_bytes - sum(entries.values())
    rows = [
        _bytes_row(role, nbytes, f"{nbytes / plan.peak_bytes:.1%}")._replace(
            share=nbytes / plan.peak_bytes
        )
        for role, nbytes in entries.items()
        if nbytes
    ]
    return Section(f"at the peak, {when}:", rows)


# -- JSON -----------------------------------------------------------------------


def _is_of_version_two(action: Action) -> bool:
    """Return whether version 1 of the format cannot represent an action."""
    if isinstance(action, SwapOut | SwapIn) and action.offset is not None:
        return True
    return _has_more(action)


def _has_more(action: Any) -> bool:
    """Return whether an action has any optional operand."""
    more = _MORE.get(type(action), {})
    return any(getattr(action, name) is not None for name in more)


def _row(action: Any, form: str) -> list[Any]:
    kind: Any = type(action)
    names = [*_operands(kind, form)]
    if _has_more(action):
        names += _MORE[kind]
    return [_NAMES[kind], *(getattr(action, name) for name in names)]


def _read_action(form: str, value: Any, where: str) -> Action:
    if not isinstance(value, list) or not value:
        raise FormatError(f"{where} should be a list that starts with a name")
    name, *operands = value
    if read_text(name, f"{where}: its name") not in _names(form):
        names = ", ".join(_names(form))
        raise FormatError(f"{where}: unknown action {name[:80]!r}; there are {names}")
    kind = _ACTIONS[name]
    readers = _operands(kind, form)
    more = _MORE.get(kind, {}) if form != _FIRST else {}
    if len(operands) == len(readers) + len(more):
        readers = readers | more
    if len(operands) != len(readers):
        raise FormatError(
            f"{where}: {name!r} takes {len(readers)} operands, not {len(operands)}"
        )
    read = zip(readers.items(), operands, strict=True)
    action: Action = kind(*[reader(x, f"{where}: {key}") for (key, reader), x in read])
    if isinstance(action, Encode) and action.codec in _RENAMED:
        return replace(action, codec=_RENAMED[action.codec])
    return action


def _find_operands(kind: Any, form: str) -> dict[str, Reader]:
    """Return the readers of an action's required fields in a version of the format."""
    result = {
        item.name: reader_of(item.type)
        for item in fields(kind)
        if item.name not in _MORE.get(kind, {})
    }
    if form == _FIRST and kind in (SwapOut, SwapIn):
        del result["offset"]
    return result


_operands = cache(_find_operands)


def _find_names(form: str) -> tuple[str, ...]:
    """Return the names of the actions of a version of the format."""
    return tuple(name for name in _ACTIONS if name != "start" or form == _FORMAT)


_names = cache(_find_names)


_ACTIONS: dict[str, Any] = {
    "alloc": Alloc,
    "alias": Alias,
    "free": Free,
    "compute": Compute,
    "start": Start,
    "swap_out": SwapOut,
    "swap_in": SwapIn,
    "encode": Encode,
    "decode": Decode,
    "wait": Wait,
}
_MORE: dict[Any, dict[str, Reader]] = {  # optional operands: all present or none
    SwapOut: {"codec": read_text, "nbytes": reader_of("int")},
    Encode: {"tier": read_text, "overflow": reader_of("int | None")},
}
_RENAMED = {"zero_words": "zvc"}  # codec names in older files
_NAMES = {kind: name for name, kind in _ACTIONS.items()}
_OPTIONAL = ("stall_seconds", "codec_seconds")  # claims that default to 0
_PREDICTED = {item.name: Key(reader_of(item.type)) for item in fields(Predicted)} | {
    name: Key(reader_of("float"), required=False, default=0.0) for name in _OPTIONAL
}
_PLAN = {
    "graph": Key(read_text),
    "method": Key(read_text),
    "limit_bytes": Key(reader_of("int | None")),
    "alignment": Key(read_positive),
    "predicted": Key(read_as(Predicted, _PREDICTED)),
}
