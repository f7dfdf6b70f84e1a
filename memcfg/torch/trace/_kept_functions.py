"""Functions of autograd that PyTorch's compiler refuses, as ops that run them.

An `autograd.Function` whose Python code has side effects cannot be traced. It becomes a
forward op and a backward op, whose kernels call the function itself with real tensors:
each once, in the order of all side effects. The tensors that it saves are outputs of
the forward op and inputs of the backward op, so that plans include their bytes.
PyTorch's `allow_in_graph` would trace the function's ops and lose its effects.
"""

from __future__ import annotations

import gc
import time
import weakref
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from threading import RLock, local
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.utils import proxy_args_kwargs
from torch._dynamo.variables import builder, misc
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_unflatten

from memcfg._first_line import first_line
from memcfg.torch.trace._costs import bytes_of_run, told_by
from memcfg.torch.trace._fakes import same_numbers
from memcfg.torch.trace._tokens import held_by, token_of
from memcfg.torch.trace._traced import nbytes_of, rounded

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from torch import fx

Function = type[torch.autograd.Function]
# a class method, of Python up to PyTorch 2.13 and of C since
_bound = vars(torch.autograd.Function)["apply"]

_OWN = ("torch.", "memcfg.")  # modules whose functions have no side effects
# a library apart from memcfg's other ops, which may be recomputed
_NAME = "memcfg_kept"
_CLEAN = (  # dispatch keys of a thread outside of any op
    torch._C._dispatch_tls_local_include_set(),
    torch._C._dispatch_tls_local_exclude_set(),
)


@dataclass(frozen=True)
class _Layout:
    """The layout of a tensor: all of it but its values."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Layout:
        return cls(
            tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device
        )

    @property
    def nbytes(self) -> int:
        """The bytes of its storage, as an allocator rounds them."""
        steps = zip(self.shape, self.stride, strict=True)
        last = sum((length - 1) * step for length, step in steps)
        count = 0 if 0 in self.shape else last + 1
        return rounded(count * self.dtype.itemsize, self.device)

    def empty(self) -> torch.Tensor:
        """Return a tensor of this layout."""
        return torch.empty_strided(
            self.shape, self.stride, dtype=self.dtype, device=self.device
        )

    def made_up(self) -> torch.Tensor:
        """Return a tensor of this layout with values that most code accepts."""
        tensor = self.empty()
        flat = _flat(tensor)
        if self.dtype.is_floating_point:
            flat.uniform_(0.1, 0.9)
        else:
            flat.zero_()
        return tensor


def _elements(tensor: torch.Tensor) -> int:
    count: int = tensor.untyped_storage().nbytes() // tensor.element_size()
    return count


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return all elements of a tensor's storage."""
    return tensor.as_strided((_elements(tensor),), (1,), 0)


def _version(tensor: torch.Tensor) -> int:
    """Return how often a tensor was written to; 0 if it is not counted."""
    return 0 if tensor.is_inference() else tensor._version


@dataclass(frozen=True)
class _View:
    """A tensor as a view of a source: an input, an output or a saved tensor."""

    source: int
    layout: _Layout
    offset: int  # in elements, from the start of the source

    def of(self, source: torch.Tensor) -> torch.Tensor:
        start = source.storage_offset() + self.offset
        return source.as_strided(self.layout.shape, self.layout.stride, start)


class _Run:
    """What one call leaves for its backward: nodes of autograd, and no tensor."""

    def __init__(self) -> None:
        self.packed: list[torch.Tensor] = []
        # the saved tensors, while backward runs
        self.given: Sequence[torch.Tensor] = ()
        self.differentiable: list[bool] = []
        # a tensor without bytes whose node follows all outputs
        self.end: torch.Tensor | None = None
        self.gradients: Sequence[torch.Tensor | None] = ()
        self.found: list[torch.Tensor | None] = []
        self.single = True  # whether it returned a tensor and not a tuple
        self.nones: frozenset[int] = frozenset()  # positions of outputs that are None

    def hooks(self) -> tuple[Callable[..., int], Callable[[int], torch.Tensor]]:
        """Return hooks that pack and unpack saved tensors and do not hold the run."""
        held = weakref.proxy(self)

        def pack(tensor: torch.Tensor) -> int:
            held.packed.append(tensor.detach().resolve_conj().resolve_neg())
            return len(held.packed) - 1

        def unpack(place: int) -> torch.Tensor:
            tensor: torch.Tensor = held.given[place]
            return tensor

        return pack, unpack


class _Source(torch.autograd.Function):  # type: ignore[misc]
    """Gives an input an autograd node that holds no tensor and records a gradient."""

    @staticmethod
    def forward(
        ctx: Any, _root: torch.Tensor, tensor: torch.Tensor, run: _Run, place: int
    ) -> torch.Tensor:
        ctx.run, ctx.place = run, place
        ctx.set_materialize_grads(False)
        return tensor.data

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> Any:
        ctx.run.found[ctx.place] = gradient
        return None, None, None, None


class _End(torch.autograd.Function):  # type: ignore[misc]
    """Holds the nodes of outputs, and passes them their gradients."""

    @staticmethod
    def forward(ctx: Any, run: _Run, *_outputs: torch.Tensor) -> torch.Tensor:
        ctx.run = run
        return torch.empty(0)

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> Any:
        return None, *ctx.run.gradients


@contextmanager
def _hooked(pack: Any, unpack: Any) -> Iterator[None]:
    """Use hooks of saved tensors, which PyTorch's compiler otherwise switches off."""
    traces = torch._C._autograd._saved_tensors_hooks_set_tracing(False)
    try:
        with saved_tensors_hooks(pack, unpack):
            yield
    finally:
        torch._C._autograd._saved_tensors_hooks_set_tracing(traces)


@dataclass(eq=False)
class _Call:
    """A function with arguments of given layouts, and the layouts of its results."""

    function: Function
    leaves: tuple[Any, ...]  # of the arguments, None for tensors
    spec: Any
    places: tuple[int, ...]  # positions of the tensors among the leaves
    inputs: tuple[_Layout, ...]
    needs: tuple[bool, ...]  # whether each tensor needs a gradient
    autocast: tuple[str, bool, torch.dtype]
    number: int = -1
    outputs: tuple[_Layout, ...] = ()
    single: bool = True  # as in its run
    nones: frozenset[int] = frozenset()
    # outputs that share memory with inputs, or have a larger storage
    copied: frozenset[int] = frozenset()
    copied_own: frozenset[int] = frozenset()  # positions in `saved` of such tensors
    differentiable: tuple[bool, ...] = ()
    own: tuple[_Layout, ...] = ()  # saved tensors that are neither inputs nor outputs
    saved: tuple[_View, ...] = ()
    sources: tuple[int, ...] = ()  # the sources that backward takes
    results: tuple[_Layout | None, ...] = ()  # gradients of tensors that need one
    # positions in `saved` of the first view of each own tensor
    fresh: list[int] = field(default_factory=list)
    measured: dict[str, tuple[float, int]] = field(default_factory=dict)
    held_bytes: int = 0  # of tensors that it keeps and no plan includes
    _left_bytes: int = 0  # bytes allocated when forward ends

    @property
    def name(self) -> str:
        return str(self.function.__qualname__)

    def apply(self, tensors: Sequence[torch.Tensor]) -> tuple[_Run, list[torch.Tensor]]:
        """Call the function, and return its outputs."""
        run, root = _Run(), torch.empty(0, requires_grad=True)
        leaves = list(self.leaves)
        kind, enabled, dtype = self.autocast
        hooks: AbstractContextManager[Any] = nullcontext()
        if any(self.needs):
            hooks = _hooked(*run.hooks())
        with (
            torch._C._ForceDispatchKeyGuard(*_CLEAN),
            torch.set_grad_enabled(any(self.needs)),
            torch.autocast(kind, dtype, enabled),
        ):
            for place, tensor, need in zip(
                self.places, tensors, self.needs, strict=True
            ):
                if need:
                    at = len(run.found)
                    tensor = _Source.apply(root, tensor, weakref.proxy(run), at)
                    run.found.append(None)
                leaves[place] = tensor
            given = [leaves[place] for place in self.places]
            before = list(map(_version, given))
            args, kwargs = tree_unflatten(leaves, self.spec)
            with hooks:
                made = _apply(self.function, *args, **kwargs)
        if list(map(_version, given)) != before:
            raise RuntimeError(f"{self.name} writes to its inputs")
        run.single = not isinstance(made, (tuple, list))
        gave = [made] if run.single else list(made)
        run.nones = frozenset(at for at, each in enumerate(gave) if each is None)
        outputs = []
        for each in gave:
            if isinstance(each, torch.Tensor):
                outputs.append(each)
            elif each is not None:
                kind = type(each).__name__
                raise TypeError(f"{self.name} returns a {kind} next to its tensors")
        run.differentiable = [each.requires_grad for each in outputs]
        if any(run.differentiable):
            with torch._C._ForceDispatchKeyGuard(*_CLEAN), torch.enable_grad():
                run.end = _End.apply(weakref.proxy(run), *outputs)
        return run, [each.detach() for each in outputs]

    def forward(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the outputs, its own saved tensors, and the token of the run."""
        run, outputs = self.apply(tensors)
        self._check(outputs, self.outputs, "output")
        if run.nones != self.nones:
            raise RuntimeError(
                f"{self.name} gives None in other places than when it was traced"
            )
        if len(run.packed) != len(self.saved):
            raise RuntimeError(
                f"{self.name} saved {len(run.packed)} tensors for backward, and "
                f"{len(self.saved)} when it was traced"
            )
        own = [_flat(run.packed[at]) for at in self.fresh]
        own = [
            each.clone() if at in self.copied_own else each
            for at, each in zip(self.fresh, own, strict=True)
        ]
        self._check(own, self.own, "saved tensor")
        run.packed.clear()
        outputs = [
            each.clone() if at in self.copied else each
            for at, each in enumerate(outputs)
        ]
        return [*outputs, *own, token_of(run)]

    def backward(
        self,
        token: torch.Tensor,
        given: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor | None],
    ) -> list[torch.Tensor]:
        """Return the gradients of the tensors that need one."""
        run = held_by(token)
        sources = dict(zip(self.sources, given, strict=True))
        run.given = [view.of(sources[view.source]) for view in self.saved]
        try:
            computed = self.gradients(run, gradients)
        finally:
            run.given = ()
        made = []
        for each, layout in zip(computed, self.results, strict=True):
            if layout is None:
                if each is not None:
                    raise RuntimeError(
                        f"{self.name} has a gradient that it had not when it was traced"
                    )
            elif each is None:
                made.append(layout.empty().zero_())
            else:
                made.append(each)
        self._check(made, [each for each in self.results if each], "gradient")
        read = [each for each in (*given, *gradients) if each is not None]
        shared = {each.untyped_storage()._cdata for each in read}
        for at, each in enumerate(made):
            key = each.untyped_storage()._cdata
            if key in shared:
                made[at] = each.clone()
            shared.add(key)
        return made

    def gradients(
        self, run: _Run, gradients: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor | None]:
        """Run the function's own backward."""
        run.found = [None] * len(run.found)
        if run.end is None or all(each is None for each in gradients):
            return run.found
        run.gradients = gradients
        try:
            with torch._C._ForceDispatchKeyGuard(*_CLEAN):
                torch.autograd.backward(run.end, torch.empty(0), retain_graph=True)
            return run.found
        finally:
            run.gradients, run.found = (), [None] * len(run.found)

    def _check(
        self,
        made: Sequence[torch.Tensor],
        wanted: Sequence[_Layout],
        what: str,
    ) -> None:
        actual = [_Layout.of(each) for each in made]
        if actual != list(wanted):
            raise RuntimeError(
                f"{self.name} has another {what} than when it was traced: "
                f"{_told(actual)}, not {_told(wanted)}"
            )

    def try_out(self) -> None:
        """Record the layouts of its results, by one run on made-up values."""
        run, ends = self._try_out()
        # anything else that the function keeps is alive as long as its run
        gc.collect()
        kept = {at for at, each in enumerate(ends) if not each.expired()}
        self.sources = tuple(sorted({each.source for each in self.saved} | kept))
        del run

    def _try_out(self) -> tuple[_Run, list[StorageWeakRef]]:
        """Return the run, and the storages of its inputs and outputs."""
        tensors = [each.made_up() for each in self.inputs]
        before = [each.clone() for each in tensors]
        run, outputs = self._measured("forward", partial(self.apply, tensors))
        for one, other in zip(before, tensors, strict=True):
            if not torch.equal(one, other):
                raise TypeError(f"{self.name} writes to its inputs")
        self.single, self.nones = run.single, run.nones
        self.outputs = tuple(map(_Layout.of, outputs))
        self.differentiable = tuple(run.differentiable)
        storages = {each.untyped_storage()._cdata for each in tensors}
        self.copied = frozenset(
            at
            for at, each in enumerate(outputs)
            if each.untyped_storage()._cdata in storages
            or _Layout.of(each).nbytes < nbytes_of(each)
        )
        self._learn_saved(run.packed, tensors, outputs)
        made = {  # bytes of storages that are outputs or saved
            each.untyped_storage()._cdata: nbytes_of(each)
            for each in (*outputs, *run.packed)
            if each.untyped_storage()._cdata not in storages
        }
        self.held_bytes = max(0, self._left_bytes - sum(made.values()))
        run.given = list(run.packed)
        ends = [each.made_up() for each in self.outputs]
        computed = self._measured("backward", partial(self.gradients, run, ends))
        run.given = ()
        self.results = tuple(None if e is None else _Layout.of(e) for e in computed)
        run.packed.clear()
        ends = [*tensors, *outputs]
        return run, [StorageWeakRef(each.untyped_storage()) for each in ends]

    def _learn_saved(
        self,
        packed: Sequence[torch.Tensor],
        tensors: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
    ) -> None:
        """Record saved tensors as views of inputs, of outputs, or of own tensors."""
        # The first source of each storage, and its position.
        places: dict[int, tuple[int, torch.Tensor]] = {}
        sources = [*tensors, *outputs]
        for at, each in enumerate(sources):
            if at - len(tensors) not in self.copied:
                places.setdefault(each.untyped_storage()._cdata, (at, each))
        saved: list[_View] = []
        own: list[_Layout] = []
        copied = set()
        for at, each in enumerate(packed):
            key = each.untyped_storage()._cdata
            source = places.get(key)
            if source is None or source[1].dtype != each.dtype:
                if source is not None:
                    copied.add(at)
                source = len(sources) + len(own), _flat(each)
                places.setdefault(key, source)
                own.append(_Layout.of(source[1]))
                self.fresh.append(at)
            offset = each.storage_offset() - source[1].storage_offset()
            saved.append(_View(source[0], _Layout.of(each), offset))
        self.copied_own = frozenset(copied)
        self.saved, self.own = tuple(saved), tuple(own)

    def _measured(self, phase: str, run: Callable[[], Any]) -> Any:
        """Run, and record the seconds and the peak of the allocated bytes."""
        made: list[Any] = []
        began = time.perf_counter()
        peak, left = bytes_of_run(lambda: made.append(run()))
        self.measured[phase] = time.perf_counter() - began, peak
        if phase == "forward":
            self._left_bytes = left
        return made.pop()

    def costs_of(self, phase: str) -> tuple[float, int]:
        """Return the seconds and scratch bytes of the op of a phase."""
        seconds, peak = self.measured[phase]
        layouts = (*self.outputs, *self.own) if phase == "forward" else self.results
        made = sum(each.nbytes for each in layouts if each is not None)
        made += self.held_bytes if phase == "forward" else 0
        copies = [self.outputs[at].nbytes for at in self.copied]
        return seconds, max(peak - made, sum(copies) if phase == "forward" else 0)


def _told(layouts: Sequence[_Layout]) -> str:
    return ", ".join(f"{e.dtype} {e.shape}" for e in layouts) or "nothing"


_calls: list[_Call] = []
_known: dict[Any, _Call] = {}
_lock = RLock()

_library = torch.library.Library(_NAME, "DEF")
_library.define("forward(int call, Tensor[] tensors) -> Tensor[]")
_library.define(
    "backward(int call, Tensor token, Tensor[] given, Tensor?[] gradients) -> Tensor[]"
)


def _forward(call: int, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return _calls[call].forward(tensors)


def _backward(
    call: int,
    token: torch.Tensor,
    given: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor | None],
) -> list[torch.Tensor]:
    return _calls[call].backward(token, given, gradients)


_library.impl("forward", _forward, "CompositeExplicitAutograd")
_library.impl("backward", _backward, "CompositeExplicitAutograd")


@torch.library.register_fake(f"{_NAME}::forward")  # type: ignore[untyped-decorator]
def _fake_forward(call: int, _tensors: Any) -> list[torch.Tensor]:
    made = (*_calls[call].outputs, *_calls[call].own)
    return [*(each.empty() for each in made), torch.empty(1, dtype=torch.int64)]


@torch.library.register_fake(f"{_NAME}::backward")  # type: ignore[untyped-decorator]
def _fake_backward(call: int, *_: Any) -> list[torch.Tensor]:
    return [each.empty() for each in _calls[call].results if each is not None]


_OPS = getattr(torch.ops, _NAME)
told_by[_OPS.forward.default] = lambda node: _calls[node.args[0]].costs_of("forward")
told_by[_OPS.backward.default] = lambda node: _calls[node.args[0]].costs_of("backward")
torch.fx.node.has_side_effect(_OPS.forward.default)
torch.fx.node.has_side_effect(_OPS.backward.default)


def held_bytes(nodes: Iterable[fx.Node]) -> int:
    """Return the bytes that functions in a graph keep from forward to backward.

    These are the bytes of tensors that they neither return nor save.
    """
    calls = (n.args[0] for n in nodes if n.target is _OPS.forward.default)
    return sum(_calls[each].held_bytes for each in calls)


def drop_forward(backward: fx.GraphModule, made: Collection[str]) -> None:
    """Remove forward's calls from a backward graph where their results are unused.

    PyTorch leaves calls with side effects in both graphs, with all ops that they depend
    on; random ops among these would draw again.
    """
    for node in reversed(backward.graph.nodes):
        if node.name in made and node.op == "call_function" and not node.users:
            backward.graph.erase_node(node)
    backward.recompile()


class _Kept(torch.autograd.Function):  # type: ignore[misc]
    """The two ops of a call, joined as a function of autograd."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: torch.Tensor) -> Any:
        made = _OPS.forward(call.number, list(tensors))
        outputs, token = made[: len(call.outputs)], made[-1]
        ctx.call = call
        ctx.set_materialize_grads(False)
        all_sources = (*tensors, *made[:-1])
        ctx.save_for_backward(token, *(all_sources[at] for at in call.sources))
        marks = zip(outputs, call.differentiable, strict=True)
        ctx.mark_non_differentiable(*(each for each, can in marks if not can))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        token, *given = ctx.saved_tensors
        call = ctx.call
        computed = iter(_OPS.backward(call.number, token, given, list(gradients)))
        results = iter(call.results)
        made = [
            next(computed) if need and next(results) is not None else None
            for need in call.needs
        ]
        return None, *made


def applied(function: Function, *args: Any, **kwargs: Any) -> Any:
    """Call a function as its `apply` would, by ops that a traced graph can hold."""
    leaves, spec = tree_flatten((args, kwargs))
    places = [at for at, e in enumerate(leaves) if isinstance(e, torch.Tensor)]
    tensors = [leaves[at] for at in places]
    rest = tuple(None if at in places else e for at, e in enumerate(leaves))
    device = tensors[0].device.type if tensors else "cpu"
    call = _Call(
        function,
        rest,
        spec,
        tuple(places),
        tuple(map(_Layout.of, tensors)),
        tuple(torch.is_grad_enabled() and e.requires_grad for e in tensors),
        (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)),
    )
    call = _tried(call)
    made = list(_Kept.apply(call, *tensors))
    for at in sorted(call.nones):
        made.insert(at, None)
    return made[0] if call.single else tuple(made)


class FunctionRefusedError(ValueError):
    """A function with side effects does not run on made-up values."""


class Keeping(local):
    """How PyTorch's compiler treats functions that it refuses, in one thread.

    Within `tracing`, the kept functions become ops, and the first other function that
    tracing fails in is recorded.
    """

    def __init__(self) -> None:
        self.is_tracing = False
        self.refused: Function | None = None
        self.failure: str | None = None

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Trace in this thread; nothing changes unless a function is kept."""
        before, self.is_tracing = self.is_tracing, True
        self.refused = self.failure = None
        try:
            yield
        finally:
            self.is_tracing = before

    def keep_refused(self) -> bool:
        """Keep the function that tracing failed in; return whether to trace again.

        The first failure only installs the hook that records the function.
        """
        if _original is None:
            _look_into_functions()
            return True
        if self.refused is None or self.refused in _kept:
            return False
        _kept.add(self.refused)
        return True


keeping = Keeping()


def run_keeping(run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run a compiled function, and trace it again whenever a function is refused.

    Raises FunctionRefusedError if that function does not run on made-up values.
    """
    exceptions = torch._dynamo.exc
    while True:
        try:
            with keeping.tracing():
                return run(*args, **kwargs)
        except (exceptions.BackendCompilerFailed, exceptions.FailOnRecompileLimitHit):
            raise
        except exceptions.TorchDynamoException:
            if keeping.failure is not None:
                raise FunctionRefusedError(keeping.failure) from None
            if not keeping.keep_refused():
                raise


_kept: weakref.WeakSet[Function] = weakref.WeakSet()
_original: Callable[..., Any] | None = None  # PyTorch's own method, once it is replaced
_in_eager = 0  # the number of threads in which functions run on fake tensors


def _look_into_functions() -> None:
    """Replace the method by which PyTorch's compiler traces functions."""
    global _original
    variable = misc.AutogradFunctionVariable
    with _lock:
        if _original is None:
            _original = variable.call_method
            variable.call_method = _call_method


def _call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
    """Trace a method of a function: as an op if it is kept, as usual if not."""
    assert _original is not None
    if name != "apply" or not keeping.is_tracing:
        return _original(self, tx, name, args, kwargs)
    if self.fn_cls in _kept:
        given = proxy_args_kwargs(args, kwargs)
        proxy = tx.output.create_proxy("call_function", _op_of(self.fn_cls), *given)
        return builder.wrap_fx_proxy(tx=tx, proxy=proxy)
    try:
        return _original(self, tx, name, args, kwargs)
    except Exception:
        if keeping.refused is None:  # keep the innermost
            keeping.refused = self.fn_cls
        raise


@cache
def _op_of(function: Function) -> Callable[..., Any]:
    """Return the function that stands in a graph for the `apply` of a function."""

    def kept(*args: Any, **kwargs: Any) -> Any:
        try:
            return applied(function, *args, **kwargs)
        except Exception as error:  # the user's code may raise anything
            keeping.failure = (
                f"{function.__qualname__}, an autograd.Function with side effects, "
                f"does not run on made-up numbers: {first_line(error)}"
            )
            raise

    torch.fx.node.has_side_effect(kept)
    return kept


def _apply(cls: Function, *args: Any, **kwargs: Any) -> Any:
    """Run a function as PyTorch does."""
    return _bound.__get__(None, cls)(*args, **kwargs)


def _apply_kept(cls: Function, *args: Any, **kwargs: Any) -> Any:
    """Run a function, as an op if it is kept, or if it raises during tracing."""
    if cls in _kept and keeping.is_tracing:
        return applied(cls, *args, **kwargs)
    try:
        return _apply(cls, *args, **kwargs)
    except Exception:  # such as from `item()` of a tensor without data
        if not keeping.is_tracing or cls.__module__.startswith(_OWN):
            raise
        return applied(cls, *args, **kwargs)


@contextmanager
def kept_in_eager() -> Iterator[None]:
    """Run functions as ops on fake tensors if they are kept or raise."""
    global _in_eager
    with _lock:
        _in_eager += 1
        torch.autograd.Function.apply = classmethod(_apply_kept)
    try:
        with keeping.tracing():
            yield
    finally:
        with _lock:
            _in_eager -= 1
            if not _in_eager:
                torch.autograd.Function.apply = _bound


def _tried(call: _Call) -> _Call:
    """Return the call of this kind that was tried, or try this one."""
    flags = *call.places, *call.inputs, *call.needs, *call.autocast
    key = call.function, repr(call.spec), repr(call.leaves), flags
    with _lock:
        if key in _known:
            return _known[key]
        with (
            unset_fake_temporarily(),
            _disable_current_modes(),
            same_numbers(),
            torch.no_grad(),
        ):
            call.try_out()
        call.number = len(_calls)
        _calls.append(call)
        _known[key] = call
        return call
