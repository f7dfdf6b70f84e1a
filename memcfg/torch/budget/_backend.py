"""The backend of `torch.compile`: it turns a traced graph into two planned graphs."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import partitioners
from torch._guards import TracingContext
from torch.nn.parameter import is_lazy

from memcfg._caller import outside
from memcfg._checks import named_arguments
from memcfg._frames import without_frames
from memcfg.errors import InfeasiblePlanError, MemcfgError
from memcfg.torch.budget._boxed import Title, boxed
from memcfg.torch.budget._checked_arguments import checked_policy
from memcfg.torch.budget._emitted import Emitter
from memcfg.torch.budget._graph_edits import (
    add_token,
    copy_what_changes,
    drop_copies,
    guard,
    lay_out_gradients,
    unguard,
)
from memcfg.torch.budget._peak_watch import PeakWatch, meter_of
from memcfg.torch.budget._planner import Planner, Settings, Shared
from memcfg.torch.budget._room import MISSED, OF_LOSS, OUTPUTS
from memcfg.torch.spill._stores import SpillRefusedError, spill_of
from memcfg.torch.spill._tensor_files import is_elsewhere
from memcfg.torch.state._graph_weights import keep_unread, put_gradients, read_weights
from memcfg.torch.state._offload import NOTHING
from memcfg.torch.state._weights import follow
from memcfg.torch.trace._costs import MeasuredCosts
from memcfg.torch.trace._generator_states import (
    run_and_save_state,
    run_with_state,
)
from memcfg.torch.trace._graph_inputs import GraphInput, inputs_of
from memcfg.torch.trace._kept_functions import drop_forward
from memcfg.torch.trace._lengths import (
    Lengths,
    has_symbols,
    is_symbol,
    resized,
    traced_in,
)
from memcfg.torch.trace._traced import is_tangent, rounded, title_of, values_of
from memcfg.torch.trace.ops._lstm_layers import (
    has_layers,
    has_lstm,
    lstm_as_layers,
    lstm_as_steps,
    set_lstm,
    stepped,
)
from memcfg.torch.trace.ops._own_gradients import own_gradients
from memcfg.units import align_up, format_bytes, parse_bytes

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from memcfg.plan import Policy
    from memcfg.torch.budget._step import Step
    from memcfg.torch.trace._traced import Traced

# returns the shape that an argument is planned with
ShapeOf = Callable[[torch.Tensor], tuple[int, ...]]

_RUNS = "memcfg.runs"  # the key of a graph's metadata under which it has its `_Runs`


class StopAfterPlanning(Exception):  # noqa: N818 - no error
    """Ends a call of which only the plan is needed."""


@dataclass(frozen=True)
class _Runs:
    """State that the graphs of one planned step share, for reports and live passes.

    It holds no planner, so it keeps none alive. The step holds the store, which its
    graphs refer to by a number.
    """

    step: Step
    shared: Shared
    limit: int | None
    late_limit: int | None  # checked when the backward pass begins
    title: Title
    watch: PeakWatch | None
    inputs: Sequence[int]  # positions of the forward inputs that are not parameters
    outputs: int

    def __deepcopy__(self, _memo: dict[int, Any]) -> _Runs:
        return self  # AOTAutograd copies a backward graph

    def forward(self, run: Any) -> Any:
        """Return a forward graph that records its passes."""
        step, shared = self.step, self.shared

        def shown(arguments: list[Any]) -> Any:
            if shared.before_run is not None:
                shared.before_run()
            shared.show(step)
            return run(arguments)

        passes = shared.passes
        pass_ = passes.forward(step, self.limit, self.inputs, self.outputs, shown)

        def call(arguments: list[Any]) -> Any:
            if shared.only_plans:
                raise StopAfterPlanning
            return pass_(arguments)

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    def backward(self, run: Any) -> Any:
        """Return a backward graph that records its passes."""
        return self.shared.passes.backward(self.step, self.late_limit, run)


class Compilation:
    """Compiles one traced graph to graphs that run as planned.

    AOTAutograd calls its methods: `partition` with a joint forward and backward graph,
    then `forward` and `backward` with the two that `partition` returned; or `infer`
    with a graph that has no backward phase.

    Parameters
    ----------
    planner : Planner
        Plans the graph.
    only_plan : bool, default False
        Whether to stop, with StopAfterPlanning, once the graph is planned.
    module : torch.nn.Module or None, default None
        The module whose graph it is; None if that is not known.
    has_lengths : bool, default False
        Whether lengths and numbers may be inputs of the graph.
    loss_of : callable or None, default None
        Returns the bytes of the user's loss, or None if they are unknown. It takes a
        function from an argument of the call to its planned shape, or None.
    """

    def __init__(
        self,
        planner: Planner,
        *,
        only_plan: bool = False,
        module: torch.nn.Module | None = None,
        has_lengths: bool = False,
        loss_of: Callable[[ShapeOf | None], int | None] | None = None,
    ) -> None:
        self.planner = planner
        self._has_lengths = has_lengths
        self._inputs: Sequence[Any] = ()
        self._loss_of = loss_of
        self._traced_inputs: Sequence[Any] = ()  # the same as PyTorch has traced them
        self._only_plan = only_plan
        self._module = None if module is None else ref(module)
        self._graph_inputs: tuple[GraphInput, ...] = ()
        self._has_layers = False  # of `nn.LSTM`, in the graph that was planned last
        self._found = NOTHING  # inputs that lie in files

    def __call__(
        self,
        module: fx.GraphModule,
        inputs: Sequence[Any],
        given: Sequence[torch.Tensor] = (),
    ) -> Any:
        """Compile a traced graph.

        Parameters
        ----------
        module : fx.GraphModule
            The graph that Dynamo traced.
        inputs : sequence
            Its inputs.
        given : sequence of torch.Tensor, default ()
            The arguments of the call, and the parameters and buffers of its module.

        Returns
        -------
        callable
            The function that runs instead of it.

        Raises
        ------
        ValueError
            If the model is traced in several graphs, or for shapes that vary.
        InfeasiblePlanError, OSError
            If no plan fits, or there is no room for the tensors that leave.
        """
        if not self._has_lengths and any(isinstance(e, torch.SymInt) for e in inputs):
            raise ValueError("shapes are static: pass torch.compile(dynamic=False)")
        reason = getattr(module, "compile_subgraph_reason", None)
        if getattr(reason, "graph_break", False):
            raise ValueError(
                "the model breaks into several graphs, each of which would have the "
                "limit: pass torch.compile(fullgraph=True) to see where, or take "
                "memcfg.torch.saved_tensors"
            )
        wrapped: Callable[[Any], Any] = _itself
        if self.planner.fan_out is not None:
            module, inputs, wrapped = self.planner.fan_out(module, inputs)
        self._inputs = inputs
        self._traced_inputs = [
            node.meta.get("example_value")
            for node in module.graph.nodes
            if node.op == "placeholder"
        ]
        self._graph_inputs = inputs_of(module, inputs)
        offload = self.planner.shared.offload
        if offload is not None:
            self._found = offload.found(inputs)
        self.planner.unread = _unread(given, inputs)
        decompositions = None
        if self.planner.settings.inductor:  # inductor has no other code for some ops
            from torch._inductor.decomposition import select_decomp_table

            decompositions = select_decomp_table()
        lengths = any(isinstance(each, torch.SymInt) for each in inputs)
        keeps = nullcontext if decompositions or lengths else own_gradients
        make = aot_autograd(
            decompositions=decompositions,
            fw_compiler=self.forward,
            bw_compiler=self.backward,
            inference_compiler=self.infer,
            partition_fn=self.partition,
        )
        try:
            with keeps():
                if has_lstm(module):
                    return wrapped(self._with_lstms(make, module, inputs))
                return wrapped(_made(make, module, inputs))
        finally:  # PyTorch keeps `backward`, and with it this object
            self._inputs = self._traced_inputs = ()
            self._found, self._loss_of = NOTHING, None

    def partition(
        self,
        joint: fx.GraphModule,
        _inputs: Any,
        *,
        num_fwd_outputs: int,
        **_: Any,
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Split a joint forward and backward graph by one plan of both."""
        joint.graph.eliminate_dead_code()
        copies = copy_what_changes(joint.graph)
        put_gradients(joint.graph, num_fwd_outputs, self._found)
        lay_out_gradients(joint.graph, num_fwd_outputs, self._inputs)
        read_weights(joint.graph, self._found.weights)
        step, traced = self._planned(joint.graph, num_fwd_outputs)
        emitter = self._emitter(joint.graph, step, traced, num_fwd_outputs)
        emitted = emitter.emit()
        drop_copies(emitted, emitter, copies)
        planned = fx.GraphModule(joint, emitted)
        parts: tuple[fx.GraphModule, fx.GraphModule]
        parts = partitioners._extract_fwd_bwd_modules(
            planned,
            [each for each in emitter.saved if not is_symbol(each)],
            [each for each in emitter.saved if is_symbol(each)],
            num_fwd_outputs=num_fwd_outputs,
        )
        drop_forward(parts[1], {node.name for node in emitter.early})
        keep_unread(parts[1].graph, self._found)
        follow(parts[0].graph, parts[1].graph)
        add_token(parts[0].graph, parts[1].graph, num_fwd_outputs)
        guard(parts[1].graph)
        watch = self._watch(step)
        runs = self._runs(step, joint.graph, parts[0].graph, num_fwd_outputs, watch)
        for part in parts:
            part.meta[_RUNS] = runs
        return parts

    def infer(self, module: fx.GraphModule, inputs: Any) -> Any:
        """Plan and compile a graph without backward."""
        read_weights(module.graph, self._found.weights)
        step, traced = self._planned(module.graph, None)
        emitted = self._emitter(module.graph, step, traced, 0).emit()
        planned = fx.GraphModule(module, emitted)
        follow(planned.graph)
        outputs = len(planned.graph.output_node().args[0])
        runs = self._runs(step, module.graph, planned.graph, outputs, None)
        return runs.forward(self._compiled(planned, inputs, runs))

    def forward(self, module: fx.GraphModule, inputs: Any) -> Any:
        """Compile the forward graph of a step."""
        runs = module.meta[_RUNS]
        run = self._compiled(module, inputs, runs)
        if runs.watch is not None:
            run = runs.watch.forward(run)
        return runs.forward(run)

    def backward(self, module: fx.GraphModule, inputs: Any) -> Any:
        """Compile the backward graph of a step, which may run again (retain_graph)."""
        _keep_what_is_saved()
        unguard(module.graph)
        runs = module.meta[_RUNS]
        run = self._compiled(module, inputs, runs)
        if runs.watch is not None:
            run = runs.watch.backward(run)
        return runs.backward(run)

    def _planned(
        self, source: fx.Graph, num_fwd_outputs: int | None
    ) -> tuple[Step, Traced]:
        """Plan a graph, and count its step if it is to run.

        Return the step, and what was traced in terms of the nodes of the graph.
        """
        self._has_layers = has_layers(source)
        if has_symbols(source):
            step, traced = self._planned_for_all(source, num_fwd_outputs)
        else:
            self._measure_loss(num_fwd_outputs)
            step = self.planner.plan(source, num_fwd_outputs, self._graph_inputs)
            traced = step.traced
        if self._only_plan:
            raise StopAfterPlanning
        planned, kind = self.planner.planned, step.is_training
        planned[kind] += 1
        if planned[kind] == 2 and planned[not kind] < 2 and traced is step.traced:
            warnings.warn(
                "a step is traced and planned anew: its inputs have another shape, a "
                "number among them another value, or the model another mode",
                RuntimeWarning,
                stacklevel=outside("torch"),
            )
        return step, traced

    def _measure_loss(
        self, num_fwd_outputs: int | None, lengths: Lengths | None = None
    ) -> None:
        """Set the bytes that the user's loss needs on the planner."""
        if num_fwd_outputs is None or self._loss_of is None:
            return
        if lengths is None or lengths.top == lengths.now:
            self.planner.loss_bytes = self._loss_of(None)
            return
        shapes = {}
        for given, traced in zip(self._inputs, self._traced_inputs, strict=False):
            if isinstance(given, torch.Tensor) and isinstance(traced, torch.Tensor):
                shape = tuple(map(lengths.number, traced.shape))
                shapes[_place_of(given)] = shape
        self.planner.loss_bytes = self._loss_of(
            lambda each: shapes.get(_place_of(each), tuple(each.shape))
        )

    def _planned_for_all(
        self, source: fx.Graph, num_fwd_outputs: int | None
    ) -> tuple[Step, Traced]:
        """Plan a graph with symbols for all lengths of a range, and all numbers."""
        lengths = Lengths.of(source, self._inputs)
        tops = lengths.tops()
        for lengths.top in tops:
            whole = resized(source, lengths)
            self._measure_loss(num_fwd_outputs, lengths)
            try:
                step = self.planner.plan(
                    whole.graph, num_fwd_outputs, self._graph_inputs
                )
            except InfeasiblePlanError:
                if lengths.top is tops[-1]:
                    raise
            else:
                break
        lengths.keep_to()
        return step, traced_in(step.traced, whole, source)

    def _emitter(
        self, source: fx.Graph, step: Step, traced: Traced, num_fwd_outputs: int
    ) -> Emitter:
        """Return the emitter of a step, which writes its plan as a graph."""
        replays = run_and_save_state, run_with_state
        if self.planner.settings.inductor:  # which knows these of PyTorch's
            from torch._prims import rng_prims

            replays = rng_prims.run_and_save_rng_state, rng_prims.run_with_rng_state
        return Emitter(
            source,
            traced,
            step.plan,
            num_fwd_outputs=num_fwd_outputs,
            replays=replays,
            spill=step.spill,
        )

    def _runs(
        self,
        step: Step,
        source: fx.Graph,
        forward: fx.Graph,
        outputs: int,
        watch: PeakWatch | None,
    ) -> _Runs:
        """Return the state that the graphs of a step share."""
        settings = self.planner.settings
        # Inductor's peak is not the planned one, and PyTorch may hold one of its
        # outputs longer.
        late = None if settings.inductor else settings.limit_bytes
        return _Runs(
            step,
            self.planner.shared,
            settings.limit_bytes,
            late,
            Title(title_of(source.nodes), self._module),
            watch,
            _inputs_at(step, forward),
            outputs,
        )

    def _watch(self, step: Step) -> PeakWatch | None:
        """Return a watch on the peak of a step, or None where there is none to keep.

        There is none without a limit, with inductor, or where nothing counts bytes. The
        bytes beyond the plan are reported only if the step exceeds the limit with them.
        """
        planner, traced = self.planner, step.traced
        sources = [node for node in traced.sources if not is_tangent(node)]
        devices = {value.device for node in sources for value in values_of(node)}
        of_process = planner.settings.process is not None
        meter = None
        if len(devices) == 1:
            meter = meter_of(devices.pop(), of_process=of_process)
        limit = planner.settings.limit_bytes
        if meter is None or limit is None or planner.settings.inductor:
            return None
        tensors = {traced.storage_of.get(node) for node in sources} - {None}
        there = sum(
            align_up(traced.graph.tensors[each].nbytes)
            for each in tensors
            if each is not None
        )

        def tell(missed: int) -> None:
            if step.passes_bytes + step.overhead_bytes + missed > limit:
                planner.missed_bytes = max(planner.missed_bytes, missed)

        known = sum(step.overhead[each] for each in (MISSED, OF_LOSS, OUTPUTS))
        added = step.passes_bytes - there + known
        return PeakWatch(meter, added, tell, planner.shared.passes)

    def _compiled(self, module: fx.GraphModule, inputs: Any, runs: _Runs) -> Any:
        """Compile an emitted graph."""
        if not self.planner.settings.inductor:
            return boxed(module, runs.title)
        from torch._inductor import config
        from torch._inductor.compile_fx import compile_fx_inner

        # the same random numbers as in eager mode
        with config.patch(fallback_random=True):
            return compile_fx_inner(module, inputs)

    def _with_lstms(
        self, make: Any, module: fx.GraphModule, inputs: Sequence[Any]
    ) -> Any:
        """Compile a graph with `nn.LSTM`, by oneDNN's layers or by its steps' ops."""
        # Only measured costs include the scratch of oneDNN's recurrent layers.
        inductor = self.planner.settings.inductor
        known = isinstance(self.planner.shared.costs, MeasuredCosts) and not inductor
        ways = (lstm_as_layers,) * known + (lstm_as_steps,)
        refused: list[Exception] = []
        before = stepped.count
        for lstm in ways:
            set_lstm(module, lstm)
            self._has_layers = False
            try:
                made = _made(make, module, inputs)
            except (MemcfgError, SpillRefusedError, OSError) as error:
                # if it has layers, the ops of their steps may still fit
                refused.append(without_frames(error))
                if not self._has_layers:
                    break
            except StopAfterPlanning:
                _warn_of_steps(refused)
                raise
            else:
                _warn_of_steps(refused)
                if stepped.count > before and not refused:
                    why = "in bfloat16" if known else "without measured costs"
                    _warn("with inductor" if inductor else why)
                return made
        raise min(refused, key=_smallest)


def _itself(run: Any) -> Any:
    """Return what is given."""
    return run


def _place_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return where a tensor is in memory."""
    if tensor.layout is not torch.strided:
        return (id(tensor),)
    place = tensor.untyped_storage()._cdata, tensor.storage_offset()
    return (*place, tuple(tensor.shape))


def _smallest(error: Exception) -> float:
    """Return the limit that a refusal names, or infinity, as a sort key."""
    return getattr(error, "smallest_limit_bytes", math.inf)


def _warn_of_steps(refused: Sequence[Exception]) -> None:
    """Warn if an LSTM fits only as the ops of its steps."""
    for error in refused:
        needs = ""
        if isinstance(error, InfeasiblePlanError):
            smallest = format_bytes(error.smallest_limit_bytes, exact=True)
            needs = f": for eager's, raise the limit to {smallest}"
        _warn("within this limit", needs)


def _warn(when: str, needs: str = "") -> None:
    warnings.warn(
        f"{when} nn.LSTM runs as the ops of its steps, which is slower and has the "
        f"bits of PyTorch without oneDNN{needs}",
        RuntimeWarning,
        stacklevel=outside("torch"),
    )


def _made(make: Any, module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
    """Trace and compile a graph."""
    try:
        return make(module, inputs)
    except MemcfgError as error:  # the frames of PyTorch's compiler explain nothing
        raise error.with_traceback(None) from None


def _keep_what_is_saved() -> None:
    """Forbid donated buffers: PyTorch refuses to run a graph with them again."""
    context = TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []


def _inputs_at(step: Step, graph: fx.Graph) -> list[int]:
    """Return the positions of the forward inputs that are not parameters."""
    traced = step.traced
    state = {
        node.name
        for node in traced.sources
        if node in traced.storage_of
        and traced.graph.tensors[traced.storage_of[node]].role == "parameter"
    }
    sources = [node for node in graph.nodes if node.op == "placeholder"]
    return [at for at, node in enumerate(sources) if node.name not in state]


def _unread(
    given: Sequence[torch.Tensor], inputs: Sequence[Any]
) -> dict[torch.device, int]:
    """Return the bytes of given tensors that are not inputs of a graph, by device."""
    known = {
        each.untyped_storage()._cdata
        for each in inputs
        if isinstance(each, torch.Tensor) and each.layout is torch.strided
    }
    found: Counter[torch.device] = Counter()
    for each in given:
        if (
            each.layout is torch.strided
            and not is_lazy(each)
            and not is_elsewhere(each)
        ):
            storage = each.untyped_storage()
            if storage._cdata not in known:
                known.add(storage._cdata)
                found[each.device] += rounded(storage.nbytes(), each.device)
    return dict(found)


@dataclass(eq=False, repr=False)
class Backend:
    """A backend for `torch.compile`, made by `backend`.

    PyTorch keeps it until it is reset, so it holds no traced graph: each graph has its
    own planner, which lives as long as the compiled code.

    Parameters
    ----------
    settings : Settings
        The settings of every step.
    """

    settings: Settings
    planned: Counter[bool] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        shared = Shared.of(self.settings)
        self._costs, self._stores = shared.costs, shared.stores

    def __repr__(self) -> str:  # PyTorch quotes it in messages
        limit = self.settings.limit_bytes
        text = None if limit is None else format_bytes(limit)
        return f"memcfg.torch.backend({text!r})"

    def __call__(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        """Compile a traced graph."""
        shared = Shared(self._costs, self._stores)
        planner = Planner(self.settings, shared, planned=self.planned)
        return Compilation(planner)(module, inputs)


@named_arguments
def backend(
    limit: int | str | None,
    *,
    policy: Policy | None = None,
    times: str = "measured",
    inductor: bool = False,
    spill_to: str | os.PathLike[str] | None = None,
    spill_limit: int | str | None = None,
    lane_bandwidth: int | str | None = None,
) -> Backend:
    """Make a backend of `torch.compile` that keeps a step within a limit.

    Parameters
    ----------
    limit : int or str or None
        Bytes, such as ``"4GiB"``, of everything that a step has in use: parameters,
        inputs, gradients and activations. None means no limit.
    policy : Policy or None, default None
        The planning method. None means `memcfg.plan.auto`'s, applied to the bytes in
        use, since PyTorch's allocator has no arena with holes.
    times : str, default "measured"
        ``"measured"`` runs each distinct op once on its device for its seconds and its
        scratch; ``"nominal"`` runs nothing and counts no scratch.
    inductor : bool, default False
        Whether inductor compiles the planned graphs. It fuses and reorders ops, so that
        results and the peak may differ.
    spill_to, spill_limit, lane_bandwidth : str, path or None; int, str or None
        Where tensors may be moved, how many bytes, and how fast, as in `budget`.

    Returns
    -------
    Backend
        What ``torch.compile(model, backend=..., dynamic=False)`` takes.

    Raises
    ------
    TypeError
        If `policy` is not a policy, or `spill_to` is not a path.
    ValueError
        If the limit is not a number of bytes, `times` is unknown, or tensors cannot be
        moved there.
    """
    spill = spill_of(spill_to, spill_limit, lane_bandwidth, inductor=inductor)
    return Backend(
        Settings(
            None if limit is None else parse_bytes(limit),
            checked_policy(policy),
            times,
            inductor,
            spill,
        )
    )
