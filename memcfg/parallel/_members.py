"""The sessions of a model that this process runs, each a rank of a group."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from memcfg.errors import CommunicationError
from memcfg.nn.training._tracing import Rank
from memcfg.ops import Communicator, add_group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from memcfg.nn.training._session import Session
    from memcfg.parallel.encoding._gradient_encoder import GradientEncoder

__all__ = ["Member", "Members"]

R = TypeVar("R")

_numbers = count(1)  # of groups, for the names that ops know them by


class Member(NamedTuple):
    """A session and its rank; the first one of a process is that of the model."""

    session: Session
    communicator: Communicator
    group: str
    encoder: GradientEncoder | None  # of its gradients, if they are encoded

    def rank(self, sharding: str | None) -> Rank:
        """Return the rank, for the traces of the session."""
        staged = self.session.executor.device.stages_collectives
        return Rank(self.group, self.communicator, self.encoder, sharding, staged)


class Members:
    """Sessions that work in threads of their own, the first in that of the caller."""

    def __init__(
        self,
        sessions: Sequence[Session],
        communicators: Sequence[Communicator],
        encode: Callable[[Communicator], GradientEncoder | None] | None = None,
    ) -> None:
        number = next(_numbers)
        self.all = [
            Member(
                session,
                communicator,
                f"group {number}, rank {communicator.rank}",
                None if encode is None else encode(communicator),
            )
            for session, communicator in zip(sessions, communicators, strict=True)
        ]
        for each in self.all:
            add_group(each.group, each.communicator)
        self.is_broken = False  # whether a member has failed
        self.serve()
        others = len(self.all) - 1
        self._threads = (
            ThreadPoolExecutor(others, thread_name_prefix=f"memcfg worker {number}")
            if others
            else None
        )

    @property
    def lead(self) -> Member:
        """The member whose session is the model's."""
        return self.all[0]

    @property
    def size(self) -> int:
        """The number of ranks, those of other processes included."""
        return self.lead.communicator.size

    def call(self, function: Callable[[Member], R]) -> list[R]:
        """Call a function for each member at the same time; raise what one raises.

        An error of a member ends the collectives of the others, and is raised in their
        place. Nothing runs any more when this returns. Meanwhile no other thread reads
        the model, so that one that does sees the same step of all members.
        """
        with self.lead.session.lock.turn():
            return self._call(function)

    def _call(self, function: Callable[[Member], R]) -> list[R]:
        """Call a function for each member at the same time."""

        def guarded(member: Member) -> R:
            try:
                return function(member)
            except BaseException as error:
                self.fail(member, error)
                raise

        if self._threads is None:
            return [guarded(self.lead)]

        def settle(future: Future[R], member: Member) -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(guarded(member))
                except BaseException as error:
                    future.set_exception(error)

        others: list[tuple[Future[R], Member]] = [(Future(), e) for e in self.all[1:]]
        futures = [future for future, _ in others]
        raised: list[BaseException] = []
        result: list[R] = []
        try:  # an interrupt may come before all are submitted
            for future, member in others:
                self._threads.submit(settle, future, member)
            result.append(guarded(self.lead))
            wait(futures)
        except BaseException as error:
            raised.append(error)
            self.fail(self.lead, error)
            wait([each for each in futures if not each.cancel()])
        ended = [each for each in futures if not each.cancelled()]
        raised += [e for e in (each.exception() for each in ended) if e is not None]
        causes = [e for e in raised if not isinstance(e, CommunicationError)]
        if raised:
            raise (causes or raised)[0]
        return [*result, *(each.result() for each in futures)]

    def join(self, sharding: str | None) -> None:
        """Let the sessions compute together, and divide what `sharding` says."""
        self.call(lambda member: member.session.join(member.rank(sharding)))

    def fail(self, member: Member, error: BaseException) -> None:
        """End the collectives of all, now and later."""
        self.is_broken = True
        what = f"{type(error).__name__}: {error}".rstrip(": ")
        member.communicator.fail(f"rank {member.communicator.rank} failed: {what}")

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Let ranks of several processes meet again after a failure, to give parts.

        Where one has ended, or ranks are at different steps, parts are lost.
        """
        lead = self.lead
        if len(self.all) == self.size or not lead.session.holds_parts:
            yield
            return
        try:
            renewed = lead.communicator.renewed()
            steps = renewed.exchange(lead.session.iterations)
        except CommunicationError:
            yield
            return
        if steps.count(steps[0]) == len(steps):
            self.all[0] = lead._replace(communicator=renewed)
        try:
            yield
        finally:
            getattr(renewed, "close", bool)()

    def serve(self) -> None:
        """Become what the model's session reads other ranks' parts from."""
        session = self.lead.session
        if session.peers is not self:
            if session.peers is not None:
                session.join(None)  # of other members, whose parts it takes
            session.peers = self

    def read_parts(self, name: str) -> list[npt.NDArray[Any]]:
        """Return the parts of a value of all ranks; those of other processes join."""
        if len(self.all) == self.size:
            return [each.session.read_part(name) for each in self.all]
        communicator = self.lead.communicator
        part = self.lead.session.read_part(name)
        whole = np.empty(part.size * self.size, part.dtype)
        nbytes = communicator.work_bytes("all_gather", whole.nbytes, whole.itemsize)
        communicator.all_gather(part, whole, np.empty(nbytes, np.uint8))
        return [whole]

    def write_all(self, name: str, value: npt.NDArray[Any]) -> None:
        """Write a whole value to all members of this process."""
        for each in self.all:
            each.session.write_own(name, value)

    def together(self, function: Callable[[Session], R]) -> R:
        """Call a function for the session of each member; return the lead's result."""
        return self.call(lambda member: function(member.session))[0]

    def close(self) -> None:
        """End the threads, and free the memory of all sessions but the model's."""
        if self._threads is not None:
            self._threads.shutdown()
        session = self.lead.session
        try:
            session.join(None)
        finally:
            if session.peers is self:
                session.peers = None
            for each in self.all[1:]:
                each.session.close()
