"""Calls that may wait, made so that no test does for ever."""

from __future__ import annotations

import gc
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SOON = 60  # seconds that nothing here takes


@contextmanager
def traced(function: Callable[..., Any]) -> Iterator[None]:
    """Trace a block as `sys.settrace` does, and then as before: for coverage, say."""
    before = sys.gettrace()
    sys.settrace(function)
    try:
        yield
    finally:
        sys.settrace(before)


class Call:
    """A call in a thread of its own; what it returns or raises is its result."""

    def __init__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self.value: Any = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run, args=(function, args, kwargs), daemon=True
        )
        self._thread.start()

    def _run(self, function, args, kwargs):
        try:
            self.value = function(*args, **kwargs)
        except BaseException as error:
            self.error = error

    @property
    def waits(self) -> bool:
        """Whether it has not returned after a while."""
        self._thread.join(0.05)
        return self._thread.is_alive()

    def result(self) -> Any:
        """Wait for what it returns."""
        self._thread.join(SOON)
        assert not self._thread.is_alive(), "it hangs"
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return self.value


def eventually(condition: Callable[[], Any], seconds: float = SOON) -> bool:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


def settle(condition: Callable[[], Any]) -> bool:
    """Wait until something holds, and collect garbage if it does not by itself."""
    return eventually(condition, 0.1) or (
        gc.collect() >= 0 and eventually(condition, 10)
    )


def data_threads() -> list[str]:
    """Name the threads of memcfg.data that are alive."""
    alive = (thread.name for thread in threading.enumerate())
    return [name for name in alive if name.startswith("memcfg-data-")]
