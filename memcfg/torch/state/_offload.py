"""Which tensors of a model and its optimizer lie in files, and how they get there."""

from __future__ import annotations

from dataclasses import dataclass
from types import MethodType
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch.optim import Optimizer

from memcfg.torch.spill._tensor_files import (
    Copies,
    Place,
    TensorFile,
    Traffic,
    place_of,
    whole_pages,
)
from memcfg.torch.state._backward_updates import Update
from memcfg.torch.state._gradient_slots import Slot
from memcfg.torch.state._pieces import PieceStep, check_elementwise, is_large
from memcfg.torch.state._weights import Reader, Weight
from memcfg.torch.trace._overhead import optimizer_bytes, update_bytes
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn

STATE, FROZEN = "optimizer_state", "frozen_weights"
GRADIENTS, WEIGHTS = "gradients", "weights"
IN_BACKWARD = "step_in_backward"
LOSSLESS = (
    STATE,
    FROZEN,
    GRADIENTS,
    WEIGHTS,
)  # in the order in which `auto` takes them
LEVERS = (*LOSSLESS, IN_BACKWARD)
_AHEAD = 64 * 2**20  # the most bytes of weights that are read ahead
_SHARE, _RATIO = 16, 4  # and the parts of a limit, and of all weights, that they may


@dataclass(frozen=True)
class Offloading:
    """What a user says about tensors that lie in files.

    Parameters
    ----------
    names : tuple of str
        The tensors that always do.
    is_auto : bool
        Whether others may, where a limit is infeasible otherwise.
    """

    names: tuple[str, ...] = ()
    is_auto: bool = False


def checked_offload(
    offload: str | Sequence[str] | None, optimizer: Optimizer | None
) -> Offloading:
    """Return what a user says; raise TypeError or ValueError."""
    if offload is None:
        return Offloading()
    if offload == "auto":
        return Offloading((), True)
    if isinstance(offload, str):
        offload = (offload,)
    if not isinstance(offload, (list, tuple)):
        raise TypeError(f"offload is 'auto', None or names, not {offload!r}")
    for each in offload:
        if each not in LEVERS:
            known = ", ".join(LEVERS)
            raise ValueError(f"offload has {each!r}, and knows {known}")
        if each == FROZEN:
            continue
        if optimizer is None:
            raise ValueError(
                f"offload has {each!r}, which the optimizer's step reads: pass "
                "budget(..., optimizer=...)"
            )
        check_elementwise(optimizer)
    return Offloading(tuple(dict.fromkeys(offload)))


@dataclass(frozen=True)
class Found:
    """Inputs of a traced step that lie in files, by their positions.

    Parameters
    ----------
    weights : dict of int to Weight
        Weights that are read.
    slots : dict of int to Slot
        Places of gradients.
    updates : dict of int to Update
        Parameters that are updated as soon as their gradient is there.
    """

    weights: dict[int, Weight]
    slots: dict[int, Slot]
    updates: dict[int, Update]


NOTHING = Found({}, {}, {})


class Offload:
    """Tensors of a model and of its optimizer that lie in files.

    Parameters
    ----------
    module : torch.nn.Module
        The model.
    optimizer : torch.optim.Optimizer or None
        Its optimizer.
    folder : str or None
        Where files are made; None if none may be.
    bandwidth : float or None
        The most bytes per second to copy, in each direction.
    limit_bytes : int or None
        The limit of a step, of which weights that are read ahead have a small part.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: Optimizer | None,
        folder: str | None,
        bandwidth: float | None,
        limit_bytes: int | None,
    ) -> None:
        self._module = ref(module)
        self._optimizer = None if optimizer is None else ref(optimizer)
        self.folder = folder
        self.copies = Copies(bandwidth)
        self.names: tuple[str, ...] = ()
        self._limit = limit_bytes
        self._reader = Reader(self.copies)
        self._weights: dict[int, Weight] = {}  # by the ids of parameters
        self._slots: dict[int, Slot] = {}
        self._updates: dict[int, Update] = {}
        self._steps: PieceStep | None = None
        self._files: list[TensorFile] = []
        self.steps = 0
        self._is_settled = False

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer."""
        return None if self._optimizer is None else self._optimizer()

    def _parameters(self) -> list[nn.Parameter]:
        module = self._module()
        return [] if module is None else list(module.parameters())

    @property
    def is_on(self) -> bool:
        """Whether any tensor lies in a file."""
        return bool(self.names or self._weights)

    def settle(self, names: Iterable[str] = ()) -> bool:
        """Read the parameters that are mapped, and move others, before the first step.

        Return whether anything was moved. A copy of a model is not complete when its
        budget is made.
        """
        if self._is_settled:
            return False
        self._is_settled = True
        for each in self._parameters():
            place = place_of(each)
            if place is not None:
                self._weights[id(each)] = Weight(each, place, self._reader)
        self.take(names)
        return bool(self.names)

    def _size_ahead(self) -> None:
        total = sum(each.nbytes for each in self._weights.values())
        part = _AHEAD if self._limit is None else self._limit // _SHARE
        self._reader.ahead_bytes = min(total // _RATIO, part, _AHEAD)

    def gain_of(self, name: str) -> int:
        """Return the bytes of memory that a lever would free in a step; 0 if none."""
        if name in self.names:
            return 0
        optimizer = self.optimizer
        large = [each for each in self._parameters() if is_large(each)]
        trained = [each for each in large if each.requires_grad]
        if name == FROZEN:
            return sum(
                each.nbytes
                for each in large
                if not each.requires_grad and place_of(each) is None
            )
        if optimizer is None:
            return 0
        try:
            check_elementwise(optimizer)
        except ValueError:
            return 0
        if name == STATE:
            return optimizer_bytes(optimizer)
        return sum(each.nbytes for each in trained)

    def take(self, names: Iterable[str]) -> None:
        """Move tensors to files, by name.

        Raises
        ------
        OSError
            If the disk has no room; what was moved before stays moved.
        ValueError
            If a name has no meaning for this model or optimizer.
        """
        for name in names:
            if name not in self.names:
                self._check(name)
                if name == FROZEN:
                    self._move(lambda each: not each.requires_grad)
                elif name == WEIGHTS:
                    self._move(lambda each: each.requires_grad)
                elif name in (GRADIENTS, IN_BACKWARD):
                    self._make_slots()
                self.names = (*self.names, name)
        self._size_ahead()
        if {*self.names} - {FROZEN}:
            self._take_steps()
        self.steps, self.copies.traffic = 0, Traffic()  # of steps, not of moves

    def _check(self, name: str) -> None:
        if self.folder is None:
            raise ValueError(
                f"offload has {name!r}: say where, by spill_to=<a folder>; on a GPU "
                "leave it out"
            )
        others = {each.device.type for each in self._parameters()} - {"cpu"}
        if others:
            raise ValueError(
                f"offload has {name!r}, which is for tensors of the CPU, and the model "
                f"is on {', '.join(sorted(others))}"
            )
        if any(type(each.data) is not torch.Tensor for each in self._parameters()):
            raise ValueError(
                f"offload has {name!r}, and parameters of the model are of a subclass "
                "of torch.Tensor, such as FSDP's: they stay in memory"
            )
        optimizer = self.optimizer
        if name != FROZEN and optimizer is not None:
            check_elementwise(optimizer)

    def _move(self, wanted: Any) -> None:
        """Move parameters to a file of their own."""
        moved = [
            each
            for each in self._parameters()
            if is_large(each) and wanted(each) and place_of(each) is None
        ]
        if not moved:
            return
        assert self.folder is not None
        room = sum(whole_pages(each.nbytes) for each in moved)
        file = TensorFile.scratch(self.folder, room)
        self._files.append(file)
        for each in moved:
            place = Place(file, file.take(each.nbytes))
            self.copies.write(place, each.detach()).result()
            each.data = file.tensor(place.offset, each.dtype, tuple(each.shape))
            self._weights[id(each)] = Weight(each, place, self._reader)

    def _make_slots(self) -> None:
        """Make a file with a place for each large gradient."""
        if self._slots:
            return
        trained = [e for e in self._parameters() if e.requires_grad and is_large(e)]
        room = sum(whole_pages(each.nbytes) for each in trained)
        if not trained:
            return
        assert self.folder is not None
        file = TensorFile.scratch(self.folder, room)
        self._files.append(file)
        for each in trained:
            self._slots[id(each)] = Slot(each, file, self.folder, self.copies)

    def _take_steps(self) -> None:
        """Step the optimizer in pieces from now on."""
        optimizer = self.optimizer
        assert optimizer is not None
        moves_state = STATE in self.names
        steps = self._steps
        if steps is None or (moves_state and steps.file is None):
            folder = self.folder or ""
            steps = PieceStep(optimizer, self.copies, folder, moves_state=moves_state)
            self._steps = steps
            self._updates.clear()
            _step_by(optimizer, self, steps)
        if IN_BACKWARD in self.names and not self._updates:
            own = {id(e) for group in optimizer.param_groups for e in group["params"]}
            for each in self._parameters():
                if id(each) in self._slots and id(each) in own:
                    self._updates[id(each)] = Update(each, optimizer, steps)

    @property
    def needs_own_gradients(self) -> bool:
        """Whether gradients must be the step's own, and not a wrapper's."""
        return bool({*self.names} - {STATE, FROZEN})

    def after_step(self) -> None:
        """Forget what was read ahead, and drop pages that others have touched."""
        self._reader.drop()
        for each in self._files:
            each.forget()

    def found(self, inputs: Sequence[Any]) -> Found:
        """Return which inputs of a step lie in files, by their positions."""
        found = Found({}, {}, {})
        for at, each in enumerate(inputs):
            weight, key = self._weights.get(id(each)), id(each)
            if weight is not None and place_of(each) == weight.place:
                found.weights[at] = weight
            if key in self._slots and each.requires_grad:
                found.slots[at] = self._slots[key]
                if key in self._updates:
                    found.updates[at] = self._updates[key]
        return found

    @property
    def ahead_bytes(self) -> int:
        """The most bytes of weights that are read ahead."""
        return self._reader.ahead_bytes

    @property
    def state_bytes(self) -> int:
        """The bytes of the optimizer's state that are in memory."""
        optimizer = self.optimizer
        if optimizer is None:
            return 0
        total = optimizer_bytes(optimizer)
        return total if self._steps is None else self._steps.resident(optimizer, total)

    @property
    def update_bytes(self) -> int | None:
        """The temporary bytes of the optimizer's step; None if unknown."""
        optimizer = self.optimizer
        if self._steps is None or optimizer is None:
            return update_bytes(optimizer)
        stored = GRADIENTS in self.names or IN_BACKWARD in self.names
        copied = stored + (WEIGHTS in self.names)
        return self._steps.temporary_bytes(optimizer, copied)

    def bring_back(self) -> None:
        """Copy all that was moved to memory, and step the optimizer as before."""
        self._reader.drop()
        ours = {*map(id, self._files)}
        for each in self._parameters():
            for tensor in (each, each.grad):
                place = place_of(tensor)
                if tensor is not None and place is not None and id(place.file) in ours:
                    made = torch.empty(each.shape, dtype=each.dtype)
                    self.copies.read(place, made).result()
                    tensor.data = made
        optimizer = self.optimizer
        if self._steps is not None and optimizer is not None:
            self._steps.bring_back(optimizer)
            vars(optimizer).pop("step", None)
        self._steps = None
        self._weights.clear()
        self._slots.clear()
        self._updates.clear()
        self._files.clear()
        self.names = ()

    def lines(self) -> list[str]:
        """Return lines of a report: what lies in files, and what that costs."""
        if not self.is_on:
            return []
        parts = []
        own = [w for w in self._weights.values() if w.place.file.is_ours]
        mapped = [w for w in self._weights.values() if not w.place.file.is_ours]
        for what, nbytes in (
            ("weights of their own file", sum(each.nbytes for each in mapped)),
            ("weights", sum(each.nbytes for each in own)),
            ("gradients", sum(each.nbytes for each in self._slots.values())),
            ("optimizer state", self._steps.moved_bytes if self._steps else 0),
        ):
            if nbytes:
                parts.append(f"{what} {format_bytes(nbytes)}")
        lines = [f"In files: {', '.join(parts) or 'nothing'}"]
        traffic, steps = self.copies.traffic, self.steps
        if steps:
            lines.append(
                f"Copied in each of {steps} steps: "
                f"{format_bytes(traffic.read_bytes // steps)} read, "
                f"{format_bytes(traffic.written_bytes // steps)} written; waits: "
                f"{traffic.waited_seconds / steps:.3f} s"
            )
        return lines


def _step_by(optimizer: Optimizer, offload: Offload, steps: PieceStep) -> None:
    """Make ``optimizer.step`` step in pieces."""
    held = ref(offload)
    before = vars(optimizer).get("step")

    def step(self: Optimizer, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            steps.step(self)
        self._opt_called = True
        known = held()
        if known is not None:
            known.after_step()
        return loss

    hooked = Optimizer.profile_hook_step(step)
    bound = MethodType(hooked, optimizer)
    if getattr(before, "_wrapped_by_lr_sched", False):
        hooked._wrapped_by_lr_sched = True
    vars(optimizer)["step"] = bound


__all__ = ["LEVERS", "LOSSLESS", "Offload", "Offloading", "checked_offload"]
