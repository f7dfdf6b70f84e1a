"""Threads that allocate and free while a test looks on."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memcfg.memory import Resource


@contextmanager
def repeated(*calls: Callable[[], None]) -> Iterator[None]:
    """Repeat each call in a thread of its own; what one raises fails the test."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def repeat(call):
        try:
            while not stop.is_set():
                call()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=repeat, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []


def random_user(resource: Resource, seed: int) -> Callable[[], None]:
    """Return a call that takes blocks of up to 50 kB, or frees one that it has."""
    held = []
    number = seed

    def step():
        nonlocal number
        number = (number * 1103515245 + 12345) % 2**31
        if number % 3 and len(held) < 40:
            held.append(resource.allocate(1 + number % 50_000, tag=f"{number % 7}"))
        elif held:
            held.pop(number % len(held)).free()

    return step
