"""Steps without a plan: eager mode within a limit, by what autograd saves."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.utils._pytree import tree_leaves

from memcfg._advice import larger_limit_or
from memcfg.errors import InfeasiblePlanError
from memcfg.torch.limit._out_of_memory import OutOfMemoryError
from memcfg.torch.saved._backward_bytes import NodeBytes, backward_bytes
from memcfg.torch.saved._saved_tensors import SavedTensors
from memcfg.torch.trace._fakes import LiveStorages, state_of
from memcfg.torch.trace._traced import nbytes_of, rounded
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from torch import nn

    from memcfg.devices import SpillPlace

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


class Watch(LiveStorages):
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
        self.saved, self._resident = saved, resident
        self._largest = 0
        self.beside_bytes = 0
        # bytes that nodes of autograd have in use besides gradients, by their number
        self.inner: dict[int, int] = {}
        self.retained_bytes = 0  # what nodes free as they run, if anything may free it

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = super().__torch_dispatch__(func, types, args, kwargs)
        for each in tree_leaves(made):
            if isinstance(each, torch.Tensor) and each.layout is torch.strided:
                self._largest = max(self._largest, nbytes_of(each))
        self.leave(wanted=self._largest if self.saved._may_encode else 0)
        return made

    def leave(self, nbytes: int = 0, *, wanted: int = 0) -> None:
        """Leave room for what is in use now, and for more bytes.

        Raises OutOfMemoryError if there is none; `wanted` bytes are left if possible.
        """
        beside = max(0, self.bytes_now - self.saved._kept_bytes) + nbytes
        self.beside_bytes = max(self.beside_bytes, beside)
        self.saved._leave_beside(self._resident + beside, wanted=wanted)

    def hold(self, tensors: Iterable[Any]) -> None:
        """Count tensors that were made where this mode sees no ops."""
        for each in tensors:
            if isinstance(each, torch.Tensor) and each.layout is torch.strided:
                storage = each.untyped_storage()
                self._made(storage._cdata, storage, nbytes_of(each), None)


class Parts(Protocol):
    """Runs parts of a model otherwise than in eager mode."""

    @property
    def has_traced(self) -> bool:
        """Whether parts were traced in the last pass."""

    @property
    def fits(self) -> bool:
        """Whether it was planned that all fits, if a pass is as those before."""

    def running(self, module: nn.Module, watch: Watch) -> AbstractContextManager[None]:
        """Apply to a forward pass of a model, whose memory is watched."""

    def ended(self, room_bytes: int) -> None:
        """Take note that a forward pass has left some bytes of the limit."""

    def missed(self) -> None:
        """Take note that a pass had more in use than was known."""

    def refused(self) -> int:
        """Take note that a pass had too little room; return bytes it lacks besides."""

    def lines(self) -> list[str]:
        """Say what is planned."""


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
    beside_bytes : int
        The most bytes that a pass had in use besides saved tensors.
    missed_bytes : int
        Bytes by which a step was above the limit; later steps leave room for them.
    """

    limit_bytes: int | None
    place: SpillPlace | None
    meter_of: Callable[[torch.device], Any]
    beside_bytes: int = 0
    missed_bytes: int = 0
    _told_bytes: int = 0  # of them, what parts know of
    _saved: SavedTensors | None = None
    # the meter of the step that runs, and what others had in use when it began
    _begun: tuple[Any, int] | None = None

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
        parts: Parts | None = None,
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
        parts : Parts or None, default None
            Runs parts of the model as they are planned; None if nothing is planned.

        Raises
        ------
        InfeasiblePlanError
            If parameters, gradients, inputs and state alone exceed the limit.
        OutOfMemoryError
            If saved tensors do not fit the rest.
        ValueError
            If an input is a nested tensor that has no shape.
        """
        limit = self.limit_bytes
        if limit is None or not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        shapes_of(args, kwargs)  # or an error of what has none
        leaves = tree_leaves((tuple(args), dict(kwargs)))
        given = [each for each in leaves if isinstance(each, torch.Tensor)]
        given += state_of(module)
        self._begin(module, given)
        trained = [each for each in module.parameters() if each.requires_grad]
        so_far = [each for each in trained if each.grad is not None]
        resident = _bytes_of(given) + overhead_bytes + self.missed_bytes
        resident += sum(map(nbytes_of, so_far))
        gradients = sum(map(nbytes_of, trained)) - sum(map(nbytes_of, so_far))
        if parts is not None and self.missed_bytes > self._told_bytes:
            self._told_bytes = self.missed_bytes
            parts.missed()
        if resident + gradients > limit:
            raise _refusal(resident + gradients, limit)
        saved = self._context(limit)
        watch = Watch(given, saved, resident)
        running = nullcontext() if parts is None else parts.running(module, watch)
        saved._readers = {}
        try:
            saved._may_encode = parts is None or not parts.fits
            saved._leave_beside(resident)
            with saved:  # what is packed before it ends may go to its file
                with watch, running:
                    made = forward(*args, **kwargs)
                if parts is not None and parts.has_traced:
                    self._begun = None  # ops have run to be measured
                beside = self._left_to_backward(made, watch, resident, gradients)
        except OutOfMemoryError as error:
            lacking = 0 if parts is None else parts.refused()
            raise self._without_plan(error, lacking) from None
        finally:
            saved._readers = None
        if parts is not None:
            parts.ended(0 if saved._is_packed else saved._room_bytes)
        self.beside_bytes = max(self.beside_bytes, beside, watch.beside_bytes)
        return made

    def _left_to_backward(
        self, made: Any, watch: Watch, resident: int, gradients: int
    ) -> int:
        """Leave room for what backward and the loss need, and return their bytes."""
        leaves = [each for each in tree_leaves(made) if isinstance(each, torch.Tensor)]
        outputs = [each for each in leaves if each.requires_grad]
        saved = watch.saved
        read, freed, padding = saved._node_bytes()
        needs = backward_bytes(outputs, NodeBytes(read, freed, watch.inner))
        # and the loss itself, with its gradient
        held = padding + 2 * max((rounded(1, e.device) for e in outputs), default=0)
        held += _bytes_of(each for each in leaves if not saved._is_charged(each))
        loss = _LOSS * sum(rounded(each.nbytes, each.device) for each in outputs)
        whole = held + gradients + max(needs.whole, loss)
        beside = held + max(needs.added, loss)
        saved._leave_beside(resident + beside)
        if saved._is_packed:  # copies of it are made, and read ahead
            beside = whole
            saved._leave_beside(resident + beside)
        kept = resident + whole + watch.retained_bytes
        leave = partial(saved._leave_beside, kept)
        ended = None if self._begun is None else partial(self._learn, self._begun)
        _at_backward(outputs, leave, ended)
        return beside

    def _begin(self, module: nn.Module, given: Sequence[torch.Tensor]) -> None:
        """Begin to measure a step, where something counts bytes."""
        devices = {each.device for each in given}
        meter = self.meter_of(devices.pop()) if len(devices) == 1 else None
        self._begun = None
        if meter is None:
            return
        gradients = (p.grad for p in module.parameters() if p.grad is not None)
        own = _bytes_of(given) + _bytes_of(gradients)
        self._begun = meter, meter.current() - own
        meter.reset()

    def _learn(self, begun: tuple[Any, int]) -> None:
        """Note by how much a step that has ended was above the limit."""
        if begun is self._begun and self.limit_bytes is not None:
            meter, others = begun
            self.missed_bytes += max(0, meter.peak() - others - self.limit_bytes)
            self._begun = None

    def _without_plan(self, error: OutOfMemoryError, lacking: int) -> OutOfMemoryError:
        """Return the error of saved tensors with advice about budgets."""
        least = self._least(error, lacking)
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
            hint=larger_limit_or(None, more, first=f"raise the limit to {least}"),
        )

    def _least(self, error: OutOfMemoryError, lacking: int) -> str:
        """Return the limit below which the step would fail again."""
        beside = 0 if self._saved is None else self._saved._account.beside
        needed = beside + error.in_use_bytes + lacking
        if error.requested_bytes != beside:
            needed += error.requested_bytes
        least = format_bytes(max(needed, (self.limit_bytes or 0) + 1), exact=True)
        return f"{least} or more"

    def report(self, why: str, parts: Parts | None = None) -> str:
        """Return what is known of the steps."""
        limit = self.limit_bytes
        within = "" if limit is None else f" within {format_bytes(limit)}"
        planned = [] if parts is None else parts.lines()
        what = "What is not planned" if planned else "It"
        lines = [
            f"Not planned: {why}.",
            *planned,
            f"{what} runs in eager mode{within}.",
        ]
        if self._saved is not None:
            most = format_bytes(self.beside_bytes)
            lines.append(f"In use besides saved tensors: at most {most}.")
            lines.append(str(self._saved.memory_report()))
        return "\n".join(lines)


def _at_backward(
    outputs: Iterable[torch.Tensor],
    leave: Callable[[], None],
    ended: Callable[[], None] | None,
) -> None:
    """Leave more room if backward keeps its graph, and call a function at its end."""
    queued: list[bool] = []

    def begin(_: Any) -> None:
        if torch._C._autograd._get_current_graph_task_keep_graph():
            leave()
        if ended is not None and not queued:
            queued.append(True)
            torch.autograd.Variable._execution_engine.queue_callback(ended)

    for node in {each.grad_fn for each in outputs if each.grad_fn is not None}:
        node.register_prehook(begin)


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
