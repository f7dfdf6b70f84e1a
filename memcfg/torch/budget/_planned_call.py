"""A function compiled with a planner; PyTorch keeps nothing of it.

PyTorch keeps each backend, and the code compiled with it, until it is reset, or for the
life of the process if the backend has raised. So all functions share one backend, and
the code compiled for a function is dropped when that is garbage-collected.
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

    from memcfg.torch.budget._backend import Planner


SETTINGS = (
    "torch.compile is disabled or uses another backend (TORCHDYNAMO_DISABLE, "
    "torch._dynamo.config or torch.compiler.set_stance)"
)


class UntracedError(RuntimeError):
    """PyTorch tried to run a model without tracing it."""

    def __init__(self) -> None:
        super().__init__(f"a budgeted model runs only as planned: {SETTINGS}")


class _Running(threading.local):
    """The planner of the call that this thread is in."""

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
        The module or function.
    planner : Planner
        Plans its steps.

    Raises
    ------
    UntracedError
        If PyTorch compiles nothing. A call raises it if PyTorch tries to run `run`
        untraced.
    """

    def __init__(self, run: Callable[..., Any], planner: Planner) -> None:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_dynamo_compiling():  # it is during tracing
                raise UntracedError
            return run(*args, **kwargs)

        # PyTorch counts traces per code object, which modules of a class share.
        own = FunctionType(
            call.__code__.replace(co_name="step"),
            call.__globals__,
            "step",
            None,
            call.__closure__,
        )
        self._planner = planner
        # As `torch.compile`, which makes a new wrapper of the backend in each call.
        self._compiled = torch._dynamo.optimize(
            memcfg_planned, nopython=True, dynamic=False
        )(own)
        if self._compiled is own:
            raise UntracedError
        weakref.finalize(self, reset_code, own.__code__).atexit = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the compiled function; each new trace is planned."""
        before, _running.planner = _running.planner, self._planner
        try:
            return self._compiled(*args, **kwargs)
        finally:
            _running.planner = before
