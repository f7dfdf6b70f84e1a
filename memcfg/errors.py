"""The exceptions and warnings of memcfg.

Each class also derives from the built-in that a caller would catch anyway
(`MemoryError`, `ValueError`, `FloatingPointError`, `ImportError`, `KeyError`), so that
code written without memcfg in mind handles the failure. Warnings derive from
`UserWarning` instead.
"""

from __future__ import annotations

import queue
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from memcfg.units import exact, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = [
    "CommunicationError",
    "FallbackWarning",
    "FormatError",
    "GraphError",
    "InfeasiblePlanError",
    "InvalidFreeError",
    "KernelError",
    "MemcfgError",
    "MissingDependencyError",
    "NoSuchWorkspaceError",
    "NonFiniteLossError",
    "PlanError",
    "QueueFullError",
    "ResourceExhaustedError",
    "RetracingWarning",
    "WeightsError",
    "WorkspaceConfigError",
    "WorkspaceError",
    "WorkspaceFullError",
    "WorkspaceLeakError",
    "WorkspaceLeakWarning",
    "WorkspaceSpillWarning",
    "WorkspaceStaleError",
    "WorkspaceWarning",
]


class MemcfgError(Exception):
    """Base class of every exception that memcfg defines."""


class ResourceExhaustedError(MemcfgError, MemoryError):
    """A request for memory does not fit, and nothing was allocated.

    Parameters
    ----------
    message : str
        What was being done, as a sentence without the numbers below.
    requested_bytes : int, default 0
        The size of the request.
    rounded_bytes : int or None, default None
        The bytes that would have counted against the limit; None for `requested_bytes`.
    in_use_bytes : int, default 0
        Bytes in use on the device when the request was made.
    reserved_bytes : int or None, default None
        Bytes of memory that the device had reserved then; None for `in_use_bytes`.
    limit_bytes : int or None, default None
        The limit that was exceeded; None if there was none.
    largest_free_bytes : int or None, default None
        The largest request that would have been sure to succeed.
    fragmentation : float, default 0.0
        The share of the unused reserved bytes that is outside of the largest free
        chunk.
    device : str, default ""
        The name of the device.
    owners : mapping of str to int, optional
        The largest holders of memory by tag, with their bytes.
    hint : str, default ""
        Advice on what to try next.
    """

    def __init__(
        self,
        message: str,
        *,
        requested_bytes: int = 0,
        rounded_bytes: int | None = None,
        in_use_bytes: int = 0,
        reserved_bytes: int | None = None,
        limit_bytes: int | None = None,
        largest_free_bytes: int | None = None,
        fragmentation: float = 0.0,
        device: str = "",
        owners: Mapping[str, int] | None = None,
        hint: str = "",
    ) -> None:
        self.message = message
        self.requested_bytes = requested_bytes
        self.rounded_bytes = requested_bytes if rounded_bytes is None else rounded_bytes
        self.in_use_bytes = in_use_bytes
        self.reserved_bytes = in_use_bytes if reserved_bytes is None else reserved_bytes
        self.limit_bytes = limit_bytes
        self.largest_free_bytes = largest_free_bytes
        self.fragmentation = fragmentation
        self.device = device
        self.owners = dict(owners or {})
        self.hint = hint
        super().__init__(self._text())

    _fields: ClassVar[tuple[str, ...]] = tuple(__init__.__kwdefaults__ or ())

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by the keyword-only arguments and the remaining state."""
        extra = {key: value for key, value in vars(self).items() if key != "message"}
        fields = {key: extra.pop(key) for key in self._fields}
        return partial(type(self), self.message, **fields), (), extra

    def _text(self) -> str:
        """Return lines on what happened, by how much, who holds memory, and a hint."""
        parts = [self.message, *self._request(), *self._free_memory()]
        if self.owners:
            top = sorted(self.owners.items(), key=lambda item: -item[1])[:3]
            held = ", ".join(f"{name} ({format_bytes(size)})" for name, size in top)
            parts.append(f"Held by: {held}.")
            if any(name.startswith("model ") for name in self.owners):
                parts.append("close() of a model releases its memory.")
        if self.hint:
            parts.append(self.hint)
        return "\n".join(parts)

    def _request(self) -> Iterator[str]:
        """Return the numbers in a sentence, without those that repeat another."""
        requested = f"Requested {exact(self.requested_bytes)}"
        if self.rounded_bytes != self.requested_bytes:
            requested += f", rounded up to {self.rounded_bytes} B,"
        if self.device:
            requested += f" on {self.device}"
        yield f"{requested.removesuffix(',')};"
        in_use = f"in use {exact(self.in_use_bytes)}"
        if self.reserved_bytes != self.in_use_bytes:
            in_use += f", reserved {exact(self.reserved_bytes)}"
        limit = self.limit_bytes
        bound = "no limit" if limit is None else f"limit {exact(limit)}"
        yield f"{in_use}; {bound}."

    def _free_memory(self) -> Iterator[str]:
        if self.largest_free_bytes is not None:
            yield f"Largest free block {exact(self.largest_free_bytes)}."
        spare = self.reserved_bytes - self.in_use_bytes
        if self.fragmentation > 0 and spare >= self.rounded_bytes:
            yield (
                f"Fragmentation {self.fragmentation:.0%}: so much of the reserved and "
                "unused memory is not in one piece."
            )


class InfeasiblePlanError(ResourceExhaustedError):
    """No plan fits the limit, and nothing was allocated.

    Parameters
    ----------
    message : str
        What was being planned.
    smallest_limit_bytes : int
        The smallest limit for which the requested method has a plan.
    lower_bound_bytes : int
        A bound below which no method can run the graph.
    micro_batch_limit_bytes : int or None, default None
        The smallest limit within which the batch can be divided into micro-batches of
        one sample; None if it cannot be divided, or that is not known.
    is_smallest : bool, default True
        Whether no smaller limit would suffice; if not, `smallest_limit_bytes` is the
        smallest found so far.
    program : str, default ""
        The name of the program that does not fit, if several were planned.
    largest_batch : int or None, default None
        The size of the largest batch that fits the limit; 0 if none does; None if it
        was not searched, or the batch has one sample or a fixed size. If `unsearched`
        has ``"larger batches"``, a larger one may fit as well.
    accumulation : (int, int) or None, default None
        The `gradient_accumulation_steps` and the batch size that make the same update
        within the limit, with the largest such batch; None if there are none, or they
        were not searched.
    limits_with : mapping of str to int, optional
        Settings that need less, such as ``'spill_to="host"'``, with the smallest limit
        in bytes for each.
    unsearched : sequence of str, optional
        The searches that were not finished, because they would have taken too long, or
        because a layer or policy raised an error for another batch or setting.
    **fields
        The attributes of `ResourceExhaustedError`.
    """

    _fields = (
        *ResourceExhaustedError._fields,
        "smallest_limit_bytes",
        "micro_batch_limit_bytes",
        "lower_bound_bytes",
        "is_smallest",
        "program",
        "largest_batch",
        "accumulation",
        "limits_with",
        "unsearched",
    )

    def __init__(
        self,
        message: str,
        *,
        smallest_limit_bytes: int,
        lower_bound_bytes: int,
        micro_batch_limit_bytes: int | None = None,
        is_smallest: bool = True,
        program: str = "",
        largest_batch: int | None = None,
        accumulation: tuple[int, int] | None = None,
        limits_with: Mapping[str, int] | None = None,
        unsearched: Sequence[str] = (),
        **fields: Any,
    ) -> None:
        self.smallest_limit_bytes = smallest_limit_bytes
        self.micro_batch_limit_bytes = micro_batch_limit_bytes
        self.lower_bound_bytes = lower_bound_bytes
        self.is_smallest = is_smallest
        self.program = program
        self.largest_batch = largest_batch
        self.accumulation = accumulation
        self.limits_with = dict(limits_with or {})
        self.unsearched = tuple(unsearched)
        super().__init__(message, **fields)

    def with_hint(self, hint: str) -> InfeasiblePlanError:
        """Return the same error with one more hint.

        Parameters
        ----------
        hint : str
            A sentence, which comes last.
        """
        return self._with(hint=f"{self.hint}\n{hint}" if self.hint else hint)

    def _with(self, **changes: Any) -> InfeasiblePlanError:
        """Return the same error with other values of some attributes."""
        fields = {name: getattr(self, name) for name in self._fields}
        return type(self)(self.message, **(fields | changes))

    def _text(self) -> str:
        lines = [
            super()._text(),
            self._enough(),
            f"Lower bound for any policy: {exact(self.lower_bound_bytes)}"
            f"{', for the whole batch' * self._needs_parts}.",
            *self._ways_out(),
        ]
        return "\n".join(lines)

    @property
    def _needs_parts(self) -> bool:
        """Whether the smallest limit is that of micro-batches."""
        parts = self.micro_batch_limit_bytes
        return parts is not None and parts < self.smallest_limit_bytes

    def _enough(self) -> str:
        """Return what limits would do, in a sentence."""
        limit = exact(self.smallest_limit_bytes)
        if self._needs_parts and self.micro_batch_limit_bytes is not None:
            parts = exact(self.micro_batch_limit_bytes)
            return (
                f"The smallest limit that would do is {parts}, in micro-batches of one "
                f"sample;\nthe whole batch at once needs {limit}."
            )
        if self.is_smallest:
            return f"The smallest limit that would do is {limit}."
        return f"A limit of {limit} would do, and a smaller one may."

    def _ways_out(self) -> Iterator[str]:
        """Return advice on other settings and the limits that they need."""
        for setting, limit in self.limits_with.items():
            yield f"With {setting}: at least {exact(limit)}."
        if self.largest_batch:
            larger = "larger batches" in self.unsearched
            what = "A smaller batch" if larger else "The largest batch"
            yield f"{what} that fits: batch_size={self.largest_batch}."
        elif self.largest_batch is not None:
            yield "No smaller batch fits."
        if self.accumulation is not None:
            steps, batch = self.accumulation
            yield (
                f"The same update fits with gradient_accumulation_steps={steps} and "
                f"batch_size={batch}."
            )
        if self.unsearched:
            yield f"Not searched to the end: {', '.join(self.unsearched)}."


class InvalidFreeError(MemcfgError, ValueError):
    """A free of memory that is not allocated, is foreign, or has another size.

    Nothing has changed. It is an error of the caller, and is not ignored, because such
    a free would silently damage other data.
    """


class GraphError(MemcfgError, ValueError):
    """A graph is malformed, or an op does not accept its operands."""


class PlanError(MemcfgError, ValueError):
    """A plan is malformed, or the validator finds it invalid."""


class FormatError(MemcfgError, ValueError):
    """A file or text is not in the expected format."""


class WeightsError(MemcfgError, ValueError):
    """Weights do not belong to a model, or their file is damaged."""


class NonFiniteLossError(MemcfgError, FloatingPointError, RuntimeError):
    """The loss is NaN or infinite, and the step's update was not applied.

    It is a RuntimeError too, which Keras's TerminateOnNaN raises.
    """


class KernelError(MemcfgError, RuntimeError):
    """A kernel could not be made, or failed while it ran."""


class CommunicationError(MemcfgError, RuntimeError):
    """Ranks of a group could not compute together, and the step has no effect.

    Attributes
    ----------
    ranks : tuple of int
        The numbers of the ranks that failed or did not arrive in time; empty if that is
        not known.
    """

    def __init__(self, message: str, ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)

    def __reduce__(self) -> Any:
        return type(self), (str(self), self.ranks)


class QueueFullError(MemcfgError, queue.Full, RuntimeError):
    """As many requests are waiting as may wait, and this one was not added."""


class MissingDependencyError(MemcfgError, ImportError):
    """An optional library is needed but not installed."""


class WorkspaceError(MemcfgError, RuntimeError):
    """A workspace was used against its rules, and nothing has changed."""


class WorkspaceLeakError(WorkspaceError):
    """An array is used, or still held, after its scope was closed."""


class WorkspaceStaleError(WorkspaceError):
    """An array is of an earlier cycle of its workspace than the current one."""


class WorkspaceFullError(WorkspaceError, ResourceExhaustedError):
    """A request does not fit a workspace with spill="fail", and nothing was allocated.

    It is also raised if a step of a model needs more of a workspace than its limit.

    Its attributes are those of `ResourceExhaustedError`.
    """


class NoSuchWorkspaceError(WorkspaceError, KeyError):
    """No workspace of this name belongs to the calling thread."""

    def __str__(self) -> str:
        """Return the message as it is; `KeyError` would put quotes around it."""
        return Exception.__str__(self)


class WorkspaceConfigError(WorkspaceError, ValueError):
    """A workspace configuration is invalid, or conflicts with one in use."""


class FallbackWarning(UserWarning):
    """A program does not fit a limit, and runs in another way, which does."""


class RetracingWarning(UserWarning):
    """A function is traced again and again, each time to another program."""


class WorkspaceWarning(UserWarning):
    """Base class of every warning about a workspace."""


class WorkspaceLeakWarning(WorkspaceWarning):
    """Arrays outlive the scope in which they were made."""


class WorkspaceSpillWarning(WorkspaceWarning):
    """A workspace works without its page, or was found disabled at its end."""
