"""Tags that name the holder of a tensor: the module that made it, or the optimizer.

Hooks that PyTorch calls for every module set the allocator's tag of their thread. They
keep no module alive, and store nothing in modules.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from functools import singledispatch
from typing import TYPE_CHECKING, Any
from weakref import ref

from torch._dynamo import OptimizedModule
from torch.compiler import is_compiling
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

__all__ = ["ModuleTags", "stands_for", "tag"]


@singledispatch
def stands_for(module: Any) -> Any:
    """Return the module that a wrapper stands for, or None if it is no wrapper."""
    return None


@stands_for.register
def _(module: OptimizedModule) -> Any:
    return module._orig_mod


class _Turns(threading.local):
    """The modules that run on a thread: their ids, and the tags that they replaced.

    A module that is left by an exception of another hook, or by a Ctrl-C, stays on the
    stack until the outermost module is called again.
    """

    def __init__(self) -> None:
        self.stack: list[tuple[int, int]] = []


# The hooks run for 0.6 us per module, and cost PyTorch 1.1 us more: a step of forty
# dense layers of 64 units takes 1.16 times as long. `limit_cpu(tag_modules=False)`
# leaves them out.
class ModuleTags:
    """The hooks, and the tags of modules, such as ``ResNet.layer1.0.conv1``.

    A tag is the path of a module in the outermost module that was called, or the name
    of its class if it is not part of that. A wrapper has the tag of the module that it
    stands for. The hooks run for every module of every step, so they call as little as
    possible.
    """

    def __init__(self) -> None:
        self._turns = _Turns()
        self._numbers: dict[int, int] = {}  # numbers of tags, by the id of the module
        # by id; their callbacks forget a module before its id is reused
        self._watched: dict[int, ref[Any]] = {}
        self._texts: dict[int, str] = {}  # tags, by id
        self._handles: list[Any] = []

    @property
    def is_on(self) -> bool:
        """Whether the hooks are registered."""
        return bool(self._handles)

    def turn(self, on: bool) -> None:
        """Register or remove the hooks; removing them ends the turns of this thread."""
        if on == self.is_on:
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
        _drop(self._turns.stack, 0)

    def compiled(self) -> str | None:
        """Return the tag of the wrapper that runs on this thread, if one does."""
        stack = self._turns.stack
        watched = self._watched.get(stack[-1][0]) if stack else None
        module = None if watched is None else watched()
        return None if stands_for(module) is None else self._texts[stack[-1][0]]

    def text_of(self, module: Any) -> str:
        """Return the tag of a module; of one that was not called, its class."""
        return self._texts.get(id(module), type(module).__name__)

    def _enter(self, module: Any, _: Any) -> None:
        if is_compiling():
            return
        key = id(module)
        stack = self._turns.stack
        if stack and stack[0][0] == key:
            _drop(stack, 0)
        number = self._numbers.get(key)
        if number is None:
            number = self._learn(module, outermost=not stack)
        stack.append((key, swap_thread_tag(number)))

    def _leave(self, module: Any, _: Any, __: Any) -> None:
        if is_compiling():
            return
        stack = self._turns.stack
        if stack and stack[-1][0] == id(module):
            swap_thread_tag(stack.pop()[1])
        else:
            _end(stack, module)

    def _enter_step(self, optimizer: Any, _: Any, __: Any) -> None:
        number = intern_tag(f"optimizer {type(optimizer).__name__}")
        self._turns.stack.append((id(optimizer), swap_thread_tag(number)))

    def _leave_step(self, optimizer: Any, _: Any, __: Any) -> None:
        _end(self._turns.stack, optimizer)

    def _learn(self, module: Any, *, outermost: bool) -> int:
        """Return the number of a module's tag; name all modules of an outermost one."""
        title = type(_innermost(module)).__name__
        if outermost:
            self._keep_all(module, title, set())
        elif id(module) not in self._numbers:
            self._keep(module, title)
        return self._numbers[id(module)]

    def _keep_all(self, module: Any, text: str, seen: set[int]) -> None:
        """Tag a module and those in it; a shared module gets the first of its names."""
        if id(module) in seen:
            return
        seen.add(id(module))
        self._keep(module, text)
        real = stands_for(module)
        if real is not None:
            self._keep_all(real, text, seen)
            return
        for name, each in module.named_children():
            self._keep_all(each, f"{text}.{name}", seen)

    def _keep(self, module: Any, text: str) -> None:
        key = id(module)

        def forget(_: Any) -> None:
            self._numbers.pop(key, None)
            self._watched.pop(key, None)
            self._texts.pop(key, None)

        self._watched[key] = ref(module, forget)
        self._numbers[key] = intern_tag(text)
        self._texts[key] = text


def _innermost(module: Any) -> Any:
    """Return the module behind all wrappers of it."""
    while (real := stands_for(module)) is not None:
        module = real
    return module


def _drop(stack: list[tuple[int, int]], depth: int) -> None:
    """End all turns from a depth on."""
    if depth < len(stack):
        swap_thread_tag(stack[depth][1])
        del stack[depth:]


def _end(stack: list[tuple[int, int]], owner: object) -> None:
    """End the turn of an owner and those within it, if it has one."""
    for depth in range(len(stack) - 1, -1, -1):
        if stack[depth][0] == id(owner):
            _drop(stack, depth)
            return


@contextmanager
def tag(name: str) -> Iterator[None]:
    """Name the memory that is allocated inside on this thread.

    The name appears in statistics and messages. Modules that are called inside use
    their own tags.

    Parameters
    ----------
    name : str
        The tag; ``""`` removes it.

    Yields
    ------
    None
        Nothing.

    Raises
    ------
    TypeError
        If `name` is not a string.
    """
    before = swap_thread_tag(intern_tag(name))
    try:
        yield
    finally:
        swap_thread_tag(before)
