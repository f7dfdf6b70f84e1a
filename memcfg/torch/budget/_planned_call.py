"""A function compiled with a planner, of which PyTorch keeps nothing.

PyTorch keeps each backend, and the code compiled with it, until it is reset, or for the
life of the process if the backend has raised. All functions therefore share one
backend, and the code compiled for a function is dropped when the function is
garbage-collected.
"""

from __future__ import annotations

import re
import threading
import warnings
import weakref
from contextlib import contextmanager
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.eval_frame import reset_code
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._python_dispatch import (
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)
from torch.utils._pytree import tree_leaves

from memcfg._caller import outside
from memcfg._first_line import first_line
from memcfg.errors import InfeasiblePlanError, MemcfgError
from memcfg.torch.budget._backend import Compilation, StopAfterPlanning
from memcfg.torch.spill._stores import SpillRefusedError
from memcfg.torch.trace._fakes import state_of, without_logs
from memcfg.torch.trace._host_calls import TOLD, install_hooks, look_into_calls
from memcfg.torch.trace._kept_functions import FunctionRefusedError, run_keeping
from memcfg.torch.trace._overhead import (
    LossRefusedError,
    UntracedLossError,
    loss_bytes,
)
from memcfg.torch.trace._symbols import symbolic_settings, symbols_of
from memcfg.torch.trace._traced import SparseRefusedError
from memcfg.torch.trace.ops._dropout import look_into_dropout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import fx

    from memcfg.torch.budget._backend import ShapeOf
    from memcfg.torch.budget._planner import Planner


SETTINGS = (
    "torch.compile is disabled or uses another backend (TORCHDYNAMO_DISABLE, "
    "torch._dynamo.config or torch.compiler.set_stance)"
)
TRACES, _ALL_TRACES = 64, 4096  # per module, and in total
_REFUSED = SpillRefusedError, SparseRefusedError
# raised by the caller's code, not by the compiler
_OWN = MemcfgError, StopAfterPlanning, *_REFUSED, LossRefusedError, OSError
_KINDS = "cpu", "cuda"  # of devices


class UntracedError(RuntimeError):
    """PyTorch tried to run a model without tracing it."""

    def __init__(self) -> None:
        modes = {
            type(e).__name__.lstrip("_") for e in _get_current_dispatch_mode_stack()
        }
        why = SETTINGS
        if modes:
            why = (
                f"PyTorch traces nothing under {', '.join(sorted(modes))}; take the "
                "budget off meanwhile, by budget(model, None)"
            )
        super().__init__(f"a budgeted model runs only as planned: {why}")


class UnplannedError(ValueError):
    """A model cannot be traced as one graph.

    Parameters
    ----------
    why : str
        What PyTorch cannot trace, and where.
    """

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(
            f"the model cannot be traced as one graph ({why}): "
            "memcfg.torch.saved_tensors needs none, and takes such models"
        )


class UntracedInputsError(UnplannedError):
    """A model cannot be traced with its inputs, of which PyTorch has raised an error.

    It may run on them, if it reads their values, or not, if their shapes are wrong.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.args = (f"the model cannot be traced with these inputs: {why}",)


class TracedOftenError(ValueError):
    """A step would be one trace more than PyTorch keeps of a function."""

    def __init__(self) -> None:
        super().__init__(f"{TRACES} steps were traced, and this would be another")


class _Running(threading.local):
    """The planned call that this thread is in."""

    call: PlannedCall | None = None


_running = _Running()


def memcfg_planned(module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
    """Compile with the planner of the call that this thread is in."""
    call = _running.call
    assert call is not None
    compilation = Compilation(
        call.planner,
        only_plan=call.only_plan or (call.planner.shared.only_plans and _has_calls()),
        module=call.module,
        has_lengths=True,
        loss_of=_loss_bytes_now,
    )
    return compilation(module, inputs, call.given())


def _has_calls() -> bool:
    """Return whether the traced code calls something before its graph runs."""
    return bool(InstructionTranslator.current_tx().output.random_calls)


def _loss_bytes_now(shape_of: ShapeOf | None) -> int | None:
    """Return the bytes of the loss of the call that this thread is in.

    What is compiled keeps this function, and must not keep a call.
    """
    call = _running.call
    assert call is not None
    return call.loss_bytes(shape_of)


class PlannedCall:
    """A function, compiled with a planner.

    Parameters
    ----------
    run : callable
        The function.
    planner : Planner
        Plans its steps.
    module : torch.nn.Module or None, default None
        The first argument of each call, of which only a weak reference is held; None if
        there is none.
    only_plan : bool, default False
        Whether a call raises StopAfterPlanning once it is planned.

    Raises
    ------
    UntracedError
        If PyTorch compiles nothing. A call raises it if PyTorch tries to run `run`
        untraced.
    """

    def __init__(
        self,
        run: Callable[..., Any],
        planner: Planner,
        module: torch.nn.Module | None = None,
        *,
        only_plan: bool = False,
    ) -> None:
        def of_module(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_dynamo_compiling():  # it is during tracing
                raise UntracedError
            return run(module, *args, **kwargs)

        def call(*args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_dynamo_compiling():
                raise UntracedError
            return run(*args, **kwargs)

        inner = call if module is None else of_module

        # PyTorch counts traces per code object, which modules of a class share.
        own = FunctionType(
            inner.__code__.replace(co_name="step"),
            inner.__globals__,
            "step",
            None,
            inner.__closure__,
        )
        self.planner = planner
        self.only_plan = only_plan
        self._module = None if module is None else weakref.ref(module)
        self._arguments: Any = None  # of the call that runs
        # whether it runs with other dtypes, and which, by the type of device
        self._autocast: dict[str, tuple[bool, torch.dtype]] = {}
        # Calls the same as `torch.compile`, which makes a new backend wrapper in each
        # call.
        self._compiled = torch._dynamo.optimize(memcfg_planned, nopython=True)(own)
        if self._compiled is own:
            raise UntracedError
        weakref.finalize(self, reset_code, own.__code__).atexit = False

    @property
    def module(self) -> torch.nn.Module | None:
        """The module of each call, or None."""
        return None if self._module is None else self._module()

    def of(self, module: torch.nn.Module) -> PlannedCall:
        """Call with another module of the class from now on."""
        self._module = weakref.ref(module)
        return self

    def given(self) -> list[torch.Tensor]:
        """Return the arguments of the call, and the state of its module."""
        module = self.module
        state = [] if module is None else state_of(module)
        leaves = tree_leaves(self._arguments)
        return [*(each for each in leaves if isinstance(each, torch.Tensor)), *state]

    def loss_bytes(self, shape_of: ShapeOf | None) -> int | None:
        """Return the bytes of the user's loss for the call that runs; None if unknown.

        `shape_of` returns the shape that an argument is planned with.
        """
        loss, module = self.planner.loss, self.module
        if loss is None or module is None:
            return self.planner.loss_bytes
        args, kwargs = self._arguments
        kinds = {each.device.type for each in self.given()} - {"meta"}
        kind = kinds.pop() if len(kinds) == 1 else "cpu"
        try:
            with (
                unset_fake_temporarily(),
                _disable_current_modes(),
                torch.autocast(kind, self._autocast[kind][1], self._autocast[kind][0]),
            ):
                return loss_bytes(module, loss, args, kwargs, shape_of)
        except UntracedLossError as error:
            warnings.warn(str(error), RuntimeWarning, stacklevel=outside("torch"))
            return None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the compiled function; each new trace is planned."""
        before, _running.call = _running.call, self
        self._arguments = args, kwargs
        self._autocast = {
            kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in _KINDS
        }
        try:
            if self._module is None:
                return self._compiled(*args, **kwargs)
            return self._compiled(self.module, *args, **kwargs)
        finally:
            _running.call = before
            self._arguments = None

    def unwrapped(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run the compiled function, or raise an error that explains the failure.

        memcfg's own errors are raised unchanged, UnplannedError if there is no graph.
        All are without the frames of PyTorch's compiler; its error is their
        `__context__`. A model that installs hooks when it first runs is traced again
        with them.
        """
        try:
            return self._explained(args, kwargs)
        except UnplannedError:
            module = self.module
            if module is None or not install_hooks(module):
                raise
        return self._explained(args, kwargs)

    def _explained(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run, and turn errors of PyTorch's compiler into sentences."""
        exceptions = torch._dynamo.exc
        try:
            return self._with_symbols(args, kwargs)
        except exceptions.BackendCompilerFailed as error:
            inner = error.inner_exception
            if isinstance(inner, _OWN):
                raise inner.with_traceback(None) from None
            raise UnplannedError(_told(inner)) from None
        except exceptions.FailOnRecompileLimitHit:
            raise TracedOftenError from None
        except exceptions.TorchRuntimeError as error:
            quoted = re.search(r"got \w+\(['\"](.*?)['\"]\)", str(error), re.DOTALL)
            raise UntracedInputsError(quoted[1] if quoted else _told(error)) from None
        except FunctionRefusedError as error:
            raise UnplannedError(str(error)) from None
        except exceptions.TorchDynamoException as error:
            why = _told(error)
            for frame in (getattr(error, "real_stack", None) or ())[-1:]:
                why += f", {frame.filename}:{frame.lineno}, in {frame.name}"
            raise UnplannedError(why) from None

    def _with_symbols(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run, with symbols for what has changed if that can be traced."""
        seen = self.planner.shared.seen
        with symbols_of(seen):
            try:
                return run_keeping(self, args, kwargs)
            except torch._dynamo.exc.FailOnRecompileLimitHit:
                raise
            except torch._dynamo.exc.TorchDynamoException as error:
                inner = getattr(error, "inner_exception", None)
                # an input takes 64 bytes where a number in the graph takes none
                is_tight = isinstance(inner, InfeasiblePlanError)
                is_own = isinstance(inner, _OWN) and not is_tight
                can_fit = not is_tight or seen.has_new_numbers
                if is_own or not (seen.has_changed and can_fit):
                    raise
            with seen.without_symbols():
                made = run_keeping(self, args, kwargs)
            if not is_tight:
                seen.forget()
            return made


def _told(error: Exception) -> str:
    """Return what an error of PyTorch's compiler says of a model."""
    if isinstance(error, GuardOnDataDependentSymNode):
        return "a shape that depends on data, such as that of a mask's elements"
    return first_line(error)


def planned_only(
    call: PlannedCall, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Trace and plan a call that was made with `only_plan`."""
    try:
        call.unwrapped(args, kwargs)
    except StopAfterPlanning:
        return


@contextmanager
def tracing(*, is_recurrent: bool) -> Iterator[None]:
    """Allow traces of many shapes and of recurrent layers, with full messages."""
    settings: dict[str, Any] = {
        "recompile_limit": TRACES,
        "accumulated_recompile_limit": _ALL_TRACES,
        "optimize_ddp": False,  # would split the graph at DDP's buckets
        "reorderable_logging_functions": TOLD,
        "use_numpy_random_stream": True,  # no graph has arrays of these numbers
        **symbolic_settings(),
    }
    look_into_calls()
    look_into_dropout()
    if is_recurrent:
        settings["allow_rnn"] = True
    with torch._dynamo.config.patch(settings), without_logs():
        yield
