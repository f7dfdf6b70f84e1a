"""A model's values and its loaded programs, all in one arena of a device.

See docs/decisions/0017-models-share-layers.md.
"""

from __future__ import annotations

import itertools
import threading
import warnings
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

import numpy as np
import numpy.typing as npt

from memcfg import config
from memcfg._cached import cached_property
from memcfg._caller import outside
from memcfg._checks import name_of
from memcfg._core import Lock
from memcfg.config._dtype_policy import as_policy
from memcfg.errors import (
    CommunicationError,
    GraphError,
    InfeasiblePlanError,
    PlanError,
    ResourceExhaustedError,
    RetracingWarning,
)
from memcfg.graph import Link, for_device, with_profile, with_results_outside
from memcfg.nn._argument_checks import integer
from memcfg.nn.inputs._array_checks import Field, Preparation
from memcfg.nn.inputs._samples import Wanted
from memcfg.nn.training._crash_facts import CrashFacts, crash_subjects
from memcfg.nn.training._crash_facts import name_of as step_name
from memcfg.nn.training._index_tables import index_tables
from memcfg.nn.training._model_holder import ModelHolder
from memcfg.nn.training._predictions import lies_outside
from memcfg.nn.training._totals import Totals
from memcfg.nn.training._tracing import (
    KINDS,
    OutputMasks,
    ProgramKey,
    Rank,
    Share,
    TraceSpec,
    input_names,
    masks_of,
    shares_of,
    trace,
)
from memcfg.nn.training.alternatives._batch_search import BatchSearch
from memcfg.nn.training.alternatives._fallbacks import (
    Division,
    Fallback,
    OnOom,
    Thriftier,
    divide,
    why_whole,
)
from memcfg.nn.training.alternatives._memory_estimate import Estimate, Lever, lever
from memcfg.nn.training.alternatives._ways_out import Spilling, with_ways_out
from memcfg.nn.training.ranks._orders import Orders
from memcfg.nn.training.ranks._shard_estimate import ShardEstimate, shard_estimate
from memcfg.nn.training.ranks._sharding import (
    Parts,
    Peers,
    require_elementwise,
    share_of,
)
from memcfg.ops.collectives import COLLECTIVES
from memcfg.plan import auto, share
from memcfg.plan.search._auto import first_of
from memcfg.plan.search._floor import lowest_plan
from memcfg.plan.search._watch import planning_clock
from memcfg.runtime import Executor, FirstValue
from memcfg.units import exact
from memcfg.workspaces import ModelWorkspace, workspace_holders

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from weakref import WeakMethod

    from memcfg.config import DTypePolicy
    from memcfg.devices import Device
    from memcfg.graph import Graph, Profile
    from memcfg.memory import Resource
    from memcfg.nn._network import Network, Weight
    from memcfg.nn.inputs._array_checks import Table
    from memcfg.nn.inputs._batches import Batch
    from memcfg.nn.layers._layer import Layer, Shape
    from memcfg.nn.optimizers import Optimizer
    from memcfg.nn.optimizers._optimizer import Slot
    from memcfg.nn.training._compile_config import Modes
    from memcfg.nn.training._objectives import Objectives
    from memcfg.nn.training._predictions import Rows
    from memcfg.nn.training.ranks._distribution import Distribution
    from memcfg.plan import Plan, Policy
    from memcfg.runtime import MemoryReport
    from memcfg.runtime._program import Program
    from memcfg.timeline import MemoryTimeline

__all__ = ["Session", "device_of"]

Floats = npt.NDArray[np.float32]
Array = npt.NDArray[Any]

_PAST_FALLBACKS = 50  # that crash reports list
_BETWEEN_STEPS = ("replan", "micro_batch")  # steps of `on_oom` amid `fit`
_KEPT = 12  # programs of a model that stay loaded; they share one arena
_KEPT_OF_ANY_LENGTH = 32  # the same, if axes of its inputs have any length
_REMEMBERED = 256  # programs in their order of use, before those not loaded are dropped
_FEW = 10  # lengths of batches that a model runs without a warning


class _Ready:
    """A loaded program and the views of its inputs and outputs."""

    __slots__ = (
        "has_share",
        "inputs",
        "key",
        "kind",
        "lengths",
        "outputs",
        "outside",
        "program",
        "scalar",
        "size",
        "weights",
        "with_outputs",
        "written",
    )

    def __init__(self, key: ProgramKey, program: Program) -> None:
        self.key = key
        self.kind, self.size, self.lengths = key.kind, key.batch_size, key.lengths
        self.weights = key.weights
        self.has_share = key.has_share
        self.with_outputs = key.with_outputs
        self.program = program
        # Set for planned programs only: an unplanned one frees its buffers each step.
        self.inputs: dict[str, Array] | None = None
        self.outputs: tuple[Array, ...] | None = None
        self.scalar = False  # whether all outputs are scalars
        # The outputs that are written straight into results, with their names.
        self.outside: list[tuple[int, str]] = []
        self.written: set[int] = set()  # of these outputs

    def close(self) -> None:
        """Drop the views, which an error's frames could otherwise keep alive."""
        if self.inputs is not None:
            self.inputs.clear()
        self.outputs = None


class _Place(NamedTuple):
    """The part of a batch that a program runs, and its share of each divisor."""

    begin: int
    part: int
    parts: int
    shares: tuple[float, ...]
    advances: bool = True  # whether the optimizer counts the step


_WHOLE = _Place(0, 0, 1, ())
_UNCOUNTED = _WHOLE._replace(advances=False)


class _StepsTaken(NamedTuple):
    """What steps of `on_oom` change in a session."""

    divisions: dict[ProgramKey, Division]
    fallbacks: dict[ProgramKey, list[Fallback]]
    past: deque[Fallback]
    taken: list[Any]
    policy: Policy
    refused: ProgramKey | None
    is_stale: bool
    dtypes: list[tuple[Layer, DTypePolicy]]
    loader_bytes: int


class Session:
    """The state of a model and the programs that use it."""

    distribution: Distribution | None = None  # who runs the steps instead
    peers: Peers | None = None  # other ranks' state, on the rank of the model
    _superseded = False
    instead: Fallback | None = None  # by which this model is trained for another
    _trained: ProgramKey | None = None  # the last whole batch that ranks train on
    _stored: Mapping[str, FirstValue] | None = None  # what lies in a file
    _holder: ModelHolder | None = None  # on the pool of the executor
    _refused: _StepsTaken | None = None  # steps that did not help, of the last refusal
    _shrunk_from = 0  # bytes that the model could take before others took them
    _too_few = 0  # bytes within which the loaded programs cannot run

    def __init__(
        self,
        spec: TraceSpec,
        policy: Policy,
        times: str,
        modes: Modes,
        device: str | None,
        on_oom: OnOom,
        lock: Lock,
        owner: str,
        values: Mapping[str, Floats] | None,
        gather: WeakMethod[Callable[[], None]],
    ) -> None:
        self._spec = spec
        self._owner = owner  # the name its memory is listed under
        self._policy = policy
        self._times = times
        self._modes = modes
        self._unplanned = {kind for kind in KINDS if not modes.is_planned(kind)}
        self._device = device
        self._on_oom = on_oom
        self._taken: list[Any] = []  # steps of `on_oom`, for all programs
        self._is_stale = False  # whether loaded graphs are of another dtype policy
        self._divisions: dict[ProgramKey, Division] = {}
        self.fallbacks: dict[ProgramKey, list[Fallback]] = {}  # in force
        self.past_fallbacks: deque[Fallback] = deque(maxlen=_PAST_FALLBACKS)
        self.refused: ProgramKey | None = None  # the last program with no way to run
        self._shares: dict[tuple[Shape, ...], tuple[Share, ...]] = {}
        self._masks: dict[tuple[int, ...], OutputMasks] = {}  # by lengths of axes
        self.lock = lock
        self.lent = False  # whether another model has newer values of shared layers
        self._gather = gather  # copies the newer values back
        self._draws = 0  # batches outside of training that drew noise
        self._lengths_seen: dict[tuple[int, ...], None] = {}  # until it warns of them
        # What batches of certain lengths must contain, least recently made first.
        self._wanted: dict[tuple[tuple[int, ...], bool], Wanted] = {}
        self._indexed: Mapping[str, Table] | None = None  # by inputs of any length
        self._weights = {weight.name: weight for weight in spec.network.weights}
        self.slots = spec.slots
        self._slots, self._parts = _all_slots(spec), _all_parts(spec)
        self._on_host: dict[str, Floats] = dict(values or {})
        self._as_drawn: set[str] = set()  # first values in the arena, not changed since
        # Batches that all ranks can run: whole ones, or one of each rank.
        self._agreed: set[tuple[Any, ...]] = set()
        self._orders = Orders()  # of this rank's programs
        # least recently used first; not all are loaded
        self._used: dict[ProgramKey, None] = {}
        self._ready: dict[ProgramKey, _Ready] = {}  # planned programs that have run
        self._active: _Ready | None = None  # the last program run, if planned
        self._open: _Ready | None = None  # the program whose step has not ended
        self._lead: ProgramKey | None = None
        self._executor: Executor | None = None
        self._debug_mode = config.get_debug_mode()  # when programs were loaded
        # The thread that ran the last step. A reference, since identifiers are reused.
        self._user: ref[threading.Thread] | None = None
        workspace_holders.add(self)
        crash_subjects.add(self)

    # The executor alone knows what is loaded: it replaces its programs atomically,
    # so an interrupt cannot leave a second record out of date.

    @property
    def _graphs(self) -> dict[ProgramKey, Graph]:
        """The graphs of the loaded programs, least recently used first."""
        graphs = {} if self._executor is None else self._executor.sources
        return {key: graphs[key.label] for key in self._used if key.label in graphs}

    @property
    def _resident(self) -> Collection[str]:
        """The names of the state in the arena; host copies of it are out of date."""
        return () if self._executor is None else self._executor.state

    @property
    def _training(self) -> bool:
        """Whether the optimizer's state is in the arena."""
        return not self._weights.keys() >= set(self._resident) or any(
            key.kind == "train" for key in self._graphs
        )

    @property
    def _accumulates(self) -> bool:
        """Whether gradient accumulators of steps in parts are in the arena."""
        return any(key.kind == "train" and key.parts > 1 for key in self._graphs)

    def _is_loaded(self, key: ProgramKey) -> bool:
        return self._executor is not None and self._executor.has(key.label)

    def _is_current(self, key: ProgramKey) -> bool:
        """Return whether a program is loaded for the debug mode of workspaces."""
        if key.joins and self._orders.changes > self._orders.loaded:
            return False
        return self._is_loaded(key) and (
            key.kind not in self._unplanned
            or self._debug_mode is config.get_debug_mode()
        )

    @property
    def lead(self) -> ProgramKey | None:
        """The program that reports describe: the last training step loaded."""
        result = self._lead
        return None if result is None or not self._is_loaded(result) else result

    @property
    def executor(self) -> Executor:
        """The executor.

        While it has no memory, it moves to the device that its name now refers to.
        """
        with self.lock.turn():
            if self._executor is None or not self._executor.nbytes:
                device = device_of(self._spec.name, self._device)
                if self._executor is None or self._executor.device is not device:
                    self._executor = Executor(
                        device, name=self._owner, lock=self.lock, times=self._times
                    )
                    self._executor.values = self._on_host
                    self._holder = ModelHolder(self, device.pool)
                    self._shrunk_from = self._too_few = 0  # on the device before
            return self._executor

    @property
    def pool(self) -> Resource | None:
        """The pool of the device that the model is on; None before it is on one."""
        return None if self._executor is None else self._executor.device.pool

    def use_lock(self, lock: Lock) -> None:
        """Use the lock of a model that shares layers with this one."""
        self.lock = lock
        if self._executor is not None:
            self._executor.lock = lock

    @property
    def objectives(self) -> Objectives:
        """The losses and metrics of a step; RuntimeError before `compile`."""
        result = self._spec.objectives
        if result is None:
            raise _no_loss()
        return result

    def wanted(self, *, labelled: bool = True) -> Wanted:
        """Return what a batch must contain, with or without y."""
        return self._labelled if labelled else self._unlabelled

    def _fitting(self, labelled: bool, shapes: Sequence[Shape]) -> Wanted:
        """Return what a batch must contain whose samples have these shapes."""
        lengths = self._spec.network.lengths_of(shapes)
        key = lengths, labelled
        if key not in self._wanted:
            with self.lock.turn():
                spec = self._spec.at(lengths)
                made = _wanted_by(spec, self._tables(lengths))
                made = _with_targets(spec, made) if labelled else made
            while len(self._wanted) >= 2 * _KEPT_OF_ANY_LENGTH:
                del self._wanted[next(iter(self._wanted))]
            self._wanted[key] = made._replace(lengths=lengths)
        return self._wanted[key]

    def _tables(self, lengths: tuple[int, ...]) -> Mapping[str, Table]:
        """Return the tables that inputs index, which are the same for all lengths."""
        if self._indexed is None:
            self._indexed = index_tables(self._spec.at(lengths))
        return self._indexed

    def network_at(self, lengths: tuple[int, ...]) -> Network:
        """Return the network for batches of some lengths."""
        return self._spec.network.at(lengths)

    def masks(self, lengths: tuple[int, ...]) -> OutputMasks:
        """Return the masks that layers give to outputs of batches of some lengths."""
        if lengths not in self._masks:
            with self.lock.turn():
                found = masks_of(self._spec.at(lengths))
            while len(self._masks) >= _KEPT_OF_ANY_LENGTH:
                del self._masks[next(iter(self._masks))]
            self._masks[lengths] = found
        return self._masks[lengths]

    @property
    def is_open(self) -> bool:
        """Whether axes of the inputs have any length."""
        return bool(self._spec.network.open_axes)

    def lengths(self, given: int | Sequence[int] | None) -> tuple[int, ...]:
        """Return the lengths of open axes; ValueError unless each has one."""
        network = self._spec.network
        count = len(network.open_axes)
        several: list[Any] = [] if given is None else [given] * max(count, 1)
        if isinstance(given, list | tuple):
            several = list(given)
        if len(several) == count:
            return tuple(integer(each, "a length of lengths") for each in several)
        shown = ", ".join(str(each.shape) for each in network.inputs)
        if not count:
            raise ValueError(f"lengths is for axes of None, and inputs are {shown}")
        each = "" if count == 1 else f", or {count} of them"
        if given is not None:
            raise ValueError(
                f"{self._spec.name!r} reads {shown}, with {count} "
                f"{'axis' if count == 1 else 'axes'} of None, and lengths has "
                f"{len(several)}: pass one length{' for all' * bool(each)}{each}"
            )
        raise ValueError(
            f"{self._spec.name!r} reads {shown}, and what it takes depends on the "
            f"length of the axes of None: pass a length, lengths=50{each}"
        )

    @cached_property
    def _unlabelled(self) -> Wanted:
        if self.is_open:
            return self._of_any_length(labelled=False)
        return _wanted_by(self._spec, index_tables(self._spec))

    @cached_property
    def _labelled(self) -> Wanted:
        if self.is_open:
            return self._of_any_length(labelled=True)
        return _with_targets(self._spec, self._unlabelled)

    def _of_any_length(self, *, labelled: bool) -> Wanted:
        """Return what is known of batches before the lengths of their axes are."""
        made = _wanted_by(self._spec, {})
        made = _with_targets(self._spec, made) if labelled else made
        shapes = [each.open_shape for each in self._spec.network.inputs]
        xs = [x._replace(shape=s) for x, s in zip(made.xs, shapes, strict=True)]
        return made._replace(xs=tuple(xs), fitting=partial(self._fitting, labelled))

    # Values

    @property
    def held_weights(self) -> Sequence[Weight]:
        """The weights, whose names the state of the optimizer has."""
        return self._spec.network.weights

    def totals(self) -> Totals:
        """Return what sums the numbers of an epoch."""
        return Totals(self.objectives)

    def slots_of(self, optimizer: Optimizer) -> tuple[Slot, ...]:
        """Return the state tensors of the optimizer, which is the only one."""
        del optimizer
        return self.slots

    def read(self, name: str) -> Floats:
        """Return a copy of a value, drawing its initial value if it has none yet.

        If ranks have parts of it, they are put together.
        """
        computed = self._spec.network.computed.get(name)
        with self.lock.turn():
            if computed is not None:
                parts = [self.read(each) for each in computed.parts]
                return computed.by.compute(parts, computed.weight.shape)
            if self.has_part(name):
                assert self.peers is not None  # only the rank of the model reads whole
                return self._parts.join(name, self.peers.read_parts(name))
            return self.read_own(name)

    def changed_on_device(self) -> Collection[str]:
        """Return the names of the values in the arena that are not as first drawn."""
        return {*self._resident} - self._as_drawn

    def value_on_host(self, name: str) -> Floats | None:
        """Return a value that lies on the host, not a copy; None if it is not drawn."""
        return self._on_host.get(name)

    def write(self, name: str, value: Floats) -> None:
        """Overwrite a value on all ranks; the array must not change afterwards.

        Raises ValueError for a weight that is computed from parts, if there are none
        for the value.
        """
        computed = self._spec.network.computed.get(name)
        with self.lock.turn():
            if computed is not None:
                before = [self.read(each) for each in computed.parts]
                try:
                    after = computed.by.split(value, before)
                except ValueError as error:
                    raise ValueError(f"{name!r}: {error}") from None
                for part, each in zip(computed.parts, after, strict=True):
                    self.write(part, each)
            elif self.peers is None:
                self.write_own(name, value)
            else:
                self.peers.write_all(name, value)

    def has_part(self, name: str) -> bool:
        """Return whether this rank holds a part of a value, and others the rest."""
        return name in self._resident and name in self._parts

    def empty(self, name: str) -> Floats:
        """Return an array for a whole value, with any contents."""
        given = self._undrawn(name)
        return np.empty(given.shape, given.dtype)

    def read_own(self, name: str) -> Floats:
        """Return a copy of what this rank holds of a value."""
        with self.lock.turn():
            if name in self._resident:
                return np.asarray(self.executor.read_state(name))
            if name not in self._on_host:
                self._on_host[name] = self._first(name).first_value()
            return self._on_host[name].copy()

    def read_part(self, name: str) -> Floats:
        """Return a copy of this rank's part of a value that ranks divide."""
        with self.lock.turn():
            value = self.read_own(name)
            return value if self.has_part(name) else self._parts.of(name, value)

    def write_own(self, name: str, value: Floats) -> None:
        """Overwrite what this rank holds of a whole value."""
        with self.lock.turn():
            if self.has_part(name):
                value = self._parts.of(name, value)
            if name in self._resident:
                self._as_drawn.discard(name)
                self.executor.write_state(name, value)
            else:
                self._on_host[name] = value

    def lasting_names(self, *, optimizer: bool) -> list[str]:
        """Return the names of weights, and of the optimizer's state if it is asked."""
        slots = [slot.name for slot in self.slots] if optimizer else []
        return [*self._weights, *slots]

    def replica(self, device: str, owner: str) -> Session:
        """Return a session of the same model on another device, with the same values.

        It shares the architecture, the optimizer and its settings, and no memory.
        """
        return Session(
            replace(self._spec, rank=None),
            self._policy,
            self._times,
            self._modes,
            device,
            self._on_oom,
            Lock(owner),
            owner,
            self.values(),
            self._gather,
        )

    def is_finite(self) -> bool:
        """Return whether no weight is NaN or infinite."""
        return all(np.isfinite(self.read(name)).all() for name in self._weights)

    def values(self) -> dict[str, Floats]:
        """Return copies of all values, taken between two steps."""
        with self.lock.turn():
            names = dict.fromkeys([*self._weights, *self._on_host, *self._resident])
            return {name: self.read(name) for name in names if self._lasts(name)}

    def known_values(self, *, moves: bool = False) -> dict[str, Floats]:
        """Copy all values to the host; weights not yet drawn are missing.

        `moves`: where there is no memory for copies, the arena is freed for them.
        """
        with self.lock.turn():
            if not moves or self.holds_parts:
                return {**self._on_host, **self._copied()}
            with suppress(MemoryError):
                return {**self._on_host, **self._copied()}
            self.retire()  # the copies have gone with the frames of the error
            return dict(self._on_host)

    def _copied(self) -> dict[str, Floats]:
        """Return copies of the values in the arena that outlive a step."""
        return {name: self.read(name) for name in self._resident if self._lasts(name)}

    def _lasts(self, name: str) -> bool:
        """Return whether a value outlives a step; sums of its parts do not."""
        return name in self._weights or any(name == slot.name for slot in self.slots)

    def _initial(self, graph: Graph) -> dict[str, Floats | FirstValue]:
        """Return values for the state that is not in the arena yet."""
        values: dict[str, Floats | FirstValue] = {}
        for tensor in (graph.tensors[i] for i in graph.persistent):
            name, parts = tensor.name, self._parts
            if name in self._resident:
                continue
            if name in self._on_host:
                whole = self._on_host[name]
                values[name] = parts.of(name, whole) if name in parts else whole
            elif name in parts:
                values[name] = parts.first(name)
            else:
                values[name] = self._first(name)
        return values

    def read_later(self, values: Mapping[str, FirstValue]) -> None:
        """Take these first values, when they are needed, instead of drawing some."""
        self._stored = values

    def _first(self, name: str) -> FirstValue:
        """Return what gives the first value of a weight or slot."""
        stored = None if self._stored is None else self._stored.get(name)
        return stored or self._undrawn(name)

    def _undrawn(self, name: str) -> Weight | Slot:
        """Return the weight or slot of a name."""
        return self._slots[name] if name in self._slots else self._weights[name]

    # Memory

    def retire(self) -> None:
        """Bring all values to the host and free the arena."""
        with self.lock.turn():
            if self.holds_parts or self._executor is None:
                self._on_host |= self._copied()
            else:
                self._drop_programs()
                names = [*filter(self._lasts, self._resident)]
                for name, value in self._executor.take_state(names).items():
                    self._on_host[name] = np.asarray(value)
            self.close()

    def workspaces(self, *, of_this_thread: bool = False) -> list[ModelWorkspace]:
        """List the workspaces kept for the next step, without taking the lock."""
        executor = self._executor
        kept = {} if executor is None else executor.kept
        if executor is None or not kept:
            return []
        thread = None if self._user is None else self._user()
        if thread is threading.current_thread():
            is_open = self._is_amid_step()
        elif of_this_thread:
            return []
        else:  # other threads do not survive a fork
            running = thread is not None and thread.is_alive()
            is_open = running and executor.is_amid_step
        number = None if thread is None else thread.ident
        return [
            ModelWorkspace(name, self._owner, nbytes, number, is_open)
            for name, nbytes in kept.items()
        ]

    def _is_amid_step(self) -> bool:
        """Return whether the current thread is inside a step."""
        try:
            self.lock.require_no_step()
        except RuntimeError:
            return True
        return False

    def free_workspaces(self) -> None:
        """Free the kept workspaces; RuntimeError inside a step of this thread."""
        with self.lock.turn():
            self.lock.require_no_step()
            self._end_step()
            if self._executor is not None:
                self._executor.free_kept()

    def supersede(self) -> None:
        """Close permanently: calls of other threads that still use this raise."""
        with self.lock.turn():
            self._superseded = True
            self.close()

    def close(self) -> None:
        """Free the arena and lose its values."""
        with self.lock.turn():
            self._drop_programs()
            if self._executor is not None:
                self._executor.close()

    def _drop_programs(self) -> None:
        """End the last step and drop all views into the loaded programs."""
        self._end_step()
        ready, self._ready, self._active = self._ready, {}, None
        for each in ready.values():
            each.close()

    def _check_current(self) -> None:
        if self._superseded:
            raise RuntimeError(
                f"{self._spec.name!r} was compiled, built or changed meanwhile, by "
                "another thread or a callback: retry"
            )

    # Programs

    def require(self, wanted: Sequence[ProgramKey], promised: int = 0) -> None:
        """Load programs, the most important first; if one is missing, load them all."""
        alone = all(key.with_outputs or key.kind == "predict" for key in wanted)
        if self.distribution is not None and not alone:
            self.distribution.require(wanted, promised)
        elif self._spec.divides_weights and all(map(_only_reads, wanted)):
            self._check_current()  # all ranks load them when they have begun a step
        else:
            self.require_alone(wanted, promised)

    def require_alone(self, wanted: Sequence[ProgramKey], promised: int) -> None:
        """Load programs that run here, whatever the distribution."""
        with self.lock.turn():
            self.lock.require_no_step()
            self._require(wanted, promised)

    def leave(self, nbytes: int) -> bool:
        """Plan again, to leave bytes to the loader; return whether that is possible."""
        with self.lock.turn():
            self.lock.require_no_step()
            self._drop_programs()
            return self.executor.leave(nbytes)

    @property
    def may_shrink(self) -> bool:
        """Whether arrays of the program may take memory of the model between steps."""
        return (
            bool(self._on_oom.steps)
            and not self._unplanned
            and self._spec.rank is None
            and not self._superseded
            and self._executor is not None
            and self._executor.nbytes > 0
        )

    def shrink_by(self, sizes: Sequence[int]) -> int:
        """Load the programs in use within less memory; return the bytes freed.

        They are planned for the first of the sizes less for which there is a plan.
        Where there is none, batches run in parts that fit with the last size less, if
        `on_oom` permits that. If that is not possible either, nothing changes.
        """
        with self.lock.turn():
            if not self.may_shrink or self.lock.is_in_step:
                return 0
            executor, training = self.executor, self._training
            before, lead = executor.nbytes, self.lead
            wanted = self._in_use()
            room, shrunk_from = executor.beyond(0), self._shrunk_from
            sizes = [each for each in sizes if before - each > self._too_few]
            if room is None or not wanted or not sizes:
                return 0
            promises = [room - (before - each) for each in sizes]
            self._shrunk_from = shrunk_from or room  # if the rest is interrupted
            steps, done = self._steps_taken(), False
            try:
                done = self._load_first(wanted, training, promises)
                done = done or self._load_in_parts(wanted, training, promises[-1])
            except (ResourceExhaustedError, PlanError, GraphError, OSError):
                pass
            finally:
                if not done:
                    self._put_back(steps)
            if not done:
                self._shrunk_from = shrunk_from
                self._too_few = before - sizes[-1]
                return 0
            if lead is not None:
                self._lead = self._programs([self._whole_of(lead)])[0]
            return max(0, before - executor.nbytes)

    def _steps_taken(self) -> _StepsTaken:
        """Return the steps of `on_oom` that are in force, and the loader's bytes."""
        return _StepsTaken(
            self._divisions.copy(),
            self.fallbacks.copy(),
            self.past_fallbacks.copy(),
            self._taken.copy(),
            self._policy,
            self.refused,
            self._is_stale,
            [(layer, layer._policy) for layer in self._layers()],
            self.executor.loader_bytes,
        )

    def _put_back(self, before: _StepsTaken) -> None:
        """Have the steps of `on_oom` in force that were before."""
        self._divisions, self.fallbacks = before.divisions, before.fallbacks
        self.past_fallbacks, self._taken = before.past, before.taken
        self._policy, self.refused = before.policy, before.refused
        self._is_stale = before.is_stale
        for layer, dtype in before.dtypes:
            layer._policy = dtype
        self.executor.loader_bytes = before.loader_bytes

    @contextmanager
    def as_refused(self) -> Iterator[None]:
        """Have the steps of `on_oom` taken inside that did not help the last refusal.

        Another model that is made of this one computes as this one then would.
        """
        refused, now = self._refused, self._steps_taken()
        if refused is not None:
            self._put_back(refused)
        try:
            yield
        finally:
            self._put_back(now)

    def _in_use(self) -> list[ProgramKey]:
        """Return the batches that reports describe and that ran last."""
        keys = [self.lead, *list(self._graphs)[-1:]]
        return list(dict.fromkeys(self._whole_of(key) for key in keys if key))

    def _whole_of(self, key: ProgramKey) -> ProgramKey:
        """Return the batch that a program runs, or runs a part of."""
        for whole, division in self._divisions.items():
            if key in division.keys(whole, counts=True):
                return whole
        return key

    def _load_first(
        self, wanted: Sequence[ProgramKey], training: bool, promises: Sequence[int]
    ) -> bool:
        """Load programs that leave the first of some bytes; whether any has a plan."""
        for promised in promises:
            with suppress(ResourceExhaustedError, PlanError, GraphError, OSError):
                self._load_beside(self._programs(wanted), training, promised)
                return True
        return False

    def _load_in_parts(
        self, wanted: Sequence[ProgramKey], training: bool, promised: int
    ) -> bool:
        """Load batches in parts between two steps; False if parts would not help.

        Those steps of `on_oom` are taken that compute the same of a whole batch.
        """
        if not self._fits_in_parts(wanted, promised):
            return False
        steps = [step for step in self._on_oom.own if step in _BETWEEN_STEPS]
        while True:
            try:
                self._load_beside(self._programs(wanted), training, promised)
            except InfeasiblePlanError as error:
                whole, missing = self._misfit(error, wanted)
                if not self._apply_next(steps, whole, missing, training, promised):
                    raise
            else:
                return True

    def _fits_in_parts(self, wanted: Sequence[ProgramKey], promised: int) -> bool:
        """Return whether batches have a plan, as a whole or in parts of one sample."""
        return "micro_batch" in self._on_oom.own and all(
            self._shortfall(key, promised) == 0
            or (
                not why_whole(
                    self._spec_for(self._training),
                    key,
                    self._on_oom,
                    partial(self._trace_part, key),
                )
                and self._shortfall(Division(1, 0).key(key, 1, key.kind), promised) == 0
            )
            for key in wanted
        )

    def _shortfall(self, key: ProgramKey, promised: int) -> int:
        return self.executor.shortfall(self._trace_part(key), self._policy, promised)

    def _require_missing(self, key: ProgramKey) -> None:
        """Load the programs of a batch that are not loaded, or were evicted."""
        self._check_current()
        programs = self._programs([key])
        if all(map(self._is_current, programs)):
            for each in programs:
                self._use(each)
            return
        lead = self.lead
        self._require([key], 0)
        if lead is not None and self._is_loaded(lead):  # reports still describe it
            self._lead = lead

    def _require(self, wanted: Sequence[ProgramKey], promised: int) -> None:
        self._check_current()
        self._take_whole(wanted)
        self._retry_whole(wanted, promised)
        keys = self._programs(wanted)
        for key in reversed(keys):
            self._use(key)
        loaded = all(map(self._is_current, keys))
        grows = self._may_grow(promised)
        if grows or not loaded or not self._leaves(promised):
            training = self._training or any(key.kind == "train" for key in wanted)
            self._load(wanted, training, promised)
            if grows:
                self._shrunk_from = 0
            keys = self._programs(wanted)
            for key in reversed(keys):
                self._use(key)
        if wanted[0].kind == "train" or self.lead is None or not self._training:
            self._lead = keys[0]

    def _programs(self, wanted: Sequence[ProgramKey]) -> list[ProgramKey]:
        """Return the programs that batches need: their own, or those of their parts."""
        keys: dict[ProgramKey, None] = {}
        for whole in wanted:
            division = self._divisions.get(whole)
            if division is None:
                keys[whole] = None
            else:
                counts = whole.kind != "predict" and self._has_counts(whole)
                keys |= dict.fromkeys(division.keys(whole, counts=counts))
        return list(keys)

    def _retry_whole(self, wanted: Sequence[ProgramKey], promised: int) -> None:
        """Forget divisions of batches for which there is room again."""
        for key in wanted:
            division = self._divisions.get(key)
            if division is not None and not division.parts:
                left = self.executor.budget_bytes(promised)
                if left is None or left >= division.needed:
                    del self._divisions[key]
                    self.fallbacks.pop(key, None)

    def _may_grow(self, promised: int) -> bool:
        """Return whether there is room again that the model has given to others."""
        if not self._shrunk_from:
            return False
        left = self.executor.budget_bytes(promised)
        return left is None or left >= self._shrunk_from

    def _shares_of(self, key: ProgramKey) -> tuple[Share, ...]:
        if key.weights not in self._shares:
            self._shares[key.weights] = shares_of(self._spec, key)
        return self._shares[key.weights]

    def _has_counts(self, key: ProgramKey) -> bool:
        """Return whether the data decides what a loss divides by."""
        return any(share.counts for share in self._shares_of(key))

    def _use(self, key: ProgramKey) -> None:
        """Mark a program as the most recently used."""
        self._used.pop(key, None)
        if len(self._used) >= _REMEMBERED:
            self._used = dict.fromkeys(self._graphs)
        self._used[key] = None

    def plan(
        self,
        key: ProgramKey,
        limit_bytes: int | None = None,
        policy: Policy | None = None,
    ) -> Plan:
        """Plan a program without taking memory; RuntimeError if it is not planned."""
        with self.lock.turn():
            self.lock.require_no_step()
            self._check_planned(key)
            training = self._training or key.kind == "train"
            graph = self._trace(self._spec_for(training), key)
            policy = self._policy if policy is None else policy
            began = planning_clock()
            try:
                return self.executor.plan(graph, policy, limit_bytes)
            except InfeasiblePlanError as error:
                if limit_bytes is not None or policy is not self._policy:
                    raise
                refusal = self._ways_out(error, key, training, 0, began)
            raise refusal

    def largest_batch(
        self,
        kind: str,
        limit_bytes: int | None,
        policy: Policy | None,
        lengths: tuple[int, ...],
    ) -> int:
        """Return the largest batch of a program with a plan, or 0; takes no memory.

        ValueError if the batch is fixed or nothing limits it.
        """
        with self.lock.turn():
            self.lock.require_no_step()
            key = ProgramKey(kind, 1, lengths=lengths)
            self._check_planned(key)
            if any(node.batch_size for node in self._spec.network.nodes):
                raise ValueError(f"{self._owner} has a fixed batch size")
            if self.executor.budget_bytes(0, limit_bytes) is None:
                raise ValueError(
                    f"{self.executor.device.name} has no limit: pass one, such as "
                    "'64MiB', or set it with memcfg.config.set_memory_limit"
                )
            search = self._search(key, limit_bytes, policy)
            if search.shortfall(1):
                return 0
            high = search.above()
            if high is None:
                raise ValueError(
                    f"{self._owner} needs no more memory for larger batches: any fits"
                )
            return search.largest(high, guess=search.rough_guess(high))[0]

    def plan_largest(
        self,
        kind: str,
        limit_bytes: int | None,
        policy: Policy,
        lengths: tuple[int, ...],
    ) -> tuple[int, Plan]:
        """Return the largest batch of a policy, and its plan; takes no memory.

        InfeasiblePlanError if one sample does not fit; else as of `largest_batch`.
        """
        with self.lock.turn():
            batch = self.largest_batch(kind, limit_bytes, policy, lengths)
            key = ProgramKey(kind, batch or 1, lengths=lengths)
            return batch, self.plan(key, limit_bytes, policy)

    def fits(self, key: ProgramKey) -> bool:
        """Return whether a program has a plan now; takes no memory."""
        with self.lock.turn():
            self.lock.require_no_step()
            graph = self._trace(self._spec_for(key.kind == "train"), key)
            return not self.executor.shortfall(graph, first_of(self._policy))

    def estimate(self, key: ProgramKey, limit_bytes: int | None) -> Estimate:
        """Return what a program needs, with each lever; takes no memory."""
        with self.lock.turn():
            self.lock.require_no_step()
            self._check_planned(key)
            executor, spec = (
                self.executor,
                self._spec_for(self._training or key.kind == "train"),
            )
            graph = executor.annotate(self._trace(spec, key))
            levers = [lever("each op once", share()(graph))]
            for name, policy in (
                ("recomputation (memory='auto')", auto()),
                ('swapping (spill_to="host")', Spilling(auto())),
            ):
                levers.append(lever(name, lowest_plan(policy, graph)))
            left = executor.budget_bytes(0, limit_bytes)
            needed = min(each.limit_bytes or 0 for each in levers[:2])
            levers += self._micro_batches(key, graph, limit_bytes, left, needed)
            return Estimate(key.label, executor.device.name, left, tuple(levers))

    def _micro_batches(
        self,
        key: ProgramKey,
        graph: Graph,
        limit_bytes: int | None,
        left: int | None,
        needed: int,
    ) -> list[Lever]:
        """Return the levers of micro-batches: those for a limit, and the least."""
        permits = OnOom(("micro_batch",), self._on_oom.batch_statistics)
        reason = why_whole(
            self._spec_for(self._training or key.kind == "train"),
            key,
            permits,
            lambda: graph,
        )
        if reason:
            return [Lever("micro-batches (on_oom)", why_not=reason)]
        sizes = [1]
        if left is not None and left < needed:
            chosen = divide(
                key,
                key.batch_size,
                self.executor,
                self._policy,
                self._trace_part,
                0,
                needed,
                limit_bytes,
            )
            sizes += [] if chosen is None else [chosen.size]
        levers = []
        for size in sorted(set(sizes), reverse=True):
            division = Division(size, 0)
            part = self._trace_part(division.key(key, size, key.kind))
            policy = auto()
            if size > 1:
                plan = self.executor.plan(part, policy, limit_bytes)
            else:
                plan = lowest_plan(policy, self.executor.annotate(part))
            times = key.batch_size / size
            levers.append(lever(f"micro-batches of {size} (on_oom)", plan, times))
        return levers

    def _search(
        self, key: ProgramKey, limit_bytes: int | None, policy: Policy | None
    ) -> BatchSearch:
        """Return a search over the batches of a program."""
        spec = self._spec_for(self._training or key.kind == "train")
        return BatchSearch(
            self.executor,
            self._policy if policy is None else policy,
            lambda batch: self._trace(spec, key._replace(batch_size=batch)),
            limit_bytes=limit_bytes,
        )

    def graph(self, key: ProgramKey) -> Graph:
        """Return a program's graph as policies see it, with the kernels' scratch."""
        with self.lock.turn():
            self.lock.require_no_step()
            training = self._training or key.kind == "train"
            return self.executor.annotate(self._trace(self._spec_for(training), key))

    def loaded_plan(self, key: ProgramKey) -> Plan:
        """Return the plan of a loaded program; RuntimeError if it is not planned."""
        self._check_planned(key)
        return self.executor.plans[key.label]

    def _check_planned(self, key: ProgramKey) -> None:
        if key.kind in self._unplanned:
            mode = self._modes.execution(key.kind, self._debug_mode)
            assert mode is not None  # an unplanned kind has a mode
            raise RuntimeError(
                f"{key.label!r} has no plan: it runs in workspace mode {mode.name!r}. "
                "memory_report() says what it takes; compile with mode 'enabled', and "
                "without layer_workspaces, to have it planned"
            )

    def _trace(self, spec: TraceSpec, key: ProgramKey) -> Graph:
        """Trace a program for the device."""
        device = self.executor.device
        has = device.kernels.has
        graph = for_device(trace(spec, key, has), has)
        if key.joins and spec.rank is not None and spec.rank.communicator.rate:
            graph = replace(graph, link=Link(*spec.rank.communicator.rate))
        if (
            key.kind != "predict"
            or device.space != "host"
            or key.kind in self._unplanned
        ):
            return graph
        # Elsewhere outputs are copied out of the device's memory or of a workspace.
        outputs = spec.at(key.lengths).network.outputs
        results = [
            tensor
            for tensor, output in zip(graph.keep, outputs, strict=False)
            if graph.keep.count(tensor) == 1
            and lies_outside(output)
            and graph.tensors[tensor].shape == (key.batch_size, *output.sample_shape)
            and graph.tensors[tensor].dtype == output.sample_dtype
        ]
        return with_results_outside(graph, results)

    def _spec_for(self, training: bool) -> TraceSpec:
        return self._spec if training else replace(self._spec, optimizer=None)

    def _leaves(self, promised: int) -> bool:
        """Return whether the loaded programs leave `promised` bytes free."""
        left = self.executor.left_bytes if promised else None
        return left is None or left >= promised

    def _load(
        self, wanted: Sequence[ProgramKey], training: bool, promised: int
    ) -> None:
        """Load programs; fall back until all fit, or raise the refusal of one.

        Where they are not loaded, no step of `on_oom` is in force that was not before.
        """
        before = self._steps_taken()
        try:
            self._load_in_some_way(wanted, training, promised)
        except BaseException as error:
            tried = self._steps_taken()
            if isinstance(error, InfeasiblePlanError):
                self._refused = tried
            # Crash reports list what was tried.
            self._put_back(before._replace(past=tried.past, refused=tried.refused))
            raise

    def _load_in_some_way(
        self, wanted: Sequence[ProgramKey], training: bool, promised: int
    ) -> None:
        while True:
            began, left = planning_clock(), self.executor.budget_bytes(promised)
            try:
                self._load_beside(self._programs(wanted), training, promised)
            except InfeasiblePlanError as error:
                if self._has_come_free(error, wanted, left, promised):
                    continue
                refusal = self._fall_back(error, wanted, training, promised, began)
            except ResourceExhaustedError:
                now = self.executor.budget_bytes(promised)
                if left is None or now is None or now >= left:
                    raise
                continue  # others took memory after the plans were made
            else:
                return
            if refusal is not None:
                raise refusal

    def _has_come_free(
        self,
        error: InfeasiblePlanError,
        wanted: Sequence[ProgramKey],
        left: int | None,
        promised: int,
    ) -> bool:
        """Return whether others have given back what a program misses, since `left`."""
        now = self.executor.budget_bytes(promised)
        if left is None or now is None:
            return left is not now
        return now - left >= self._misfit(error, wanted)[1] > 0

    def _fall_back(
        self,
        error: InfeasiblePlanError,
        wanted: Sequence[ProgramKey],
        training: bool,
        promised: int,
        began: float,
    ) -> InfeasiblePlanError | None:
        """Apply the next fallback to a program that does not fit.

        `error` is that of the program which needs most. If no fallback is left, it is
        returned with the alternatives.
        """
        whole, missing = self._misfit(error, wanted)
        if whole.kind in self._unplanned:
            return self._ways_out(error, whole, training, promised, began)
        if self._apply_next(self._on_oom.own, whole, missing, training, promised):
            return None
        reason, least = "", None
        if "micro_batch" in self._on_oom.own:
            reason = self._why_in_one(whole, training)
            if not reason:
                reason = "not even one sample fits"
                if whole.kind == "train":
                    reason += " with its accumulators"
                least = self._least_in_parts(whole, promised)
        self._divisions.pop(whole, None)
        self.fallbacks.pop(whole, None)
        self.refused = whole
        refusal = self._ways_out(error, whole, training, promised, began)
        if reason:
            refusal = refusal.with_hint(f"Micro-batches cannot be used: {reason}.")
            refusal = refusal._with(micro_batch_limit_bytes=least)
        return refusal

    def _misfit(
        self, error: InfeasiblePlanError, wanted: Sequence[ProgramKey]
    ) -> tuple[ProgramKey, int]:
        """Return the batch whose program was refused, and the bytes it misses."""
        keys = {key.label: whole for whole in wanted for key in self._programs([whole])}
        missing = error.smallest_limit_bytes - (error.limit_bytes or 0)
        return keys.get(error.program, wanted[0]), missing

    def _apply_next(
        self,
        steps: Sequence[Any],
        whole: ProgramKey,
        missing: int,
        training: bool,
        promised: int,
    ) -> bool:
        """Apply the first step of `on_oom` that is left; False if there is none."""
        for step in steps:
            if step == "micro_batch":
                if not self._why_in_one(whole, training) and self._divide(
                    whole, missing, promised
                ):
                    return True
            elif step not in self._taken and self._take(step, whole):
                kind = step if step == "mixed_bfloat16" else "replan"
                name = "auto" if step == "replan" else name_of(step)
                size = whole.batch_size
                fallback = Fallback(kind, whole.label, missing, size, name=name)
                self._note(whole, fallback)
                return True
        return False

    def _why_in_one(self, whole: ProgramKey, training: bool) -> str:
        """Return why a batch cannot run in parts here; empty if it can."""
        if whole.ranks > 1 and self._spec.encodes:
            return "encodings are of the gradient of a whole part"
        spec = self._spec_for(training)
        return why_whole(spec, whole, self._on_oom, partial(self._trace, spec, whole))

    def _divide(self, whole: ProgramKey, missing: int, promised: int) -> bool:
        """Divide a batch into parts, or into smaller ones; False if no part fits."""
        known = self._divisions.get(whole)
        below = whole.batch_size if known is None else known.size
        needed = (self.executor.budget_bytes(promised) or 0) + missing
        alike = [
            division.size
            for key, division in self._divisions.items()
            if (key.kind, key.weights) == (whole.kind, whole.weights)
            and division.size < below
        ]
        if alike:  # their programs are planned already
            division = Division(max(alike), needed)
        else:
            found = divide(
                whole,
                below,
                self.executor,
                self._policy,
                self._trace_part,
                promised,
                needed,
            )
            if found is None:
                return False
            division = found
        if known is not None:
            division = division._replace(needed=known.needed)
        self._divisions[whole] = division
        parts = len(division.ranges(whole.batch_size))
        fallback = Fallback("micro_batch", whole.label, missing, division.size, parts)
        self._note(whole, fallback)
        return True

    def _least_in_parts(self, whole: ProgramKey, promised: int) -> int | None:
        """Return the smallest limit for parts of one sample; None if it is unknown."""
        graph = self._trace_part(Division(1, 0).key(whole, 1, whole.kind))
        try:
            self.executor.plan(graph, self._policy, promised=promised)
        except InfeasiblePlanError as error:
            return error.smallest_limit_bytes
        except (GraphError, PlanError):
            pass
        return None

    def _take(self, step: Any, key: ProgramKey) -> bool:
        """Apply a step of `on_oom` to all programs; False if it changes nothing."""
        self._taken.append(step)
        if step == "mixed_bfloat16":
            return self.executor.device.takes_bfloat16 and self._round(key)
        other = auto() if step == "replan" else step
        if step == "replan" and name_of(self._policy).startswith("auto"):
            return False
        self._policy = Thriftier(self._policy, other)
        return True

    def _layers(self) -> list[Layer]:
        """Return the layers, with those inside of others."""
        layers = self._spec.network.layers
        return [leaf for layer in layers for _, leaf in layer._leaves()]

    def _round(self, key: ProgramKey) -> bool:
        """Let float32 layers compute in bfloat16, if a program then needs less."""
        layers = [each for each in self._layers() if each.compute_dtype == "float32"]
        before = [layer._policy for layer in layers]

        def needed() -> int:
            graph = self.executor.annotate(self._trace_part(key))
            return share()(graph).peak_bytes

        most = needed()
        for layer in layers:
            layer._policy = as_policy("mixed_bfloat16")
        if needed() < most:
            self._is_stale = True
            return True
        for layer, policy in zip(layers, before, strict=True):
            layer._policy = policy
        return False

    def _note(self, key: ProgramKey, fallback: Fallback) -> None:
        """Warn of a fallback, and list it."""
        known = {
            (each.kind, fallback.step)
            for each, row in self.fallbacks.items()
            for fallback in row
        }
        before = self.fallbacks.get(key, [])
        self.past_fallbacks.append(fallback)
        kept = [each for each in before if each.step != fallback.step]
        self.fallbacks[key] = [*kept, fallback]
        if (key.kind, fallback.step) not in known:
            fallback.warn(self._owner)

    def fallbacks_in_force(self) -> list[Fallback]:
        """List the fallbacks of the loaded programs, and that to this model."""
        first = [] if self.instead is None else [self.instead]
        return first + [each for row in self.fallbacks.values() for each in row]

    def crash_facts(self) -> CrashFacts:
        """Return what a crash report says of the model; no lock is waited for."""
        executor, on_oom = self._executor, self._on_oom
        return CrashFacts(
            owner=self._owner,
            device="" if executor is None else executor.device.name,
            policy=self._policy.name,
            times=self._times,
            training_mode=self._modes.training.value,
            inference_mode=self._modes.inference.value,
            on_oom=[*map(step_name, on_oom.steps)] or ["raise"],
            batch_statistics=on_oom.batch_statistics,
            arena_bytes=0 if executor is None else executor.nbytes,
            programs=[key.label for key in self._graphs],
            lead="" if self.lead is None else self.lead.label,
            in_force=self.fallbacks_in_force(),
            past=list(self.past_fallbacks),
            refused=self.refused,
            executor=executor,
            graph=self.graph,
        )

    def _trace_part(self, key: ProgramKey) -> Graph:
        """Trace a program of a part of a batch."""
        spec = self._spec_for(self._training or key.kind == "train")
        return self._trace(replace(spec, accumulates=key.parts > 1), key)

    def _load_beside(
        self, wanted: Sequence[ProgramKey], training: bool, promised: int
    ) -> None:
        """Load `wanted` next to the loaded programs, or alone if they do not fit."""
        parts = self._programs(list(self._divisions))
        others = [
            key
            for key in reversed(self._graphs)
            if key not in wanted and (key.parts == 1 or key in parts)
        ]
        lead = self.lead
        if lead in others:
            others.remove(lead)
            others.insert(0, lead)
        kept = _KEPT_OF_ANY_LENGTH if self.is_open else _KEPT
        others = others[: max(0, kept - len(wanted))]
        if others:
            with suppress(ResourceExhaustedError):
                self._load_exactly([*wanted, *others], training, promised)
                return
        self._load_exactly(wanted, training, promised)

    def _ways_out(
        self,
        error: InfeasiblePlanError,
        key: ProgramKey,
        training: bool,
        promised: int,
        began: float,
    ) -> InfeasiblePlanError:
        """Return the error with alternatives that fit, if the program is planned."""
        if key.kind in self._unplanned:
            return error
        return with_ways_out(
            error,
            self.executor,
            self._policy,
            self._trace,
            self._spec_for(training),
            key,
            promised,
            planning_clock() - began,
        )

    def _load_exactly(
        self, keys: Sequence[ProgramKey], training: bool, promised: int
    ) -> None:
        accumulates = any(key.kind == "train" and key.parts > 1 for key in keys)
        spec = replace(self._spec_for(training), accumulates=accumulates)
        same = (training, accumulates) == (self._training, self._accumulates)
        known = self._graphs if same and not self._is_stale else {}
        graphs = {key: known.get(key) or self._trace(spec, key) for key in keys}
        initial = self._initial(graphs[keys[0]])
        given, drawn_now = {*initial}, initial.keys() - self._on_host.keys()
        self._drop_programs()
        debug_mode = config.get_debug_mode()
        modes = {key.label: self._modes.execution(key.kind, debug_mode) for key in keys}
        drawn, self._as_drawn = self._as_drawn, set()

        def let_go(name: str) -> None:
            initial.pop(name, None)
            self._on_host.pop(name, None)

        try:
            self.executor.load(
                {key.label: graph for key, graph in graphs.items()},
                self._orders.policy(self._policy)
                if self._chooses_orders
                else self._policy,
                initial,
                {label: mode for label, mode in modes.items() if mode is not None},
                promised=promised,
                moved=let_go,
            )
        except ResourceExhaustedError:
            self._as_drawn = drawn - given  # some may have moved in, from the host
            raise
        finally:
            initial.clear()  # who keeps an error keeps no values
        if all(op.phase != "update" for graph in graphs.values() for op in graph.ops):
            self._as_drawn = (drawn - given) | drawn_now
        self._debug_mode = debug_mode
        self._too_few = 0
        self._orders.loaded = self._orders.changes
        self._is_stale = False
        for name in given:
            self._on_host.pop(name, None)

    def memory_report(self, key: ProgramKey, *, verify: bool) -> MemoryReport:
        """Measure a loaded program; the caller holds the lock and is not in a step."""
        if verify and key.joins:
            raise RuntimeError(
                f"{key.label!r} runs on all ranks together: "
                "ParallelWrapper.memory_reports(verify=True) measures it"
            )
        return self._report(key, verify=verify)

    def report_of_rank(self, *, verify: bool) -> MemoryReport:
        """Report the last training step loaded; all ranks call this together."""
        with self.lock.turn():
            self.lock.require_no_step()
            if self._trained is not None:  # one rank may have evicted its programs
                self._load_of_rank(self._trained)
                self._lead = self._programs([self._own_key(self._trained)])[0]
            if self.lead is None:
                raise RuntimeError(f"{self._owner} has no memory plan yet: call fit")
            return self._report(self.lead, verify=verify)

    def _own_key(self, whole: ProgramKey) -> ProgramKey:
        """Return this rank's part of a batch."""
        assert self._spec.rank is not None
        return _key_of_rank(whole, self._spec.rank)[0]

    def _load_of_rank(self, whole: ProgramKey) -> None:
        """Load this rank's programs of a batch, unless they are."""
        programs = self._programs([self._own_key(whole)])
        if whole not in self._agreed or not all(map(self._is_current, programs)):
            self._require_shared([whole], lambda keys: self._require_missing(*keys))

    def _report(self, key: ProgramKey, *, verify: bool) -> MemoryReport:
        self._active = None
        self._user = ref(threading.current_thread())
        report = self.executor.memory_report(key.label, verify=verify)
        return replace(report, fallbacks=tuple(map(str, self.fallbacks_in_force())))

    def memory_timeline(self, key: ProgramKey, *, verify: bool) -> MemoryTimeline:
        """Return who has which bytes when; the caller holds the lock, as above."""
        if verify and key.joins:
            raise RuntimeError(
                f"{key.label!r} runs on all ranks together: verify=False draws its plan"
            )
        self._active = None
        self._user = ref(threading.current_thread())
        return self.executor.memory_timeline(key.label, verify=verify)

    # Steps

    def is_ready(
        self,
        kind: str,
        size: int,
        weights: tuple[Shape, ...],
        lengths: tuple[int, ...],
    ) -> bool:
        """Return whether the last program run is this planned one, still loaded."""
        result = self._active
        return (
            result is not None
            and result.kind == kind
            and result.size == size
            and result.weights == weights
            and not result.has_share
            and not result.key.is_part
            and result.lengths == lengths
            and not result.with_outputs
            and (kind != "train" or self._lead == result.key)
        )

    def step(
        self,
        kind: str,
        batch: Batch,
        optimizer: Optimizer | None = None,
        *,
        guard: bool = False,
        results: Rows | None = None,
        with_outputs: bool = False,
        begin: int | None = None,
    ) -> tuple[bool, tuple[Any, ...]]:
        """Run a program on a batch, whose last outputs go into `results` if given.

        Returns whether the program ran to the end; with `guard`, a loss that is not
        finite stops it. The second value holds what is not copied: the losses, which
        are means, and the sums of the metrics. `with_outputs` is that of `ProgramKey`.
        With `begin` the batch is the part of a larger one from that sample on. It runs
        here, whatever the distribution, and does not count among the optimizer's
        iterations.
        """
        # Outputs of a batch are of one rank.
        apart = begin is not None or kind == "predict" or with_outputs
        is_part = begin is not None and kind == "train"
        if self.distribution is not None and not apart:
            return self.distribution.step(kind, batch, optimizer, guard)
        ranked = kind != "train" and self._spec.rank is not None
        if ranked and self._spec.divides_weights:
            return self._step_on_all(kind, batch, results, with_outputs=with_outputs)
        with self.lock.step():
            gather = self._gather() if self.lent else None
            if gather is not None:
                gather()
            ready = self._active
            if (
                ready is None
                or ready.size != batch.size
                or ready.kind != kind
                or ready.has_share
                or ready.lengths != batch.lengths
                or (ready.weights != batch.weights and kind != "predict")
                or ready.with_outputs != with_outputs
                or ready.key.is_part != is_part
            ):
                weights = () if kind == "predict" else batch.weights
                key = ProgramKey(
                    kind,
                    batch.size,
                    weights,
                    lengths=batch.lengths,
                    with_outputs=with_outputs,
                    is_part=is_part,
                )
                if batch.lengths:
                    self._count_lengths(batch.lengths)
                self._require_missing(key)
                if key in self._divisions:
                    return self._step_in_parts(
                        key, batch, optimizer, guard, results, begin
                    )
                ready = self._activate(key)
            place = _WHOLE if begin is None else _UNCOUNTED._replace(begin=begin)
            return self._run(ready, batch, optimizer, guard, results, place)

    # Ranks

    @property
    def holds_parts(self) -> bool:
        """Whether this rank has parts of values, and others the rest."""
        return any(map(self.has_part, self._resident))

    @property
    def iterations(self) -> int:
        """The steps that the optimizer has counted."""
        optimizer = self._spec.optimizer
        return 0 if optimizer is None else optimizer._iterations.value

    @property
    def divides_weights(self) -> bool:
        """Whether this rank has parts of weights, and others the rest."""
        return self._spec.divides_weights

    def is_of(self, rank: Rank) -> bool:
        """Return whether this session computes with the other ranks of a group."""
        return self._spec.rank == rank

    def forget(self) -> None:
        """Lose all values, and leave the other ranks."""
        with self.lock.turn():
            self.close()
            self._leave_ranks(None)

    def join(self, rank: Rank | None) -> None:
        """Have `step_of_rank` compute with other ranks; None leaves them.

        Raises ValueError if the loss of a batch is not the sum of shares of its parts.
        """
        with self.lock.turn():
            self.lock.require_no_step()
            if rank == self._spec.rank:
                return
            spec = replace(self._spec, rank=rank)
            if rank is not None and rank.sharding is not None:
                assert spec.optimizer is not None  # `compile` came first
                require_elementwise(spec.optimizer)
            if rank is not None and not spec.network.open_axes:
                self._require_shares(spec, ProgramKey("train", 2))
            self._leave_ranks(rank)

    def _take_whole(self, wanted: Sequence[ProgramKey]) -> None:
        """Leave the other ranks if programs of this one alone need whole state."""
        if any(map(self._spec.needs_whole, wanted)):
            self._leave_ranks(None)

    def _leave_ranks(self, rank: Rank | None) -> None:
        """Put values that ranks divide together, and join other ranks or none."""
        self._agreed.clear()
        self._trained = None
        self._orders = Orders()
        self._drop_programs()
        if self._executor is not None and self._graphs:
            try:
                self.retire()  # programs of the group that is left
            except CommunicationError as error:
                self._lose_parts(error)
        self._spec = replace(self._spec, rank=rank)
        self._slots, self._parts = _all_slots(self._spec), _all_parts(self._spec)

    def _lose_parts(self, error: CommunicationError) -> None:
        """Keep what this rank has alone, since the others have failed."""
        weights = []
        for name in self._resident:
            if not self.has_part(name):
                if self._lasts(name):
                    self._on_host[name] = self.read_own(name)
            elif name in self._weights:
                weights.append(name)
                shape = self._weights[name].shape
                self._on_host[name] = np.full(shape, np.nan, np.float32)
            else:
                self._on_host.pop(name, None)
        self.close()
        lost = "the optimizer's state is as at first"
        if weights:
            lost = f"weights such as {weights[0]!r} are NaN, and {lost}"
        warnings.warn(
            f"{self._owner}: the parts that other ranks held are lost, so {lost}: load "
            f"a checkpoint before you go on ({error})",
            RuntimeWarning,
            stacklevel=outside(),
        )

    def _require_shares(
        self, spec: TraceSpec, key: ProgramKey, traced: Graph | None = None
    ) -> None:
        """Raise ValueError if ranks cannot compute shares of a batch.

        `traced` has the ops of the program, of any batch.
        """

        def graph() -> Graph:
            return self._trace(spec, key) if traced is None else traced

        reason = why_whole(spec, key, self._on_oom, graph)
        if reason:
            reason = reason.replace("micro-batches", "each rank's part")
            raise ValueError(f"{self._owner}: batches cannot be divided: {reason}")

    def require_of_rank(self, wanted: Sequence[ProgramKey], promised: int) -> None:
        """Load this rank's programs of whole batches, or refuse on all ranks."""
        with self.lock.turn():
            self.lock.require_no_step()
            self._require_shared(wanted, lambda own: self.require_alone(own, promised))
            if wanted[0].kind == "train":
                self._trained = wanted[0]

    def _require_shared(
        self,
        wanted: Sequence[ProgramKey],
        load: Callable[[Sequence[ProgramKey]], None],
    ) -> None:
        """Load this rank's programs of whole batches."""
        rank = self._spec.rank
        assert rank is not None
        own = [_key_of_rank(key, rank)[0] for key in wanted]

        def check() -> None:
            for key in wanted:
                if key.kind == "train" and key.lengths and key not in self._agreed:
                    self._require_shares(self._spec, key)

        self._require_of_rank(wanted, own, load, check)

    def _require_of_rank(
        self,
        together: Sequence[tuple[Any, ...]],
        own: Sequence[ProgramKey],
        load: Callable[[Sequence[ProgramKey]], None],
        check: Callable[[], object] = bool,
    ) -> None:
        """Load programs, and tell the other ranks the first time whether that works.

        `together` has what all ranks know the programs by.
        """
        rank = self._spec.rank
        assert rank is not None
        missing = [each for each in together if each not in self._agreed]
        if not missing:
            load(own)
            return
        counts = [1] * len(own)  # of micro-batches

        def load_checked() -> None:
            check()
            for key, count in zip(own, counts, strict=True):
                self._divide_into(key, count)
            load(own)

        while True:
            self._load_together(rank, own, load_checked)
            said = rank.communicator.exchange(tuple(map(self._count_parts, own)))
            needed = [max(column) for column in zip(*said, strict=True)]
            if needed == counts:
                break
            counts = needed
        if self._chooses_orders and self._agree_on_orders(rank, own):
            self._load_together(rank, own, load_checked)
        self._agreed.update(missing)

    def _agree_on_orders(self, rank: Rank, own: Sequence[ProgramKey]) -> bool:
        """Agree on orders of collectives; return whether to load programs again."""
        plans = self.executor.plans
        rows = [
            [
                (self._graphs[each], plans[each.label])
                for each in self._programs([key])
                if each.joins and each.label in plans
            ]
            for key in own
        ]
        return self._orders.agree(rows, rank.communicator.exchange)

    def _count_parts(self, key: ProgramKey) -> int:
        """Return the number of micro-batches that a batch of this rank runs in."""
        division = self._divisions.get(key)
        return 1 if division is None else len(division.ranges(key.batch_size))

    def _divide_into(self, key: ProgramKey, count: int) -> None:
        """Let a batch of this rank run in as many micro-batches as those of others."""
        known = self._divisions.get(key)
        if count == 1 or (known is not None and known.parts == count):
            return
        if key.batch_size < count:
            raise NotImplementedError(
                f"another rank needs {count} micro-batches, and this one has "
                f"{key.batch_size} samples"
            )
        self._divisions[key] = Division(-(-key.batch_size // count), 0, count)

    @property
    def _chooses_orders(self) -> bool:
        """Whether plans of this rank decide where some collectives run."""
        return self._spec.rank is not None and self._spec.rank.sharding is not None

    def _load_together(
        self, rank: Rank, own: Sequence[ProgramKey], load: Callable[[], None]
    ) -> None:
        """Load this rank's programs, or raise what one of the ranks raises."""
        refusal: Exception | None = None
        try:
            load()
        except Exception as error:
            refusal = error
        text = None if refusal is None else str(refusal)
        order = self._collectives_of(own) if refusal is None else ""
        said = rank.communicator.exchange((text, order))
        if refusal is not None:
            raise refusal
        others = [each for each, (text, _) in enumerate(said) if text is not None]
        if others:
            raise CommunicationError(
                f"rank {others[0]} refused the step: {said[others[0]][0]}", others
            )
        differ = [each for each, (_, found) in enumerate(said) if found != said[0][1]]
        if differ:
            raise CommunicationError(
                f"rank {differ[0]} would call other collectives than rank 0: its model "
                "is another one, or another version of memcfg traced it",
                differ,
            )

    def _collectives_of(self, keys: Sequence[ProgramKey]) -> str:
        """Return a digest of the collectives of programs, in their order."""
        programs = [key for key in self._programs(keys) if key.joins]
        found = [
            tuple(
                (op.type, *(graph.tensors[i].shape for i in op.inputs))
                for op in graph.ops
                if op.type in COLLECTIVES
            )
            for graph in map(self._graphs.__getitem__, programs)
        ]
        # Parts of several sizes have the same ones.
        return blake2b(
            repr([*dict.fromkeys(found)]).encode(), digest_size=16
        ).hexdigest()

    def estimate_ranks(
        self,
        ranks: Sequence[Rank],
        whole: ProgramKey,
        limit_bytes: int | None = None,
        policy: Policy | None = None,
        profile: Profile | None = None,
    ) -> list[ShardEstimate]:
        """Plan the parts that ranks would have of a batch, without taking memory.

        The ranks differ in what they divide, and need not exist. Raises ValueError if
        the loss of a batch is not the sum of shares of its parts.
        """
        with self.lock.turn():
            self.lock.require_no_step()
            if limit_bytes is None:
                limit_bytes = self.executor.budget_bytes(0)
            policy = self._policy if policy is None else policy
            two, checked = whole._replace(batch_size=2), False
            rows = []
            for rank in ranks:
                spec = replace(self._spec, rank=rank)
                row = _unplanned_estimate(spec, rank, limit_bytes)
                if row is None:
                    graph = self._trace(spec, _key_of_rank(whole, rank)[0])
                    if not checked:  # a large model takes seconds to trace again
                        self._require_shares(self._spec, two, graph)
                        checked = True
                    graph = self.executor.annotate(graph)
                    if profile is not None:
                        graph = with_profile(graph, profile)
                    state = spec.state_bytes
                    row = shard_estimate(
                        rank.sharding, graph, policy, limit_bytes, state
                    )
                rows.append(row)
            if not checked:
                self._require_shares(self._spec, two)
            return rows

    def step_of_rank(
        self,
        kind: str,
        batch: Batch,
        optimizer: Optimizer | None = None,
        *,
        guard: bool = False,
        advances: bool = True,
    ) -> tuple[bool, tuple[Any, ...]]:
        """Compute this rank's part of a batch that all ranks have.

        The results are those of the whole batch. Who calls this tells the other ranks
        if it raises.
        """
        rank = self._spec.rank
        assert rank is not None
        with self.lock.step():
            gather = self._gather() if self.lent else None
            if gather is not None:
                gather()
            whole = ProgramKey(kind, batch.size, batch.weights, lengths=batch.lengths)
            key, begin, samples = _key_of_rank(whole, rank)
            self._load_of_rank(whole)
            division = self._divisions.get(key)
            ranges = [(0, key.batch_size)]
            if division is not None:
                ranges = division.ranges(key.batch_size)
            parts = [batch.part(begin + a, begin + b) for a, b in ranges]
            shares = self._shares_of_rank(whole, parts, samples, rank)
            total: list[Any] = []
            for index, part in enumerate(parts):
                if division is not None:
                    ready = self._activate(division.key(key, part.size, kind))
                else:
                    ready = self._activate(key)
                first = begin + ranges[index][0]
                place = _Place(first, index, len(parts), shares[index], advances)
                finished, values = self._run(ready, part, optimizer, guard, None, place)
                if not finished:
                    return False, values
                pairs = zip(total, values, strict=True)
                total = [a + b for a, b in pairs] if index else [*values]
            if kind == "train" and rank.encoder is not None:
                rank.encoder.advance()
            return True, tuple(total)

    def _step_on_all(
        self, kind: str, batch: Batch, results: Rows | None, *, with_outputs: bool
    ) -> tuple[bool, tuple[Any, ...]]:
        """Run a batch on all ranks of this process, which gather weights together."""
        assert self.peers is not None  # only the rank of the model is asked to

        def run(session: Session) -> tuple[bool, tuple[Any, ...]]:
            own = results
            if results is not None and session is not self:
                own = results.spare()
            return session.step_gathering(kind, batch, own, with_outputs=with_outputs)

        return self.peers.together(run)

    def step_gathering(
        self,
        kind: str,
        batch: Batch,
        results: Rows | None = None,
        *,
        with_outputs: bool = False,
    ) -> tuple[bool, tuple[Any, ...]]:
        """Run a program on a batch of this rank's own, with weights of all ranks.

        All ranks call this at the same time. The rest is as of `step`.
        """
        rank = self._spec.rank
        assert rank is not None
        with self.lock.step():
            gather = self._gather() if self.lent else None
            if gather is not None:
                gather()
            weights = () if kind == "predict" else batch.weights
            key = ProgramKey(
                kind,
                batch.size,
                weights,
                lengths=batch.lengths,
                with_outputs=with_outputs,
                gathers=True,
            )
            of_all = tuple(rank.communicator.exchange(key))
            current = all(map(self._is_current, self._programs([key])))
            if of_all not in self._agreed or not current:
                self._require_of_rank(
                    [of_all], [key], lambda keys: self._require_missing(*keys)
                )
            if key in self._divisions:
                return self._step_in_parts(key, batch, None, False, results, None)
            ready = self._activate(key)
            return self._run(ready, batch, None, False, results, _WHOLE)

    def _shares_of_rank(
        self, whole: ProgramKey, parts: Sequence[Batch], samples: int, rank: Rank
    ) -> list[tuple[float, ...]]:
        """Return the share of the samples, and of each loss, of each of its parts."""
        rows = [part.size / whole.batch_size * bool(samples) for part in parts]
        if not self._has_counts(whole):
            return [(row,) for row in rows]
        own = []
        for part in parts:
            key = ProgramKey("count", part.size, whole.weights, lengths=whole.lengths)
            self._require_missing(key)
            counted = self._run(self._activate(key), part, None, False, None, _WHOLE)[1]
            own.append(counted if samples else (0.0,) * len(counted))
        of_all = itertools.chain.from_iterable(rank.communicator.exchange(own))
        totals = [sum(column) for column in zip(*of_all, strict=True)]
        return [
            (row, *self._shares_of_losses(whole, row, counted, totals))
            for row, counted in zip(rows, own, strict=True)
        ]

    def _count_lengths(self, lengths: tuple[int, ...]) -> None:
        """Warn once if batches have many lengths."""
        if len(self._lengths_seen) > _FEW or lengths in self._lengths_seen:
            return
        before = next(reversed(self._lengths_seen), lengths)
        self._lengths_seen[lengths] = None
        if len(self._lengths_seen) > _FEW:
            warnings.warn(
                f"{self._spec.name!r} has run batches of {len(self._lengths_seen)} "
                f"lengths, such as {_shown(before)} and {_shown(lengths)}, and each is "
                "planned on its own. Pad batches to a few lengths: "
                "dataset.bucket_by_sequence_length(...), or padded_batch with "
                "padded_shapes",
                RetracingWarning,
                stacklevel=outside(),
            )

    def _step_in_parts(
        self,
        key: ProgramKey,
        batch: Batch,
        optimizer: Optimizer | None,
        guard: bool,
        results: Rows | None,
        first: int | None,
    ) -> tuple[bool, tuple[Any, ...]]:
        """Run a batch in parts; the results of `step` are sums of their shares.

        `first` is the `begin` of `step`.
        """
        division = self._divisions[key]
        ranges = division.ranges(key.batch_size)
        batches = [batch.part(begin, end) for begin, end in ranges]
        shares = self._shares_of_parts(key, division, batches)
        total: list[Any] = []
        for index, (begin, end) in enumerate(ranges):
            ready = self._activate(division.key(key, end - begin, key.kind))
            finished, values = self._run(
                ready,
                batches[index],
                optimizer,
                guard,
                None if results is None else results.part(begin, end),
                _Place(
                    (first or 0) + begin,
                    index,
                    len(ranges),
                    shares[index],
                    first is None,
                ),
            )
            if not finished:
                return False, values
            pairs = zip(total, values, strict=True)
            total = [a + b for a, b in pairs] if index else [*values]
        return True, tuple(total)

    def _shares_of_parts(
        self, key: ProgramKey, division: Division, batches: Sequence[Batch]
    ) -> list[tuple[float, ...]]:
        """Return each part's share of the samples, and of each loss."""
        rows = [batch.size / key.batch_size for batch in batches]
        if key.kind == "predict" or not self._has_counts(key):
            return [(row,) for row in rows]
        counts = []
        for batch in batches:
            ready = self._activate(division.key(key, batch.size, "count"))
            counts.append(self._run(ready, batch, None, False, None, _WHOLE)[1])
        totals = [sum(column) for column in zip(*counts, strict=True)]
        result = []
        for row, counted in zip(rows, counts, strict=True):
            result.append((row, *self._shares_of_losses(key, row, counted, totals)))
        return result

    def _shares_of_losses(
        self,
        key: ProgramKey,
        row: float,
        counted: Sequence[float],
        totals: Sequence[float],
    ) -> list[float]:
        """Return a part's share of each loss, from its numbers and their totals."""
        parts = iter(
            part / whole if whole else 0.0
            for part, whole in zip(counted, totals, strict=True)
        )
        return [
            (row**share.rows if row else 0.0)
            * prod(next(parts) for _ in range(share.counts))
            for share in self._shares_of(key)
        ]

    def _run(
        self,
        ready: _Ready,
        batch: Batch,
        optimizer: Optimizer | None,
        guard: bool,
        results: Rows | None,
        place: _Place,
    ) -> tuple[bool, tuple[Any, ...]]:
        """Run a program on a batch, or on a part of one."""
        if (
            ready.program.due
            and place.part == 0
            and _begins_a_window(self._spec.optimizer)
        ):
            ready = self._reconsider(ready)
        is_last = place.part + 1 == place.parts
        counter = None
        if optimizer is not None and is_last and place.advances:
            counter = optimizer._iterations
        if self._open is not None:  # the end of the previous step was interrupted
            self._end_step()
        try:
            try:
                if ready.inputs is None:
                    self._open = ready
                self._feed(ready, batch, optimizer, place)
                if ready.outside and results is not None:
                    self._run_into(ready, results)
                    return True, self._collect(ready, results)
                finished = ready.program.run(guard=guard, counter=counter)
                if results is not None or ready.outputs is None or not ready.scalar:
                    return finished, self._collect(ready, results)
                return finished, tuple(map(float, ready.outputs))
            finally:
                if self._open is not None:
                    self._end_step()
        except BaseException:
            if self._open is not None:
                self._end_step()
            raise

    def _run_into(self, ready: _Ready, results: Rows) -> None:
        """Run a program that writes outputs straight into the results."""
        self._open = ready  # the end of the step lets go of the arrays
        try:
            for output, name in ready.outside:
                ready.program.lend(name, results.target(output))
            ready.program.run(guard=False)
        finally:
            results.settle()

    def _activate(self, key: ProgramKey) -> _Ready:
        """Load a program if necessary and prepare it to run."""
        self._active = None
        self._user = ref(threading.current_thread())
        program = self.executor.prepare(key.label)
        ready = self._ready.get(key)
        if ready is None or ready.program is not program:
            ready = _Ready(key, program)
        if key.kind not in self._unplanned:
            if ready.inputs is None:
                ready.outputs = self._outputs(ready)
                ready.scalar = not any(output.ndim for output in ready.outputs)
                ready.outside = [
                    (output, name)
                    for output, name in enumerate(self._output_names(ready))
                    if name in ready.program.results.tensors
                ]
                ready.written = {output for output, _ in ready.outside}
                ready.inputs = self._inputs(ready)
            self._ready[key] = self._active = ready
        return ready

    def _reconsider(self, ready: _Ready) -> _Ready:
        """Let the executor revise the plan from the times of its first steps."""
        self._drop_programs()
        self.executor.reconsider(ready.key.label)
        return self._activate(ready.key)

    def _end_step(self) -> None:
        """Release what a step has bound and, if it is unplanned, its buffers."""
        if self._open is not None:
            self._open.program.finish()
            self._open = None

    def _feed(
        self, ready: _Ready, batch: Batch, optimizer: Optimizer | None, place: _Place
    ) -> None:
        inputs = self._inputs(ready) if ready.inputs is None else ready.inputs
        try:
            bound: set[str] = set()
            if batch.in_place:
                self._open = ready
                for column in batch.columns:
                    if column.in_place and ready.program.bind(
                        column.name, column.array[batch.rows]
                    ):
                        bound.add(column.name)
            batch.write(inputs, bound)
            if place.shares:
                self._feed_share(inputs, batch, optimizer, place)
            elif optimizer is None:
                self._feed_draws(inputs, batch.size)
            else:
                number = optimizer._iterations.value
                if "step" in inputs:
                    inputs["step"][...] = number
                if "position" in inputs:
                    inputs["position"][...] = (number, place.begin, batch.size)
            if optimizer is not None and "learning_rate" in inputs:
                inputs["learning_rate"][...] = optimizer.rates
        finally:
            del inputs  # an error's frames would keep the views alive

    def _feed_draws(self, inputs: Mapping[str, Array], size: int) -> None:
        """Write the inputs of layers that draw numbers outside of training, too."""
        if "position" in inputs:
            inputs["position"][...] = (self._draws, 0, size)
        elif "step" in inputs:
            inputs["step"][...] = self._draws
        else:
            return
        self._draws += 1

    def _feed_share(
        self,
        inputs: Mapping[str, Array],
        batch: Batch,
        optimizer: Optimizer | None,
        place: _Place,
    ) -> None:
        """Write the inputs of the program of a part, other than its samples."""
        number = self._draws if optimizer is None else optimizer._iterations.value
        if optimizer is None and place.part + 1 == place.parts:
            self._draws += 1
        values: dict[str, Any] = {
            "step": number * place.parts + place.part,
            "position": (number, place.begin, batch.size),
            "present": float(place.shares[0] > 0),
        }
        rank = self._spec.rank
        if "threshold" in inputs and rank is not None and rank.encoder is not None:
            values |= rank.encoder.scalars()
        names = input_names("share", len(place.shares))
        values |= zip(names, place.shares, strict=True)
        for name in values.keys() & inputs.keys():
            inputs[name][...] = values[name]

    def _collect(self, ready: _Ready, results: Rows | None) -> tuple[Any, ...]:
        found = self._outputs(ready) if ready.outputs is None else ready.outputs
        first = len(found)
        if results is not None:  # a loop calls no function
            written = ready.written
            place = first = first - len(results.wholes) + len(written)
            for output, whole in enumerate(results.wholes):
                if output not in written:
                    whole[results.begin : results.end] = found[place]
                    place += 1
            if not first:
                return ()
        values = found[:first]
        return tuple(np.array(each) if each.ndim else float(each) for each in values)

    def _inputs(self, ready: _Ready) -> dict[str, Array]:
        """Return views of the inputs that a program reads, by name."""
        graph = ready.program.graph
        names = [
            tensor.name
            for i, tensor in enumerate(graph.tensors)
            if tensor.role == "input" and (graph.consumers[i] or i in graph.keep)
        ]
        return {name: ready.program.view(name, at_end=False) for name in names}

    def _outputs(self, ready: _Ready) -> tuple[Array, ...]:
        """Return views of a program's outputs in the arena, without the state."""
        program = ready.program
        names = self._output_names(ready)
        return tuple(
            program.view(each, at_end=True)
            for each in names
            if each not in program.results.tensors
        )

    def _output_names(self, ready: _Ready) -> list[str]:
        graph = ready.program.graph
        count = self._spec.count_outputs(ready.kind)
        if count is not None and ready.with_outputs:
            outputs = len(self._spec.network.outputs)
            count += 0 if ready.kind == "predict" else outputs
            count += len(self.masks(ready.lengths).shapes)
        return [graph.tensors[i].name for i in graph.keep[:count]]


def _all_slots(spec: TraceSpec) -> dict[str, Slot]:
    """Return the state tensors by name, with those of steps that run in parts."""
    return {slot.name: slot for slot in replace(spec, accumulates=True).slots}


def _all_parts(spec: TraceSpec) -> Parts:
    """Return the state that ranks divide, with that of steps that run in parts."""
    return replace(spec, accumulates=True).parts


def _wanted_by(spec: TraceSpec, tables: Mapping[str, Table]) -> Wanted:
    """Return what a batch must contain, without y."""
    network = spec.network
    names = input_names("x", len(network.inputs))
    xs = tuple(
        Field(
            name,
            tensor.sample_shape,
            tensor.sample_dtype,
            table=tables.get(name),
            prepare=Preparation(given.sample_shape, steps) if steps else None,
        )
        for name, given, (tensor, steps) in zip(
            names, network.inputs, network.prepared, strict=True
        )
    )
    return Wanted(xs, (), network.takes, network.gives)


def _with_targets(spec: TraceSpec, wanted: Wanted) -> Wanted:
    """Return what a batch must contain, with y."""
    if spec.objectives is None:
        raise _no_loss()
    targets = spec.objectives.targets
    ys = tuple(
        Field(name, *target)
        for name, target in zip(
            input_names("y", len(targets)), targets.values(), strict=True
        )
    )
    outputs = spec.network.outputs
    return wanted._replace(
        ys=ys,
        places=tuple(targets),
        steps=tuple(outputs[place].sample_shape[:-1] for place in targets),
    )


def _only_reads(key: ProgramKey) -> bool:
    """Return whether a program computes without changing state, and has a result."""
    return key.kind in ("evaluate", "predict")


def _key_of_rank(whole: ProgramKey, rank: Rank) -> tuple[ProgramKey, int, int]:
    """Return the program of a rank's part of a batch, and where it begins.

    The third value is the number of its samples; a rank for which there are none
    computes the last one, with a share of 0.
    """
    begin, end = share_of(whole.batch_size, rank.size)[rank.communicator.rank]
    size = max(end - begin, 1)
    key = whole._replace(batch_size=size, ranks=rank.size)
    return key, min(begin, whole.batch_size - 1), end - begin


def _unplanned_estimate(
    spec: TraceSpec, rank: Rank, limit_bytes: int | None
) -> ShardEstimate | None:
    """Return the estimate of a rank that has no plan; None if it may have one."""
    assert spec.optimizer is not None  # `compile` came first
    shard, state = rank.sharding, spec.state_bytes
    if shard is not None and (reason := spec.optimizer.why_whole()):
        return ShardEstimate(shard, state, 0, why_not=reason)
    if limit_bytes is not None and state > limit_bytes:
        reason = f"weights and optimizer state alone take {exact(state)}"
        return ShardEstimate(shard, state, state, why_not=reason)
    return None


def _shown(lengths: tuple[int, ...]) -> str:
    return " x ".join(map(str, lengths))


def _no_loss() -> RuntimeError:
    return RuntimeError(
        "a loss needs a compiled model: call compile(optimizer, loss) first"
    )


def _begins_a_window(optimizer: Optimizer | None) -> bool:
    """Return whether no accumulated gradients are waiting for an update.

    Without an optimizer, or without accumulation, none ever are.
    """
    steps = None if optimizer is None else optimizer.gradient_accumulation_steps
    if optimizer is None or steps is None:
        return True
    return optimizer._iterations.value % steps == 0


def device_of(model: str, name: str | None) -> Device:
    """Return a model's device; RuntimeError if it is not configured any more."""
    try:
        return config.logical_device(name)
    except ValueError as error:
        raise RuntimeError(
            f"{model!r} was compiled for {name}, which is no longer configured: "
            f"compile it again ({error})"
        ) from error
