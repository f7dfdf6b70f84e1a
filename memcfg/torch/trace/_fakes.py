"""Runs of code on fake tensors: nothing is computed, but bytes are counted."""

from __future__ import annotations

import copy
import logging
import random
import threading
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._subclasses import FakeTensor
from torch._subclasses.fake_tensor import FakeCopyMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from memcfg._first_line import first_line
from memcfg.torch.trace._traced import nbytes_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import nn
    from torch._subclasses import FakeTensorMode


@contextmanager
def same_numbers() -> Iterator[None]:
    """Restore the random generators of PyTorch, Python and NumPy on exit."""
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    pythons, numpys = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=gpus):
            yield
    finally:
        random.setstate(pythons)
        np.random.set_state(numpys)  # noqa: NPY002


def is_faking() -> bool:
    """Return whether ops of this thread run on fake tensors."""
    kind = torch._C._TorchDispatchModeKey.FAKE
    return torch._C._get_dispatch_mode(kind) is not None


class Replaced(TorchFunctionMode):  # type: ignore[misc]
    """Replaces tensors among the arguments of PyTorch's functions by others.

    Parameters
    ----------
    pairs : iterable of tuple of torch.Tensor
        Tensors and their replacements.
    """

    def __init__(self, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        super().__init__()
        self._pairs = {id(each): (each, other) for each, other in pairs}

    def __torch_function__(
        self, func: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given, by_name = tree_map(self._of, (tuple(args), dict(kwargs or {})))
        return func(*given, **by_name)

    def _of(self, each: Any) -> Any:
        return self._pairs[id(each)][1] if id(each) in self._pairs else each


def faked(
    mode: FakeTensorMode,
    tree: Any,
    shape_of: Callable[[torch.Tensor], tuple[int, ...]] | None = None,
) -> Any:
    """Return a tree with fake tensors for real ones, of the shapes that are given."""

    def one(each: Any) -> Any:
        if not isinstance(each, torch.Tensor):
            return each
        fake = mode.from_tensor(each)
        shape = tuple(each.shape) if shape_of is None else shape_of(each)
        if shape == tuple(each.shape):
            return fake
        return fake.new_empty(shape).requires_grad_(each.requires_grad)

    return tree_map(one, tree)


def faked_module(mode: FakeTensorMode, module: nn.Module) -> nn.Module:
    """Return a copy of a module with fake tensors and gradients.

    Attributes that the module's code sets while it runs are set on the copy. Raises
    ValueError if the module cannot be copied.
    """
    try:
        with FakeCopyMode(mode):
            twin: nn.Module = copy.deepcopy(module)
    except Exception as error:  # the user's objects may raise anything
        name = type(module).__name__
        raise ValueError(f"the {name} cannot be copied: {first_line(error)}") from error
    for own, other in zip(module.parameters(), twin.parameters(), strict=True):
        if own.grad is not None:
            with mode:
                other.grad = torch.empty_like(other)
    return twin


def state_of(module: nn.Module) -> list[torch.Tensor]:
    """Return the parameters and buffers of a module."""
    return [*module.parameters(), *module.buffers()]


def in_place_of(module: nn.Module, twin: nn.Module) -> Replaced:
    """Make functions that close over a module's tensors read those of its copy."""
    return Replaced(zip(state_of(module), state_of(twin), strict=True))


_aten = torch.ops.aten
_LEAF = "torch::autograd::AccumulateGrad"
Measure = Callable[[Any, Any, Any, Any], tuple[int, Any]]


_is_ended = torch.UntypedStorage._expired  # what `StorageWeakRef.expired` asks


class LiveStorages(TorchDispatchMode):  # type: ignore[misc]
    """Counts the bytes of the storages that ops make while they are alive.

    Autograd reuses a gradient's memory, to add another gradient or as a parameter's, if
    nothing else refers to it. Python refers to fake tensors, so autograd makes a new
    one here; that it replaced the old one is seen from the old one's end with the op.

    Parameters
    ----------
    given : iterable of torch.Tensor
        Tensors whose storages are not counted.
    measure : callable or None, default None
        Takes an op, its arguments, its keyword arguments and its results. It returns
        the bytes of its scratch, and tensors like the results in the storages that it
        would really make. None counts no scratch, and the results as they are.
    only_fake : bool, default False
        Whether changing a tensor that is not fake raises RuntimeError.
    """

    def __init__(
        self,
        given: Iterable[torch.Tensor],
        measure: Measure | None = None,
        *,
        only_fake: bool = False,
    ) -> None:
        super().__init__()
        self._only_fake = only_fake
        self._given = {each.untyped_storage()._cdata for each in given}
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self._alive_bytes = 0  # of all in `_alive`
        self._measure = measure
        # A gradient that may have reused the memory of another: the keys of both, its
        # bytes, and the bytes of all other storages at that time.
        self._in_place: tuple[int, int, int, int] | None = None
        self._ended: int | None = None  # the node of autograd that has just ended
        self.peak_bytes = 0

    def watch(self, roots: Iterable[torch.Tensor]) -> set[int]:
        """Observe when each node of autograd ends, as its results are added after that.

        Return the ids of the leaves that get gradients.
        """
        left = [each.grad_fn for each in roots if each.grad_fn is not None]
        known, leaves = set(left), set()
        while left:
            node = left.pop()
            if node.name() == _LEAF:
                leaves.add(id(node.variable))
            else:
                node.register_hook(partial(self._end, node._sequence_nr()))
            new = {each for each, _ in node.next_functions if each is not None} - known
            known |= new
            left += new
        return leaves

    def _end(self, number: int, *_: Any) -> None:
        self._ended = number

    @property
    def bytes_now(self) -> int:
        """The bytes that are alive."""
        self._forget()
        return self._alive_bytes

    def add(self, nbytes: int) -> None:
        """Count bytes that are in use only at this time."""
        self.peak_bytes = max(self.peak_bytes, self.bytes_now + nbytes)

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = kwargs or {}
        if func.namespace == "prim":  # it queries a device
            return func(*args, **given)
        if self._only_fake and func._schema.is_mutable:
            changed = args[0] if args else None
            if isinstance(changed, torch.Tensor) and not isinstance(
                changed, FakeTensor
            ):
                raise RuntimeError("it changes a tensor that no copy of it has")
        # it fills a new tensor, and belongs to the op before
        if func is not _aten.copy_.default:
            self._settle()
        made = func(*args, **given)
        old = self._taken_over(func, args, made)
        scratch, values = 0, made
        if self._measure is not None:
            scratch, values = self._measure(func, args, given, made)
        # one fake storage may stand for several real ones
        sizes: dict[int, dict[int, int]] = {}
        storages = {}
        for each, real in zip(tree_leaves(made), tree_leaves(values), strict=True):
            if isinstance(each, torch.Tensor):
                storage = each.untyped_storage()
                storages[storage._cdata] = storage
                own = sizes.setdefault(storage._cdata, {})
                own[real.untyped_storage()._cdata] = nbytes_of(real)
        for key, storage in storages.items():
            self._made(key, storage, sum(sizes[key].values()), old)
        self.add(scratch)
        return made

    def _made(
        self, key: int, storage: Any, nbytes: int, old: torch.Tensor | None
    ) -> None:
        if key in self._given:
            return
        if old is not None and key not in self._alive:
            place = old.untyped_storage()._cdata
            self._in_place = key, place, nbytes, self.bytes_now
            nbytes = 0
        elif self._in_place is not None and key == self._in_place[0]:
            nbytes = 0
        self._hold(key, StorageWeakRef(storage), nbytes)

    def _hold(self, key: int, storage: StorageWeakRef, nbytes: int) -> None:
        before = self._alive.get(key)
        self._alive_bytes += nbytes - (0 if before is None else before[1])
        self._alive[key] = storage, nbytes

    def _forget(self) -> None:
        # asked of every storage after every op, so without Python's frames
        ended = [key for key, held in self._alive.items() if _is_ended(held[0].cdata)]
        for key in ended:
            self._alive_bytes -= self._alive.pop(key)[1]

    def _settle(self) -> None:
        """Decide whether the last gradient reused memory, and count it from now on."""
        if self._in_place is None:
            return
        key, place, nbytes, others = self._in_place
        self._in_place = None
        self._forget()
        if place in self._given or place in self._alive:  # something refers to it
            self.peak_bytes = max(self.peak_bytes, others + nbytes)
        if key in self._alive:
            self._hold(key, self._alive[key][0], nbytes)

    def _taken_over(self, func: Any, args: Any, made: Any) -> torch.Tensor | None:
        """Return the tensor whose memory autograd reuses if nobody else holds it."""
        if torch._C._current_graph_task_id() < 0:  # outside of backward
            return None
        node = torch._C._current_autograd_node()
        if node is not None and node.name() == _LEAF:
            clones = func in (_aten.new_empty_strided.default, _aten.clone.default)
            return args[0] if clones and made.stride() == args[0].stride() else None
        if node is not None and node._sequence_nr() != self._ended:
            return None
        # Gradients of one tensor are added between two nodes. A view's base refers to
        # its memory.
        adds = func is _aten.add.Tensor and not args[0]._is_view()
        return args[0] if adds and _is_dense(args[0]) else None


def _is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is dense, without overlapping elements."""
    count = 1
    for step, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length != 1 and step != count:
            return False
        count *= length
    return True


class _Silenced(threading.local):
    """The number of times this thread has silenced PyTorch's log of fake ops."""

    depth = 0


_silenced = _Silenced()
# The log has a traceback for each op that refuses its inputs; memcfg's error says the
# same.
logging.getLogger("torch._subclasses.fake_tensor").addFilter(
    lambda _: _silenced.depth == 0
)


@contextmanager
def without_logs() -> Iterator[None]:
    """Silence PyTorch's log of ops that refuse the shapes of fake tensors."""
    _silenced.depth += 1
    try:
        yield
    finally:
        _silenced.depth -= 1
