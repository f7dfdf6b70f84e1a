"""A workspace as a user meets it: a scope with a name, a configuration and arrays.

Pages, cycles and NumPy's hooks are those of the core's `Scope`, whose methods enter and
leave it, so that a ``with`` block costs no Python.

See docs/decisions/0013-workspaces-as-in-nd4j.md.
"""

from __future__ import annotations

import copy
import os
import tempfile
import threading
import warnings
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast
from uuid import uuid4
from weakref import ref

import numpy as np

from memcfg._caller import outside
from memcfg._checks import count
from memcfg._core import CudaResource, Scope, WorkspaceMemory, placement_of, scope_out
from memcfg._core._live import Living
from memcfg.config import (
    AllocationPolicy,
    EscapePolicy,
    LocationPolicy,
    MirroringPolicy,
    WorkspaceConfig,
    get_debug_mode,
    get_default_workspace_config,
    get_scope_checks,
    logical_device,
)
from memcfg.errors import (
    WorkspaceConfigError,
    WorkspaceError,
    WorkspaceLeakError,
    WorkspaceLeakWarning,
    WorkspaceSpillWarning,
    WorkspaceStaleError,
)
from memcfg.memory import Resource, mmap_file, numpy_allocator
from memcfg.units import format_bytes
from memcfg.workspaces._escapes import describe_escapes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from typing import Self

    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from memcfg._core import Placement
    from memcfg.devices import Device
    from memcfg.errors import ResourceExhaustedError
    from memcfg.memory import MappedFile

T = TypeVar("T")
Array = np.ndarray[Any, Any]
Shape = int | tuple[int, ...]

DEFAULT_NAME = "DefaultWorkspace"


@dataclass(frozen=True, slots=True)
class WorkspaceStats:
    """What a workspace holds and has learned, at one point in time.

    Bytes are those of requests, each rounded up to 64.

    Parameters
    ----------
    size : int
        Bytes of the page that a cycle gets; 0 as long as nothing was learned.
    offset : int
        Where in the page the next array will lie.
    cycle_bytes : int
        Bytes that this cycle has asked for, spilled ones included.
    last_cycle_bytes : int
        The same of the cycle that ended last.
    max_cycle_bytes : int
        The maximum of all cycles: what sizes are learned from.
    spilled_bytes : int
        Bytes that did not fit the page; reset when the next cycle begins, in a ring
        when it has come round.
    spilled_count : int
        In how many arrays.
    pinned_bytes : int
        Bytes of a ring's cycles that were too large for their block; reset with the
        third step that follows.
    pinned_count : int
        In how many arrays.
    block_size : int
        Bytes of a ring's block; 0 without one.
    cycles : int
        Cycles that have ended.
    steps : int
        How often a ring has come round.
    generation : int
        Cycles that have begun.
    live_arrays : int
        Arrays that are alive, wherever in the workspace's memory.
    escaped_arrays : int
        Arrays that have outlived their cycle so far, whether they are alive or not.
    retired_bytes : int
        Bytes of pages that belong to such arrays and are not used again before the last
        of them is gone.
    """

    size: int
    offset: int
    cycle_bytes: int
    last_cycle_bytes: int
    max_cycle_bytes: int
    spilled_bytes: int
    spilled_count: int
    pinned_bytes: int
    pinned_count: int
    block_size: int
    cycles: int
    steps: int
    generation: int
    live_arrays: int
    escaped_arrays: int
    retired_bytes: int


class Workspace(Scope):
    """Memory for work in cycles: learned in the first, used again in all others.

    Each ``with`` block is a cycle. The arrays that NumPy makes inside lie one behind
    the other in a page; at the end the page is used from its start again. An array that
    is still alive then keeps its page, and the next cycle gets another one. `detach`
    copies an array out.

    Parameters
    ----------
    config : WorkspaceConfig or None, default None
        What it is to be. None is `memcfg.config.get_default_workspace_config`.
    name : str, default "DefaultWorkspace"
        Its name in this thread, for `workspace` and for messages.
    resource : Resource or None, default None
        Where its pages, and the arrays that do not fit them, come from. None is the
        pool of the device that models are placed on now (`memcfg.device`).

    Attributes
    ----------
    memory : WorkspaceMemory
        Its metadata, a resource like others.
    parent : Workspace or None
        What was current when it was opened.
    is_open : bool
        Whether a cycle is running.
    is_current : bool
        Whether arrays are made in it now, in this thread or task.
    enabled : bool
        Whether it takes arrays. What is made in one that is open and not enabled lies
        outside of it. It is enabled again when its cycle ends.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If the name is empty, or the resource has no memory (a simulated device).
    WorkspaceConfigError
        If this thread has a workspace of this name; the file's length contradicts
        `initial_size`; or mirroring is "full" and the resource serves a GPU.
    ResourceExhaustedError
        If a page of `initial_size` cannot be allocated.
    OSError
        If the file cannot be used.
    FormatError
        If ``MEMCFG_WORKSPACE_DEBUG`` cannot be read.

    Notes
    -----
    A workspace is for one thread at a time; `workspace` gives each thread its own. It
    lives as long as its thread, or until `destroy`. Re-entering one that is open counts
    only, and resets nothing.

    References
    ----------
    ND4J's MemoryWorkspace (Deeplearning4j 1.0.0-M1).

    Examples
    --------
    >>> import numpy as np
    >>> import memcfg as mc
    >>> ws = mc.Workspace(mc.WorkspaceConfig(allocation="strict"), "example")
    >>> for _ in range(3):
    ...     with ws:
    ...         total = mc.detach(np.arange(1000.0) + 1)
    >>> ws.stats().cycles, ws.stats().size >= 16_000, mc.is_attached(total)
    (3, True, False)
    >>> ws.destroy()
    """

    _listed = True  # whether it belongs to its thread, which knows it by its name

    def __init__(
        self,
        config: WorkspaceConfig | None = None,
        name: str = DEFAULT_NAME,
        *,
        resource: Resource | None = None,
    ) -> None:
        self._config = checked_config(config)
        if not isinstance(name, str):
            raise TypeError(f"the name of a workspace is a string, not {name!r}")
        if not name:
            raise ValueError("a workspace needs a name")
        self._name = name
        if self._listed and name in names_here():
            raise WorkspaceConfigError(
                f"this thread has a workspace {name!r} already: use memcfg.workspace("
                f"{name!r}), destroy it, or choose another name"
            )
        get_debug_mode()  # what the environment says of it holds from now on
        self._device: ref[Device] | None = None
        if resource is None:
            device = logical_device(None)
            self._device = ref(device)
            resource = device.host_pool
        elif not isinstance(resource, Resource):
            raise TypeError(
                f"resource is a Resource of memcfg.memory, not {resource!r}"
            )
        _check_mirroring(self._config, name, resource)
        self._file = _map_file(self._config, name)
        memory = WorkspaceMemory(
            resource,
            name=name,
            pages=self._file,
            **_core_options(self._config, self._file),
        )
        super().__init__(memory, capture=self._config.capture_numpy)
        self._thread_id = threading.get_ident()
        self._names: ref[Names] | None = None
        if self._listed:
            names = names_here()
            names[name] = self
            self._names = ref(names)

    @property
    def name(self) -> str:
        """The name in its thread."""
        return self._name

    @property
    def config(self) -> WorkspaceConfig:
        """What it was made with."""
        return self._config

    @property
    def thread_id(self) -> int:
        """The thread that made it: `threading.get_ident`."""
        return self._thread_id

    @property
    def resource(self) -> Resource:
        """Where its pages, and the arrays that do not fit them, come from."""
        upstream = self.memory.upstream
        assert upstream is not None, "a workspace stands on a resource"
        return upstream

    @property
    def _is_orphaned(self) -> bool:
        """Whether a reset has dropped its device, and no cycle needs it."""
        gone = self._device is not None and self._device() is None
        return gone and not self.is_open

    def alloc(self, nbytes: int) -> memoryview:
        """Allocate bytes, for what is not an array.

        Parameters
        ----------
        nbytes : int
            How many, at least 1.

        Returns
        -------
        memoryview
            Writable, not initialised, and aligned to 64 bytes. It keeps its memory as
            an array does.

        Raises
        ------
        TypeError
            If `nbytes` is not an int.
        ValueError
            If it is less than 1.
        WorkspaceFullError
            If it does not fit, and the spill policy is "fail".
        ResourceExhaustedError
            If `resource` has no memory for it.
        """
        return self.empty(count(nbytes, "a number of bytes"), np.uint8).data

    def empty(self, shape: Shape, dtype: DTypeLike = float) -> NDArray[Any]:
        """Make an array that is not initialised, here, whatever is current.

        Parameters
        ----------
        shape : int or tuple of int
            Its shape.
        dtype : data-type, default float64
            Its type.

        Returns
        -------
        numpy.ndarray
            In this workspace; while that is closed or disabled, a block of its own of
            `resource` and attached to nothing.

        Raises
        ------
        WorkspaceFullError
            If it does not fit, and the spill policy is "fail".
        ResourceExhaustedError
            If `resource` has no memory for it.
        """
        with self._here():
            return np.empty(shape, dtype)

    def zeros(self, shape: Shape, dtype: DTypeLike = float) -> NDArray[Any]:
        """Make an array of zeros, in the memory and with the errors of `empty`.

        Parameters
        ----------
        shape, dtype : int or tuple of int, data-type
            As for `empty`.
        """
        with self._here():
            return np.zeros(shape, dtype)

    def ones(self, shape: Shape, dtype: DTypeLike = float) -> NDArray[Any]:
        """Make an array of ones, in the memory and with the errors of `empty`.

        Parameters
        ----------
        shape, dtype : int or tuple of int, data-type
            As for `empty`.
        """
        return self.full(shape, 1, dtype)

    def full(
        self, shape: Shape, value: ArrayLike, dtype: DTypeLike | None = None
    ) -> NDArray[Any]:
        """Make an array of one value, in the memory and with the errors of `empty`.

        Parameters
        ----------
        shape : int or tuple of int
            Its shape.
        value : scalar or array_like
            What it is filled with; it is broadcast.
        dtype : data-type or None, default None
            Its type; None is that of the value.

        Raises
        ------
        ValueError
            If the value does not fit the shape.
        """
        with scope_out():
            filling = np.asarray(value, dtype)
        return _filled(self.empty(shape, filling.dtype), filling)

    def array(self, values: ArrayLike, dtype: DTypeLike | None = None) -> NDArray[Any]:
        """Make an array of given values, in the memory and with the errors of `empty`.

        Parameters
        ----------
        values : array_like
            Numbers, nested sequences or an array, which is copied.
        dtype : data-type or None, default None
            Its type; None is that of the values.
        """
        with scope_out():
            known = isinstance(values, np.ndarray)
            source = np.asarray(values, None if known else dtype)
        return _filled(self.empty_like(source, dtype), source)

    def empty_like(
        self, prototype: ArrayLike, dtype: DTypeLike | None = None
    ) -> NDArray[Any]:
        """Make an array like another one, in the memory and with the errors of `empty`.

        Parameters
        ----------
        prototype : array_like
            The other one.
        dtype : data-type or None, default None
            Its type; None is that of the prototype.
        """
        with scope_out():
            source = np.asarray(prototype)
        with self._here():
            return np.empty_like(source, dtype, subok=False)

    def _here(self) -> AbstractContextManager[object]:
        """Let NumPy make its arrays here."""
        return self.inside() if self.is_open else numpy_allocator(self.resource)

    def detach(self, value: T) -> T:
        """Copy arrays out of all workspaces: `memcfg.detach`.

        Parameters
        ----------
        value : numpy.ndarray, or tuple, list or dict of such, nested as they may be
            Arrays, of this workspace or of others.

        Returns
        -------
        numpy.ndarray or container
            What `memcfg.detach` returns.

        Raises
        ------
        TypeError, WorkspaceLeakError, WorkspaceStaleError, MemoryError
            As `memcfg.detach` raises them.
        """
        return detach(value)

    def stats(self) -> WorkspaceStats:
        """Return what it holds and has learned, all at one point in time."""
        return WorkspaceStats(**self.counters())

    @contextmanager
    def disabled(self) -> Iterator[Self]:
        """Make arrays outside of the workspace in a ``with`` block, and stay inside it.

        They are blocks of their own of `resource`, attached to nothing.

        Yields
        ------
        Workspace
            This one.
        """
        before, self.enabled = self.enabled, False
        try:
            yield self
        finally:
            self.enabled = before

    def destroy(self) -> None:
        """Release its memory, and drop what was learned and its name.

        An open one is closed first. Pages with arrays that are alive go when those go.
        The object starts over if it is used again, under no name; `workspace` makes
        another one. Its file is closed, if no array needs it any more.

        Raises
        ------
        WorkspaceError
            If it is open, and this is not the thread that made it.
        OSError
            If its file cannot be flushed or removed.
        """
        elsewhere = self._listed and threading.get_ident() != self.thread_id
        if elsewhere and self.is_open:
            raise WorkspaceError(
                f"workspace {self.name!r} is open in another thread, {self.thread_id}: "
                "destroy it there, or wait until it is left"
            )
        super().destroy()
        names = None if self._names is None else self._names()
        if names is not None and names.get(self.name) is self:
            names.pop(self.name, None)
        if self._file is not None:
            with suppress(BufferError):  # arrays are in it: it closes itself later
                self._file.close()

    def flush(self) -> None:
        """Write the page of an "mmap" workspace to the disk.

        Raises
        ------
        WorkspaceError
            If it is in memory, or was destroyed.
        OSError
            If the system cannot write it.
        RuntimeError
            In a forked child, which has a copy.
        """
        if self._file is None or self._file.closed:
            raise WorkspaceError(
                f"workspace {self.name!r} has no file: only one with location='mmap' "
                "has, until it is destroyed"
            )
        self._file.flush()

    def _escaped(self, count: int) -> None:
        """Warn of arrays that outlive their cycle, or raise; the core calls it."""
        text = describe_escapes(self, self.name, count, ring=self.config.circular)
        if self.config.on_escape is EscapePolicy.ERROR:
            raise WorkspaceLeakError(text)
        warnings.warn(text, WorkspaceLeakWarning, stacklevel=outside())

    def _spilled(self, error: ResourceExhaustedError) -> None:
        """Warn that there is no page for this cycle; the core calls it."""
        warnings.warn(
            f"workspace {self.name!r} cannot have its page of "
            f"{format_bytes(self.stats().size)}, so each array of this cycle gets a "
            f"block of its own ({error}). Free memory, raise the limit, or lower "
            "max_size.",
            WorkspaceSpillWarning,
            stacklevel=outside(),
        )

    def _reenabled(self) -> None:
        """Warn that a cycle ended while it took no arrays; the core calls it."""
        warnings.warn(
            f"workspace {self.name!r} was left disabled, and is enabled again: use "
            "`with workspace.disabled():`, which ends by itself",
            WorkspaceSpillWarning,
            stacklevel=outside(),
        )

    def __repr__(self) -> str:
        state = "open" if self.is_open else "closed"
        size = format_bytes(self.counters()["size"])
        return f"<{type(self).__name__} {self.name!r}, {state}, {size}>"


class OwnedWorkspace(Workspace):
    """A workspace that lives as long as the object that refers to it.

    It has no name among a thread's workspaces: nobody finds it there, and
    `destroy_all_workspaces` leaves it alone. One thread at a time uses it; it need not
    be the one that made it.

    Parameters
    ----------
    config : WorkspaceConfig or None
        As for `Workspace`.
    name : str
        For messages and the pool's metadata.
    resource : Resource
        Where its pages come from.
    """

    _listed = False


class Names(dict[str, Workspace]):
    """The workspaces of one thread, by name, in the order they were made in.

    It goes with its thread; what is known of all threads are weak references. Each
    operation is one of the dictionary's own, so others read a consistent list.
    """


_everywhere: Living[Names] = Living()
_here = threading.local()


def names_here() -> Names:
    """Return the workspaces of the running thread."""
    result: Names | None = getattr(_here, "names", None)
    if result is None:
        result = Names()
        _everywhere.add(result)
        _here.names = result
    return result


def all_names() -> list[Names]:
    """List the workspaces of every thread that has made one and lives."""
    return _everywhere.alive()


def checked_config(config: WorkspaceConfig | None) -> WorkspaceConfig:
    """Return a configuration; None is the default."""
    if config is None:
        return get_default_workspace_config()
    if not isinstance(config, WorkspaceConfig):
        raise TypeError(f"config is a WorkspaceConfig or None, not {config!r}")
    return config


def _check_mirroring(config: WorkspaceConfig, name: str, resource: Resource) -> None:
    """Refuse a mirror on a GPU: pages are host memory, whatever they are made for."""
    if config.mirroring is MirroringPolicy.HOST_ONLY:
        return
    source: Resource | None = resource
    while source is not None:
        if isinstance(source, CudaResource):
            raise WorkspaceConfigError(
                f"workspace {name!r} cannot have mirroring='full' in {resource!r}: its "
                "arrays lie in host memory, and nothing mirrors them on the GPU. Use "
                "mirroring='host_only'."
            )
        source = source.upstream


def _map_file(config: WorkspaceConfig, name: str) -> MappedFile | None:
    """Map the file of a workspace; None for one in memory."""
    if config.location is LocationPolicy.RAM:
        return None
    path = config.path
    if path is None:
        path = os.path.join(tempfile.gettempdir(), f"memcfg-{uuid4().hex}")
    try:
        return mmap_file(
            path,
            config.initial_size or None,
            overwrite=config.overwrite,
            delete=config.path is None,
        )
    except ValueError as error:
        step = (
            "Leave initial_size out to take the file as long as it is, make it larger "
            "to let the file grow, or write overwrite=True to replace the file."
            if config.initial_size
            else "Name an initial_size: the file has no bytes of its own."
        )
        raise WorkspaceConfigError(f"workspace {name!r}: {error}. {step}") from error


def _core_options(config: WorkspaceConfig, file: MappedFile | None) -> dict[str, Any]:
    """Write a configuration as the core's arguments."""
    larger = config.allocation is AllocationPolicy.OVERALLOCATE and file is None
    return {
        "initial_size": config.initial_size if file is None else file.nbytes,
        "min_size": config.min_size,
        "max_size": config.max_size if file is None else None,
        "overallocation": config.overallocation if larger else 0.0,
        "circular": config.circular,
        "ring_blocks": config.ring_blocks,
        "learning": config.learning.value,
        "learning_cycles": config.learning_cycles,
        "spill": config.spill.value,
        "on_escape": config.on_escape.value,
        "reclaim": config.reclaim,
    }


def _filled(made: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    with scope_out():
        np.copyto(made, values, casting="unsafe")
    return made


# --- arrays of any workspace


def placement_in(array: Array) -> Placement | None:
    """Return where in a workspace an array lies; None where it lies in none."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"not an array: {array!r}")
    placement = placement_of(array)
    if placement is None or placement.kind == "outside":
        return None
    return placement


def is_running(placement: Placement) -> bool:
    """Return whether the cycle that an array was made in is running."""
    workspace = cast("Workspace | None", placement.scope)
    return (
        workspace is not None
        and workspace.is_open
        and workspace.stats().generation == placement.generation
    )


def is_overwritten(placement: Placement) -> bool:
    """Return whether an array's bytes may be another's by now."""
    workspace = cast("Workspace | None", placement.scope)
    if workspace is None or workspace.config.on_escape is not EscapePolicy.INVALIDATE:
        return False
    if workspace.config.circular:
        return placement.kind == "overwritten"
    return not is_running(placement)


def check_valid(array: Array, action: str) -> None:
    """Raise, warn or do nothing if an array's bytes may be another's.

    Parameters
    ----------
    array : numpy.ndarray
        What is about to be read.
    action : str
        What is about to be done, for the message.

    Raises
    ------
    TypeError
        If it is no array.
    WorkspaceLeakError
        If it is not valid, and its workspace is closed.
    WorkspaceStaleError
        If it is not valid, and its workspace is in a later cycle.

    Warns
    -----
    WorkspaceLeakWarning
        In place of an error, after ``set_scope_checks("warn")``.
    """
    placement = placement_in(array)
    if placement is None or not is_overwritten(placement):
        return
    checks = get_scope_checks()
    if checks == "error":
        raise _overwritten(placement, action)
    if checks == "warn":
        warnings.warn(
            str(_overwritten(placement, action)),
            WorkspaceLeakWarning,
            stacklevel=outside(),
        )


def _overwritten(placement: Placement, action: str) -> WorkspaceError:
    workspace = cast("Workspace", placement.scope)
    array = (
        f"cannot {action}: the array is of cycle {placement.generation} of workspace "
        f"{workspace.name!r}, which is"
    )
    advice = (
        "and uses its page again. Call memcfg.detach(x) inside the with block that "
        "makes it, or give the workspace on_escape='retire', with which such arrays "
        "stay as they are."
    )
    if not workspace.is_open:
        return WorkspaceLeakError(f"{array} closed {advice}")
    cycle = workspace.stats().generation
    return WorkspaceStaleError(f"{array} in cycle {cycle} {advice}")


def detach(value: T) -> T:
    """Copy arrays out of all workspaces.

    Parameters
    ----------
    value : numpy.ndarray, or tuple, list or dict of such, nested as they may be
        Arrays. Other things in containers, and NumPy's scalars, are passed on.

    Returns
    -------
    numpy.ndarray or container
        Copies, in the memory that NumPy uses outside of workspaces; an array that is
        not attached is itself. Containers are new ones of the same type.

    Raises
    ------
    TypeError
        If it is neither an array nor a container.
    WorkspaceLeakError, WorkspaceStaleError
        If the bytes of an array may be another's by now; see `is_valid`.
    ResourceExhaustedError, MemoryError
        If there is no memory for a copy.

    Notes
    -----
    What the elements of an array of objects refer to stays where it is. A masked array
    takes its mask along.

    Examples
    --------
    >>> import numpy as np
    >>> import memcfg as mc
    >>> with mc.workspace("example") as ws:
    ...     kept = mc.detach({"mean": np.ones((2, 3)).mean(axis=0), "count": 2})
    >>> kept
    {'mean': array([1., 1., 1.]), 'count': 2}
    >>> ws.destroy()
    """
    return map_arrays(value, "detach it", lambda array: put(array, None))


def put(array: Array, target: Workspace | None) -> Array:
    """Return the array if it is there, else a copy that is; None is outside of all."""
    placement = placement_in(array)
    if target is None:
        if placement is None:
            return array
        there: AbstractContextManager[object] = scope_out()
    elif placement is not None and placement.scope is target and is_running(placement):
        return array
    elif not target.is_open:
        raise WorkspaceError(
            f"workspace {target.name!r} is not open, so an array in it would be lost "
            f"at once: open it around this call, or use memcfg.detach"
        )
    else:
        there = target.inside()
    with there:
        return array.copy(order="K")


def map_arrays(value: T, action: str, act: Callable[[Array], Array]) -> T:
    """Check each array in nested containers and apply `act` to it, once each."""
    if not isinstance(value, np.ndarray | np.generic | tuple | list | dict):
        raise TypeError(
            f"an array is needed, or a tuple, list or dict of arrays, not {value!r}"
        )
    done: dict[int, Any] = {}

    def through(item: Any) -> Any:
        if isinstance(item, np.ndarray):
            if id(item) not in done:
                check_valid(item, action)
                done[id(item)] = act(item)
            return done[id(item)]
        if isinstance(item, tuple):
            make = getattr(type(item), "_make", type(item))  # of a named tuple
            return make([through(each) for each in item])
        if isinstance(item, list):
            items = copy.copy(item)  # of the same class
            items[:] = [through(each) for each in item]
            return items
        if isinstance(item, dict):
            entries = copy.copy(item)
            entries.update((key, through(each)) for key, each in item.items())
            return entries
        return item

    try:
        return cast("T", through(value))
    finally:
        done.clear()  # `through` refers to itself, so it lives until a collection
