"""What tests of public behaviour need of the inside: a new process, given times.

Beside the doubles of NVIDIA's libraries, this is the one helper that imports private
modules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memcfg.devices import (
    _algorithm_choice,
    _algorithm_times,
    _copy_times,
    _file_cache,
)
from memcfg.nn.training import _tracing
from memcfg.plan import capuchin_feedback
from memcfg.plan.search import _reconsidered
from memcfg.plan.search._policy import Lessons, Method
from memcfg.runtime import _packing
from memcfg.runtime._program import Program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    import pytest

    from memcfg.plan import Plan


def forget_warnings(patch: pytest.MonkeyPatch) -> None:
    """Warn again of what is warned of once a process: caches that cannot be used."""
    patch.setattr(_file_cache, "_told", set())


def forget_choices(patch: pytest.MonkeyPatch) -> None:
    """Choose algorithms again, as another process would."""
    patch.setattr(_algorithm_choice, "_chosen", {})


def rewrite_times(path: Path, text: str) -> None:
    """Put other text into a whole file of a cache of times."""
    cache = _file_cache.FileCache(path.parent, _algorithm_times._KEPT)
    cache.write(path.stem, text.encode())


def set_kernel_seconds(
    patch: pytest.MonkeyPatch, seconds: Callable[[object], float]
) -> None:
    """Have each kernel of the CPU take the seconds that a function gives it."""
    patch.setattr(
        "memcfg.devices.cpu._native.measure_runs", lambda kernel, _: seconds(kernel)
    )
    patch.setattr(
        "memcfg.devices.cpu._reference.measure_instruction",
        lambda kernel, *_: seconds(kernel),
    )


def set_machine_bytes(patch: pytest.MonkeyPatch, nbytes: int) -> None:
    """Pack weights as on a machine of so much memory."""
    patch.setattr(_packing, "machine_bytes", lambda: nbytes)


def set_copy_seconds(patch: pytest.MonkeyPatch, seconds: Iterable[float]) -> None:
    """Have copies that are measured take these seconds, one after the other."""
    given, real = iter(seconds), _copy_times._shortest

    def shortest(run: Callable[[], object]) -> float:
        real(run)
        return next(given)

    patch.setattr(_copy_times, "_shortest", shortest)


def leave_out_rewrite(patch: pytest.MonkeyPatch, name: str) -> None:
    """Trace training steps without one rewrite of their graph."""
    patch.setattr(_tracing, name, lambda graph: graph)


def set_step_seconds(
    patch: pytest.MonkeyPatch, seconds: Callable[[Plan], float], margin: float
) -> None:
    """Have steps take what a function says of their plan, and a smaller gain count."""
    least = property(lambda self: seconds(self.spec.plan), lambda self, _: None)
    patch.setattr(Program, "least_seconds", least, raising=False)
    patch.setattr(_reconsidered, "_MARGIN", margin)


@dataclass(frozen=True)
class Limited(Method):
    """A learning method with a limit of its own, for devices of whole pages."""

    limit: int = 0

    def __call__(self, graph, limit_bytes=None):
        return super().__call__(graph, self.limit)

    @classmethod
    def of(cls, policy, limit):
        first = cls("capuchin", policy.learns.first.make, swaps=True, limit=limit)
        lessons = Lessons(first, _fed_back)
        return cls("capuchin", policy.make, swaps=True, learns=lessons, limit=limit)


def _fed_back(policy: Limited, *happened: object) -> Limited:
    return Limited.of(capuchin_feedback(policy, *happened), policy.limit)
