"""Passes of one model that are alive at a time, and what each leaves the others.

A second forward pass before the first backward, as in a siamese network, runs beside
what the first pass saved, its outputs, and their gradients. The backward phase that
runs second has the parameters' gradients of the first beside it. What is still held of
earlier passes counts as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from memcfg.torch._no_room import NoRoomError, Room
from memcfg.torch._traced import nbytes_of
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from memcfg.torch._needs import Needs


class Planned(Protocol):
    """A planned step."""

    @property
    def is_training(self) -> bool:
        """Whether it has a backward phase."""

    @property
    def needs(self) -> Needs:
        """What its phases need."""


class _Storages:
    """Storages that are not kept alive, and their bytes."""

    def __init__(self, tensors: Iterable[Any], without: Collection[int] = ()) -> None:
        self._held: dict[int, tuple[StorageWeakRef, int]] = {}
        for each in tensors:
            if isinstance(each, torch.Tensor):
                storage = each.untyped_storage()
                if storage._cdata not in without:
                    held = StorageWeakRef(storage), nbytes_of(each)
                    self._held[storage._cdata] = held

    def keys(self) -> set[int]:
        """Return what tells those apart that live."""
        return {key for key, held in self._held.items() if not held[0].expired()}

    def nbytes(self, without: Collection[int] = ()) -> int:
        """Return the bytes of those that live."""
        return sum(self._held[key][1] for key in self.keys() if key not in without)


@dataclass(eq=False)
class _Pass:
    """A forward pass that has run."""

    step: Planned
    inputs: _Storages  # without parameters
    outputs: _Storages
    saved: _Storages  # what else is kept for its backward phase
    token: _Storages  # what backward is given of this pass alone; none without one
    ended: bool = False  # whether backward has run

    @property
    def waits(self) -> bool:
        """Whether its backward phase may come."""
        return not self.ended and bool(self.token.keys())

    @property
    def lives(self) -> bool:
        """Whether anything of it does."""
        return self.waits or bool(self.outputs.nbytes() or self.saved.nbytes())

    def nbytes(self, without: Collection[int]) -> tuple[int, int]:
        """Return living bytes: those that go with its backward phase, and outputs."""
        saved = self.saved.nbytes(without)
        if self.waits:
            saved += self.inputs.nbytes(without) + self.step.needs.tangents
        return saved, self.outputs.nbytes(without)


@dataclass(eq=False)
class LivePasses:
    """The passes of a module that live, and how many have begun."""

    count: int = 0
    _passes: list[_Pass] = field(default_factory=list)

    @property
    def is_alone(self) -> bool:
        """Whether no earlier pass waits for its backward phase."""
        return not any(each.waits for each in self._living())

    def forward(
        self,
        step: Planned,
        limit: int | None,
        inputs: Sequence[int],
        outputs: int,
        run: Callable[[list[Any]], Any],
    ) -> Callable[[list[Any]], Any]:
        """Return a forward graph that tells of itself, or raises NoRoomError.

        `inputs` are the places of what it is given beside parameters. It makes so many
        `outputs` first, then, if it trains, a token, then what else is saved.
        """

        def call(arguments: list[Any]) -> Any:
            given = _Storages(arguments)
            own = _Storages(arguments[at] for at in inputs)
            if limit is not None and self._living():
                self._check(step, limit, given.keys(), own)
            self.count += 1
            made = run(arguments)
            known = given.keys()
            shown = _Storages(made[:outputs], known)
            saved = _Storages(made[outputs:], known | shown.keys())
            token = _Storages(made[outputs : outputs + 1])
            self._passes = [*self._living(), _Pass(step, own, shown, saved, token)]
            return made

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    def backward(
        self, run: Callable[[list[Any]], Any]
    ) -> Callable[[list[Any]], Any]:
        """Return a backward graph that says when it ends."""

        def call(arguments: list[Any]) -> Any:
            keys = _Storages(arguments).keys()
            own = [each for each in self._passes if each.token.keys() & keys]
            made = run(arguments)
            for each in own:
                each.ended = True
            return made

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    def _living(self) -> list[_Pass]:
        self._passes = [each for each in self._passes if each.lives]
        return self._passes

    def _check(
        self, step: Planned, limit: int, given: Collection[int], inputs: _Storages
    ) -> None:
        """Raise NoRoomError where this pass, or one before, would be above a limit."""
        waits: list[tuple[_Pass, tuple[int, int]]] = []
        held = stale = 0
        for each in self._passes:
            saved, outputs = each.nbytes(given)
            if each.waits:
                waits.append((each, (saved, outputs)))
            elif each.step.is_training:  # a loop's variable, until it is set anew
                held, stale = held + saved, stale + outputs
            else:
                held += saved + outputs
        gradients = step.needs.gradients if step.is_training else 0
        others = held + _beside([own for _, own in waits], gradients)
        room = Room(others, stale, sum(each.step.needs.loss for each, _ in waits))
        needed = step.needs.in_room(room)
        if needed > limit:
            raise _refusal("this pass", needed, limit, room, is_own=True)
        for each, _ in waits:
            resident = step.needs.resident + inputs.nbytes(each.inputs.keys())
            new = resident, step.needs.outputs
            rest = [own for other, own in waits if other is not each]
            beside = _beside([*rest, new], each.step.needs.gradients)
            others = held + beside
            losses = step.needs.loss + room.loss - each.step.needs.loss
            found = Room(others, loss=losses)
            needed = each.step.needs.from_loss(found)
            if needed > limit:
                which = "an earlier pass, whose backward is to come,"
                raise _refusal(which, needed, limit, found, is_own=False)


def _refusal(
    which: str, needed: int, limit: int, room: Room, *, is_own: bool
) -> NoRoomError:
    return NoRoomError(
        f"Passes of a model do not fit the limit together: beside {which} others have "
        f"{format_bytes(room.others + room.stale)}.",
        room=room,
        is_own=is_own,
        smallest_limit_bytes=needed,
        lower_bound_bytes=room.others + room.stale,
        is_smallest=False,
        requested_bytes=needed,
        limit_bytes=limit,
        hint=NoRoomError.WAYS,
    )


def _beside(others: Sequence[tuple[int, int]], gradients: int) -> int:
    """Return the most that other passes have beside one, in any order of backward.

    Each has bytes that go with its backward phase, and outputs that stay. Once one has
    ended there are gradients of parameters.
    """
    if not others:
        return 0
    whole = sum(map(sum, others))
    return max(whole, whole - min(saved for saved, _ in others) + gradients)
