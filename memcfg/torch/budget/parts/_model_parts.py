"""Parts of a model run as planned graphs, where the whole cannot be traced as one."""

from __future__ import annotations

import gc
import warnings
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

import torch
from torch import nn
from torch.autograd import _get_sequence_nr
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from memcfg._caller import outside
from memcfg.torch.budget._planned_call import (
    PlannedCall,
    TracedOftenError,
    UnplannedError,
    UntracedError,
    tracing,
)
from memcfg.torch.budget._planner import Shared
from memcfg.torch.budget.parts._fan_out import fan_out
from memcfg.torch.budget.parts._part_planner import PartPlanner
from memcfg.torch.budget.parts._shares import PartPasses, Shares
from memcfg.torch.state._offload import Offloading
from memcfg.torch.trace._fakes import is_faking
from memcfg.torch.trace._symbols import Seen
from memcfg.torch.trace._traced import nbytes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memcfg.torch.budget._planner import Settings
    from memcfg.torch.budget.parts._shares import Share
    from memcfg.torch.saved._unplanned import Watch
    from memcfg.torch.trace._traced import Costs

_OWN = "torch.nn."  # the package of layers that are an op or two


class _Forward:
    """Runs instead of the ``forward`` of a module during a pass."""

    def __init__(self, parts: Parts, module: nn.Module) -> None:
        self._parts, self._module = parts, module
        self.__wrapped__ = MethodType(type(module).forward, module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._parts._call(self._module, args, kwargs)


class Parts:
    """Plans the largest parts of a model that can be traced, each as a graph.

    A part is a module. It is tried when it is called: what cannot be traced runs in
    eager mode, and its children are tried. Parts of a class share traces and plans.

    Parameters
    ----------
    settings : Settings
        The settings of the model's steps.
    costs : callable
        Returns the seconds and scratch bytes of a node.
    on_made : callable
        Called with what a part returns.
    """

    def __init__(
        self, settings: Settings, costs: Costs, on_made: Callable[[Any], None]
    ) -> None:
        self._settings = replace(
            settings, limit_bytes=None, spill=None, offload=Offloading(), process=None
        )
        self._costs, self._on_made = costs, on_made
        self._shares = Shares()
        self._calls: dict[type[nn.Module], PlannedCall] = {}
        self._opaque: WeakSet[nn.Module] = WeakSet()  # which cannot be traced
        self._told: WeakSet[nn.Module] = WeakSet()  # whose gradients were copied
        self._alike: Counter[type[nn.Module]] = Counter()
        self._installed: list[nn.Module] = []
        self.has_traced = False  # in the last pass

    @property
    def fits(self) -> bool:
        """Whether parts have what was left, so that nothing else need be packed."""
        return self._shares.is_given

    @contextmanager
    def running(self, module: nn.Module, watch: Watch) -> Iterator[None]:
        """Plan parts of a model in a pass."""
        modules = list(module.modules())
        self._alike = Counter(map(type, modules))
        self._shares.watch, self._shares.ran = watch, []
        self.has_traced = False
        is_recurrent = any(isinstance(each, nn.RNNBase) for each in modules)
        try:
            self._install(module)
            with tracing(is_recurrent=is_recurrent):
                yield
        finally:
            for each in self._installed:
                vars(each).pop("forward", None)
            self._installed = []
            self._shares.stop()

    def ended(self, room_bytes: int) -> None:
        """Give parts the room that a pass has left."""
        self._shares.counted()
        if self._shares.ran:
            self._drop(self._shares.give(room_bytes))

    def missed(self) -> None:
        """Give parts less, since a pass had more in use than was known."""
        self._drop(self._shares.take_back())

    def refused(self) -> int:
        """Let parts keep as little as they can; return what others would have kept."""
        lacking = self._shares.lacking()
        self._drop(self._shares.make_lean())
        return lacking

    def lines(self) -> list[str]:
        """Say what is planned."""
        lines = self._shares.lines()
        return ["Planned:", *lines] if lines else []

    def _drop(self, names: set[str]) -> None:
        """Trace classes anew, as their plans have changed."""
        for each in [kind for kind in self._calls if kind.__name__ in names]:
            del self._calls[each]

    def _install(self, parent: nn.Module) -> None:
        """Let the children of a module run as parts if they can."""
        for child in parent.children():
            if isinstance(vars(child).get("forward"), _Forward):
                continue
            if child in self._opaque or "forward" in vars(child) or _is_list(child):
                self._install(child)
            elif not _is_op(child):
                vars(child)["forward"] = _Forward(self, child)
                self._installed.append(child)

    def _call(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Run a part as planned, or its children."""
        watch = self._shares.watch
        plain = MethodType(type(module).forward, module)
        if (
            watch is None
            or not torch.is_grad_enabled()
            or torch.compiler.is_compiling()
            or is_faking()
            or torch._C._functorch.peek_interpreter_stack() is not None
            or not watch.saved._is_saving  # others, such as checkpoints, save here
        ):
            return plain(*args, **kwargs)
        try:
            return self._planned(module, watch, args, kwargs)
        except (UnplannedError, UntracedError):
            self._opaque.add(module)
        self._install(module)
        return plain(*args, **kwargs)

    def _planned(self, module: nn.Module, watch: Watch, args: Any, kwargs: Any) -> Any:
        """Run a part as planned; each new trace is planned."""
        call = self._call_of(module)
        planner = call.planner
        before, first = planner.planned.total(), _get_sequence_nr()
        ran = len(self._shares.ran)
        with _disable_current_modes(), watch.saved._without_notes(module.modules()):
            try:
                made = call.of(module).unwrapped(args, kwargs)
            except TracedOftenError:
                del self._calls[type(module)]
                call = self._call_of(module)
                made = call.of(module).unwrapped(args, kwargs)
        if planner.planned.total() != before:
            self.has_traced = True
            gc.collect()  # cycles of the trace hold this frame, and with it the outputs
        for share in self._shares.ran[ran:]:
            nbytes = share.plan.nbytes
            retained = nbytes.kept + nbytes.between
            watch.retained_bytes = max(watch.retained_bytes, retained)
            for number in range(first, _get_sequence_nr()):
                watch.inner[number] = nbytes.backward
            self._compare_layouts(module, made, share)
        self._shares.saved()
        self._on_made(made)
        return made

    def _compare_layouts(self, module: nn.Module, made: Any, share: Share) -> None:
        """Warn of gradients of other layouts, and run the part in eager mode then.

        It stays planned if it would keep more in eager mode.
        """
        weak = ref(module)

        def check(layout: tuple[int, ...], gradient: torch.Tensor) -> None:
            part = weak()
            if part is None or part in self._told or gradient.stride() == layout:
                return
            if not any(gradient.stride()):  # one number for all elements
                return
            self._told.add(part)
            what = "it stays so, since eager mode would not fit"
            if share.plan.nbytes.kept >= share.graph.full.nbytes.kept:
                self._opaque.add(part)
                what = "from the next step on this part runs in eager mode"
            warnings.warn(
                f"the gradient of what {type(part).__name__} returns is not "
                "contiguous, and was copied, so that gradients may be rounded "
                f"otherwise than in eager mode; {what}",
                RuntimeWarning,
                stacklevel=outside("torch"),
            )

        for each in tree_leaves(made):
            if isinstance(each, torch.Tensor) and each.grad_fn is not None:
                each.register_hook(partial(check, each.stride()))

    def _call_of(self, module: nn.Module) -> PlannedCall:
        """Return the compiled forward of a class of modules."""
        kind = type(module)
        trained = [each for each in module.parameters() if each.requires_grad]
        if kind not in self._calls:
            shared = Shared(self._costs, passes=PartPasses(self._shares), seen=Seen())
            planner = PartPlanner(
                self._settings,
                shared,
                loss_bytes=0,
                planned=Counter({True: 2, False: 2}),  # a second plan is no news
                fan_out=fan_out,
                shares=self._shares,
                name=kind.__name__,
                alike=self._alike[kind],
            )
            self._calls[kind] = PlannedCall(kind.forward, planner, module)
        call = self._calls[kind]
        known = call.planner
        assert isinstance(known, PartPlanner)
        known.trained_bytes = sum(map(nbytes_of, trained))
        return call


def _is_list(module: nn.Module) -> bool:
    """Return whether a module has no forward of its own, such as a list of modules."""
    return type(module).forward is nn.Module.forward


def _is_op(module: nn.Module) -> bool:
    """Return whether a module is a layer of PyTorch, which saves what its op does."""
    is_leaf = next(module.children(), None) is None
    return is_leaf and type(module).__module__.startswith(_OWN)
