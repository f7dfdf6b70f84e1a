"""Python calls of a forward that read no tensor: prints, logs, waits, random numbers.

PyTorch's compiler breaks a graph at them, or takes another generator than NumPy's. They
stand beside the graph instead: each runs once in each step, in their order, before the
first op. Tensors among their arguments are told by their shape, and numbers that they
give are inputs of the graph.
"""

from __future__ import annotations

import builtins
import random
import sys
import time
import warnings
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._dynamo.variables import ConstantVariable, functions, misc
from torch._dynamo.variables.user_defined import call_random_fn

from memcfg.torch.trace._kept_functions import keeping

if TYPE_CHECKING:
    from collections.abc import Callable

TOLD = {builtins.print, warnings.warn, warnings.warn_explicit, time.sleep}
# methods of loggers that tell something, for code that may depend on it
_ASKED = {"isEnabledFor", "getEffectiveLevel", "hasHandlers", "getChild"}
_CAPTURES = "transformers.utils.output_capturing"
_lock = Lock()
_originals: dict[type, Callable[..., Any]] = {}  # PyTorch's own methods, once replaced


def look_into_calls() -> None:
    """Replace the methods by which PyTorch's compiler refuses such calls."""
    with _lock:
        if _originals:
            return
        for kind, name, new in (
            (misc.DebuggingVariable, "call_function", _tell),
            (misc.LoggingLoggerVariable, "call_method", _log),
            (misc.NumpyVariable, "call_function", _draw),
            (functions.SkipFunctionVariable, "call_function", _ask),
        ):
            _originals[kind] = getattr(kind, name)
            setattr(kind, name, new)


def _tell(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    """Trace a call of a function such as `print`."""
    if not keeping.is_tracing:
        return _originals[misc.DebuggingVariable](self, tx, args, kwargs)
    return _beside(tx, self.value, args, kwargs)


def _ask(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    """Trace a call of `random.random`; PyTorch knows `uniform` and the like."""
    if keeping.is_tracing and self.value is random.random:
        return call_random_fn(tx, self.value, args, kwargs)
    return _originals[functions.SkipFunctionVariable](self, tx, args, kwargs)


def install_hooks(module: torch.nn.Module) -> bool:
    """Install hooks that models of transformers install when they first run.

    They do so under a lock, which breaks a graph. Return whether there were any to
    install.
    """
    captures = sys.modules.get(_CAPTURES)
    install = getattr(captures, "maybe_install_capturing_hooks", None)
    known = getattr(captures, "_CAN_RECORD_REGISTRY", None)
    if install is None or known is None:
        return False
    missing = [
        each
        for each in module.modules()
        if known.get(each)
        and not getattr(each, "_output_capturing_hooks_installed", False)
    ]
    for each in missing:
        install(each)
    return bool(missing)


def _draw(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    """Trace a call of a function of `numpy.random` that gives a number."""
    drawn = getattr(np.random, getattr(self.value, "__name__", ""), None) is self.value
    constant = all(e.is_python_constant() for e in (*args, *kwargs.values()))
    if keeping.is_tracing and drawn and constant:
        before = np.random.get_state()  # noqa: NPY002
        given = [each.as_python_constant() for each in args]
        named = {name: each.as_python_constant() for name, each in kwargs.items()}
        is_number = isinstance(self.value(*given, **named), (int, float))
        try:
            if is_number:
                return call_random_fn(tx, self.value, args, kwargs)
        finally:
            np.random.set_state(before)  # noqa: NPY002
    return _originals[misc.NumpyVariable](self, tx, args, kwargs)


def _log(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
    """Trace a call of a method of a logger."""
    if not keeping.is_tracing or tx.export:
        return _originals[misc.LoggingLoggerVariable](self, tx, name, args, kwargs)
    method = getattr(self.value, name)
    if name not in _ASKED:
        return _beside(tx, method, args, kwargs)
    given = [each.as_python_constant() for each in args]
    return ConstantVariable.create(method(*given))


def _beside(tx: Any, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Let a function run before the graph, in each step."""
    given = [_argument(each) for each in args]
    by_name = {name: _argument(each) for name, each in kwargs.items()}
    tx.output.random_calls.append((function, given, by_name))
    return ConstantVariable.create(None)


def _argument(variable: Any) -> Any:
    """Return the value of an argument; of a tensor, and of the unknown, a text."""
    try:
        return variable.as_python_constant()
    except Exception:  # PyTorch has several for it
        value = getattr(variable, "value", None)
    if value is not None:
        return value
    proxy = variable.as_proxy() if hasattr(variable, "as_proxy") else None
    example = getattr(proxy, "node", None)
    known = None if example is None else example.meta.get("example_value")
    if isinstance(known, torch.Tensor):
        return f"<tensor of shape {tuple(known.shape)}>"
    return f"<{variable.python_type_name()}>"
