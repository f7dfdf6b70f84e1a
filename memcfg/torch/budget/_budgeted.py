"""Budgets of models: their training steps are planned within a limit."""

from __future__ import annotations

import copy
import gc
import inspect
import warnings
from functools import partial
from types import CodeType, MethodType
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from memcfg._caller import outside
from memcfg._checks import named_arguments
from memcfg._html import report_of_text
from memcfg.errors import InfeasiblePlanError
from memcfg.plan import memory_timeline
from memcfg.torch.budget._checked_arguments import (
    check_fits,
    check_module,
    checked_example,
    checked_limit,
    checked_on_new_shape,
    checked_policy,
)
from memcfg.torch.budget._peak_watch import meter_of
from memcfg.torch.budget._planned_call import (
    SETTINGS,
    TRACES,
    PlannedCall,
    TracedOftenError,
    UnplannedError,
    UntracedError,
    UntracedInputsError,
    planned_only,
    tracing,
)
from memcfg.torch.budget._planner import Overhead, Planner, Settings, Shared
from memcfg.torch.budget._room import OTHERS, NoRoomError, Room
from memcfg.torch.budget._step_report import report_of
from memcfg.torch.budget.parts._model_parts import Parts
from memcfg.torch.limit._out_of_memory import OutOfMemoryError
from memcfg.torch.limit._process_limit import ProcessLimit
from memcfg.torch.ranks._around import Beside, Wrapper
from memcfg.torch.ranks._data_parallel import DataParallel, active_data_parallel
from memcfg.torch.ranks._fully_sharded import FullySharded, is_sharded
from memcfg.torch.saved._unplanned import Unplanned, shapes_of
from memcfg.torch.spill._stores import spill_of
from memcfg.torch.state._offload import FROZEN, LOSSLESS, Offload, checked_offload
from memcfg.torch.trace._fakes import is_faking, state_of
from memcfg.torch.trace._infeasible import InfeasibleStepError
from memcfg.torch.trace._overhead import (
    optimizer_bytes,
    stepped_by,
    tensors_in,
    update_bytes,
)
from memcfg.torch.trace._traced import nbytes_of
from memcfg.units import exact, format_bytes

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from memcfg.plan import Plan, Policy
    from memcfg.timeline import MemoryTimeline
    from memcfg.torch.budget._step import Step


_OUTER = "a budgeted model is compiled by memcfg, as planned"
_TWICE = "create_graph=True"  # why a model is not planned, and no part of it
_ONE_SHAPE = "saved_tensors", "raise"  # values of on_new_shape that plan one
# what copies and pickles of a budget have of it
_COPIED = ("_settings", "_optimizer_bytes", "_update_bytes", "_loss", "_own", "_is_on")


_Key = bool | tuple[bool, str]


class ModelBudget:
    """The budget of a model: it runs instead of the model's ``forward``, as planned.

    `budget` makes it the attribute ``forward`` of the model, which is otherwise left as
    it is: its class, parameters, buffers, hooks and state dict. Copies and unpickled
    models have budgets of their own, with the same settings.

    Parameters
    ----------
    module : torch.nn.Module
        The model.
    settings : Settings
        The settings of every step.
    optimizer : torch.optim.Optimizer or None
        The optimizer. Its state is counted, and so are the temporary tensors of its
        step; copies and unpickled models count the same number of bytes. A TypeError or
        ValueError is raised if these are unknown.
    loss : callable or None
        Computes a scalar from the outputs; None if it is unknown.
    """

    def __init__(
        self,
        module: nn.Module,
        settings: Settings,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        loss: Callable[[Any], torch.Tensor] | None = None,
    ) -> None:
        self._settings = settings
        self._optimizer_bytes = optimizer_bytes(optimizer)
        self._update_bytes = update_bytes(optimizer)
        self._optimizer = None if optimizer is None else ref(optimizer)
        self._stepped = [] if optimizer is None else stepped_by(optimizer)
        self._loss = loss
        own = vars(module).get("forward")  # set on the model by others
        self._own: Callable[..., Any] | None
        self._own = own._own if isinstance(own, ModelBudget) else own
        self._is_on = True
        self._start(module)

    # called with the error and the inputs of a step that no plan fits; may raise
    on_refusal: Callable[[InfeasibleStepError, Any, Any], None] | None = None

    def _start(self, module: nn.Module) -> None:
        """Discard all plans, and run a model from now on."""
        self._module = ref(module)
        bound = MethodType(type(module).forward, module)
        self.__signature__ = inspect.signature(self._own or bound)
        self._shared = Shared.of(self._settings)
        # Compiled graphs hold what is shared, and must not hold the budget.
        self._shared.tensor_bytes = partial(
            _tensor_bytes, self._module, self._optimizer
        )
        self._offload = self._made_offload(module)
        self._around: ref[DistributedDataParallel] | None = None
        self._beside, self._so_far_bytes = Beside(), 0
        # Keyed by whether gradients exist; with OTHERS, the plan leaves room for
        # other passes.
        self._planners: dict[_Key, Planner] = {}
        self._runs: dict[_Key, PlannedCall] = {}
        self._has_warned = self._has_warned_of_transforms = False
        self._unplanned = Unplanned(
            self._settings.limit_bytes, self._settings.spill, meter_of
        )
        self._planned_parts: Parts | None = None
        self._shapes: set[Any] = set()  # of the steps that are planned
        self._why: dict[bool, str] = {}  # not planned, by whether gradients are made

    def _made_offload(self, module: nn.Module) -> Offload:
        """Return what lies in files, with all that the user named."""
        settings = self._settings
        spill = settings.spill
        made = Offload(
            module,
            None if self._optimizer is None else self._optimizer(),
            None if spill is None else spill.folder,
            None if spill is None else spill.bandwidth,
            settings.limit_bytes,
        )
        self._shared.offload = made
        return made

    def _settle(self) -> None:
        """Move what the user named to files, before anything is planned."""
        names = self._settings.offload.names
        if self._optimizer is None:  # of a copy
            names = tuple(each for each in names if each == FROZEN)
        if self._offload.settle(names):
            self._count_optimizer()

    def _count_optimizer(self) -> None:
        """Count what the optimizer has in memory again."""
        optimizer = None if self._optimizer is None else self._optimizer()
        if self._offload.names:
            self._optimizer_bytes = self._offload.state_bytes
            self._update_bytes = self._offload.update_bytes
        else:
            self._optimizer_bytes = optimizer_bytes(optimizer)
            self._update_bytes = update_bytes(optimizer)

    def _take_more(self, error: InfeasiblePlanError) -> bool:
        """Move more tensors to files, if the user lets `auto`; return whether it did.

        Those are taken that free what a step lacks, by their bytes.
        """
        offload, limit = self._offload, self._settings.limit_bytes
        if not self._settings.offload.is_auto or limit is None:
            return False
        if offload.folder is None or isinstance(error, NoRoomError):
            return False
        lacking, chosen = (error.smallest_limit_bytes or 0) - limit, []
        for name in LOSSLESS:
            gain = offload.gain_of(name)
            if gain and lacking > 0:
                chosen.append(name)
                lacking -= gain
        if not chosen:
            return False
        offload.take(chosen)
        self._count_optimizer()
        self._planners.clear()
        self._runs.clear()
        return True

    @property
    def module(self) -> nn.Module:
        """The model."""
        module = self._module()
        if module is None:
            raise ReferenceError("the model of this budget has been garbage-collected")
        return module

    def _plain(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model's own ``forward``."""
        if self._own is not None:
            return self._own(*args, **kwargs)
        module = self.module
        return type(module).forward(module, *args, **kwargs)

    @property
    def __code__(self) -> CodeType:
        """The code of the model's ``forward``, which `torch.export` names in errors."""
        own = inspect.unwrap(self._own or type(self.module).forward)
        code: CodeType = getattr(own, "func", own).__code__
        return code

    @property
    def limit_bytes(self) -> int | None:
        """The limit; None if there is none."""
        return self._settings.limit_bytes

    def __repr__(self) -> str:
        limit = self.limit_bytes
        within = "no limit" if limit is None else f"limit {exact(limit)}"
        planned = "" if self._shared.last is not None else ", nothing planned yet"
        return f"<ModelBudget of {type(self.module).__name__}: {within}{planned}>"

    def _repr_html_(self) -> str:
        """Return the report of the step that was planned last, for notebooks."""
        name = type(self.module).__name__
        return report_of_text(f"Budget of {name}\n{self.memory_report()}")

    def _put_on(self) -> None:
        """Run instead of the model's ``forward`` from now on."""
        vars(self.module)["forward"] = self

    def _put_in(self, around: DistributedDataParallel) -> None:
        """Count what a wrapper around the model holds, too."""
        if self._around is None or self._around() is not around:
            self._around = ref(around)
            DataParallel(self.module, around).warn_of_hooks()

    def _take_off(self) -> None:
        """Let the model's own ``forward`` run again, and discard all plans."""
        module = self.module
        if vars(module).get("forward") is not self:  # others have wrapped it since
            self._is_on = False
        elif self._own is None:
            del vars(module)["forward"]
        else:
            vars(module)["forward"] = self._own
        self._planners.clear()
        self._runs.clear()
        self._offload.bring_back()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model as planned, or, while it is exported, without a plan."""
        if torch.compiler.is_exporting() or not self._is_on:
            return self._plain(*args, **kwargs)
        # Dynamo has no value of the stack; what it cannot trace runs in eager mode.
        is_traced = torch.compiler.is_dynamo_compiling()
        if not is_traced and torch._C._functorch.peek_interpreter_stack() is not None:
            self._warn_of_transforms()
            return self._plain(*args, **kwargs)
        return self._planned(*args, **kwargs)

    @torch.compiler.disable(reason=_OUTER)  # type: ignore[untyped-decorator]
    def _planned(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model as planned; each new trace is planned.

        `torch.compile` of the module, or of its caller, leaves this call to memcfg.

        Parameters
        ----------
        *args, **kwargs
            What the model takes.

        Returns
        -------
        object
            The outputs of the model.

        Raises
        ------
        InfeasiblePlanError
            If no plan of the step fits the limit; nothing has run.
        PlanError
            If the policy gives a plan that is invalid; nothing has run.
        RuntimeError
            If PyTorch did not run the plan, as under ``TORCHDYNAMO_DISABLE=1`` or
            ``torch.compiler.set_stance``.
        OutOfMemoryError
            If the model is not planned, and what autograd saves has no room.
        ValueError
            If the model does not run on these inputs, it cannot be traced on several
            ranks, its loss gives no scalar, or the shape is new and is to be refused.
        """
        if is_faking():
            return self._plain(*args, **kwargs)
        try:
            return self._agreed(args, kwargs)
        except InfeasibleStepError as error:
            if self.on_refusal is not None:
                self.on_refusal(error, args, kwargs)
            raise

    def _agreed(self, args: Any, kwargs: Any) -> Any:
        """Run a step if all ranks may run it."""
        module = self.module  # alive until the end of the call
        wrapper = self._wrapper_of(module)
        agreement = wrapper.agreement
        with wrapper.running():
            if agreement is None:
                try:
                    return self._step(wrapper, args, kwargs)
                except Exception:
                    wrapper.refused()
                    raise
            self._shared.before_run = agreement.settle
            try:
                made = self._step(wrapper, args, kwargs)
                agreement.settle()  # if no graph ran
            except Exception as error:
                agreement.settle(error)
                raise
            finally:
                self._shared.before_run = None
            return made

    def _wrapper_of(self, module: nn.Module) -> Wrapper:
        """Return what is around the model now."""
        around = active_data_parallel()
        if around is not None:  # it may be called without it, too, to evaluate
            self._put_in(around)
        elif self._around is not None:
            around = self._around()
        if around is not None:
            return DataParallel(module, around)
        return FullySharded(module) if is_sharded(module) else Wrapper(module)

    def _step(self, wrapper: Wrapper, args: Any, kwargs: Any) -> Any:
        """Run a step, and move more tensors to files where it does not fit."""
        offload = self._offload
        if wrapper.is_on_ranks and offload.needs_own_gradients:
            raise ValueError(
                "gradients and weights lie in files, and DDP and FSDP2 hold their own: "
                "of offload=, optimizer_state and frozen_weights work on ranks"
            )
        self._settle()
        while True:
            try:
                made = self._run(wrapper, args, kwargs)
            except InfeasiblePlanError as error:
                if wrapper.is_on_ranks or not self._take_more(error):
                    raise
            else:
                if torch.is_grad_enabled():
                    offload.steps += 1
                return made

    def _run(self, wrapper: Wrapper, args: Any, kwargs: Any) -> Any:
        """Run a step as planned, within what is around the model."""
        self._follow_optimizer()
        self._follow(wrapper)
        accumulates = wrapper.has_gradients
        trains = torch.is_grad_enabled()
        if trains in self._why or self._is_left(args, kwargs):
            return self._without_plan(args, kwargs)
        try:
            made = self._with_plan(accumulates, args, kwargs)
        except UnplannedError as error:
            if wrapper.agreement is not None:
                raise
            if not isinstance(error, UntracedInputsError):
                self._give_up(error)
                return self._without_plan(args, kwargs)
            try:
                made = self._without_plan(args, kwargs)
            except (OutOfMemoryError, InfeasiblePlanError):  # it takes these inputs
                self._give_up(error)
                raise
            except Exception as own:  # of the model, which does not take them
                raise error from own
            self._give_up(error)
            return made
        self._know(args, kwargs)
        _refuse_second(ref(self), made)
        return made

    def _warn_of_transforms(self) -> None:
        """Warn once that a function transform runs the model itself."""
        if not self._has_warned_of_transforms:
            self._has_warned_of_transforms = True
            warnings.warn(
                "within torch.func (vmap, grad, jvp) the model runs without its plan "
                "and its limit: give the function fewer examples at a time, such as by "
                "vmap(..., chunk_size=...)",
                RuntimeWarning,
                stacklevel=outside("torch"),
            )

    def _know(self, args: Any, kwargs: Any) -> None:
        """Record the shapes of a step that is planned."""
        if self._settings.on_new_shape in _ONE_SHAPE:
            self._shapes.add(shapes_of(args, kwargs))

    def _is_left(self, args: Any, kwargs: Any) -> bool:
        """Return whether a shape is not to be planned, since another was."""
        choice = self._settings.on_new_shape
        if choice not in _ONE_SHAPE:
            return False
        shapes = shapes_of(args, kwargs)
        known = [each for each in self._shapes if each[0] == shapes[0]]
        if not known or shapes in known:
            return False
        if choice == "raise":
            told = [", ".join(map(str, each[1:])) for each in (shapes, known[0])]
            raise ValueError(
                f"inputs of shape {told[0]} are new, and a step is planned for "
                f"{told[1]}: pad them, or take on_new_shape='bucket'"
            )
        return True

    def _give_up(self, error: UnplannedError) -> None:
        """Run without a plan from now on, and warn of it once."""
        if not self._why:
            warnings.warn(
                f"the model cannot be traced as one graph ({error.why}), and is not "
                "planned as a whole: parts of it are, the rest runs in eager mode, and "
                "what autograd saves is kept within the limit",
                RuntimeWarning,
                stacklevel=outside("torch"),
            )
        self._why[torch.is_grad_enabled()] = error.why

    def _without_plan(self, args: Any, kwargs: Any) -> Any:
        """Run in eager mode within the limit."""
        overhead = self._optimizer_bytes + sum(dict(self._beside.held).values())
        return self._unplanned.run(
            self.module, self._plain, args, kwargs, overhead, self._parts()
        )

    def _parts(self) -> Parts | None:
        """Return what plans parts of the model; None if none may be planned."""
        settings = self._settings
        if (
            self._why.get(True) == _TWICE
            or self._offload.names
            or settings.inductor
            or settings.process is not None
            or self._around is not None
            or is_sharded(self.module)
        ):
            self._planned_parts = None
        elif self._planned_parts is None:
            self._planned_parts = Parts(
                settings, self._shared.costs, partial(_refuse_second, ref(self))
            )
        return self._planned_parts

    def _with_plan(self, accumulates: bool, args: Any, kwargs: Any) -> Any:
        """Run a step as planned."""
        if accumulates not in self._runs:
            if accumulates not in self._planners:  # as it is for an example
                self._planners[accumulates] = self._planner(accumulates)
            self._compile(accumulates)
        with self._tracing():
            try:
                if self._planners[accumulates].missed_bytes:
                    return self._planned_again(accumulates, args, kwargs)
                return self._checked(accumulates, args, kwargs)
            except NoRoomError as error:
                if not error.is_own:
                    raise
                room = error.room
            return self._beside_others(accumulates, room, args, kwargs)

    def _compile(self, key: _Key) -> None:
        """Use a planner for the steps from now on."""
        self._runs[key] = self._call_of(self._planners[key])

    def _call_of(self, planner: Planner, *, only_plan: bool = False) -> PlannedCall:
        """Compile the model's own forward with a planner."""
        module = self.module
        forward = _function_of(module, self._own)
        return PlannedCall(forward, planner, module, only_plan=only_plan)

    def _beside_others(
        self, accumulates: bool, room: Room, args: Any, kwargs: Any
    ) -> Any:
        """Run with a plan that leaves room for the bytes that other passes hold."""
        alone, key = self._planners[accumulates], (accumulates, OTHERS)
        known = self._planners.get(key, alone)
        missed = known.overhead.missed_bytes + known.missed_bytes
        fits = known is not alone and known.overhead.room.covers(room)
        if fits and not known.missed_bytes:
            try:
                return self._checked(key, args, kwargs)
            except InfeasiblePlanError:  # of another shape, for more than others hold
                pass
        planner = self._planner(accumulates, missed, room)
        self._planners[key] = planner
        self._compile(key)
        return self._checked(key, args, kwargs)

    def _follow(self, wrapper: Wrapper) -> None:
        """Plan again if what is around the model holds other bytes than before."""
        self._so_far_bytes, beside = wrapper.gradient_bytes, wrapper.beside
        if beside != self._beside:
            self._beside = beside
            self._planners.clear()
            self._runs.clear()

    def _follow_optimizer(self) -> None:
        """Recount and plan again if the parameters of the optimizer have changed."""
        optimizer = None if self._optimizer is None else self._optimizer()
        stepped = [] if optimizer is None else stepped_by(optimizer)
        if optimizer is None or stepped == self._stepped:
            return
        self._count_optimizer()
        self._stepped = stepped
        self._planners.clear()
        self._runs.clear()

    def _checked(self, key: _Key, args: Any, kwargs: Any) -> Any:
        """Run the compiled model, and check that it ran a planned step."""
        before = self._shared.passes.count
        planned = self._planners[key].planned.total()
        try:
            made = self._runs[key].unwrapped(args, kwargs)
        except UntracedError:  # PyTorch may never trace this code again
            del self._runs[key]
            raise
        except TracedOftenError:
            self._compile(key)  # drops what was traced
            self._planners[key].steps.clear()
            self._warn_of_traces()
            made = self._runs[key].unwrapped(args, kwargs)
        if self._planners[key].planned.total() != planned:
            gc.collect()  # cycles of the trace hold this frame, and with it the outputs
        if self._shared.passes.count == before and not self._is_given(
            made, (args, kwargs)
        ):
            raise RuntimeError(f"the model ran without its plan: {SETTINGS}")
        return made

    def _warn_of_traces(self) -> None:
        """Warn once that steps are traced again and again."""
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{TRACES} steps were traced, of different shapes or numbers, and are "
                "dropped to trace others: pad inputs to few shapes, and give numbers "
                "that change as tensors",
                RuntimeWarning,
                stacklevel=outside("torch"),
            )

    def _is_given(self, made: Any, given: Any) -> bool:
        """Return whether all returned tensors are inputs or state of the model."""
        known = {id(each) for each in tree_leaves(given)}
        known |= {id(each) for each in state_of(self.module)}
        tensors = [each for each in tree_leaves(made) if torch.is_tensor(each)]
        return all(id(each) in known for each in tensors)

    def _planned_again(self, accumulates: bool, args: Any, kwargs: Any) -> Any:
        """Run with a plan that leaves room for the bytes that the last plan missed."""
        planner, run = self._planners[accumulates], self._runs[accumulates]
        missed, planner.missed_bytes = planner.missed_bytes, 0
        fresh = self._planner(accumulates, planner.overhead.missed_bytes + missed)
        self._planners[accumulates] = fresh
        self._compile(accumulates)
        try:
            return self._checked(accumulates, args, kwargs)
        except NoRoomError:
            raise
        except InfeasiblePlanError as error:
            smallest = error.smallest_limit_bytes or 0
        self._planners[accumulates], self._runs[accumulates] = planner, run
        del fresh
        gc.collect()  # reference cycles of the trace hold tensors
        warnings.warn(
            f"a step has {format_bytes(missed)} more in use than planned, and no plan "
            f"has room for them: raise the limit to at least "
            f"{format_bytes(smallest, exact=True)}",
            RuntimeWarning,
            stacklevel=outside("torch"),
        )
        return self._checked(accumulates, args, kwargs)

    def _tracing(self) -> AbstractContextManager[None]:
        """Allow traces of many shapes, and of recurrent layers if there are any."""
        layers = self.module.modules()
        return tracing(is_recurrent=any(isinstance(e, nn.RNNBase) for e in layers))

    def _planner(
        self, accumulates: bool, missed_bytes: int = 0, room: Room | None = None
    ) -> Planner:
        """Return a planner of steps that begin with gradients, or without any."""
        overhead = Overhead(
            self._optimizer_bytes,
            self._so_far_bytes if accumulates else 0,
            missed_bytes,
            self._update_bytes,
            room or Room(),
            self._beside,
        )
        return Planner(self._settings, self._shared, overhead, loss=self._known_loss())

    def _known_loss(self) -> Callable[[Any], torch.Tensor] | None:
        """Return the loss if its bytes can be known."""
        if self._loss is not None and is_sharded(self.module):
            warnings.warn(
                "a model that FSDP shards cannot be copied, so loss= has no effect: "
                "three times the bytes of the outputs are reserved",
                RuntimeWarning,
                stacklevel=outside("torch"),
            )
            self._loss = None
        return self._loss

    def plan(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Plan a step for some inputs without running it.

        Parameters
        ----------
        args : sequence
            Positional inputs of the model.
        kwargs : mapping
            Inputs by name.

        Raises
        ------
        InfeasiblePlanError, OSError, PlanError, ValueError
            As `budget` with an example.
        """
        self._settle()
        while True:
            try:
                return self._plan(args, kwargs)
            except InfeasiblePlanError as error:
                wrapper = self._wrapper_of(self.module)
                if wrapper.is_on_ranks or not self._take_more(error):
                    raise

    def _plan(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Plan a step as it is."""
        wrapper = self._wrapper_of(self.module)
        agreement = wrapper.agreement
        self._follow(wrapper)
        planner = self._planners[False] = self._planner(False)
        self._runs.pop(False, None)
        # Within a wrapper on ranks, steps are traced differently.
        is_kept = not wrapper.is_on_ranks
        call = self._call_of(planner, only_plan=not is_kept)
        self._shared.only_plans = True
        try:
            with wrapper.planning(), self._tracing():
                planned_only(call, args, kwargs)
        except UnplannedError as error:
            if agreement is not None:
                agreement.settle(error)
                raise
            if isinstance(error, UntracedInputsError):
                raise
            self._give_up(error)
        except Exception as error:
            if agreement is not None:
                agreement.settle(error)
            raise
        else:
            if is_kept:
                self._runs[False] = call
        finally:
            self._shared.only_plans = False
        del call
        gc.collect()  # cycles of the trace hold this frame, and with it the inputs
        if agreement is not None:
            agreement.settle()
        self._know(args, kwargs)

    @property
    def _steps(self) -> list[Step]:
        steps = [step for each in self._planners.values() for step in each.steps]
        return [step for step in steps if step.is_training] or steps

    @property
    def memory_plan(self) -> Plan | None:
        """The plan of the latest shape of training steps; None before any is planned.

        It is the plan of the step that ran last or was planned since: each shape has
        its own plan, and so have steps that add to existing gradients. The plan
        includes what lies outside the traced graph, such as the state of the optimizer,
        and has the whole limit. Its peak is that of one arena. An allocator, which has
        no holes, needs `predicted_peak_bytes`, which is the same or less.
        """
        last = self._shared.last
        return None if last is None else last.whole[1]

    @property
    def spill_bytes(self) -> int:
        """The bytes of files, or of page-locked memory, that steps have now."""
        stores = self._shared.stores
        return 0 if stores is None else stores.nbytes

    @property
    def predicted_peak_bytes(self) -> int:
        """The most bytes a step is planned to have in use; 0 before it is planned."""
        return max((step.peak_bytes for step in self._steps), default=0)

    def memory_timeline(self) -> MemoryTimeline:
        """Return which tensor has which bytes when, by `memory_plan`.

        PyTorch's allocator chooses addresses at run time; those of the timeline are
        packed for the picture.

        Returns
        -------
        MemoryTimeline
            Its `save` writes a page to zoom and search, a picture or a file for
            Perfetto.

        Raises
        ------
        RuntimeError
            If nothing is planned yet.
        """
        last = self._shared.last
        if last is None:
            raise RuntimeError("nothing is planned before the first step")
        return memory_timeline(*last.whole, limit_bytes=self._settings.limit_bytes)

    def memory_report(self) -> str:
        """Return a table of the bytes of a step by role and by module."""
        last, why = self._shared.last, self._why.get(True)
        planned = []
        if last is not None:
            process = self._settings.process
            lines = [] if process is None else process.lines()
            lines += self._offload.lines()
            planned.append(
                "\n".join((*lines, report_of(last, self._settings.limit_bytes)))
            )
        if why is not None:
            planned.append(self._unplanned.report(why, self._planned_parts))
        elif self._unplanned.saved is not None:
            planned.append(self._unplanned.report("steps with inputs of other shapes"))
        return "\n".join(planned) or "nothing is planned before the first step"

    def __getstate__(self) -> dict[str, Any]:
        return {"module": self.module, **{name: vars(self)[name] for name in _COPIED}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # The model may not be complete: it is being unpickled, and has this budget.
        module = state.pop("module")
        vars(self).update(state, _optimizer=None, _stepped=[])
        self._start(module)

    def __deepcopy__(self, memo: dict[int, Any]) -> ModelBudget:
        made = object.__new__(ModelBudget)
        memo[id(self)] = made
        state = self.__getstate__()
        state["module"] = memo.get(id(self.module), self.module)
        state["_own"] = copy.deepcopy(self._own, memo)
        made.__setstate__(state)
        return made


def _tensor_bytes(
    module: ref[nn.Module], optimizer: ref[torch.optim.Optimizer] | None
) -> list[int]:
    """Return the bytes of storages of a model and of its optimizer in memory."""
    model = module()
    stepped = None if optimizer is None else optimizer()
    tensors = []
    if model is not None:
        tensors += state_of(model)
        tensors += [e.grad for e in model.parameters() if e.grad is not None]
    if stepped is not None:
        tensors += tensors_in(stepped.state)
    storages = {each.untyped_storage()._cdata: each for each in tensors}
    return [nbytes_of(each) for each in storages.values()]


def _refuse_second(budget: ref[ModelBudget], made: Any) -> None:
    """Let backward raise RuntimeError if it is to be differentiated again."""
    tensors = [each for each in tree_leaves(made) if torch.is_tensor(each)]
    # not those of inputs that the model returns
    nodes = {each.grad_fn for each in tensors if _is_planned(each.grad_fn)}

    def check(_: Any) -> None:
        if torch.is_grad_enabled():
            known = budget()
            if known is not None:
                known._why[True] = _TWICE
            raise RuntimeError(
                "create_graph=True differentiates the backward phase again, which a "
                "planned step cannot: run the step again. From now on the model runs "
                "in eager mode, and what autograd saves is kept within the limit"
            )

    for each in nodes:
        each.register_prehook(check)


def _is_planned(node: Any) -> bool:
    """Return whether a node of autograd is the backward phase of a planned step."""
    return type(node).__name__ == "CompiledFunctionBackward"


def forward_of(model: nn.Module) -> Callable[..., Any]:
    """Return a model's forward without its budget, as a function of it and inputs."""
    known = _budget_of(model)
    own = vars(model).get("forward") if known is None else known._own
    return _function_of(model, own)


def _function_of(
    model: nn.Module, own: Callable[..., Any] | None
) -> Callable[..., Any]:
    """Return the forward of a model's class, or its own, as a function of both."""
    if own is None:
        forward: Callable[..., Any] = type(model).forward
        return forward

    def run(_: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return own(*args, **kwargs)

    return run


def _inner(model: nn.Module) -> nn.Module:
    """Return the model that is given a budget where another is meant."""
    if distributed.is_available() and isinstance(model, DistributedDataParallel):
        inner: nn.Module = model.module
        return inner
    return model


def _budget_of(model: nn.Module) -> ModelBudget | None:
    """Return the budget of a model, or None; others may have wrapped its forward."""
    forward = vars(_inner(model)).get("forward")
    while forward is not None and not isinstance(forward, ModelBudget):
        forward = getattr(forward, "__wrapped__", None)
    return forward if forward is not None and forward._is_on else None


@named_arguments
def budget(
    model: nn.Module,
    limit: float | str | ProcessLimit | None,
    *,
    example: Sequence[Any] | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    policy: Policy | None = None,
    times: str = "measured",
    inductor: bool = False,
    loss: Callable[[Any], torch.Tensor] | None = None,
    on_new_shape: str = "bucket",
    spill_to: str | os.PathLike[str] | None = None,
    spill_limit: int | str | None = None,
    lane_bandwidth: int | str | None = None,
    offload: str | Sequence[str] | None = "auto",
) -> nn.Module:
    """Make a model train within a limit.

    The model is changed in place: a planned call runs instead of its ``forward``. It
    keeps its class, the signature of ``forward``, its parameters and its state dict,
    and its hooks run as before. `get_budget` has the plan and a report.

    Losses, gradients and buffers are bit-identical to those of the graph without a
    plan. The limit covers parameters, buffers, inputs, gradients, the state of the
    optimizer, activations, and the scratch of ops.

    Parameters
    ----------
    model : torch.nn.Module
        The model. If `torch.compile` cannot trace it as one graph, the modules inside
        that it can trace are planned, with a warning, and the rest runs in eager mode
        with what autograd saves kept within the limit. A budget that it has already is
        replaced.
    limit : int, float, str, ProcessLimit or None
        The most bytes of a training step, such as ``"4GiB"``; ``math.inf`` means no
        limit. What `limit_process` returns is the limit of all that the process has
        resident. None takes the budget off, and is given without other arguments.
    example : sequence or None, default None
        Positional inputs to plan for at once, without running the model.
    example_kwargs : mapping or None, default None
        Keyword inputs to plan for. Without either, the first step is planned when it is
        called.
    optimizer : torch.optim.Optimizer or None, default None
        Its state is counted, as it will be after a step, and so are the temporary
        tensors of its step. Steps are planned again when its parameters are replaced or
        change their dtype, shape, device or `requires_grad`.
    policy : Policy or None, default None
        The planning method. None means `memcfg.plan.auto`'s, applied to the bytes in
        use, since PyTorch's allocator has no arena with holes.
    times : str, default "measured"
        ``"measured"`` runs each distinct op once on its device for its seconds and its
        scratch; ``"nominal"`` runs nothing and counts no scratch.
    inductor : bool, default False
        Whether inductor compiles the planned graphs. It fuses and reorders ops, so that
        results and the peak may differ.
    loss : callable or None, default None
        Computes a scalar from what the model returns, as your own loss does. It is
        traced for each plan, and never run. It must create its targets itself, so that
        they fit each shape; tensors that it closes over are not counted. None reserves
        three times the bytes of the outputs for your loss, and so does, with a warning,
        a loss that cannot be traced.
    on_new_shape : str, default "bucket"
        What a step does whose inputs have another shape than those before.
        ``"bucket"`` plans each range of lengths once, for its largest length, without
        padding; ``"replan"`` plans each shape as it is; ``"saved_tensors"`` runs in
        eager mode within the limit; ``"raise"`` raises ValueError.
    spill_to : str, path or None, default None
        Where tensors may be moved until they are needed again, if that takes less time
        than to recompute them, or if nothing else fits: a folder, in which unnamed
        files hold tensors of the CPU; or ``"host"``, whose page-locked memory holds
        tensors of a GPU. On the CPU ``"host"`` has no effect. None means that tensors
        stay.
    spill_limit : int, str or None, default None
        The most bytes there, such as ``"16GiB"``; plans that need more are rejected.
        None means as many as the plan needs.
    lane_bandwidth : int, str or None, default None
        The most bytes per second to copy, in each direction. None copies as fast as
        files are, and plans with a nominal speed. Not allowed on a GPU, whose copies
        are timed.
    offload : str, sequence of str or None, default "auto"
        What lies in files in `spill_to` for good, and is in memory only while it is
        used: ``"optimizer_state"``, ``"frozen_weights"``, ``"gradients"``,
        ``"weights"``, and ``"step_in_backward"``, with which the optimizer updates a
        parameter as soon as its gradient is there and frees that. ``"auto"`` takes the
        first of the first four without which no plan fits; None takes none. Weights of
        `map_weights` are always read from their file.

    Returns
    -------
    torch.nn.Module
        The model.

    Raises
    ------
    InfeasiblePlanError
        If no plan fits; the error names the smallest limit and the module that sets it.
        Without an example, the first step raises it.
    OSError
        If the disk has too little room for the plan. Without an example, the first step
        raises it, before anything runs.
    PlanError
        If the plan of `policy` is invalid or needs more than the limit. Without an
        example, the first step raises it, before anything runs.
    TypeError
        If the model is not a module, `optimizer` is not one of PyTorch's, `example`
        is not a sequence of inputs, `example_kwargs` is not a mapping, the model does
        not take these inputs, `policy` is not a policy, `spill_to` is not a path, or
        `limit` is None and another argument is given.
    ValueError
        If the limit is not a number of bytes; if a module of the model has a budget of
        its own; if `times` is unknown; if the optimizer has none of the model's
        parameters, or its state cannot be determined; if the model does not run on the
        example, or has lazy layers without shapes or sparse tensors; if the loss gives
        no scalar; if `on_new_shape` is unknown; if `spill_to` is not a folder, or not a
        place for tensors of the device; if `spill_limit` or `lane_bandwidth` is given
        without it, or `inductor` with it.

    Notes
    -----
    The place of tensors that leave is reserved before a step. Each forward pass whose
    backward pass has not run holds its own place. If a `spill_limit` has no place for
    another pass, the pass raises `ResourceExhaustedError` before it begins.
    """
    if limit is None:
        check_module(model)
        others = (
            *(example, example_kwargs, optimizer, policy, loss),
            *(spill_to, spill_limit, lane_bandwidth),
        )
        changed = (
            inductor
            or offload != "auto"
            or times != "measured"
            or on_new_shape != "bucket"
        )
        if changed or any(x is not None for x in others):
            raise TypeError(
                "limit=None takes the budget off, and other arguments have no meaning "
                "then: pass math.inf to plan without a limit"
            )
        known = _budget_of(model)
        if known is not None:
            known._take_off()
        return model
    args, kwargs = checked_example(example, example_kwargs)
    is_planned = example is not None or example_kwargs is not None
    check_fits(model, (args, kwargs) if is_planned else None, optimizer, loss)
    inner = _inner(model)
    for name, each in inner.named_modules():
        if each is not inner and _budget_of(each) is not None:
            raise ValueError(
                f"the module {name!r} of the model has a budget, and one of the whole "
                "model would plan it again: take it off by budget(module, None)"
            )
    spill = spill_of(spill_to, spill_limit, lane_bandwidth, inductor=inductor)
    process = limit if isinstance(limit, ProcessLimit) else None
    settings = Settings(
        limit.limit_bytes if isinstance(limit, ProcessLimit) else checked_limit(limit),
        checked_policy(policy),
        times,
        inductor,
        spill,
        checked_on_new_shape(on_new_shape),
        checked_offload(offload, optimizer),
        process,
    )
    if settings.process is not None and times == "nominal":
        warnings.warn(
            "times='nominal' runs no op before the first step, so that what libraries "
            "keep is not known: the process may need more than its limit",
            RuntimeWarning,
            stacklevel=outside("torch"),
        )
    before = _budget_of(inner)
    if before is not None:
        before._offload.bring_back()
    made = ModelBudget(inner, settings, optimizer=optimizer, loss=loss)
    made._settle()
    if inner is not model:
        made._put_in(model)
    if is_planned:
        made.plan(args, kwargs)
    made._put_on()
    return model


@named_arguments
def auto_checkpoint(
    model: nn.Module, memory_budget: float | str | ProcessLimit | None, **options: Any
) -> nn.Module:
    """Recompute activations of a model where its training steps need it to fit.

    It is `budget` by the name that activation checkpointing has.

    Parameters
    ----------
    model : torch.nn.Module
        The model, which is given the budget in place.
    memory_budget : int, float, str, ProcessLimit or None
        The limit of `budget`.
    **options
        Its other arguments.

    Returns
    -------
    torch.nn.Module
        The model.

    Raises
    ------
    TypeError
        If `budget` has no such argument; and its other errors.
    """
    return budget(model, memory_budget, **options)


@named_arguments
def get_budget(model: nn.Module) -> ModelBudget:
    """Return the budget of a model.

    Parameters
    ----------
    model : torch.nn.Module
        A model that `budget` was called with, or a copy of it.

    Returns
    -------
    ModelBudget
        Its limit, plan and report.

    Raises
    ------
    TypeError
        If `model` is not a module.
    ValueError
        If it has no budget.

    Examples
    --------
    >>> import memcfg.torch as mt, torch
    >>> model = mt.budget(torch.nn.Linear(8, 4), "1MiB", times="nominal")
    >>> mt.get_budget(model).limit_bytes
    1048576
    """
    check_fits(model, None)
    known = _budget_of(model)
    if known is None:
        raise ValueError(f"the {type(model).__name__} has no budget")
    return known
