"""Steps without a plan: eager mode within a limit, by what autograd saves."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from memcfg._advice import larger_limit_or
from memcfg.errors import InfeasiblePlanError
from memcfg.torch.limit._out_of_memory import OutOfMemoryError
from memcfg.torch.saved._account import KEPT
from memcfg.torch.saved._backward_bytes import backward_bytes
from memcfg.torch.saved._saved_tensors import SavedTensors
from memcfg.torch.trace._fakes import LiveStorages, state_of
from memcfg.torch.trace._traced import nbytes_of, rounded
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import nn

    from memcfg.devices import SpillPlace

_SHAPES = 256  # the number of shapes whose bytes are known
_LOSS = 3  # bytes that a loss has in use, in bytes of the outputs


def shapes_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the shapes of inputs, and whether gradients are made of them.

    Raises ValueError for a tensor that has none.
    """
    leaves = tree_leaves((tuple(args), dict(kwargs)))
    tensors = [each for each in leaves if isinstance(each, torch.Tensor)]
    if any(each.is_nested and each.layout is torch.strided for each in tensors):
        raise ValueError(
            "a nested tensor with layout=torch.strided has no shape to plan for: make "
            "it with layout=torch.jagged, or pad it"
        )
    return torch.is_grad_enabled(), *(tuple(each.shape) for each in tensors)


class _Watch(LiveStorages):
    """Counts what a forward phase has in use besides saved tensors, and leaves room.

    Parameters
    ----------
    given : iterable of torch.Tensor
        Tensors that are counted elsewhere.
    saved : SavedTensors
        What is saved.
    resident : int
        Bytes that are in use all the time.
    """

    def __init__(
        self, given: Iterable[torch.Tensor], saved: SavedTensors, resident: int
    ) -> None:
        super().__init__(given)
        self._saved, self._resident = saved, resident
        self._largest = 0
        self.beside_bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = super().__torch_dispatch__(func, types, args, kwargs)
        for each in tree_leaves(made):
            if isinstance(each, torch.Tensor) and each.layout is torch.strided:
                self._largest = max(self._largest, nbytes_of(each))
        beside = max(0, self.bytes_now - self._saved.memory_report().by_kind[KEPT])
        self.beside_bytes = max(self.beside_bytes, beside)
        self._saved._leave_beside(self._resident + beside, wanted=self._largest)
        return made


@dataclass(eq=False)
class Unplanned:
    """Runs a model's own forward within a limit, in eager mode.

    Parameters
    ----------
    limit_bytes : int or None
        The limit; None if there is none.
    place : SpillPlace or None
        Where saved tensors may leave for; None if they stay.
    meter_of : callable
        Returns the meter of a device's bytes, or None if nothing counts them.
    besides : dict
        The most bytes in use besides saved tensors, by the shapes of inputs.
    missed_bytes : int
        Bytes by which a step was above the limit; later steps leave room for them.
    """

    limit_bytes: int | None
    place: SpillPlace | None
    meter_of: Callable[[torch.device], Any]
    besides: dict[Any, int] = field(default_factory=dict)
    missed_bytes: int = 0
    _saved: SavedTensors | None = None
    # bytes in use when the last step began, and the part of them that is its own
    _begun: tuple[int, int] | None = None

    @property
    def saved(self) -> SavedTensors | None:
        """What autograd saves; None if there is no limit or no step so far."""
        return self._saved

    def _context(self, limit: int) -> SavedTensors:
        """Return the context of all steps."""
        if self._saved is None:
            place = self.place
            if place is None:
                self._saved = SavedTensors(f"{limit} B")
            else:
                most = place.limit_bytes
                self._saved = SavedTensors(
                    f"{limit} B",
                    spill_to="host" if place.folder is None else place.folder,
                    spill_limit=None if most is None else f"{most} B",
                )
        return self._saved

    def run(
        self,
        module: nn.Module,
        forward: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        overhead_bytes: int,
    ) -> Any:
        """Run forward, and keep what is in use until backward has ended to the limit.

        Parameters
        ----------
        module : torch.nn.Module
            The model.
        forward : callable
            Its forward.
        args : sequence
            Positional inputs.
        kwargs : mapping
            Inputs by name.
        overhead_bytes : int
            Bytes of the optimizer and of wrappers.

        Raises
        ------
        InfeasiblePlanError
            If parameters, gradients, inputs and state alone exceed the limit.
        OutOfMemoryError
            If saved tensors do not fit the rest.
        """
        limit = self.limit_bytes
        if limit is None or not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        leaves = tree_leaves((tuple(args), dict(kwargs)))
        given = [each for each in leaves if isinstance(each, torch.Tensor)]
        given += state_of(module)
        self._learn(module, given, limit)
        own = _bytes_of(given) + overhead_bytes
        own += sum(nbytes_of(p) for p in module.parameters() if p.requires_grad)
        resident = own + self.missed_bytes
        if resident > limit:
            raise _refusal(resident, limit)
        saved = self._context(limit)
        try:
            return self._run(forward, args, kwargs, saved, given, resident)
        except OutOfMemoryError as error:
            raise self._without_plan(error) from None

    def _run(
        self,
        forward: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        saved: SavedTensors,
        given: Sequence[torch.Tensor],
        resident: int,
    ) -> Any:
        shapes = shapes_of(args, kwargs)
        known = self.besides.get(shapes)
        if known is not None:
            saved._leave_beside(resident + known)
            with saved:
                return forward(*args, **kwargs)
        saved._leave_beside(resident)
        saved._by_node = Counter()
        with saved:  # what is packed before it ends may go to its file
            with _Watch(given, saved, resident) as watch:
                made = forward(*args, **kwargs)
            beside = self._left_to_backward(made, saved, resident)
        saved._by_node = None
        if len(self.besides) >= _SHAPES:
            self.besides.clear()
        self.besides[shapes] = max(beside, watch.beside_bytes)
        return made

    def _left_to_backward(self, made: Any, saved: SavedTensors, resident: int) -> int:
        """Leave room for what backward and the loss need, and return their bytes."""
        leaves = [each for each in tree_leaves(made) if isinstance(each, torch.Tensor)]
        outputs = [each for each in leaves if each.requires_grad]
        needs = backward_bytes(outputs, saved._by_node or {})
        held = _bytes_of(leaves)
        loss = _LOSS * sum(rounded(each.nbytes, each.device) for each in outputs)
        beside = held + max(needs.gradients, loss)
        saved._leave_beside(resident + beside)
        if saved._is_packed:  # copies of it are made
            beside = held + max(needs.whole, loss)
            saved._leave_beside(resident + beside)
        return beside

    def _learn(
        self, module: nn.Module, given: Sequence[torch.Tensor], limit: int
    ) -> None:
        """Measure the last step, where something counts bytes, and begin another."""
        devices = {each.device for each in given}
        meter = self.meter_of(devices.pop()) if len(devices) == 1 else None
        if meter is None:
            return
        gradients = (p.grad for p in module.parameters() if p.grad is not None)
        if self._begun is not None:
            start, own = self._begun
            over = own + meter.peak() - start - limit
            self.missed_bytes += max(0, over)
        self._begun = meter.current(), _bytes_of(given) + _bytes_of(gradients)
        meter.reset()

    def _without_plan(self, error: OutOfMemoryError) -> OutOfMemoryError:
        """Return the error of saved tensors with advice about budgets."""
        more = "raise spill_limit"
        if self.place is None:
            more = "let saved tensors leave: budget(..., spill_to=<a folder>)"
        return OutOfMemoryError(
            "A step that is not planned does not fit: what autograd saves and all else "
            "in use are above the limit. What was saved has been released.",
            requested_bytes=error.requested_bytes,
            in_use_bytes=error.in_use_bytes,
            limit_bytes=self.limit_bytes,
            device=error.device,
            owners=error.owners,
            hint=larger_limit_or(None, more),
        )

    def report(self, why: str) -> str:
        """Return what is known of the steps."""
        limit = self.limit_bytes
        within = "" if limit is None else f" within {format_bytes(limit)}"
        lines = [f"Not planned: {why}.", f"It runs in eager mode{within}."]
        if self._saved is not None:
            most = format_bytes(max(self.besides.values(), default=0))
            lines.append(f"In use besides saved tensors: at most {most}.")
            lines.append(str(self._saved.memory_report()))
        return "\n".join(lines)


def _bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of tensors' storages, each once."""
    known = {
        each.untyped_storage()._cdata: nbytes_of(each)
        for each in tensors
        if each.layout is torch.strided
    }
    return sum(known.values())


def _refusal(needed: int, limit: int) -> InfeasiblePlanError:
    """Return the error of a step that has too few bytes for what is always there."""
    return InfeasiblePlanError(
        f"A step does not fit {format_bytes(limit, exact=True)}: parameters, inputs, "
        "gradients and the state of the optimizer alone need more.",
        smallest_limit_bytes=needed,
        lower_bound_bytes=needed,
        is_smallest=False,
        requested_bytes=needed,
        limit_bytes=limit,
        hint="Raise the limit.",
    )
