"""The exception tree of memcfg.

Owns every exception class that memcfg defines and the words in which running
out of memory is told. Refuses to know who raises them: this room imports
nothing of memcfg but `units`.

Each class also derives from the built-in that a caller would catch anyway
(`MemoryError`, `ValueError`, `FloatingPointError`, `ImportError`), so code that
knows nothing of memcfg still handles the failure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "FormatError",
    "GraphError",
    "InfeasiblePlanError",
    "KernelError",
    "MemcfgError",
    "MissingDependencyError",
    "NonFiniteLossError",
    "PlanError",
    "ResourceExhaustedError",
    "WeightsError",
]


class MemcfgError(Exception):
    """Base class of every exception that memcfg defines."""


class ResourceExhaustedError(MemcfgError, MemoryError):
    """A request for memory does not fit; nothing was taken.

    Parameters
    ----------
    message : str
        What was being done, one sentence without the numbers below.
    requested_bytes : int, default 0
        The size of the request.
    in_use_bytes : int, default 0
        Bytes in use on the device when the request was made.
    limit_bytes : int or None, default None
        The device's limit; None when it has none.
    largest_free_bytes : int or None, default None
        The largest request that would have succeeded.
    device : str, default ""
        The name of the device.
    owners : mapping of str to int, optional
        The largest holders of memory and their bytes.
    hint : str, default ""
        The next thing to try.
    """

    def __init__(
        self,
        message: str,
        *,
        requested_bytes: int = 0,
        in_use_bytes: int = 0,
        limit_bytes: int | None = None,
        largest_free_bytes: int | None = None,
        device: str = "",
        owners: Mapping[str, int] | None = None,
        hint: str = "",
    ) -> None:
        self.message = message
        self.requested_bytes = requested_bytes
        self.in_use_bytes = in_use_bytes
        self.limit_bytes = limit_bytes
        self.largest_free_bytes = largest_free_bytes
        self.device = device
        self.owners = dict(owners or {})
        self.hint = hint
        super().__init__(self._text())

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by the attributes, since they are keyword-only."""
        return _rebuild, (type(self), self.message, self._fields())

    def _fields(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "message"}

    def _text(self) -> str:
        parts = [self.message]
        where = f" on {self.device}" if self.device else ""
        limit = self.limit_bytes
        bound = "no limit" if limit is None else f"limit {_exact(limit)}"
        parts.append(
            f"Requested {_exact(self.requested_bytes)}{where}; in use "
            f"{_exact(self.in_use_bytes)}; {bound}."
        )
        if self.largest_free_bytes is not None:
            parts.append(f"Largest free block {_exact(self.largest_free_bytes)}.")
        if self.owners:
            top = sorted(self.owners.items(), key=lambda item: -item[1])[:3]
            held = ", ".join(f"{name} ({format_bytes(size)})" for name, size in top)
            parts.append(f"Held by: {held}.")
        if self.hint:
            parts.append(self.hint)
        return " ".join(parts)


class InfeasiblePlanError(ResourceExhaustedError):
    """No plan fits the limit; nothing was taken.

    Parameters
    ----------
    message : str
        What was being planned.
    smallest_limit_bytes : int
        The smallest limit for which the method that was asked has a plan.
    lower_bound_bytes : int
        A bound below which no method of any kind can run the graph.
    **fields
        The attributes of `ResourceExhaustedError`.
    """

    def __init__(
        self,
        message: str,
        *,
        smallest_limit_bytes: int,
        lower_bound_bytes: int,
        **fields: Any,
    ) -> None:
        self.smallest_limit_bytes = smallest_limit_bytes
        self.lower_bound_bytes = lower_bound_bytes
        super().__init__(message, **fields)

    def _text(self) -> str:
        return (
            f"{super()._text()} The smallest limit that would do is "
            f"{_exact(self.smallest_limit_bytes)}; no method can go below "
            f"{_exact(self.lower_bound_bytes)}."
        )


class GraphError(MemcfgError, ValueError):
    """A graph is malformed, or an op does not accept its operands."""


class PlanError(MemcfgError, ValueError):
    """A plan is malformed, or the validator refutes it."""


class FormatError(MemcfgError, ValueError):
    """A file or text is not in the format it should be in."""


class WeightsError(MemcfgError, ValueError):
    """Weights do not belong to this model, or their file is damaged."""


class NonFiniteLossError(MemcfgError, FloatingPointError):
    """The loss is NaN or infinite; the step's update was not applied."""


class KernelError(MemcfgError, RuntimeError):
    """A kernel could not be made or failed while it ran."""


class MissingDependencyError(MemcfgError, ImportError):
    """An optional library is needed and not installed."""


def _rebuild(
    kind: type[ResourceExhaustedError], message: str, fields: dict[str, Any]
) -> ResourceExhaustedError:
    return kind(message, **fields)


def _exact(nbytes: int) -> str:
    """Write every byte: requests and limits often differ by a few."""
    return format_bytes(nbytes, exact=True)
