"""The state that the steps of one pass share: resources, budget and waiting time."""

from __future__ import annotations

import time
import weakref
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from memcfg._cached import cached_property
from memcfg._core import resident_bytes, scope_out
from memcfg._core._machine import cores, machine_bytes
from memcfg.memory import numpy_allocator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from memcfg.data._options import Options
    from memcfg.data._pipeline_report import StageReport
    from memcfg.memory import NumpyAllocator, Resource

T = TypeVar("T")

_TAG = "data"
_END: Any = object()


class Stoppable(Protocol):
    """An object with threads."""

    def stop(self, *, wait: bool) -> object:
        """End the threads and release all memory."""


class Run:
    """One pass, and what it started: threads, buffers, inner passes."""

    def __init__(
        self,
        resource: Resource,
        options: Options,
        *,
        probing: bool = False,
        tuned_state: dict[str, dict[str, Any]] | None = None,
    ) -> None:
        self.resource = resource
        self.options = options
        self.probing = probing  # only to find specs: shuffles and caches don't change
        self.budget = Budget(resource, options)
        self.wait_timer = WaitTimer()
        self._tuned_state = {} if tuned_state is None else tuned_state
        self._begin(None)

    def _begin(self, parent: Run | None) -> None:
        self._parent = parent
        self.stages: list[Callable[[], StageReport]] = []  # with threads or a buffer
        self._past: dict[str, StageReport] = {}  # of parts that have ended
        # Relies on atomic list operations: a lock could be held during a fork.
        self._parts: list[Stoppable] = []
        self.closed = False  # threads end when they see it

    def part(self) -> Run:
        """Begin a pass within this one, such as over an inner dataset."""
        inner = object.__new__(Run)
        vars(inner).update(vars(self))
        inner._begin(self)
        self.on_close(inner)
        return inner

    def tuned_state(self, name: str) -> dict[str, Any]:
        """Return the state that earlier passes have learned for a step."""
        return self._tuned_state.setdefault(name, {})

    def reports(self) -> list[StageReport]:
        """Return a report for each name of a stage, including those of parts."""
        parts = [part.reports() for part in self._parts if isinstance(part, Run)]
        current: dict[str, StageReport] = {}
        for each in chain((report() for report in self.stages), *parts):
            known = current.get(each.name)
            current[each.name] = each if known is None else known.beside(each)
        past = dict(self._past)
        _add_later(past, current.values())
        return list(past.values())

    def allocator(self) -> NumpyAllocator:
        """Return an allocator for NumPy arrays in `resource`, for one thread."""
        return data_allocator(self.resource)

    def on_close(self, part: Stoppable) -> None:
        """Register an object to stop when the pass is closed; at once if it is."""
        self._parts.append(part)
        if self.closed:
            part.stop(wait=False)

    def close(self, *, wait: bool = False) -> None:
        """End the pass: stop its threads, which release their memory."""
        self.closed = True
        parts = tuple(self._parts)  # not cleared: a later call may wait for them
        for waits in (False, True) if wait else (False,):
            with ExitStack() as stack:  # all are stopped even if one raises
                for part in parts:
                    stack.callback(part.stop, wait=waits)
        if wait:
            self._parts = []
        if self._parent is not None:
            self._parent._keep_reports(self)

    stop = close

    def _keep_reports(self, part: Run) -> None:
        """Merge the reports of an ended part into this pass, and drop the part."""
        with suppress(ValueError):  # not in the list while this pass is closing
            self._parts.remove(part)
        _add_later(self._past, part.reports())
        part.stages, part._past = [], {}


def data_allocator(resource: Resource) -> NumpyAllocator:
    """Return an allocator for the arrays of passes in a resource, for one thread."""
    return numpy_allocator(resource, tag=_TAG)


def _add_later(past: dict[str, StageReport], reports: Iterable[StageReport]) -> None:
    for each in reports:
        known = past.get(each.name)
        past[each.name] = each if known is None else known.before(each)


class Budget:
    """The budget of bytes and threads of all steps of a pass.

    The share of an owner is released when the owner is garbage-collected. No method
    waits or holds a lock, as finalizers may call it and a fork may come at any time:
    all operations on the dictionaries are atomic.
    """

    def __init__(self, resource: Resource, options: Options) -> None:
        self.changes = 0  # trials that were kept
        self.item_bytes = 0  # max. bytes of an item outside of rings
        self._resource = resource
        self._options = options
        self._held: dict[int, int] = {}  # bytes, by owner
        self._threads: dict[int, int] = {}
        self._trier: weakref.ref[Any] | None = None

    @property
    def enabled(self) -> bool:
        return self._options.autotune.enabled is not False

    @cached_property
    def ram_bytes(self) -> int:
        """Max. bytes of all buffers: the option, or half of the free bytes."""
        given = self._options.autotune.ram_budget
        return free_bytes(self._resource) // 2 if given is None else given

    @property
    def follows_memory(self) -> bool:
        """Whether more free memory raises the budget of bytes."""
        return self._options.autotune.ram_budget is None

    @cached_property
    def cpus(self) -> int:
        """Max. threads: the option, or the number of cores available."""
        given = self._options.autotune.cpu_budget
        return max(1, cores() if given is None else given)

    def note_item(self, nbytes: int) -> None:
        """Record the bytes of an item that lies outside of rings."""
        self.item_bytes = max(self.item_bytes, nbytes)

    def set_held(self, owner: object, nbytes: int) -> None:
        """Set the bytes that a buffer holds."""
        self._note(self._held, owner, nbytes)

    def available(self, owner: object) -> int:
        """Return the bytes that other buffers leave to a buffer."""
        others = sum(self._held.copy().values()) - self._held.get(id(owner), 0)
        return max(0, self.ram_bytes - others)

    def reserve_threads(self, owner: object, wanted: int) -> int:
        """Set the threads of a step, and return their number.

        It is at least 1, and otherwise at most what other steps leave of
        ``threading.private_threadpool_size``.
        """
        size = self._options.threading.private_threadpool_size
        if size:
            wanted = min(wanted, size - self._others(owner))
        wanted = max(1, wanted)
        self._note(self._threads, owner, wanted)
        return wanted

    def threads_for(self, owner: object) -> int:
        """Return the max. threads that AUTOTUNE may give to a step, at least 1."""
        return max(1, self.cpus - self._others(owner))

    def begin_trial(self, tuner: object) -> bool:
        """Begin a trial; return False while another tuner's trial is running."""
        current = None if self._trier is None else self._trier()
        if current is not None and current is not tuner:
            return False
        self._trier = weakref.ref(tuner)
        return True

    def end_trial(self, *, kept: bool) -> None:
        """End the trial; if it is kept, others may retry theirs."""
        self._trier = None
        self.changes += kept

    def _others(self, owner: object) -> int:
        result = sum(self._threads.copy().values())
        return result - self._threads.get(id(owner), 0)

    def _note(self, table: dict[int, int], owner: object, number: int) -> None:
        key = id(owner)
        if key not in table:
            weakref.finalize(owner, table.pop, key, None).atexit = False
        table[key] = number


class WaitTimer:
    """Measures the seconds that the consumer of a pass has waited."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._seconds = 0.0
        self._since: float | None = None

    def begin(self) -> None:
        """Start: the consumer asks for an element."""
        self._since = self.clock()

    def end(self) -> None:
        if self._since is not None:
            self._seconds += self.clock() - self._since
            self._since = None

    def seconds(self) -> float:
        """Return the total seconds waited until now."""
        since = self._since  # another thread may call `end` meanwhile
        return self._seconds + (0.0 if since is None else self.clock() - since)


def free_bytes(resource: Resource) -> int:
    """Return the free bytes of a resource, or of the machine if it has no limit."""
    free = resource.stats().largest_free_bytes
    machine = max(0, machine_bytes() - resident_bytes())
    return machine if free is None else min(free, machine)


@contextmanager
def closing(*iterators: object) -> Iterator[None]:
    """Close iterators at the end of a block, even after an exception."""
    with ExitStack() as stack:
        for iterator in iterators:
            close = getattr(iterator, "close", None)
            if close is not None:
                stack.callback(close)
        yield


def kept(items: Iterator[T]) -> Iterator[T]:
    """Yield items allocated outside of workspaces; keeps no reference to them."""
    with closing(items):
        while True:
            with scope_out():
                pulled = [next(items, _END)]
            if pulled[0] is _END:
                return
            yield pulled.pop()
