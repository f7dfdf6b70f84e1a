"""A request: the samples of one caller, and the outputs for them."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from memcfg.parallel.inference._lease import Lease

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = ["InferenceRequest"]


class InferenceRequest(Lease):
    """The samples of a caller that waits for their outputs.

    In mode ``"inplace"`` it is the lease of its caller, too. Requests with the same
    `key` can be computed as one batch. The caller waits for a lock, which an interrupt
    of the waiting thread cannot leave in another state.
    """

    __slots__ = (
        "_done",
        "_error",
        "_value",
        "arrays",
        "key",
        "replica",
        "rows",
        "since",
    )

    def __init__(self, arrays: Sequence[npt.NDArray[Any]]) -> None:
        self.arrays = arrays  # one for each input
        self.rows = len(arrays[0])  # samples
        self.key = tuple((each.shape[1:], each.dtype) for each in arrays)
        self.since = time.monotonic()  # seconds
        self.replica: Any = None  # that the caller may compute on
        self._value: Any = None
        self._error: BaseException | None = None
        self._done = threading.Lock()
        self._done.acquire()

    def begin(self) -> bool:
        """Return whether the outputs are still wanted."""
        return True

    def grant(self, replica: Any) -> None:
        """Let the waiting caller compute."""
        self.replica = replica
        self._done.release()

    def settle(self, value: Any) -> None:
        """Give the outputs to the caller."""
        self._value = value
        self._done.release()

    def fail(self, error: BaseException) -> None:
        """Raise an error in the caller."""
        self._error = error
        self._done.release()

    def cancel(self, error: BaseException) -> None:
        """Give up before it began."""
        self.fail(error)

    def wait(self, timeout: float) -> bool:
        """Return whether the caller may go on, after at most some seconds."""
        return self._done.acquire(timeout=timeout)

    def result(self) -> Any:
        """Return the outputs, or raise the error, once `wait` has returned True."""
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback refers to this frame: break the cycle
        return self._value
