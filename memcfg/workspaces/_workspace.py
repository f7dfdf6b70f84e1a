"""The workspace of the public API: a scope with a name, a configuration and arrays.

The core's `Scope` implements pages, cycles and NumPy's allocation hooks. Its methods
enter and leave a workspace, so a ``with`` block runs no Python code.

See docs/decisions/0013-workspaces-as-in-nd4j.md.
"""

from __future__ import annotations

import copy
import os
import tempfile
import threading
import warnings
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast
from uuid import uuid4
from weakref import ref

import numpy as np

from memcfg._caller import outside
from memcfg._checks import count
from memcfg._core import CudaResource, Scope, WorkspaceMemory, placement_of, scope_out
from memcfg._core._live import Living
from memcfg._html import report_of_fields
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
    """Statistics of a workspace at one point in time.

    Byte counts are sums of requests, each rounded up to a multiple of 64.

    Parameters
    ----------
    size : int
        Bytes of the page of a cycle; 0 until a size has been learned.
    offset : int
        Offset of the next array in the page, in bytes.
    cycle_bytes : int
        Bytes requested in the current cycle, including spilled ones.
    last_cycle_bytes : int
        Bytes requested in the last finished cycle.
    max_cycle_bytes : int
        Maximum over all cycles, from which sizes are learned.
    spilled_bytes : int
        Bytes that did not fit the page. Reset when the next cycle begins, or in a ring
        when a round is complete.
    spilled_count : int
        Number of spilled arrays.
    pinned_bytes : int
        Bytes of a ring's cycles that were too large for their block. Reset at the third
        round that follows.
    pinned_count : int
        Number of pinned arrays.
    block_size : int
        Bytes of a ring's block; 0 without a ring.
    cycles : int
        Number of finished cycles.
    steps : int
        Number of completed rounds of a ring.
    generation : int
        Number of cycles that have begun.
    live_arrays : int
        Number of live arrays anywhere in the workspace's memory.
    escaped_arrays : int
        Number of arrays that have outlived their cycle so far, alive or not.
    retired_bytes : int
        Bytes of pages that hold such arrays. A page is not reused before the last of
        its arrays is freed.
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

    def _repr_html_(self) -> str:
        """Return the numbers as an HTML table."""
        return report_of_fields(type(self).__name__, asdict(self))


class Workspace(Scope):
    """Memory for cyclic work, whose size is learned in the first cycle and then reused.

    Each ``with`` block is a cycle. NumPy allocates the arrays of a cycle consecutively
    in a page, and the next cycle reuses the page from its start. If an array is still
    alive at the end of its cycle, it keeps the page, and the next cycle gets another
    one. `detach` copies an array out of the workspace.

    Parameters
    ----------
    config : WorkspaceConfig or None, default None
        The configuration. None uses `memcfg.config.get_default_workspace_config`.
    name : str, default "DefaultWorkspace"
        Name in this thread, for `workspace` and for messages.
    resource : Resource or None, default None
        Source of its pages and of the arrays that do not fit them. None uses the pool
        of the device on which models are currently placed (`memcfg.device`).

    Attributes
    ----------
    memory : WorkspaceMemory
        The resource that holds the pages and their metadata.
    parent : Workspace or None
        The workspace that was current when it was opened.
    is_open : bool
        Whether a cycle is running.
    is_current : bool
        Whether arrays of this thread or task are currently allocated in it.
    enabled : bool
        Whether it accepts arrays. Arrays created while it is open but not enabled lie
        outside of it. It is enabled again when its cycle ends.

    Raises
    ------
    TypeError
        If an argument has a wrong type.
    ValueError
        If the name is empty, or the resource has no memory (a simulated device).
    WorkspaceConfigError
        If this thread already has a workspace of this name, the file's length
        contradicts `initial_size`, or mirroring is "full" and the resource serves a
        GPU.
    ResourceExhaustedError
        If a page of `initial_size` cannot be allocated.
    OSError
        If the file cannot be created or mapped.
    FormatError
        If ``MEMCFG_WORKSPACE_DEBUG`` cannot be parsed.

    Notes
    -----
    Only one thread at a time may use a workspace; `workspace` gives each thread its
    own. A workspace lives until its thread ends or `destroy` is called. Re-entering an
    open workspace only increments a counter and resets nothing.

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

    _listed = True  # whether its thread lists it by name

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
                f"this thread already has a workspace {name!r}: use memcfg.workspace("
                f"{name!r}), destroy it, or choose another name"
            )
        get_debug_mode()  # reads and validates MEMCFG_WORKSPACE_DEBUG
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
        """The name in the workspace's thread."""
        return self._name

    @property
    def config(self) -> WorkspaceConfig:
        """The configuration."""
        return self._config

    @property
    def thread_id(self) -> int:
        """The identifier (`threading.get_ident`) of the thread that created it."""
        return self._thread_id

    @property
    def resource(self) -> Resource:
        """The source of the pages and of the arrays that do not fit them."""
        upstream = self.memory.upstream
        assert upstream is not None, "a workspace stands on a resource"
        return upstream

    @property
    def _is_orphaned(self) -> bool:
        """Whether a reset has dropped the device and no cycle is running."""
        gone = self._device is not None and self._device() is None
        return gone and not self.is_open

    def alloc(self, nbytes: int) -> memoryview:
        """Allocate bytes for data other than arrays.

        Parameters
        ----------
        nbytes : int
            Number of bytes, at least 1.

        Returns
        -------
        memoryview
            Writable, uninitialised bytes, aligned to 64 bytes. The view keeps its
            memory alive as an array does.

        Raises
        ------
        TypeError
            If `nbytes` is not an int.
        ValueError
            If `nbytes` is less than 1.
        WorkspaceFullError
            If it does not fit and the spill policy is "fail".
        ResourceExhaustedError
            If `resource` has no memory for it.
        """
        return self.empty(count(nbytes, "a number of bytes"), np.uint8).data

    def empty(self, shape: Shape, dtype: DTypeLike = float) -> NDArray[Any]:
        """Create an uninitialised array in this workspace, even if another is current.

        Parameters
        ----------
        shape : int or tuple of int
            Shape of the array.
        dtype : data-type, default float64
            Type of its elements.

        Returns
        -------
        numpy.ndarray
            An array in this workspace. While the workspace is closed or disabled, an
            unattached array with its own block of `resource`.

        Raises
        ------
        WorkspaceFullError
            If it does not fit and the spill policy is "fail".
        ResourceExhaustedError
            If `resource` has no memory for it.
        """
        with self._here():
            return np.empty(shape, dtype)

    def zeros(self, shape: Shape, dtype: DTypeLike = float) -> NDArray[Any]:
        """Create an array of zeros; memory and errors are those of `empty`.

        Parameters
        ----------
        shape, dtype : int or tuple of int, data-type
            As for `empty`.
        """
        with self._here():
            return np.zeros(shape, dtype)

    def ones(self, shape: Shape, dtype: DTypeLike = float) -> NDArray[Any]:
        """Create an array of ones; memory and errors are those of `empty`.

        Parameters
        ----------
        shape, dtype : int or tuple of int, data-type
            As for `empty`.
        """
        return self.full(shape, 1, dtype)

    def full(
        self, shape: Shape, value: ArrayLike, dtype: DTypeLike | None = None
    ) -> NDArray[Any]:
        """Create a filled array; memory and errors are those of `empty`.

        Parameters
        ----------
        shape : int or tuple of int
            Shape of the array.
        value : scalar or array_like
            Fill value, broadcast to `shape`.
        dtype : data-type or None, default None
            Type of its elements; None uses that of the value.

        Raises
        ------
        ValueError
            If the value cannot be broadcast to `shape`.
        """
        with scope_out():
            filling = np.asarray(value, dtype)
        return _filled(self.empty(shape, filling.dtype), filling)

    def array(self, values: ArrayLike, dtype: DTypeLike | None = None) -> NDArray[Any]:
        """Create an array of given values; memory and errors are those of `empty`.

        Parameters
        ----------
        values : array_like
            Numbers, nested sequences or an array, which is copied.
        dtype : data-type or None, default None
            Type of its elements; None uses that of the values.
        """
        with scope_out():
            known = isinstance(values, np.ndarray)
            source = np.asarray(values, None if known else dtype)
        return _filled(self.empty_like(source, dtype), source)

    def empty_like(
        self, prototype: ArrayLike, dtype: DTypeLike | None = None
    ) -> NDArray[Any]:
        """Create an array like another one; memory and errors are those of `empty`.

        Parameters
        ----------
        prototype : array_like
            The array whose shape is used.
        dtype : data-type or None, default None
            Type of its elements; None uses that of the prototype.
        """
        with scope_out():
            source = np.asarray(prototype)
        with self._here():
            return np.empty_like(source, dtype, subok=False)

    def _here(self) -> AbstractContextManager[object]:
        """Return a context in which NumPy allocates in this workspace."""
        return self.inside() if self.is_open else numpy_allocator(self.resource)

    def detach(self, value: T) -> T:
        """Copy arrays out of all workspaces, as `memcfg.detach` does.

        Parameters
        ----------
        value : numpy.ndarray, or nested tuple, list or dict of arrays
            Arrays of this workspace or of others.

        Returns
        -------
        numpy.ndarray or container
            The result of `memcfg.detach`.

        Raises
        ------
        TypeError, WorkspaceLeakError, WorkspaceStaleError, MemoryError
            As raised by `memcfg.detach`.
        """
        return detach(value)

    def stats(self) -> WorkspaceStats:
        """Return a consistent snapshot of the workspace's statistics."""
        return WorkspaceStats(**self.counters())

    @contextmanager
    def disabled(self) -> Iterator[Self]:
        """Disable the workspace for a ``with`` block without closing it.

        Arrays created in the block are unattached, each with its own block of
        `resource`.

        Yields
        ------
        Workspace
            This workspace.
        """
        before, self.enabled = self.enabled, False
        try:
            yield self
        finally:
            self.enabled = before

    def destroy(self) -> None:
        """Release the memory and drop the learned size and the name.

        An open workspace is closed first. Pages that hold live arrays are freed with
        the last of these arrays. If the object is used again, it starts over without a
        name; `workspace` creates another one. The file is closed when no array needs
        it.

        Raises
        ------
        WorkspaceError
            If it is open and this is not the thread that created it.
        OSError
            If the file cannot be flushed or removed.
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
            # live arrays: the file closes itself with the last one
            with suppress(BufferError):
                self._file.close()

    def flush(self) -> None:
        """Write the page of an "mmap" workspace to disk.

        Raises
        ------
        WorkspaceError
            If the workspace has no file or was destroyed.
        OSError
            If the operating system cannot write the page.
        RuntimeError
            If called in a forked child, which has a copy of the page.
        """
        if self._file is None or self._file.closed:
            raise WorkspaceError(
                f"workspace {self.name!r} has no file: only one with location='mmap' "
                "has, until it is destroyed"
            )
        self._file.flush()

    def _escaped(self, count: int) -> None:
        """Warn or raise if arrays outlive their cycle; called by the core."""
        text = describe_escapes(self, self.name, count, ring=self.config.circular)
        if self.config.on_escape is EscapePolicy.ERROR:
            raise WorkspaceLeakError(text)
        warnings.warn(text, WorkspaceLeakWarning, stacklevel=outside())

    def _spilled(self, error: ResourceExhaustedError) -> None:
        """Warn that the page of this cycle cannot be allocated; called by the core."""
        warnings.warn(
            f"workspace {self.name!r} cannot have its page of "
            f"{format_bytes(self.stats().size)}, so each array of this cycle gets its "
            f"own block ({error}). Free memory, raise the limit, or lower max_size.",
            WorkspaceSpillWarning,
            stacklevel=outside(),
        )

    def _reenabled(self) -> None:
        """Warn that a cycle ended with the workspace disabled; called by the core."""
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

    def _repr_html_(self) -> str:
        """Return the state and the numbers as an HTML table."""
        return report_of_fields(repr(self)[1:-1], asdict(self.stats()))


class OwnedWorkspace(Workspace):
    """A workspace that lives as long as the object that refers to it.

    It is not listed among the workspaces of a thread, so it cannot be found by name,
    and `destroy_all_workspaces` leaves it alone. Only one thread at a time may use it,
    not necessarily the one that created it.

    Parameters
    ----------
    config : WorkspaceConfig or None
        As for `Workspace`.
    name : str
        Name for messages and the pool's metadata.
    resource : Resource
        Source of its pages.
    """

    _listed = False


class Names(dict[str, Workspace]):
    """The workspaces of one thread by name, in order of creation.

    The mapping is freed with its thread; the registry of all threads holds weak
    references only. Each update is a single dictionary operation, so other threads read
    a consistent list.
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
    """List the workspaces of each live thread that has created one."""
    return _everywhere.alive()


def checked_config(config: WorkspaceConfig | None) -> WorkspaceConfig:
    """Return `config`, or the default if it is None; raise for other types."""
    if config is None:
        return get_default_workspace_config()
    if not isinstance(config, WorkspaceConfig):
        raise TypeError(f"config is a WorkspaceConfig or None, not {config!r}")
    return config


def _check_mirroring(config: WorkspaceConfig, name: str, resource: Resource) -> None:
    """Raise if a mirror on a GPU is requested: pages are always host memory."""
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
    """Map the file of a workspace; return None for one in RAM."""
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
    """Convert a configuration to the core's arguments."""
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


# --- arrays of all workspaces


def placement_in(array: Array) -> Placement | None:
    """Return the placement of an array in a workspace, or None if it is in none."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"not an array: {array!r}")
    placement = placement_of(array)
    if placement is None or placement.kind == "outside":
        return None
    return placement


def is_running(placement: Placement) -> bool:
    """Return whether the cycle in which an array was created is running."""
    workspace = cast("Workspace | None", placement.scope)
    return (
        workspace is not None
        and workspace.is_open
        and workspace.stats().generation == placement.generation
    )


def is_overwritten(placement: Placement) -> bool:
    """Return whether the bytes of an array may have been overwritten."""
    workspace = cast("Workspace | None", placement.scope)
    if workspace is None or workspace.config.on_escape is not EscapePolicy.INVALIDATE:
        return False
    if workspace.config.circular:
        return placement.kind == "overwritten"
    return not is_running(placement)


def check_valid(array: Array, action: str) -> None:
    """Raise or warn if the bytes of an array may have been overwritten.

    `memcfg.config.set_scope_checks` selects the reaction.

    Parameters
    ----------
    array : numpy.ndarray
        The array about to be read.
    action : str
        The operation about to be done, for the message.

    Raises
    ------
    TypeError
        If `array` is not an array.
    WorkspaceLeakError
        If the array is not valid and its workspace is closed.
    WorkspaceStaleError
        If the array is not valid and its workspace is in a later cycle.

    Warns
    -----
    WorkspaceLeakWarning
        Instead of an error, after ``set_scope_checks("warn")``.
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
    value : numpy.ndarray, or nested tuple, list or dict of arrays
        The arrays. Other objects in containers, and NumPy scalars, are passed through.

    Returns
    -------
    numpy.ndarray or container
        Copies in the memory that NumPy uses outside of workspaces. An array that is not
        attached is returned itself. Containers are new ones of the same type.

    Raises
    ------
    TypeError
        If `value` is neither an array nor a container.
    WorkspaceLeakError, WorkspaceStaleError
        If the bytes of an array may have been overwritten; see `is_valid`.
    ResourceExhaustedError, MemoryError
        If there is no memory for a copy.

    Notes
    -----
    The referents of an object array are not copied. The mask of a masked array is
    copied with it.

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
    """Return an array or its copy in `target`; None means outside of all workspaces."""
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
    """Replace each array in nested containers by ``act(array)``, after a check."""
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
            make = getattr(type(item), "_make", type(item))  # `_make`: named tuples
            return make([through(each) for each in item])
        if isinstance(item, list):
            items = copy.copy(item)  # keeps the class
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
        done.clear()  # `through` is a reference cycle, freed only by a collection
