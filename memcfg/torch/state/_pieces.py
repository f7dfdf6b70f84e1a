"""An optimizer's step in pieces, over tensors that lie in files or in memory.

Element-wise optimizers compute each element from those at its place, so a step of a
piece gives the bits of a step of the whole. A twin of the optimizer steps with the
pieces as its parameters. Pieces are read one ahead, and written behind.
"""

from __future__ import annotations

from collections import deque
from math import lcm
from typing import TYPE_CHECKING, Any

import torch
from torch import optim

from memcfg.torch.spill._tensor_files import (
    Place,
    TensorFile,
    place_of,
    whole_pages,
)
from memcfg.torch.state._applied import is_applied
from memcfg.torch.state._gradient_slots import PIECE
from memcfg.torch.trace._overhead import twin_of, update_bytes
from memcfg.torch.trace._traced import rounded

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from memcfg.torch.spill._tensor_files import Copies

ELEMENTWISE = (
    *(optim.ASGD, optim.Adadelta, optim.Adagrad, optim.Adam, optim.AdamW),
    *(optim.Adamax, optim.NAdam, optim.RAdam, optim.RMSprop, optim.Rprop, optim.SGD),
)
SMALL = 2**16  # bytes: state and gradients of smaller parameters stay in memory
_TRIED = 5  # elements of the parameter whose state is tried
_LEAST, _PIECES = 2**14, 16  # elements of a piece, and pieces of the largest tensor
_DEPTH = 2  # pieces that are read or written beside the one that is computed
_VECTOR = 16  # elements: fused optimizers compute those that fill no vector otherwise
_CPU = torch.device("cpu")


def is_large(tensor: torch.Tensor) -> bool:
    """Return whether a parameter's bytes are worth a place in a file."""
    return bool(tensor.nbytes > SMALL and tensor.is_contiguous())


def check_elementwise(optimizer: torch.optim.Optimizer) -> None:
    """Raise ValueError if an optimizer cannot step in pieces."""
    name = type(optimizer).__name__
    if type(optimizer) not in ELEMENTWISE:
        known = ", ".join(sorted(each.__name__ for each in ELEMENTWISE))
        raise ValueError(
            f"the state of {name} cannot lie in a file: it is updated in pieces, which "
            f"is the same only for optimizers that are element-wise ({known})"
        )
    for group in optimizer.param_groups:
        for option in ("differentiable", "capturable"):
            if group.get(option):
                raise ValueError(
                    f"{name}({option}=True) cannot step in pieces, so its state cannot "
                    "lie in a file"
                )


def state_layout(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], dtype: torch.dtype
) -> dict[str, torch.dtype]:
    """Return the dtypes of an optimizer's state that has its parameter's shape."""
    with torch.enable_grad():
        small = torch.zeros(_TRIED, dtype=dtype).requires_grad_()
        small.grad = torch.zeros_like(small)
    twin = twin_of(optimizer, [{**group, "params": [small]}])
    twin.step()
    return {
        key: value.dtype
        for key, value in twin.state[small].items()
        if isinstance(value, torch.Tensor) and value.shape == small.shape
    }


class _Home:
    """The place of a tensor of an optimizer's state, and its dtype."""

    __slots__ = ("dtype", "place")

    def __init__(self, place: Place, dtype: torch.dtype) -> None:
        self.place = place
        self.dtype = dtype

    def at(self, start: int) -> Place:
        """Return the place of an element."""
        return Place(self.place.file, self.place.offset + start * self.dtype.itemsize)

    def tensor(self, like: torch.Tensor) -> torch.Tensor:
        """Return the whole, in a parameter's shape."""
        return self.place.file.tensor(self.place.offset, self.dtype, tuple(like.shape))


class _Part:
    """A tensor's piece in memory: a view of it, or a copy of its bytes in a file."""

    __slots__ = ("coming", "place", "tensor")

    def __init__(
        self, source: torch.Tensor, start: int, stop: int, copies: Copies, reads: bool
    ) -> None:
        whole = place_of(source)
        self.coming: Future[int] | None = None
        if whole is None:
            self.place = None
            self.tensor = _elements(source.detach(), start, stop)
            return
        self.place = Place(whole.file, whole.offset + start * source.itemsize)
        self.tensor = torch.empty(stop - start, dtype=source.dtype, device="cpu")
        if reads:
            self.coming = copies.read(self.place, self.tensor)

    def arrive(self, copies: Copies) -> torch.Tensor:
        """Return it in memory."""
        if self.coming is not None:
            copies.traffic.wait(self.coming)
        return self.tensor

    def leave(self, copies: Copies) -> list[Future[int]]:
        """Begin to write it, if it was read."""
        return [] if self.place is None else [copies.write(self.place, self.tensor)]


class PieceStep:
    """Steps an optimizer in pieces.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        An element-wise optimizer.
    copies : Copies
        What copies from and to files.
    folder : str
        Where the file of the state is made.
    moves_state : bool
        Whether the state lies in a file.

    Raises
    ------
    OSError
        If the disk has no room for the state.
    ValueError
        If the optimizer is not element-wise.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        copies: Copies,
        folder: str,
        *,
        moves_state: bool,
    ) -> None:
        check_elementwise(optimizer)
        self._copies = copies
        self._homes: dict[torch.Tensor, dict[str, _Home]] = {}
        self.moved_bytes = 0  # of state, as tensors in memory would have them
        self.file: TensorFile | None = None
        sizes = [p.numel() for group in optimizer.param_groups for p in group["params"]]
        # small models have small pieces, of which a few are in memory at a time
        self._piece = min(PIECE, max(_LEAST, max(sizes, default=0) // _PIECES))
        if moves_state:
            self._make_room(optimizer, folder)
            self.adopt(optimizer)

    def _make_room(self, optimizer: torch.optim.Optimizer, folder: str) -> None:
        """Make a file with a place for each tensor of the state of its size."""
        wanted: list[tuple[torch.Tensor, str, torch.dtype]] = []
        for group in optimizer.param_groups:
            layouts: dict[torch.dtype, dict[str, torch.dtype]] = {}
            for each in group["params"]:
                if not (each.requires_grad and is_large(each)):
                    continue
                if each.dtype not in layouts:
                    layouts[each.dtype] = state_layout(optimizer, group, each.dtype)
                wanted += [(each, *item) for item in layouts[each.dtype].items()]
        sizes = [each.numel() * dtype.itemsize for each, _, dtype in wanted]
        if not wanted:
            return
        self.file = TensorFile.scratch(folder, sum(map(whole_pages, sizes)))
        for (each, key, dtype), nbytes in zip(wanted, sizes, strict=True):
            place = Place(self.file, self.file.take(nbytes))
            self._homes.setdefault(each, {})[key] = _Home(place, dtype)
            self.moved_bytes += rounded(nbytes, _CPU)

    def adopt(self, optimizer: torch.optim.Optimizer) -> None:
        """Move state that lies in memory, such as what was loaded, to the file."""
        for each, homes in self._homes.items():
            state = optimizer.state.get(each)
            for key, home in homes.items() if state else ():
                value = state.get(key)
                if value is None or place_of(value) == home.place:
                    continue
                source = value.detach().to(home.dtype).contiguous()
                self._copies.write(home.place, source).result()
                state[key] = home.tensor(each)

    def bring_back(self, optimizer: torch.optim.Optimizer) -> None:
        """Copy the state to memory."""
        for each, homes in self._homes.items():
            state = optimizer.state.get(each) or {}
            for key, home in homes.items():
                if key in state:
                    made = torch.empty(each.shape, dtype=home.dtype)
                    self._copies.read(home.place, made).result()
                    state[key] = made

    def resident(self, optimizer: torch.optim.Optimizer, total: int) -> int:
        """Return the bytes of state in memory, of all that is not in files yet."""
        coming = sum(
            rounded(each.numel() * home.dtype.itemsize, _CPU)
            for each, homes in self._homes.items()
            for key, home in homes.items()
            if key not in (optimizer.state.get(each) or {})
        )
        return max(0, total - coming)

    def temporary_bytes(
        self, optimizer: torch.optim.Optimizer, copied_more: int
    ) -> int:
        """Return the most bytes that a step has in use beside what stays in memory.

        `copied_more` is how many of a parameter and its gradient are copied, too.
        """
        most = 0
        for group in optimizer.param_groups:
            large = [p for p in group["params"] if p.requires_grad and is_large(p)]
            for each in large:
                count = min(each.numel(), self._piece_of(each))
                copied = count * each.itemsize * copied_more
                for home in self._homes.get(each, {}).values():
                    copied += count * home.dtype.itemsize
                most = max(most, (_DEPTH + 1) * copied)
            if large:
                widest = max(large, key=torch.Tensor.numel)
                count = min(widest.numel(), self._piece_of(widest))
                piece = torch.empty(count, dtype=widest.dtype)
                own = {**group, "params": [piece.requires_grad_()]}
                most += update_bytes(twin_of(optimizer, [own])) or 0
        return most

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Update all parameters that have gradients, but those of steps in backward."""
        self.adopt(optimizer)
        for group in optimizer.param_groups:
            twin = twin_of(optimizer, [{**group}])
            small = []
            for each in group["params"]:
                if each.grad is None or is_applied(each.grad):
                    continue
                lies = place_of(each), place_of(each.grad)
                if each in self._homes or lies != (None, None):
                    self._update(optimizer, twin, each, each.grad)
                else:
                    small.append(each)
            if small:
                twin.param_groups[0]["params"] = small
                twin.state = optimizer.state
                twin.step()
        self.forget()

    def update_one(
        self,
        optimizer: torch.optim.Optimizer,
        parameter: torch.Tensor,
        gradient: torch.Tensor,
    ) -> None:
        """Update one parameter with a gradient that it need not have."""
        for group in optimizer.param_groups:
            if any(each is parameter for each in group["params"]):
                twin = twin_of(optimizer, [{**group}])
                self._update(optimizer, twin, parameter, gradient)

    def forget(self) -> None:
        """Drop resident pages of the mapped state."""
        if self.file is not None:
            self.file.forget()

    def _update(
        self,
        optimizer: torch.optim.Optimizer,
        twin: torch.optim.Optimizer,
        each: torch.Tensor,
        gradient: torch.Tensor,
    ) -> None:
        """Update a parameter with a gradient, in pieces."""
        state = optimizer.state.get(each) or {}
        homes = self._homes.get(each, {})
        has_state = bool(state)
        scalars: dict[str, Any] = {}
        whole: dict[str, torch.Tensor] = {}  # state of its shape, once it exists
        for key, value in state.items():
            (whole if _is_shaped(value, each) else scalars)[key] = value
        writing: deque[list[Future[int]]] = deque()
        after: dict[str, Any] = {}
        for start, stop, parts in self._pieces(each, gradient, whole):
            own = torch.nn.Parameter(parts["parameter"].arrive(self._copies))
            own.grad = parts["gradient"].arrive(self._copies)
            held = {key: parts[key].arrive(self._copies) for key in whole}
            # every piece begins with the counters of the whole
            held |= {key: _copied(value) for key, value in scalars.items()}
            after = _stepped(twin, own, held)
            has_state = bool(after)
            copies = []
            for key in [key for key in after if _is_shaped(after[key], own)]:
                value = after.pop(key)
                if key in homes:
                    copies.append(self._copies.write(homes[key].at(start), value))
                else:
                    _keep(state, key, each, value, slice(start, stop))
            copies += parts["parameter"].leave(self._copies)
            writing.append(copies)
            if len(writing) >= _DEPTH:
                self._wait(writing.popleft())
        for copies in writing:
            self._wait(copies)
        twin.state.clear()
        if has_state:
            state.update(after)
            state.update((key, home.tensor(each)) for key, home in homes.items())
            optimizer.state[each] = state

    def _wait(self, copies: list[Future[int]]) -> None:
        for copy in copies:
            self._copies.traffic.wait(copy)

    def _piece_of(self, each: torch.Tensor) -> int:
        """Return the elements of a piece: whole rows, for transposed gradients."""
        width = each.numel() // each.shape[0] if each.dim() else 1
        unit = lcm(max(width, 1), _VECTOR)
        return max(unit, self._piece // unit * unit)

    def _pieces(
        self, each: torch.Tensor, gradient: torch.Tensor, whole: dict[str, torch.Tensor]
    ) -> Iterator[tuple[int, int, dict[str, _Part]]]:
        """Yield the pieces of a parameter, the next one being read meanwhile."""
        sources = {"parameter": each, "gradient": gradient, **whole}
        step = self._piece_of(each)
        begun: deque[tuple[int, int, dict[str, _Part]]] = deque()
        for start in range(0, each.numel(), step):
            stop = min(start + step, each.numel())
            parts = {
                name: _Part(source, start, stop, self._copies, True)
                for name, source in sources.items()
            }
            begun.append((start, stop, parts))
            if len(begun) >= _DEPTH:
                yield begun.popleft()
        yield from begun


def _stepped(
    twin: torch.optim.Optimizer, own: torch.Tensor, held: dict[str, Any]
) -> dict[str, Any]:
    """Step a piece with its state, and return the state after it."""
    twin.param_groups[0]["params"] = [own]
    twin.state.clear()
    if held:
        twin.state[own] = held
    twin.step()
    return dict(twin.state.get(own) or {})


def _keep(
    state: dict[str, Any],
    key: str,
    like: torch.Tensor,
    value: torch.Tensor,
    part: slice,
) -> None:
    """Write a piece of a state to the whole, which is in memory."""
    if key not in state:
        state[key] = torch.empty(like.shape, dtype=value.dtype)
    there = state[key].view(-1)[part]
    if there.data_ptr() != value.data_ptr():  # it was made anew
        there.copy_(value)


def _elements(source: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """Return elements of a tensor: a view, or a copy of rows in another layout."""
    if source.is_contiguous():
        return source.view(-1)[start:stop]
    width = source.numel() // source.shape[0]
    return source[start // width : -(-stop // width)].reshape(-1)


def _is_shaped(value: Any, like: torch.Tensor) -> bool:
    """Return whether a value of a state has an element for each of a parameter's."""
    return isinstance(value, torch.Tensor) and value.shape == like.shape


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
