"""A request whose outputs a future will have."""

from __future__ import annotations

from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from memcfg.parallel.inference._inference_request import InferenceRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = ["FutureRequest"]


class FutureRequest(InferenceRequest):
    """The samples of a caller that does not wait."""

    __slots__ = ("future",)

    def __init__(self, arrays: Sequence[npt.NDArray[Any]]) -> None:
        super().__init__(arrays)
        self.future: Future[Any] = Future()

    def begin(self) -> bool:
        with suppress(InvalidStateError):  # its owner has set a result
            return self.future.running() or self.future.set_running_or_notify_cancel()
        return False

    def settle(self, value: Any) -> None:
        with suppress(InvalidStateError):
            self.future.set_result(value)

    def fail(self, error: BaseException) -> None:
        with suppress(InvalidStateError):
            self.future.set_exception(error)

    def cancel(self, error: BaseException) -> None:
        if self.future.cancel():
            self.begin()  # tells those who wait for it
        else:
            self.fail(error)

    def renew(self, error: BaseException) -> None:
        """Fail in the child of a fork, where a lost thread may hold the old locks."""
        Future.__init__(self.future)
        self.future.set_exception(error)
