"""Passes of one model that are alive at the same time, and the room that each leaves.

A second forward pass before the first backward pass, as in a siamese network, runs
while the saved tensors, outputs and output gradients of the first are in memory. The
second backward phase runs while the parameter gradients of the first are in memory.
Tensors that are still held from earlier passes count as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from memcfg.torch.budget._room import NoRoomError, Room
from memcfg.torch.trace._traced import nbytes_of
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from memcfg.torch.budget._room import Needs


class Planned(Protocol):
    """A planned step."""

    @property
    def is_training(self) -> bool:
        """Whether it has a backward phase."""

    @property
    def needs(self) -> Needs:
        """The bytes that its phases need."""


class _Storages:
    """Weak references to storages, with their bytes."""

    def __init__(self, tensors: Iterable[Any], without: Collection[int] = ()) -> None:
        self._held: dict[int, tuple[StorageWeakRef, int]] = {}
        for each in tensors:
            if isinstance(each, torch.Tensor):
                storage = each.untyped_storage()
                if storage._cdata not in without:
                    held = StorageWeakRef(storage), nbytes_of(each)
                    self._held[storage._cdata] = held

    def keys(self) -> set[int]:
        """Return the keys of the storages that are alive."""
        return {key for key, held in self._held.items() if not held[0].expired()}

    def nbytes(self, without: Collection[int] = ()) -> int:
        """Return the bytes of the storages that are alive."""
        return sum(self._held[key][1] for key in self.keys() if key not in without)


@dataclass(eq=False)
class _Pass:
    """A forward pass that has run."""

    step: Planned
    inputs: _Storages  # without parameters
    outputs: _Storages
    saved: _Storages  # saved for its backward phase, without inputs and outputs
    token: _Storages  # freed with the autograd graph of the pass; empty if it has none
    has_gradients: bool = False  # whether its backward phase ran with retain_graph

    @property
    def waits(self) -> bool:
        """Whether the backward phase may still run, or run again."""
        return bool(self.token.keys())

    @property
    def lives(self) -> bool:
        """Whether anything of the pass is still held."""
        return self.waits or bool(self.outputs.nbytes() or self.saved.nbytes())

    def nbytes(self, without: Collection[int]) -> tuple[int, int]:
        """Return the bytes that its backward phase frees, and those of its outputs."""
        saved = self.saved.nbytes(without)
        if self.waits:
            saved += self.inputs.nbytes(without) + self.step.needs.tangents
        return saved, self.outputs.nbytes(without)


@dataclass(eq=False)
class LivePasses:
    """The passes of a module that are alive, and the number of all that began."""

    count: int = 0
    _passes: list[_Pass] = field(default_factory=list)
    # Whether the next pass is assumed to replace the outputs of the last one, as if a
    # loop reassigned their variable; and the pass of which this is assumed now.
    _are_assigned: bool = True
    _stale: _Pass | None = None

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
        """Return a forward graph that records its pass, or raises NoRoomError.

        `inputs` are the positions of its arguments that are not parameters. The graph
        returns `outputs` tensors for the user, then, if it trains, the token of the
        pass and the saved tensors.
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
        self, step: Planned, limit: int | None, run: Callable[[list[Any]], Any]
    ) -> Callable[[list[Any]], Any]:
        """Return a backward graph that checks what is held, or raises NoRoomError."""

        def call(arguments: list[Any]) -> Any:
            if limit is not None:
                self._check_backward(step, limit, _Storages(arguments).keys())
            return run(arguments)

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    def _living(self) -> list[_Pass]:
        self._passes = [each for each in self._passes if each.lives]
        return self._passes

    def _check(
        self, step: Planned, limit: int, given: Collection[int], inputs: _Storages
    ) -> None:
        """Raise NoRoomError if this pass, or one that waits, would exceed the limit."""
        waits: list[tuple[_Pass, tuple[int, int]]] = []
        held = stale = 0
        self._stale = None
        ended = [each for each in self._passes[:-1] if not each.waits]
        if any(e.step.is_training and e.outputs.nbytes(given) for e in ended):
            # if another pass has begun since and they are alive
            self._are_assigned = False
        for each in self._passes:
            saved, outputs = each.nbytes(given)
            is_last = each is self._passes[-1]
            if each.waits:
                waits.append((each, (saved, outputs)))
            elif is_last and each.step.is_training and self._are_assigned:
                held, stale, self._stale = held + saved, outputs, each
            else:
                held += saved + outputs
        gradients = step.needs.gradients if step.is_training else 0
        others = held + _held_by([own for _, own in waits], gradients)
        room = Room(others, stale, sum(each.step.needs.loss for each, _ in waits))
        needed = step.needs.in_room(room)
        if needed > limit:
            raise _refusal(needed, limit, room, is_own=True)
        for each, _ in waits:
            resident = step.needs.resident + inputs.nbytes(each.inputs.keys())
            new = resident, step.needs.outputs
            rest = [own for other, own in waits if other is not each]
            others = held + _held_by([*rest, new], each.step.needs.gradients)
            losses = step.needs.loss + room.loss - each.step.needs.loss
            space = Room(others, loss=losses)
            needed = each.step.needs.from_loss(space)
            if needed > limit:
                raise _refusal(needed, limit, space, is_own=False)

    def _check_backward(self, step: Planned, limit: int, own: Collection[int]) -> None:
        """Raise NoRoomError if more is held than a backward phase was planned with.

        That is so if outputs live that were assumed to be replaced, if this phase may
        run again (`retain_graph`), and if it has run before and left gradients.
        """
        stale, self._stale = self._stale, None
        has_stale = stale is not None and stale.outputs.nbytes(own) > 0
        if has_stale:
            self._are_assigned = False  # later plans leave room for them
        is_kept = torch._C._autograd._get_current_graph_task_keep_graph()
        others, again = [], False
        for each in self._passes:
            if each.token.keys() & set(own):
                again = again or each.has_gradients
                each.has_gradients = each.has_gradients or is_kept
            else:
                others.append(each)
        if not (has_stale or is_kept or again):
            return
        room = Room(
            sum(sum(each.nbytes(own)) for each in others)
            + (step.needs.gradients if again else 0)
        )
        needed = step.needs.in_backward(room, is_kept=is_kept)
        if needed > limit:
            raise _refusal(needed, limit, room, is_own=False, is_kept=is_kept or again)


def _refusal(
    needed: int, limit: int, room: Room, *, is_own: bool, is_kept: bool = False
) -> NoRoomError:
    held = format_bytes(room.others + room.stale)
    why = (
        "The limit has no room for another pass of the model: earlier passes hold "
        if is_own
        else "A pass would exceed the limit in its backward phase: other passes hold "
    )
    why += f"{held}."
    if is_kept:
        why = (
            "The limit has no room for several backward phases of a pass: with "
            "retain_graph=True the first frees nothing."
        )
    return NoRoomError(
        why,
        room=room,
        is_own=is_own,
        smallest_limit_bytes=needed,
        lower_bound_bytes=room.others + room.stale,
        is_smallest=False,
        requested_bytes=needed,
        limit_bytes=limit,
        hint=NoRoomError.KEPT if is_kept else NoRoomError.WAYS,
    )


def _held_by(others: Sequence[tuple[int, int]], gradients: int) -> int:
    """Return the most bytes that other passes hold, in any order of backward.

    `others` has, for each pass, the bytes that its backward phase frees, and those of
    its outputs, which stay. The first backward phase that ends leaves `gradients`.
    """
    if not others:
        return 0
    whole = sum(map(sum, others))
    return max(whole, whole - min(saved for saved, _ in others) + gradients)
