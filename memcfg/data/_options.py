"""`Options`: settings of a whole pipeline, with tf.data's names.

Setting any other name raises AttributeError, so no setting is silently ignored.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Self

from memcfg._checks import count
from memcfg.units import parse_bytes


class _Settings:
    """Settings by name; None means not set."""

    __slots__: tuple[str, ...] = ()

    def __init__(self) -> None:
        for name in self.__slots__:
            object.__setattr__(self, name, None)

    def merge(self, other: Self) -> Self:
        """Return these settings, overridden by those that `other` sets."""
        if type(other) is not type(self):
            raise TypeError(
                f"{type(self).__name__} merges only with {type(self).__name__}, not "
                f"with {type(other).__name__}"
            )
        result = type(self)()
        for name in self.__slots__:
            mine, its = getattr(self, name), getattr(other, name)
            if isinstance(mine, _Settings):
                its = mine.merge(its)
            object.__setattr__(result, name, mine if its is None else its)
        return result

    def __setattr__(self, name: str, value: Any) -> None:
        check = _CHECKS.get((type(self), name))
        if check is None:
            offered = ", ".join(self.__slots__)
            raise AttributeError(
                f"{type(self).__name__} has no {name!r}; it has {offered}"
            )
        unset = value is None and check is not _settings
        object.__setattr__(self, name, None if unset else check(value, name))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        parts = (f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({', '.join(parts)})"


class AutotuneOptions(_Settings):
    """What AUTOTUNE may do; an attribute that is None takes the default.

    Attributes
    ----------
    enabled : bool or None
        False: steps with AUTOTUNE keep their initial values.
    ram_budget : int or None
        Max. bytes of all the buffers of a pass that AUTOTUNE sizes. It may be set to a
        string with a unit. None: half of what the device has free when the pass
        begins. The budget does not count the first batch, from which the size is
        learned, nor temporaries of functions; each buffer has at least one batch.
    cpu_budget : int or None
        Max. threads of all steps of a pass. None: one for each core.
    """

    __slots__ = ("cpu_budget", "enabled", "ram_budget")

    enabled: bool | None
    ram_budget: int | None
    cpu_budget: int | None


class ThreadingOptions(_Settings):
    """Limits on the number of threads.

    Attributes
    ----------
    private_threadpool_size : int or None
        Max. threads that run the functions of a pass. None or 0: no limit beyond those
        of the steps.
    """

    __slots__ = ("private_threadpool_size",)

    private_threadpool_size: int | None


class Options(_Settings):
    """Settings of a whole pipeline, for `Dataset.with_options`.

    Attributes
    ----------
    deterministic : bool or None
        False: parallel steps give elements in the order in which they are ready, unless
        the step's own `deterministic` is True. None means True.
    autotune : AutotuneOptions
        What AUTOTUNE may do.
    threading : ThreadingOptions
        Limits on the number of threads.

    Examples
    --------
    >>> import memcfg as mc
    >>> options = mc.data.Options()
    >>> options.autotune.ram_budget = "64MiB"
    >>> dataset = mc.data.Dataset.range(3).with_options(options)
    >>> dataset.options().autotune.ram_budget
    67108864
    """

    __slots__ = ("autotune", "deterministic", "threading")

    deterministic: bool | None
    autotune: AutotuneOptions
    threading: ThreadingOptions

    def __init__(self) -> None:
        super().__init__()
        self.autotune = AutotuneOptions()
        self.threading = ThreadingOptions()


def _flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True, False or None, not {value!r}")
    return value


def _bytes(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise TypeError(
            f"{name} must be a number of bytes or a string with a unit, not {value!r}"
        )
    return parse_bytes(value)


def _settings(value: Any, name: str) -> _Settings:
    kind = {"autotune": AutotuneOptions, "threading": ThreadingOptions}[name]
    if type(value) is not kind:
        raise TypeError(f"{name} must be {kind.__name__}, not {type(value).__name__}")
    return value


_CHECKS: dict[tuple[type, str], Any] = {
    (AutotuneOptions, "enabled"): _flag,
    (AutotuneOptions, "ram_budget"): _bytes,
    (AutotuneOptions, "cpu_budget"): partial(count, minimum=0),
    (ThreadingOptions, "private_threadpool_size"): partial(count, minimum=0),
    (Options, "deterministic"): _flag,
    (Options, "autotune"): _settings,
    (Options, "threading"): _settings,
}
