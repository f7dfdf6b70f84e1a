"""A function that PyTorch compiles with a planner, and of which it keeps nothing.

PyTorch keeps each backend until it is reset, or for the life of the process if it has
raised, and what it has compiled for a function as long. So all functions have the same
backend, and what was compiled for one is dropped when that is garbage-collected.
"""

from __future__ import annotations

import threading
import weakref
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.eval_frame import reset_code

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import fx

    from memcfg.torch._backend import Planner


SETTINGS = (
    "torch.compile is switched off, or has another backend, by TORCHDYNAMO_DISABLE, "
    "torch._dynamo.config or torch.compiler.set_stance"
)


class UntracedError(RuntimeError):
    """PyTorch was to run a model without tracing it."""

    def __init__(self) -> None:
        super().__init__(f"a budgeted model does not run untraced: {SETTINGS}")


class _Running(threading.local):
    """The planner of the call that a thread is in."""

    planner: Planner | None = None


_running = _Running()


def memcfg_planned(module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
    """Compile with the planner of the call that this thread is in."""
    assert _running.planner is not None
    return _running.planner(module, inputs)


class PlannedCall:
    """A module or function, compiled with a planner for static shapes.

    Parameters
    ----------
    run : callable
        What is compiled.
    planner : Planner
        What plans its steps.

    Raises
    ------
    UntracedError
        If PyTorch compiles nothing, or, in a call, was to run this untraced.
    """

    def __init__(self, run: Callable[..., Any], planner: Planner) -> None:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_dynamo_compiling():  # it is while this is traced
                raise UntracedError
            return run(*args, **kwargs)

        # PyTorch counts traces by code objects, which modules of a class share.
        own = FunctionType(
            call.__code__.replace(co_name="step"),
            call.__globals__,
            "step",
            None,
            call.__closure__,
        )
        self._planner = planner
        # As `torch.compile`, which has a wrapper of its own for each backend.
        self._compiled = torch._dynamo.optimize(
            memcfg_planned, nopython=True, dynamic=False
        )(own)
        if self._compiled is own:
            raise UntracedError
        weakref.finalize(self, reset_code, own.__code__).atexit = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run what is compiled; what is traced anew is planned anew."""
        before, _running.planner = _running.planner, self._planner
        try:
            return self._compiled(*args, **kwargs)
        finally:
            _running.planner = before
