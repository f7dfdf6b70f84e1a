"""The queue of requests, the replicas that are free, and the threads between them.

Callers' threads may be interrupted between any two instructions. So one store claims a
replica, by a weak reference to its holder's lease, and one frees it; a lease that is
lost holds nothing; counts are derived from what is there; and where an interrupt could
lose a notification, a wait looks again after a second.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING
from weakref import ref

from memcfg._core._live import Living
from memcfg.data.engine._condition import Condition
from memcfg.data.engine._thread_pool import running
from memcfg.errors import QueueFullError
from memcfg.parallel.inference._future_request import FutureRequest
from memcfg.parallel.inference._lease import Lease

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memcfg.parallel.inference._inference_request import InferenceRequest
    from memcfg.parallel.inference._replica import Replica

__all__ = ["Dispatcher"]

_LOOKS_AGAIN = 1.0  # seconds


class Dispatcher:
    """Gives requests to replicas.

    Invariants: a replica is held by one lease, a thread's or a caller's; requests begin
    in the order in which they came, except that those which can join a batch do.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        *,
        merges: bool,
        grants: bool,
        queue_limit: int,
        raises: bool,
        max_wait: float,
        in_turn: bool,
    ) -> None:
        self.replicas = list(replicas)
        self._merges = merges
        self._grants = grants  # replicas to waiting callers: there are no threads
        self._queue_limit = queue_limit
        self._raises = raises  # if the queue is full
        self._max_wait = max_wait
        self._in_turn = in_turn
        self._closed = False
        self._turn = 0
        self._freed = 0  # how often a replica became free
        self._begin()
        running.add(self)
        _dispatchers.add(self)

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._ready = Condition(self._lock)  # a batch can begin, or threads are to end
        self._space = Condition(self._lock)  # in the queue
        self._free = Condition(self._lock)  # a replica is, and somebody wants all
        self._waiting: deque[InferenceRequest] = deque()
        self._begun: dict[
            Lease, list[InferenceRequest]
        ] = {}  # by the lease of a thread
        self._threads: list[threading.Thread] = []
        self._owner: Lease | None = None  # of all replicas
        self._crowded = False  # whether the last batch had several requests

    def renew(self) -> None:
        """Begin again in the child of a fork, to which no other thread came along."""
        lost = [*self._waiting, *(each for row in self._begun.values() for each in row)]
        self._begin()
        for replica in self.replicas:
            replica.renew()
        for request in lost:
            if isinstance(request, FutureRequest):
                request.renew(
                    RuntimeError("the request is in the process that was forked")
                )

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    @property
    def closed(self) -> bool:
        """Whether requests are refused."""
        return self._closed

    # Leases

    def try_claim(self, lease: Lease) -> Replica | None:
        """Claim a replica for a caller, unless none is free or others wait for one.

        After a batch of several requests, the next ones are left to a thread, too: more
        of them come while it wakes, whereas the first one would begin alone.
        """
        if self._crowded or self._max_wait or self._waiting:
            return None
        with self._lock:
            return None if self._waiting or self._closed else self._claim(lease)

    def free(self, replica: Replica) -> None:
        """Free a replica that the caller holds.

        Whoever waits looks after it has been added to what is read here.
        """
        self._freed += 1
        replica.freed = self._freed
        replica.holder = None
        if self._waiting or self._closed or self._owner is not None:
            with self._lock:
                self._start_waiting()
                self._free.notify_all()

    def _claim(self, lease: Lease) -> Replica | None:
        replica = self._next_free()
        if replica is not None:
            replica.holder = ref(lease)
            self._turn += 1
        return replica

    def _next_free(self) -> Replica | None:
        if self._owner is not None:
            return None
        if self._in_turn:
            replica = self.replicas[self._turn % len(self.replicas)]
            return replica if replica.is_free() else None
        result = None
        for each in self.replicas:
            if each.is_free() and (result is None or each.freed < result.freed):
                result = each
        return result

    @contextmanager
    def all_replicas(self) -> Iterator[None]:
        """Hold all replicas: what has begun ends, and nothing else begins."""
        lease = Lease()

        def claimed() -> bool:
            if self._owner is None:
                self._owner = lease
            return self._owner is lease

        try:
            while not self._free.wait_for(claimed, _LOOKS_AGAIN):
                pass
            while not self._free.wait_for(self._is_idle, _LOOKS_AGAIN):
                pass
            yield
        finally:
            with self._lock:
                if self._owner is lease:
                    self._owner = None
                self._free.notify_all()
                self._start_waiting()

    def _is_idle(self) -> bool:
        return all(each.is_free() for each in self.replicas)

    # Requests

    def enqueue(self, request: InferenceRequest) -> None:
        """Add a request; wait for space in the queue, or raise QueueFullError."""
        while True:
            with self._lock:
                self.check_open()
                if len(self._waiting) < self._queue_limit:
                    if self._grants:
                        self._waiting.append(request)
                        self._start_waiting()
                        return
                    self._start_threads()
                    self._start_waiting()  # it begins when the lock is released
                    self._waiting.append(request)  # last: an interrupt loses nothing
                    return
            if self._raises or self._is_own_thread():
                raise QueueFullError(
                    f"{self._queue_limit} requests are waiting, which is queue_limit: "
                    "try again later, or pass on_full='block'"
                )
            if not self._space.wait_for(self._has_space, _LOOKS_AGAIN):
                self._look_again()

    def wait(self, request: InferenceRequest) -> None:
        """Wait until a request is answered, or its caller may compute it."""
        while not request.wait(_LOOKS_AGAIN):
            self._look_again()

    def _look_again(self) -> None:
        """Do what an interrupt, or the end of a thread, may have prevented."""
        with self._lock:
            if not self._grants:
                self._start_threads()
            self._start_waiting()

    def drop(self, request: InferenceRequest) -> None:
        """Remove a request whose caller does not wait any more."""
        with self._lock:
            if request in self._waiting:
                self._waiting.remove(request)
                self._space.notify_all()
        if request.replica is not None:
            self.free(request.replica)

    def check_thread(self) -> None:
        """Raise RuntimeError in a thread that computes: it cannot wait for itself."""
        if self._is_own_thread():
            raise RuntimeError(
                "callbacks of futures run in the thread that computes, which cannot "
                "wait for outputs: call submit there, or wait in another thread"
            )

    def _is_own_thread(self) -> bool:
        return threading.current_thread() in self._threads

    def _has_space(self) -> bool:
        return self._closed or len(self._waiting) < self._queue_limit

    def check_open(self) -> None:
        """Raise RuntimeError if requests are refused."""
        if self._closed:
            raise RuntimeError("the ParallelInference is closed")

    def _start_waiting(self) -> None:
        """Let waiting requests begin, as far as replicas are free."""
        if not self._grants:
            if self._next_free() is not None:
                self._ready.notify_all()
            return
        while self._waiting and self._next_free() is not None:
            request = self._waiting.popleft()
            replica = self._claim(request)
            assert replica is not None
            request.grant(replica)
            self._space.notify_all()

    # Threads

    def _start_threads(self) -> None:
        """Start a thread for each replica, unless it is there."""
        if not all(thread.is_alive() for thread in self._threads):
            self._threads = self.alive()
        while len(self._threads) < len(self.replicas):
            number = len(self._threads)
            thread = threading.Thread(
                target=_work,
                args=(self,),
                name=f"memcfg-inference-{number}",
                daemon=True,
            )
            self._threads.append(thread)
            try:
                thread.start()
            except BaseException:
                if thread.ident is None:
                    self._threads.remove(thread)
                raise

    def next_batch(self, lease: Lease) -> tuple[Replica, list[InferenceRequest]] | None:
        """Wait for requests and a replica; None: the calling thread must end."""
        while True:
            with self._lock:
                if self._closed and not self._waiting:
                    return None
                replica = self._claim(lease) if self._can_begin() else None
                if replica is not None:
                    self._begun[lease] = [self._waiting.popleft()]
                timeout, seen = self._timeout(), len(self._waiting)
            if replica is not None:
                return replica, self._joined(replica, lease)
            self._ready.wait_for(partial(self._may_go_on, seen), timeout)

    def end_batch(self, lease: Lease, replica: Replica) -> None:
        """Free the replica of a thread."""
        self._begun.pop(lease, None)
        self.free(replica)

    def _may_go_on(self, seen: int) -> bool:
        if self._max_wait and len(self._waiting) != seen:
            return True  # to wait for the rest of the time only
        return self._can_begin() or (self._closed and not self._waiting)

    def _can_begin(self) -> bool:
        """Return whether a batch can begin now."""
        if not self._waiting or self._next_free() is None:
            return False
        return self._closed or not self._max_wait or self._seconds_left() <= 0

    def _seconds_left(self) -> float:
        """Return how long the oldest request waits for others, in seconds."""
        first = self._waiting[0]
        rows = sum(each.rows for each in self._waiting if each.key == first.key)
        limit = self.replicas[0].known_limit(first.key)
        full = limit is not None and rows >= limit
        if full or len(self._waiting) >= self._queue_limit:
            return 0.0
        return first.since + self._max_wait - time.monotonic()

    def _timeout(self) -> float:
        if not self._waiting:
            return -1.0
        if not self._max_wait:
            return _LOOKS_AGAIN
        return min(max(self._seconds_left(), 0.0), _LOOKS_AGAIN) or _LOOKS_AGAIN

    def _joined(self, replica: Replica, lease: Lease) -> list[InferenceRequest]:
        """Return the request of a thread with all that can be computed with it."""
        batch = self._begun[lease]
        try:
            self._join(batch, replica)
        except BaseException as error:  # such as no memory for a plan
            for request in batch:
                request.fail(error)
            return []
        return batch

    def _join(self, batch: list[InferenceRequest], replica: Replica) -> None:
        """Add what waits and is like the first request, up to the batch limit."""
        first, left = batch[0], 0
        if self._merges:
            left = replica.sizes(first.key).limit - first.rows
        if self._crowded:
            self._let_others_come()
        with self._lock:
            others: list[InferenceRequest] = []
            while self._waiting and left > 0:
                request = self._waiting.popleft()
                if request.key != first.key:
                    others.append(request)
                elif request.rows <= left:
                    batch.append(request)
                    left -= request.rows
                else:  # later ones do not overtake it
                    others.append(request)
                    left = 0
            self._waiting.extendleft(reversed(others))
            self._crowded = len(batch) > 1
            self._space.notify_all()

    def _let_others_come(self) -> None:
        """Release the GIL as long as that brings more requests.

        Threads that have just got their outputs are about to send the next request.
        """
        seen = -1
        while seen < len(self._waiting):
            seen = len(self._waiting)
            time.sleep(0)

    # The end

    def refuse(self, *, cancels: bool) -> None:
        """Refuse requests from now on, and cancel those that have not begun."""
        with self._lock:
            self._closed = True
            dropped = list(self._waiting) if cancels else []
            if cancels:
                self._waiting.clear()
            self._ready.notify_all()
            self._space.notify_all()
        error = "the ParallelInference was closed before the request began"
        for request in dropped:
            request.cancel(RuntimeError(error))

    def join(self) -> bool:
        """Wait until all has ended, and the threads, too; False in one of these."""
        if self._is_own_thread():
            return False
        for thread in list(self._threads):
            thread.join()
        while not self._free.wait_for(self._is_over, _LOOKS_AGAIN):
            pass
        return True

    def _is_over(self) -> bool:
        return self._is_idle() and not self._waiting

    def close(self) -> None:
        """Refuse and cancel all requests, without waiting."""
        self.refuse(cancels=True)

    def alive(self) -> list[threading.Thread]:
        """List the threads that have not ended."""
        return [thread for thread in list(self._threads) if thread.is_alive()]


def _work(dispatcher: Dispatcher) -> None:
    """Compute batches until the dispatcher is closed."""
    lease = Lease()
    while (batch := dispatcher.next_batch(lease)) is not None:
        replica, requests = batch
        try:
            replica.compute(requests)
        finally:
            dispatcher.end_batch(lease, replica)
        del batch, requests  # the callers have their outputs


_dispatchers: Living[Dispatcher] = Living()


def _renew_all() -> None:
    for each in _dispatchers.alive():
        each.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
