"""Python calls of a forward that compute nothing: prints, logs, warnings, waits.

PyTorch's compiler breaks a graph at them. They stand beside the graph instead, where it
calls Python's `random`: each runs once in each step, in their order, before the first
op. Tensors among their arguments are told by their shape.
"""

from __future__ import annotations

import builtins
import time
import warnings
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.variables import ConstantVariable, misc

from memcfg.torch.trace._kept_functions import keeping

if TYPE_CHECKING:
    from collections.abc import Callable

TOLD = {builtins.print, warnings.warn, warnings.warn_explicit, time.sleep}
# methods of loggers that tell something, for code that may depend on it
_ASKED = {"isEnabledFor", "getEffectiveLevel", "hasHandlers", "getChild"}

_lock = Lock()
_originals: dict[type, Callable[..., Any]] = {}  # PyTorch's own methods, once replaced


def look_into_calls() -> None:
    """Replace the methods by which PyTorch's compiler refuses such calls."""
    with _lock:
        if not _originals:
            _originals[misc.DebuggingVariable] = misc.DebuggingVariable.call_function
            misc.DebuggingVariable.call_function = _tell
            logger = misc.LoggingLoggerVariable
            _originals[logger] = logger.call_method
            logger.call_method = _log


def _tell(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    """Trace a call of a function such as `print`."""
    if not keeping.is_tracing:
        return _originals[misc.DebuggingVariable](self, tx, args, kwargs)
    return _beside(tx, self.value, args, kwargs)


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
