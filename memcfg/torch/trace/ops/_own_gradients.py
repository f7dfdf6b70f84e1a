"""Ops that a trace keeps as they are, with their own gradients, as in eager mode.

AOTAutograd dispatches through Python, where PyTorch has functions of simpler ops in the
place of the gradients of resizing and of some losses. They compute other bits than the
kernels, and in several times their time and memory. Without these functions, a trace
has PyTorch's own op and its own gradient. Their kernels take no symbols for lengths.
"""

from __future__ import annotations

from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch
from torch._C import DispatchKey

if TYPE_CHECKING:
    from collections.abc import Iterator

# Recurrent layers are not among them: what eager mode runs for them is not one op.
_PREFIXES = "upsample_", "_upsample_"
_NAMES = (
    *("hardshrink", "softshrink"),
    *("multi_margin_loss", "multilabel_margin_loss_forward"),
)
_KEYS = DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd

_lock = Lock()
_users = 0
_taken: list[tuple[Any, DispatchKey, Any]] = []


@contextmanager
def own_gradients() -> Iterator[None]:
    """Let traces have the ops' own gradients inside of the context; any thread may.

    PyTorch keeps the functions by op and not by trace, so a trace that another thread
    makes meanwhile has its own gradients, too.
    """
    global _users
    with _lock:
        _users += 1
    try:
        with _lock:
            if not _taken:
                _take()
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                _put_back()


def _take() -> None:
    aten = torch.ops.aten
    names = [each for each in dir(aten) if each.startswith(_PREFIXES)]
    for name in {*names, *_NAMES}:
        packet = getattr(aten, name)
        for overload in packet.overloads():
            op = getattr(packet, overload)
            for key in [each for each in _KEYS if each in op.py_kernels]:
                _taken.append((op, key, op.py_kernels[key]))
                del op.py_kernels[key]
            op._dispatch_cache.clear()


def _put_back() -> None:
    while _taken:
        op, key, function = _taken.pop()
        op.py_kernels[key] = function
        op._dispatch_cache.clear()
