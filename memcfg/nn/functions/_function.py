"""`memcfg.function`: a Python function of tensors as planned programs."""

from __future__ import annotations

import functools
import inspect
import warnings
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._caller import outside
from memcfg._core import Lock, scope_out
from memcfg.errors import RetracingWarning
from memcfg.nn._argument_checks import integer
from memcfg.nn.functions._function_graph import Calls
from memcfg.nn.functions._function_state import FunctionState
from memcfg.nn.functions._measures import MetricResult
from memcfg.nn.functions._recorder import current, recording
from memcfg.nn.layers._layer import (
    Place,
    SymbolicTensor,
    Variable,
    filled_in,
    is_whole,
    pattern,
    start_of,
)
from memcfg.nn.training._compile_config import PLANNED, get_policy, get_times
from memcfg.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from memcfg.plan import Plan, Policy
    from memcfg.runtime import MemoryReport
    from memcfg.timeline import MemoryTimeline

__all__ = ["Function", "function"]

_ARRAYS = (np.ndarray, np.generic)
_SCALARS = (bool, int, float, complex, str, bytes)
_FEW = 5  # traces without a warning
_TRACES = 16  # that are kept
_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True)
class _Same:
    """An object that a trace depends on by its identity, and keeps alive."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


class Function:
    """A function that runs as one planned program for each kind of arguments.

    Made by `memcfg.function`, which says more. Within another such function it is
    traced with that one.

    Parameters
    ----------
    func : callable
        The function.
    input_signature : sequence, optional
        Objects with `shape` and `dtype`.
    memory : Policy or str, optional
        The policy that plans programs.
    times : {"nominal", "measured"}, default "nominal"
        The seconds of ops that the policy reads.
    max_traces : int, default 16
        The number of programs that are kept.
    warns : bool, default True
        Whether to warn of a function that is traced again and again.
    state : FunctionState, optional
        What holds the weights and the programs; by default made when it is needed.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        input_signature: Sequence[Any] | None = None,
        *,
        memory: Policy | str | None = None,
        times: str = "nominal",
        max_traces: int = _TRACES,
        warns: bool = True,
        state: FunctionState | None = None,
    ) -> None:
        if not callable(func):
            raise TypeError(f"function: func must be callable, got {func!r}")
        functools.update_wrapper(self, func)
        self._function = func
        self._signature = inspect.signature(func)
        self._parameters = [
            name
            for name, each in self._signature.parameters.items()
            if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        ]
        self._specs = None if input_signature is None else tuple(input_signature)
        self._settings = (
            get_policy(memory),
            get_times(times, PLANNED),
            integer(max_traces, "function: max_traces"),
        )
        self._name = getattr(func, "__name__", type(func).__name__)
        self._lock = Lock(self._name)  # of the traces; taken before the state's
        self._state = state
        self._traces: dict[Any, Calls] = {}  # least recently used first
        self._last: dict[str, Any] = {}  # what the last trace depends on
        self._number = 0  # of traces so far
        self._warns = warns
        self._bound: weakref.WeakKeyDictionary[Any, Function] = (
            weakref.WeakKeyDictionary()
        )

    def __get__(self, instance: Any, owner: type | None = None) -> Function:
        """Return the function of an instance, for a method."""
        if instance is None:
            return self
        if instance not in self._bound:
            policy, times, traces = self._settings
            method = self._function.__get__(weakref.proxy(instance), owner)
            self._bound[instance] = Function(
                method, self._specs, memory=policy, times=times, max_traces=traces
            )
        return self._bound[instance]

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Run the function on arrays, or trace it within another function."""
        if current() is not None:
            return self._function(*args, **options)
        return self._run(args, options)[1]

    def _run(
        self, args: Sequence[Any], options: Mapping[str, Any], *, guard: bool = False
    ) -> tuple[bool, Any]:
        """Run the program; a guard stops it at the first loss that is not finite.

        Returns whether it ran to the end, and the results. Metrics are updated only at
        the end.
        """
        with scope_out(), self._lock.turn():
            calls, arrays = self._program(args, options)
            state = self._owner()
            if not state.has(calls.label):
                state.load(calls)
            finished, values = state.run(calls, arrays, guard=guard)
            results = calls.measured(values, finished=finished)
        return finished, filled_in(calls.structure, results)

    def plan(self, *args: Any, limit: int | str | None = None, **options: Any) -> Plan:
        """Return the plan of a call, without running it.

        Parameters
        ----------
        *args
            The arguments of the call; only the shapes and dtypes of arrays matter.
        limit : int or str, optional
            A limit such as ``"64MiB"``; by default the device's.
        **options
            The same by keyword.

        Returns
        -------
        Plan
            The plan.

        Raises
        ------
        InfeasiblePlanError
            If no plan fits.
        """
        nbytes = None if limit is None else parse_bytes(limit)
        with self._lock.turn():
            calls, _ = self._program(args, options)
            return self._owner().plan(calls, nbytes)

    def graph(self, *args: Any, **options: Any) -> Any:
        """Return the graph of a call, as policies see it.

        Parameters
        ----------
        *args
            The arguments of the call; only the shapes and dtypes of arrays matter.
        **options
            The same by keyword.

        Returns
        -------
        memcfg.graph.Graph
            The graph, with the scratch of the device's kernels.
        """
        with self._lock.turn():
            calls, _ = self._program(args, options)
            return self._owner().graph(calls)

    def memory_report(
        self, *args: Any, verify: bool = False, **options: Any
    ) -> MemoryReport:
        """Return what a call takes; its program is loaded if it is not yet.

        Parameters
        ----------
        *args
            The arguments of the call; only the shapes and dtypes of arrays matter.
        verify : bool, default False
            Whether to measure the peak by a run on made-up numbers; weights are put
            back.
        **options
            The same by keyword.

        Returns
        -------
        MemoryReport
            Planned and measured bytes.

        Raises
        ------
        InfeasiblePlanError
            If no plan fits.
        """
        with self._lock.turn():
            state, calls = self._loaded(args, options)
            return state.report(calls.label, verify=verify)

    def memory_timeline(
        self, *args: Any, verify: bool = False, **options: Any
    ) -> MemoryTimeline:
        """Return which tensor of a call has which bytes when; the program is loaded.

        Parameters
        ----------
        *args
            As of `memory_report`.
        verify : bool, default False
            Whether to measure the peak and the times by runs on made-up numbers;
            weights are put back.
        **options
            As of `memory_report`.

        Returns
        -------
        MemoryTimeline
            Boxes of the plan, and times.

        Raises
        ------
        InfeasiblePlanError
            If no plan fits.
        """
        with self._lock.turn():
            state, calls = self._loaded(args, options)
            return state.timeline(calls.label, verify=verify)

    def _loaded(self, args: Any, options: Any) -> tuple[FunctionState, Calls]:
        """Return the program of a call, loaded if it is not yet, and its owner."""
        calls, _ = self._program(args, options)
        state = self._owner()
        if not state.has(calls.label):
            state.load(calls)
        return state, calls

    @property
    def trace_count(self) -> int:
        """How often the function has been traced."""
        return self._number

    @property
    def run_count(self) -> int:
        """How often programs have run that update no weights, by which they draw."""
        return 0 if self._state is None else self._state.run_count

    def close(self) -> None:
        """Free the memory of the function; the values of weights are kept."""
        with self._lock.turn():
            if self._state is not None:
                self._state.close()

    def __repr__(self) -> str:
        return f"<Function {self._name!r}, {len(self._traces)} traces>"

    # Traces

    def _owner(self) -> FunctionState:
        if self._state is None:
            self._state = FunctionState(self._name, *self._settings)
        return self._state

    def forget_traces(self) -> None:
        """Trace again when called; the values of weights are kept."""
        self._traces.clear()

    def _program(self, args: Any, options: Any) -> tuple[Calls, list[Any]]:
        """Return the trace for arguments, made if it is not known, and the arrays."""
        if len(options) > 1:
            options = dict(sorted(options.items()))
        leaves: list[Any] = []
        form = _form((args, options), leaves)
        arrays = [self._array(each) for each in leaves]
        key = form, *[(each.shape, each.dtype) for each in arrays]
        calls = self._traces.pop(key, None)
        if calls is None:
            self._check_signature(arrays)
            given = pattern((args, options), [], _ARRAYS)
            calls = self._trace(given, arrays, dict(self._keys(given, arrays)))
        self._traces[key] = calls
        while len(self._traces) > self._settings[2]:
            self._traces.pop(next(iter(self._traces)))
        return calls, arrays

    def _array(self, value: Any) -> np.ndarray[Any, Any]:
        """Return an array in a dtype that programs compute with."""
        array = np.asarray(value)
        kind = array.dtype.kind
        if kind in "fb" or array.dtype.name == "bfloat16":
            return array.astype(np.float32, copy=False)
        if kind not in "iu":
            raise TypeError(
                f"{self._name}: arrays must have numbers, got one of {array.dtype}"
            )
        if array.dtype.itemsize >= 4 and array.dtype != np.int32 and array.size:
            low, high = array.min(), array.max()
            if low < _INT32.min or high > _INT32.max:
                raise ValueError(
                    f"{self._name}: integers are computed in int32, got {low} to {high}"
                )
        return array.astype(np.int32, copy=False)

    def _check_signature(self, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
        if self._specs is None:
            return
        if len(arrays) != len(self._specs):
            raise TypeError(
                f"{self._name}: input_signature has {len(self._specs)} arrays, got "
                f"{len(arrays)}"
            )
        for place, (array, spec) in enumerate(zip(arrays, self._specs, strict=True)):
            wanted = tuple(spec.shape)
            fits = len(wanted) == array.ndim and all(
                length in (None, own)
                for length, own in zip(wanted, array.shape, strict=True)
            )
            dtype = self._array(np.empty(0, spec.dtype)).dtype
            if not fits or array.dtype != dtype:
                raise ValueError(
                    f"{self._name}: array {place} must have shape {wanted} and dtype "
                    f"{dtype} by input_signature, got {array.shape} and {array.dtype}"
                )

    def _keys(self, given: Any, arrays: Sequence[Any]) -> Iterator[tuple[str, Any]]:
        """Yield what a trace depends on, by the argument."""
        args, options = given
        names = self._parameters
        for place, value in enumerate(args):
            name = names[place] if place < len(names) else f"argument {place}"
            yield from _leaves(name, value, arrays)
        for name, value in options.items():
            yield from _leaves(name, value, arrays)

    def _trace(self, given: Any, arrays: Any, depends: dict[str, Any]) -> Calls:
        args, options = given
        try:
            self._signature.bind(*args, **options)
        except TypeError as error:
            raise TypeError(f"{self._name}: {error}") from None
        starts = [start_of(each.shape, each.dtype.name) for each in arrays]
        with recording() as made:
            result = self._function(
                *filled_in(args, starts), **filled_in(options, starts)
            )
            ends: list[Any] = []
            structure = pattern(result, ends, (SymbolicTensor, Variable, MetricResult))
            results = [
                made.symbol(each) if isinstance(each, Variable) else each
                for each in ends
            ]
        for each in results:
            if not is_whole(each) and not isinstance(each, MetricResult):
                raise TypeError(
                    f"{self._name} returns {each!r}, which does not come from its "
                    "arguments or from weights"
                )
        if not (results or made.calls or made.measured):
            raise TypeError(
                f"{self._name} computes nothing from arrays: it must return tensors, "
                f"or update weights, and returned {result!r}"
            )
        self._number += 1
        self._warn(depends)
        self._last = depends
        label = self._label(args, arrays)
        return Calls(label, starts, results, structure, made)

    def _label(self, args: Sequence[Any], arrays: Sequence[Any]) -> str:
        """Return the name of the last trace in messages and reports."""
        del args, arrays
        return f"trace {self._number}"

    def _warn(self, depends: dict[str, Any]) -> None:
        """Warn once of a function that is traced again and again."""
        if self._number <= _FEW or not self._warns:
            return
        self._warns = False
        differs = [
            name
            for name in dict.fromkeys((*self._last, *depends))
            if self._last.get(name) != depends.get(name)
        ]
        name = differs[0]
        before, now = (_shown(each.get(name)) for each in (self._last, depends))
        warnings.warn(
            f"{self._name} has been traced {self._number} times, to as many programs: "
            f"{name} was {before}, and is {now}. Pad arrays to a few shapes, and pass "
            "Python numbers that change as arrays",
            RetracingWarning,
            stacklevel=outside(),
        )


def _form(value: Any, leaves: list[Any]) -> Any:
    """Move arrays to a list; return what else a trace depends on, to be compared."""
    if isinstance(value, _ARRAYS):
        leaves.append(value)
        return None
    if isinstance(value, list | tuple):
        return type(value), *[_form(each, leaves) for each in value]
    if isinstance(value, dict):
        return dict, *[(name, _form(each, leaves)) for name, each in value.items()]
    if value is None or isinstance(value, _SCALARS):
        return type(value), repr(value)
    return _Same(value)


def _leaves(path: str, value: Any, arrays: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Place):
        array = arrays[value.number]
        yield path, (value.number, array.shape, array.dtype)
    elif isinstance(value, list | tuple):
        yield path, (type(value), len(value))
        for place, each in enumerate(value):
            yield from _leaves(f"{path}[{place}]", each, arrays)
    elif isinstance(value, dict):
        yield path, (dict, *value)
        for name, each in value.items():
            yield from _leaves(f"{path}[{name!r}]", each, arrays)
    elif value is None or isinstance(value, _SCALARS):
        yield path, (type(value), repr(value))
    else:
        yield path, _Same(value)


def _shown(key: Any) -> str:
    match key:
        case (int(), tuple() as shape, np.dtype() as dtype):
            return f"an array of shape {shape} and {dtype}"
        case (type(), str(text)):
            return text
        case _Same(value):
            return f"a {type(value).__name__}"
        case None:
            return "missing"
    return f"of length {key[-1]}"


def function(
    func: Callable[..., Any] | None = None,
    input_signature: Sequence[Any] | None = None,
    *,
    memory: Policy | str | None = None,
    times: str = "nominal",
    max_traces: int = _TRACES,
) -> Any:
    """Trace a Python function of arrays, and run it as one planned program.

    The function is called once for each new kind of arguments, with symbolic tensors in
    the place of arrays, and computes with operators, layers, models and the functions
    of `memcfg.nn.ops`; axis 0 is like any other. ``if`` and ``for`` on Python values
    are part of the trace. Calls then run the program under the limit of the device, and
    return NumPy arrays. Layers keep their weights between calls, and `Variable.assign`
    and `Optimizer.apply` change them.

    Parameters
    ----------
    func : callable, optional
        The function; without it, a decorator with these settings is returned.
    input_signature : sequence, optional
        For each array an object with `shape` and `dtype`, such as an array; a length of
        None admits any. Arrays that differ are refused.
    memory : Policy or str, optional
        The policy that plans programs, by default ``"auto"``.
    times : {"nominal", "measured"}, default "nominal"
        The seconds of ops that the policy reads, as of `Model.compile`.
    max_traces : int, default 16
        The number of programs that are kept.

    Returns
    -------
    Function or callable
        Takes the arguments of `func`. Arrays of floats are computed in float32, of
        integers in int32. Other arguments are constants of a program.

    Raises
    ------
    TypeError, ValueError
        If an argument cannot be honoured. Calls raise them for arrays that cannot be
        computed with, and where the function does what symbolic tensors do not permit,
        such as ``if x > 0``.
    ResourceExhaustedError
        In a call, if its program does not fit the device's limit; weights are as
        before.

    Warns
    -----
    RetracingWarning
        Once, if a function has been traced more than five times.

    Examples
    --------
    >>> import memcfg as mc
    >>> import numpy as np
    >>> @mc.function
    ... def scaled(x, factor):
    ...     return x * factor / mc.nn.ops.max(x)
    >>> scaled(np.array([1.0, 4.0]), 2)
    array([0.5, 2. ], dtype=float32)
    """
    settings: dict[str, Any] = {
        "memory": memory,
        "times": times,
        "max_traces": max_traces,
    }
    if func is None:
        return lambda each: Function(each, input_signature, **settings)
    return Function(func, input_signature, **settings)
