"""Who holds a tensor: the module whose forward pass made it, or the optimizer.

While it is on, hooks that PyTorch calls for every module tell the allocator whose turn
it is on their thread. They hold no module, and leave nothing in one.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from memcfg._core import intern_tag, swap_thread_tag

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ModuleTags", "tag"]


class _Turns(threading.local):
    """Whose turn it is on a thread: identities, and the tags that were there before.

    Who leaves by an exception of another hook, or a Ctrl-C, stays until the outermost
    module comes again.
    """

    def __init__(self) -> None:
        self.stack: list[tuple[int, int]] = []

    def push(self, owner: object, number: int) -> None:
        """Begin a turn."""
        if self.stack and self.stack[0][0] == id(owner):
            self.drop(0)
        self.stack.append((id(owner), swap_thread_tag(number)))

    def pop(self, owner: object) -> None:
        """End a turn, and those within it; nothing if it had none."""
        for depth in range(len(self.stack) - 1, -1, -1):
            if self.stack[depth][0] == id(owner):
                self.drop(depth)
                return

    def drop(self, depth: int) -> None:
        """End all turns from a depth on."""
        swap_thread_tag(self.stack[depth][1])
        del self.stack[depth:]


class ModuleTags:
    """The hooks, and the names of modules: ``ResNet.layer1.0.conv1``.

    A name is that in the outermost module that was called; of a module that is not in
    it, the name of its class.
    """

    def __init__(self) -> None:
        self._turns = _Turns()
        self._numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._handles: list[Any] = []

    def turn(self, on: bool) -> None:
        """Register the hooks, or remove them; the calling thread has no turn then."""
        if on == bool(self._handles):
            return
        if on:
            self._handles = [
                register_module_forward_pre_hook(self._enter),
                register_module_forward_hook(self._leave, always_call=True),
                register_optimizer_step_pre_hook(self._enter_step),
                register_optimizer_step_post_hook(self._leave_step),
            ]
            return
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._turns.stack:
            self._turns.drop(0)

    def _enter(self, module: Any, _: Any) -> None:
        if torch.compiler.is_compiling():
            return
        number = self._numbers.get(module)
        if number is None:
            number = self._learn(module)
        self._turns.push(module, number)

    def _leave(self, module: Any, _: Any, __: Any) -> None:
        if not torch.compiler.is_compiling():
            self._turns.pop(module)

    def _enter_step(self, optimizer: Any, _: Any, __: Any) -> None:
        self._turns.push(optimizer, intern_tag(f"optimizer {type(optimizer).__name__}"))

    def _leave_step(self, optimizer: Any, _: Any, __: Any) -> None:
        self._turns.pop(optimizer)

    def _learn(self, module: Any) -> int:
        """Return the number of a module's tag; of an outermost one, learn all."""
        title = type(module).__name__
        if not self._turns.stack:
            for name, each in module.named_modules():
                text = f"{title}.{name}" if name else title
                self._numbers[each] = intern_tag(text)
        return self._numbers.setdefault(module, intern_tag(title))


@contextmanager
def tag(name: str) -> Iterator[None]:
    """Name what is allocated inside on this thread, for statistics and messages.

    Modules that are called inside name what they allocate themselves.

    Parameters
    ----------
    name : str
        The tag; ``""`` takes it away.

    Yields
    ------
    None
        Nothing.

    Raises
    ------
    TypeError
        If `name` is no string.
    """
    before = swap_thread_tag(intern_tag(name))
    try:
        yield
    finally:
        swap_thread_tag(before)
