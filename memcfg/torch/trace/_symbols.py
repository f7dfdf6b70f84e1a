"""Numbers and lengths that change from step to step, as inputs of one traced graph.

PyTorch's compiler makes an input of a number, or of a length, once it has seen another
value. What it has seen is kept for each model: the compiler keeps it for each piece of
code, which models of a class share. Ops take the numbers as Python numbers, as in eager
mode. PyTorch's own pass would make tensors of them, which round in another way.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.variables import builder
from torch.fx.passes import _tensorify_python_scalars as tensorify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SWITCH = "_is_tensorify_enabled"  # of PyTorch's pass, since 2.9
_lock = threading.Lock()
_originals: dict[str, Callable[..., Any]] = {}  # PyTorch's functions, once replaced


class Seen:
    """The numbers and lengths that a model had so far.

    Parameters
    ----------
    has_lengths : bool, default False
        Whether lengths that change become symbols, as numbers do.
    """

    def __init__(self, *, has_lengths: bool = False) -> None:
        self.has_lengths = has_lengths
        self.has_numbers = True  # False if the model cannot be traced with symbols
        self.has_changed = False  # whether any has changed
        self.has_new_numbers = False  # whether a number has
        # by whether gradients are made, and by the names of their sources
        self._entries: dict[bool, dict[str, Any]] = defaultdict(dict)

    def merged(self, name: str, entry: Any) -> Any:
        """Return what was seen of a source, including what is seen now."""
        known = self._entries[torch.is_grad_enabled()]
        if name in known:
            before = known[name].scalar, known[name].size
            known[name] |= entry
            if before != (known[name].scalar, known[name].size):
                self.has_changed = True
                self.has_new_numbers |= not isinstance(entry.size, tuple)
        else:
            known[name] = entry
        return known[name]

    def forget(self) -> None:
        """Trace without symbols from now on."""
        self.has_lengths = self.has_numbers = self.has_changed = False
        self._entries.clear()

    @contextmanager
    def without_symbols(self) -> Iterator[None]:
        """Trace without symbols."""
        before = self.has_lengths, self.has_numbers
        self.has_lengths = self.has_numbers = False
        try:
            yield
        finally:
            self.has_lengths, self.has_numbers = before


class _Tracing(threading.local):
    """What the model had so far that is traced in this thread."""

    seen: Seen | None = None


_tracing = _Tracing()


def symbolic_settings() -> dict[str, Any]:
    """Return the settings of PyTorch's compiler for numbers that become inputs."""
    _look_into_symbols()
    return {
        "assume_static_by_default": True,
        "automatic_dynamic_shapes": True,
        "specialize_int": False,
        # before that switch, the pass cannot be left out
        "specialize_float": _SWITCH not in _originals,
        "allow_unspec_int_on_nn_module": True,
    }


@contextmanager
def symbols_of(seen: Seen | None) -> Iterator[None]:
    """Trace with the numbers and lengths that a model had so far."""
    before, _tracing.seen = _tracing.seen, seen
    try:
        yield
    finally:
        _tracing.seen = before


def _look_into_symbols() -> None:
    """Replace the functions by which PyTorch's compiler decides what is an input."""
    with _lock:
        if _originals:
            return
        for module, name, new in (
            (builder, "_automatic_dynamic", _sizes),
            (builder, "process_automatic_dynamic", _seen_so_far),
            (tensorify, _SWITCH, _makes_tensors),
        ):
            if hasattr(module, name):
                _originals[name] = getattr(module, name)
                setattr(module, name, new)


def _sizes(
    tensor: Any, tx: Any, source: Any, static_shapes: bool, *args: Any, **kwargs: Any
) -> Any:
    """Decide which sizes of a tensor are symbols."""
    seen = _tracing.seen
    static = static_shapes or (seen is not None and not seen.has_lengths)
    return _originals["_automatic_dynamic"](tensor, tx, source, static, *args, **kwargs)


def _seen_so_far(tx: Any, name: str, entry: Any, **kwargs: Any) -> Any:
    """Return what was seen of a source, of the model that is traced."""
    seen = _tracing.seen
    if seen is None:
        return _originals["process_automatic_dynamic"](tx, name, entry, **kwargs)
    return seen.merged(name, entry) if seen.has_numbers else entry


def _makes_tensors() -> bool:
    """Return whether PyTorch's pass makes tensors of numbers."""
    return _tracing.seen is None and bool(_originals[_SWITCH]())
