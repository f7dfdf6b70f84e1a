"""Messages between the ranks of MPI that wait no longer than a timeout.

All requests are non-blocking and tested now and then, and while a rank waits it looks
for notices of the others: that one has failed, misses ranks, or has left the group.

A notice says how many calls its rank has ended. Others end those as well, before they
raise: what they wait for has been sent, or is on its way. So if a rank fails between
two calls, all raise in the same call.

Processes end in an order in which none waits for ever. An exception that ends a process
is told to the others first. At exit a rank waits until all have left the group. If the
group has failed, it then ends all processes by ``MPI_Abort``, since ``MPI_Finalize``
would wait for those that are gone.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Any

from memcfg.errors import CommunicationError
from memcfg.parallel._late_ranks import late, named

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from types import TracebackType
    from typing import NoReturn, Self

__all__ = ["COLLECTIVES", "EXCHANGES", "Call", "Link", "end_all_at_exit", "wait_while"]

# Tags. Calls with different ones may be under way at the same time.
COLLECTIVES, EXCHANGES, _NOTICES = 1, 2, 3
_DIGEST_BYTES, _LENGTH_BYTES, _TEXT_BYTES = 16, 8, 136
_HEADER_BYTES = _DIGEST_BYTES + _LENGTH_BYTES + _TEXT_BYTES
_REASON_CHARACTERS = 1000  # short enough for MPI to send a notice without a receiver
_SPIN_SECONDS = 2e-4
_LONGEST_PAUSE_SECONDS = 1e-3
_TESTS = 16  # between pauses; MPI may handle one message in each
_MOMENT_SECONDS = 1.0  # for what takes no time unless a process is gone


def wait_while(left: Callable[[], int], seconds: float) -> bool:
    """Call a function until it returns 0; False if it does not change for too long.

    A core is left to others between calls: it is yielded at first, and then the pauses
    are an eighth of the time since a change, which grows by no more than that.
    """
    began, before = time.monotonic(), -1
    while now := left():
        waited = time.monotonic() - began
        if now != before:
            began, before = time.monotonic(), now
        elif waited > seconds:
            return False
        if waited < _SPIN_SECONDS:
            os.sched_yield()
        else:
            time.sleep(min(waited / 8, _LONGEST_PAUSE_SECONDS))
    return True


class Link:
    """One rank's connections with the others of its group."""

    def __init__(self, mpi: Any, comm: Any, timeout: float) -> None:
        self.mpi = mpi
        self.comm = comm
        self.timeout = timeout
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self.others = [rank for rank in range(self.size) if rank != self.rank]
        self.failure: CommunicationError | None = None
        self.calls = {COLLECTIVES: 0, EXCHANGES: 0}  # that have ended, by tag
        self.locks = {COLLECTIVES: Lock(), EXCHANGES: Lock()}
        self.kept: list[Any] = []  # requests that MPI has not ended, and their buffers
        self._left: dict[int, dict[int, int]] = {}  # `calls` of ranks that are gone
        self._failed: dict[int, dict[int, int]] = {}  # and of those that have failed
        self._missed: dict[int, set[int]] = {}  # whom a rank has waited for in vain
        self._silent: set[int] = set()  # ranks that will not leave the group
        self._closed = False
        _open.add(self)
        _watch()

    def check(self) -> None:
        """Raise CommunicationError if the group has failed or is closed."""
        if self.failure is not None:
            raise CommunicationError(str(self.failure), self.failure.ranks)
        if self._closed:
            raise CommunicationError("the communicator of this rank has been closed")

    def fail(self, reason: str, ranks: Collection[int] = ()) -> None:
        """Make the calls of all ranks raise, those that wait and those that come.

        Calls that this rank has ended are not among them. If the group has failed
        already, its error stays.
        """
        if self not in _open:
            return
        if self.failure is None:
            self.failure = CommunicationError(reason, sorted(ranks))
        if self.rank in self._failed:  # the others have been told
            return
        self._failed[self.rank] = dict(self.calls)
        if not self._closed:  # or the others may have freed what would tell them
            self._tell(
                reason=str(self.failure)[:_REASON_CHARACTERS],
                ranks=list(self.failure.ranks),
                ended=self.calls,
            )

    def give_up(self, missing: Collection[int], reason: str = "") -> None:
        """Fail because ranks do not answer, and name those that nobody has heard of.

        A rank may be missed because it waits for another. It says so at about the same
        time, and is not named then.
        """
        if self.failure is not None:
            self.fail(reason)  # others that have heard of it may wait for this rank
            return
        self._failed[self.rank] = dict(self.calls)
        suspects = set(missing).union(*self._missed.values()) - {self.rank}
        self._tell(missing=sorted(suspects))

        def unheard() -> int:
            self._take_notices()
            return max(0, len(suspects - set(self._missed)) - 1)

        wait_while(unheard, min(_MOMENT_SECONDS, self.timeout))
        self._silent = suspects - set(self._missed)
        named_ranks = self._silent or {self.rank}
        if self.failure is None:  # another thread may have failed meanwhile
            why = reason or late(named_ranks, self.timeout)
            self.failure = CommunicationError(why, sorted(named_ranks))

    def lose(self, rank: int, error: Exception) -> NoReturn:
        """Raise CommunicationError as MPI cannot reach a rank."""
        (*_, cause) = str(error).splitlines()  # of a stack of calls within MPI
        self.give_up({rank}, f"the connection with rank {rank} failed: {cause}")
        self.check()
        raise AssertionError("unreachable")

    def look(self, waiting: Callable[[], Collection[int]], tag: int) -> None:
        """Raise CommunicationError if notices say that a wait is in vain."""
        self._take_notices()
        if self._missed:
            self.give_up(waiting())
        failed = any(of[tag] <= self.calls[tag] for of in self._failed.values())
        if failed or self._missed or self._closed:
            self.check()
        if self._left:
            gone = {
                rank for rank, of in self._left.items() if of[tag] <= self.calls[tag]
            }
            if gone := gone.intersection(waiting()):
                self.fail(f"{named(gone)} has left the group", gone)
                self.check()

    def close(self) -> None:
        """Leave the group; CommunicationError if not all others do."""
        if self not in _open:
            return
        known = self.failure is not None
        self.leave()
        if not wait_while(self.count_staying, self.timeout):
            self.miss_leaving()
        if self.failure is None:
            _open.discard(self)
            self.comm.Free()
        elif not known:
            self.check()

    def leave(self) -> None:
        """Tell the others that this rank makes no more calls."""
        if not self._closed:
            self._closed = True
            self._tell(left=self.calls)

    def count_staying(self) -> int:
        """Return how many ranks have not left; 0 if the group has failed."""
        self._take_notices()
        return 0 if self.failure else len(self._staying())

    def count_waited_for(self) -> int:
        """Return how many ranks have not left, without those that do not answer."""
        self._take_notices()
        return len(self._staying() - self._silent)

    def miss_leaving(self) -> None:
        """Fail because ranks have not left."""
        if self.failure is None:
            self._silent = self._staying()
            self.failure = CommunicationError(
                f"{named(self._silent)} did not close the communicator within "
                f"{self.timeout:g} s after rank {self.rank}",
                sorted(self._silent),
            )

    @property
    def misses_ranks(self) -> bool:
        """Whether the group has failed because ranks did not answer."""
        return bool(self._silent)

    def _staying(self) -> set[int]:
        return set(self.others) - set(self._left)

    def release(self, sends: Iterable[Any], receives: Iterable[Any]) -> None:
        """Take back requests of a call that has failed, as far as MPI can."""
        kept = [request for request in receives if request]
        for request in kept:
            with suppress(self.mpi.Exception):
                request.Cancel()
        wait_while(lambda: self._unfinished(kept), _MOMENT_SECONDS)
        self.kept += [*kept, *sends]

    def _unfinished(self, requests: list[Any]) -> int:
        try:
            return not self.mpi.Request.Testall(requests)
        except self.mpi.Exception:
            return 0

    def _tell(self, **notice: Any) -> None:
        """Send a notice to all others."""
        data = json.dumps(notice).encode()
        sent = []
        for rank in self.others:
            with suppress(self.mpi.Exception):  # of a rank that is gone
                sent.append(self.comm.Isend([data, self.mpi.BYTE], rank, _NOTICES))
        self.kept += sent
        wait_while(lambda: self._unfinished(sent), _MOMENT_SECONDS)

    def _take_notices(self) -> None:
        status = self.mpi.Status()
        with suppress(self.mpi.Exception):
            while message := self.comm.Improbe(self.mpi.ANY_SOURCE, _NOTICES, status):
                data = bytearray(status.Get_count(self.mpi.BYTE))
                message.Recv([data, self.mpi.BYTE])
                self._take(status.Get_source(), json.loads(data))

    def _take(self, source: int, notice: dict[str, Any]) -> None:
        if "left" in notice:
            self._left[source] = _by_tag(notice["left"])
        elif "missing" in notice:
            self._missed[source] = set(notice["missing"])
        else:
            self._failed[source] = _by_tag(notice["ended"])
            if self.failure is None:
                self.failure = CommunicationError(notice["reason"], notice["ranks"])


def _by_tag(calls: dict[str, int]) -> dict[int, int]:
    """Return numbers of calls by tag; keys of JSON are texts."""
    return {int(tag): count for tag, count in calls.items()}


class Call:
    """A collective under way: its header and its requests.

    Entered as a context. A header says what each rank has called, and goes ahead of the
    data, for which nobody waits before all headers agree.
    """

    def __init__(
        self, link: Link, tag: int, text: str, digest: bytes, length: int = 0
    ) -> None:
        self._link = link
        self._tag = tag
        self._text = text
        self._header = b"".join(
            (
                digest,
                length.to_bytes(_LENGTH_BYTES, "little"),
                text.encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES),
            )
        )
        self._headers: dict[int, bytearray] = {}
        self._agreed = False
        self._sends: list[tuple[int, Any]] = []
        self._receives: list[tuple[int, Any]] = []

    def __enter__(self) -> Self:
        self._link.locks[self._tag].acquire()
        try:
            self._link.check()
            for rank in self._link.others:
                self._headers[rank] = bytearray(_HEADER_BYTES)
                self.receive(rank, self._headers[rank])
                self.send(rank, self._header)
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        link = self._link
        try:
            if error is None:
                link.calls[self._tag] += 1
                return
            if not isinstance(error, CommunicationError):
                what = f"{type(error).__name__}: {error}"
                reason = f"rank {link.rank} failed in {self._text}: {what}"
                link.fail(reason, (link.rank,))
            link.release(
                (request for _, request in self._sends),
                (request for _, request in self._receives),
            )
        finally:
            link.locks[self._tag].release()

    def send(self, rank: int, data: Any) -> None:
        """Begin to send bytes, which stay as they are until `wait` returns."""
        request = self._begin(self._link.comm.Isend, rank, data)
        self._sends.append((rank, request))

    def receive(self, rank: int, data: Any) -> None:
        """Begin to receive bytes, which are there when `wait` returns."""
        request = self._begin(self._link.comm.Irecv, rank, data)
        self._receives.append((rank, request))

    def _begin(self, start: Callable[..., Any], rank: int, data: Any) -> Any:
        link = self._link
        try:
            return start([data, link.mpi.BYTE], rank, self._tag)
        except link.mpi.Exception as error:
            link.lose(rank, error)

    def lengths(self) -> dict[int, int]:
        """Return the lengths that the other ranks gave, when all have arrived."""
        begin = _DIGEST_BYTES
        self._agree()
        return {
            rank: int.from_bytes(header[begin : begin + _LENGTH_BYTES], "little")
            for rank, header in self._headers.items()
        }

    def wait(self) -> None:
        """Wait until all bytes have been sent and received."""
        if not self._agreed:
            self._agree()
        self._finish(self._sends + self._receives)
        self._sends, self._receives = [], []

    def _agree(self) -> None:
        """Wait for the headers, and compare them."""
        self._agreed = True
        self._finish(self._receives[: len(self._headers)])
        differing = {
            rank: header[-_TEXT_BYTES:].decode(errors="replace").rstrip()
            for rank, header in self._headers.items()
            if header[:_DIGEST_BYTES] != self._header[:_DIGEST_BYTES]
        }
        if differing:
            own = f"rank {self._link.rank} called {self._text}"
            called = [f"rank {rank} called {text}" for rank, text in differing.items()]
            others = ", ".join(called)
            reason = "ranks differ in the collective that they call, or its arrays"
            self._link.fail(f"{reason}: {own}, {others}")
            self._link.check()

    def _finish(self, pairs: list[tuple[int, Any]]) -> None:
        """Wait for requests; CommunicationError that names ranks otherwise."""
        link = self._link
        left = pairs[::-1]
        tested = self._link.rank

        def ended(pair: tuple[int, Any]) -> bool:
            nonlocal tested
            tested = pair[0]
            return bool(pair[1].Test())

        def waiting() -> set[int]:
            left[:] = [pair for pair in left if not ended(pair)]
            return {rank for rank, _ in left}

        def count_left() -> int:
            for _ in range(_TESTS):
                while left and ended(left[-1]):
                    left.pop()
            if left:
                link.look(waiting, self._tag)
            return len(left)

        try:
            if wait_while(count_left, link.timeout):
                return
            link.give_up(waiting())
        except link.mpi.Exception as error:
            link.lose(tested, error)
        link.check()


_open: set[Link] = set()
_unanswered: list[Any] = []  # communicators of MPI that not all have duplicated
_watching: set[int] = set()  # the process whose end is watched; not one that it forks


def end_all_at_exit(comm: Any) -> None:
    """Let this process end all of a communicator of MPI when it ends."""
    _watch()
    _unanswered.append(comm)


def _watch() -> None:
    """Let the end of this process be told."""
    if _watching:
        return
    _watching.add(os.getpid())
    previous = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        previous(kind, error, trace)
        if os.getpid() in _watching:
            what = f"{kind.__name__}: {error}".rstrip(": ")
            for each in list(_open):
                each.fail(f"rank {each.rank} ended with {what}", (each.rank,))

    sys.excepthook = hook
    atexit.register(_end)


def _all_leave(links: list[Link]) -> bool:
    """Leave groups, and wait until the other ranks have; False if one has failed."""
    for link in links:
        link.leave()
    timeout = max((link.timeout for link in links), default=0.0)
    wait_while(lambda: sum(link.count_staying() for link in links), timeout)
    for link in links:
        if link.count_staying():
            link.miss_leaving()
    failed = [link for link in links if link.failure is not None]
    wait_while(lambda: sum(link.count_waited_for() for link in failed), timeout)
    return not failed


def _end() -> None:
    """Leave all groups; end all processes if one has failed."""
    links = list(_open)
    if os.getpid() not in _watching or not (links or _unanswered):
        return
    if links and links[0].mpi.Is_finalized():
        return
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # closed, or not there
            stream.flush()
    try:
        if _all_leave(links) and not _unanswered:
            return
    except BaseException as error:  # such as KeyboardInterrupt; nothing is above
        sys.stderr.write(f"{type(error).__name__} while ranks ended\n")
    for link in links:
        if link.failure is not None:
            sys.stderr.write(f"ending all processes: {link.failure}\n")
    sys.stderr.flush()
    (_unanswered + [link.comm for link in links])[0].Abort(1)
