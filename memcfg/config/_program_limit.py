"""One limit for all memory of a program on a CPU, and shares of it.

A budget is a limit of a device's pool for the time of a block, with NumPy's arrays
routed into that pool. A share is a logical device with a part of that limit.

See docs/decisions/0036-memory-is-asked-back.md.
"""

from __future__ import annotations

import warnings
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import wraps
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from memcfg._caller import outside
from memcfg.config._logical import chosen_device, device
from memcfg.config._registry import LEAST_BESIDE_SHARES, Made, registry
from memcfg.config._specify import MemorySpec
from memcfg.config._types import MAX_BYTES, LogicalDevice, limit_from_bytes
from memcfg.errors import ResourceExhaustedError
from memcfg.memory import numpy_allocator
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType
    from typing import Self

    from memcfg.memory import Pool

P = ParamSpec("P")
R = TypeVar("R")


class budget:  # noqa: N801  (a name to call, as numpy.errstate)
    """Limit all memory of a program on a CPU, for the time of a ``with`` block.

    Models, the buffers, rings and caches of datasets, evaluation and NumPy's arrays
    count under one limit. Before a request is refused, datasets give back what they can
    do without: first batches read ahead, then cached elements. When memory is free
    again, they take more.

    Parameters
    ----------
    limit : int or str
        The maximum of bytes in use: a number of bytes, a string with its unit
        (``"2GiB"``), or a percentage of the machine's memory (``"50%"``).

    Raises
    ------
    TypeError
        If `limit` has another type, or is a bool.
    ValueError
        If `limit` is not positive or not a size.

    Warns
    -----
    RuntimeWarning
        If `limit` is a number below 1 KiB: it is bytes, and MiB were probably meant.
        If a budget is dropped without having been entered: it limited nothing.

    See Also
    --------
    memcfg.config.set_memory_limit : Limit a device without a block.
    memcfg.config.set_host_memory_limit : Limit the sum over all pools.

    Notes
    -----
    The limit is that of the pool of the device that models are placed on, ``CPU:0``
    unless a `device` block names another CPU. It holds in all threads, whichever
    entered it. What that pool holds already counts, too.

    Blocks may be nested and overlap: the smallest limit holds, also that which the
    device had before. At the end of a block, by an exception or not, the limit is again
    what it would be without it. Meanwhile `memcfg.config.set_memory_limit` of that
    device is a RuntimeError, as is `memcfg.config.reset`.

    NumPy keeps its allocator in the context of a thread or task: arrays of the thread
    that entered the budget and of tasks started inside count. Those of another thread
    count if it runs a function that was decorated with a budget. Arrays made inside
    stay in the pool after the block. A model leaves a sixteenth of the limit, at most
    64 MiB, to arrays of the program.

    Pools made with `memcfg.memory.Pool`, GPUs and other logical devices have limits of
    their own.

    Examples
    --------
    >>> import numpy as np
    >>> import memcfg as mc
    >>> try:
    ...     with mc.budget("64MiB") as budget:
    ...         a = np.ones(2**20)
    ...         print(budget.in_use_bytes >= a.nbytes, budget.limit_bytes)
    ...         b = np.ones(8 * 2**20)
    ... except MemoryError as error:
    ...     print(error.limit_bytes)
    True 67108864
    67108864
    """

    _used = True  # of an object that was not made: no warning of it

    def __init__(self, limit: int | str) -> None:
        if limit is None:
            raise TypeError("a budget is a number of bytes or a string, not None")
        limit_from_bytes(limit, total_bytes=MAX_BYTES, name="limit", stacklevel=2)
        self._limit = limit
        self._made: Made | None = None
        self._stack = ExitStack()
        self._used = False

    def __enter__(self) -> Self:
        """Begin to limit memory.

        Raises
        ------
        RuntimeError
            If the budget is already entered.
        ResourceExhaustedError
            If more is in use, or set aside in shares, than the limit and datasets
            cannot give it back. Nothing has changed then.
        ValueError, ResourceExhaustedError
            What `list_logical_devices` raises.

        Warns
        -----
        RuntimeWarning
            If the limit is more than the machine has: it limits nothing.
        """
        if self._made is not None:
            raise RuntimeError("the budget is already entered: make another one")
        self._used = True
        made = chosen_device("CPU")
        nbytes = limit_from_bytes(self._limit, total_bytes=made.hardware.memory_bytes)
        assert nbytes is not None
        _warn_of_much(made, nbytes)
        with ExitStack() as stack:
            stack.enter_context(_limited(made, self, nbytes))
            stack.enter_context(numpy_allocator(made.device.host_pool))
            self._stack, self._made = stack.pop_all(), made
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._made = None
        self._stack.__exit__(kind, error, trace)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function: each call, in any thread, is in a budget of this size.

        Parameters
        ----------
        function : callable
            The function, or a coroutine function.

        Returns
        -------
        callable
            The function inside of a ``with`` block.

        Raises
        ------
        TypeError
            If it is a generator function, most of whose code runs after the call.
        """
        self._used = True
        limit, given = self._limit, cast("Any", function)
        if isgeneratorfunction(given) or isasyncgenfunction(given):
            raise TypeError(
                f"a budget cannot decorate the generator function {given.__name__!r}, "
                "whose code runs when its values are taken: enter the budget where "
                "they are, `with memcfg.budget(...):`"
            )
        if iscoroutinefunction(given):

            @wraps(given)
            async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
                with budget(limit):
                    return await given(*args, **kwargs)

            return cast("Callable[P, R]", awaited)

        @wraps(function)
        def within(*args: P.args, **kwargs: P.kwargs) -> R:
            with budget(limit):
                return function(*args, **kwargs)

        return within

    @property
    def limit_bytes(self) -> int:
        """The limit that holds now, which may be that of a tighter budget.

        RuntimeError outside of the block.
        """
        limit = self._pool.limit
        assert limit is not None
        return limit

    @property
    def in_use_bytes(self) -> int:
        """The bytes in use in the pool; RuntimeError outside of the block."""
        return self._pool.stats().current_bytes

    @contextmanager
    def share(self, limit: int | str) -> Iterator[LogicalDevice]:
        """Set a part of the budget aside, for the time of a ``with`` block.

        Models, datasets and arrays that are made inside, by the thread or task that
        entered the block, have the share as their limit, and nobody else can take it:
        one for each trial of a search lets trials run at the same time.

        Parameters
        ----------
        limit : int or str
            Bytes, a string with its unit, or a percentage of the budget's limit.

        Yields
        ------
        LogicalDevice
            The device on which models are placed inside of the block.

        Raises
        ------
        RuntimeError
            If the budget is not entered.
        ResourceExhaustedError
            If the rest of the budget holds more than would be left to it. The error
            names the largest share. Nothing has changed then.
        TypeError, ValueError
            As for a budget.

        Notes
        -----
        What is still in use at the end of the block, such as an array or a model that
        was not closed, stays where it is, with its part of the limit. That is given
        back when another share or budget begins or ends, or a limit of the device is
        set. A model cannot take memory again after its share has ended: compile it in
        another block.

        Examples
        --------
        >>> import memcfg as mc
        >>> with mc.budget("64MiB") as budget, budget.share("16MiB") as device:
        ...     print(budget.limit_bytes, mc.config.get_memory_limit(device))
        50331648 16777216
        """
        parent = self._device
        nbytes = limit_from_bytes(
            limit, total_bytes=self.limit_bytes, name="limit", stacklevel=4
        )
        if nbytes is None:
            raise TypeError("a share is a number of bytes or a string, not None")
        made = _lend(parent, nbytes)
        try:
            with device(made.logical) as logical, numpy_allocator(made.device.pool):
                yield logical
        finally:
            with registry.lock:
                made.ended = True
                registry.settle(parent)

    @property
    def _device(self) -> Made:
        if self._made is None:
            raise RuntimeError("the budget is not entered: use it in a with statement")
        return self._made

    @property
    def _pool(self) -> Pool:
        return self._device.device.pool

    def __repr__(self) -> str:
        state = "not entered" if self._made is None else f"on {self._made.logical.name}"
        return f"<memcfg.budget({self._limit!r}), {state}>"

    def __del__(self) -> None:
        if not self._used:
            warnings.warn(
                f"memcfg.budget({self._limit!r}) was never entered and limits nothing: "
                "write `with memcfg.budget(...):`, or set_memory_limit",
                RuntimeWarning,
                stacklevel=2,
            )


def _warn_of_much(made: Made, nbytes: int) -> None:
    total = made.hardware.memory_bytes
    if nbytes > total:
        warnings.warn(
            f"a budget of {format_bytes(nbytes, exact=True)} limits nothing: this "
            f"machine has {format_bytes(total, exact=True)}",
            RuntimeWarning,
            stacklevel=outside(),
        )


@contextmanager
def _limited(made: Made, key: object, nbytes: int) -> Iterator[None]:
    """Add a bound to a device."""

    def enter() -> None:
        registry.settle(made)
        if not (made.budgets or made.shares):
            made.own_limit = made.device.pool.limit
        made.budgets[key] = nbytes
        try:
            made.apply_limit()
        except BaseException:
            del made.budgets[key]
            raise

    registry.changed(enter)
    try:
        yield
    finally:
        with registry.lock:
            made.budgets.pop(key, None)
            registry.settle(made)
            made.apply_limit()


def _lend(parent: Made, nbytes: int) -> Made:
    """Make a device with a part of another's limit."""
    memory = MemorySpec(nbytes, growth=True)
    made = Made(
        LogicalDevice(registry.next_name(parent.logical.device_type), "CPU"),
        replace(parent.specification, memory=memory),
        parent.hardware,
    )
    made.own_limit, made.is_share = nbytes, True

    def lend() -> None:
        registry.settle(parent)
        total = parent.total_bytes
        assert total is not None  # a budget is on
        left = total - parent.lent_bytes
        if nbytes > left - LEAST_BESIDE_SHARES:
            raise _refusal(parent, nbytes, left)
        parent.shares[made] = nbytes
        try:
            parent.apply_limit()
        except ResourceExhaustedError as error:
            del parent.shares[made]
            raise _refusal(parent, nbytes, left) from error
        made.apply_limit()
        registry.shares.append(made)

    registry.changed(lend)
    return made


def _refusal(parent: Made, nbytes: int, left: int) -> ResourceExhaustedError:
    """Return the error of a share that does not fit next to what is in use."""
    pool = parent.device.pool
    in_use = pool.stats().current_bytes
    largest = max(0, left - max(in_use, LEAST_BESIDE_SHARES))
    return ResourceExhaustedError(
        "A share does not fit its budget.",
        requested_bytes=nbytes,
        in_use_bytes=in_use,
        limit_bytes=left,
        largest_free_bytes=largest,
        device=parent.logical.name,
        owners=pool.owners(),
        hint=f"The largest share is {format_bytes(largest, exact=True)} now. Take a "
        "smaller one, or wait until another share ends.",
    )
