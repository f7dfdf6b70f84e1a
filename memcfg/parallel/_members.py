"""The sessions of a model that this process runs, each a rank of a group."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from memcfg.errors import CommunicationError
from memcfg.nn.training._tracing import Rank
from memcfg.ops import Communicator, add_group

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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

    @property
    def rank(self) -> Rank:
        """The rank, for the traces of the session."""
        return Rank(self.group, self.communicator, self.encoder)


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
        place. Nothing runs any more when this returns.
        """

        def guarded(member: Member) -> R:
            try:
                return function(member)
            except BaseException as error:
                self.fail(member, error)
                raise

        if self._threads is None:
            return [guarded(self.lead)]
        futures = [self._threads.submit(guarded, each) for each in self.all[1:]]
        raised: list[BaseException] = []
        result: list[R] = []
        try:
            result.append(guarded(self.lead))
            wait(futures)
        except BaseException as error:
            raised.append(error)
            self.fail(self.lead, error)
            wait(futures)
        raised += [e for e in (each.exception() for each in futures) if e is not None]
        causes = [e for e in raised if not isinstance(e, CommunicationError)]
        if raised:
            raise (causes or raised)[0]
        return [*result, *(each.result() for each in futures)]

    def fail(self, member: Member, error: BaseException) -> None:
        """End the collectives of all, now and later."""
        self.is_broken = True
        member.communicator.fail(f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """End the threads, and free the memory of all sessions but the model's."""
        if self._threads is not None:
            self._threads.shutdown()
        self.lead.session.join(None)
        for each in self.all[1:]:
            each.session.close()
