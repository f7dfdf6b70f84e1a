"""One of every resource, for tests that all of them must pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg import memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.memory import Resource

MAKERS: dict[str, Callable[[], Resource]] = {
    "system": memory.system,
    "simulated": lambda: memory.simulated("1GiB", name="GPU:0"),
    "pool": lambda: memory.Pool(limit="256MiB"),
    "pool without a limit": memory.Pool,
    "pool on simulated": lambda: memory.Pool(memory.simulated("1GiB")),
    "pool on blocks": lambda: memory.Pool(memory.system(), limit="256MiB"),
    "limiting": lambda: memory.limiting(memory.system(), "256MiB"),
    "statistics": lambda: memory.statistics(memory.Pool()),
    "failure callback": lambda: memory.failure_callback(
        memory.Pool(limit="256MiB"), lambda _: False
    ),
    "all at once": lambda: memory.statistics(
        memory.limiting(
            memory.failure_callback(
                memory.Pool(memory.simulated("1GiB")), lambda _: False
            ),
            "256MiB",
        )
    ),
}


def touchable(resource: Resource) -> bool:
    """Whether there is memory behind the addresses."""
    while resource.upstream is not None:
        resource = resource.upstream
    return not isinstance(resource, memory.SimulatedResource)
