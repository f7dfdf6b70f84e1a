"""The backend of `torch.compile` that plans each traced step within a limit."""

from __future__ import annotations

import operator
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import partitioners

from memcfg._caller import outside
from memcfg.errors import InfeasiblePlanError, MemcfgError
from memcfg.graph import TIMES, Graph
from memcfg.plan import Alloc, Compute, Free
from memcfg.plan._auto import Auto
from memcfg.torch._beside import workspace_bytes
from memcfg.torch._boxed import Title, boxed
from memcfg.torch._costs import MeasuredCosts
from memcfg.torch._emitted import Emitter
from memcfg.torch._peak_watch import WATCH, PeakWatch, meter_of
from memcfg.torch._traced import (
    ONCE,
    Traced,
    Tracer,
    is_tangent,
    nominal_costs,
    title_of,
    values_of,
)
from memcfg.units import align_up, format_bytes, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from memcfg.plan import Plan, Policy
    from memcfg.torch._traced import Costs


# An allocator gives each tensor its own bytes: there is no arena in which holes count.
ALLOCATED = Auto(places=False)
_TITLE = "memcfg.title"  # where a traced graph has the name of its module
_RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)


@dataclass(frozen=True)
class Peak:
    """The busiest time of a plan, by what an allocator has given out.

    Parameters
    ----------
    nbytes : int
        Bytes in use.
    op : int or None
        The op that runs; None: the start or the end.
    tensors : tuple of int
        What is there.
    scratch_bytes : int
        What the op needs beside them.
    """

    nbytes: int
    op: int | None
    tensors: tuple[int, ...]
    scratch_bytes: int


def live_peak(graph: Graph, plan: Plan) -> Peak:
    """Return the most bytes that a plan has in use at a time.

    An allocator gives each tensor its own bytes, so holes of the plan's arena do not
    count, and this is the plan's peak or less.
    """
    sizes = [align_up(tensor.nbytes) for tensor in graph.tensors]
    there: set[int] = set()
    now = 0
    peak = Peak(0, None, (), 0)
    for action in plan.actions:
        scratch, op = 0, None
        if isinstance(action, Alloc):
            there.add(action.tensor)
            now += sizes[action.tensor]
        elif isinstance(action, Free):
            there.discard(action.tensor)
            now -= sizes[action.tensor]
        elif isinstance(action, Compute):
            op = action.op
            scratch = align_up(graph.ops[op].scratch_bytes)
        if now + scratch > peak.nbytes or (op is not None and peak.op is None):
            peak = Peak(now + scratch, op, tuple(sorted(there)), scratch)
    return peak


@dataclass(frozen=True)
class Step:
    """A traced step and its plan.

    Parameters
    ----------
    traced : Traced
        What was planned.
    plan : Plan
        The plan of its graph.
    beside : dict of str to int
        Bytes beside the graph, by what they are.
    is_training : bool
        Whether the step has a backward phase.
    limit_bytes : int or None, default None
        The limit of what the graph itself needs; None: no limit.
    """

    traced: Traced
    plan: Plan
    beside: dict[str, int]
    is_training: bool
    limit_bytes: int | None = None

    @property
    def beside_bytes(self) -> int:
        """The sum of the bytes beside the graph."""
        return sum(self.beside.values())

    @property
    def peak_bytes(self) -> int:
        """The most bytes in use at a time, those beside the graph included."""
        return self.peak.nbytes + self.beside_bytes

    @cached_property
    def peak(self) -> Peak:
        """The busiest time of its plan."""
        return live_peak(self.traced.graph, self.plan)


class StopAfterPlanning(Exception):  # noqa: N818 - no error
    """Ends a compilation whose plan is all that was asked for."""


@dataclass(eq=False, repr=False)
class Planner:
    """What a backend knows: its limit, its costs, the steps that it has planned.

    Parameters
    ----------
    limit_bytes : int or None
        The limit; None: no limit.
    policy : Policy
        The method that plans.
    costs : callable
        Seconds and scratch bytes of a node.
    beside : dict of str to int
        Bytes that are in use beside the graph during a step, by what they are.
        cuBLAS's workspaces are added when a graph has products.
    inductor : bool
        Whether inductor compiles the two graphs.
    only_plan : bool
        Whether nothing is to be compiled.
    loss_bytes : int or None
        What the user's own loss needs; None: not known.
    """

    limit_bytes: int | None
    policy: Policy = ALLOCATED
    costs: Costs = field(default_factory=MeasuredCosts)
    beside: dict[str, int] = field(default_factory=dict)
    inductor: bool = False
    only_plan: bool = False
    loss_bytes: int | None = None
    steps: list[Step] = field(default_factory=list)
    parameters: frozenset[int] = frozenset()
    told: bool = False
    known: list[Step] = field(default_factory=list)
    missed_bytes: int = 0  # what a step had in use beyond its plan
    _onednn: bool = True

    @property
    def beside_bytes(self) -> int:
        """The sum of the bytes beside the graph."""
        return sum(self.beside.values())

    def plan(self, source: fx.Graph, num_fwd_outputs: int | None) -> Step:
        """Plan a traced graph, or raise InfeasiblePlanError."""
        if isinstance(self.costs, MeasuredCosts):
            with _onednn(self._onednn):
                self.costs.prepare(source.nodes)
        if workspaces := workspace_bytes(source.nodes):
            self.beside = {**self.beside, "cuBLAS workspaces": workspaces}
        tracer = Tracer(
            source,
            num_fwd_outputs=num_fwd_outputs,
            name="training step" if num_fwd_outputs is not None else "forward",
            parameters=self.parameters,
            costs=self.costs,
            kept_outputs=_kept_outputs(source, num_fwd_outputs),
            loss_bytes=self.loss_bytes,
        )
        traced = tracer.trace()
        step = self._within(traced, num_fwd_outputs is not None)
        self.steps.append(step)
        alike = [each for each in self.steps if each.is_training == step.is_training]
        if len(alike) == 2 and not self.told and not self.only_plan:
            self.told = True
            warnings.warn(
                "a step is traced and planned anew: its inputs have another shape, a "
                "number among them another value, or the model another mode",
                RuntimeWarning,
                stacklevel=outside("torch"),
            )
        if self.only_plan:
            raise StopAfterPlanning
        return step

    def _within(self, traced: Traced, is_training: bool) -> Step:
        graph = traced.graph
        limit = None
        if self.limit_bytes is not None:
            limit = self.limit_bytes - self.beside_bytes
        for each in self.known:  # as when it was planned for an example
            if each.limit_bytes == limit and each.traced.graph == graph:
                return replace(each, traced=traced, beside=self.beside)
        step = Step(
            traced, self._planned(graph, limit), self.beside, is_training, limit
        )
        self.known.append(step)
        return step

    def _planned(self, graph: Graph, limit: int | None) -> Plan:
        """Plan a graph, or raise what says where the limit is too low."""
        if limit is None:
            return self.policy(graph, limit_bytes=None)
        try:
            return self.policy(graph, limit_bytes=max(limit, 1))
        except InfeasiblePlanError as error:
            # A policy that places has holes, which an allocator does not need.
            plan = self.policy(graph, limit_bytes=error.smallest_limit_bytes)
            peak = live_peak(graph, plan)
            if peak.nbytes > limit:
                raise self._refused(graph, peak) from None
        return plan

    def _refused(self, graph: Graph, peak: Peak) -> InfeasiblePlanError:
        """Say what the smallest limit is, and which op of which module sets it."""
        op = None if peak.op is None else graph.ops[peak.op]
        where = ""
        if op is not None:
            where = f" {op.name} ({op.type})"
            where += f" of module {op.group!r}" if op.group else ""
            where = f" What needs most is{where}."
        floor = peak.nbytes + self.beside_bytes
        beside = format_bytes(self.beside_bytes)
        return InfeasiblePlanError(
            f"The {graph.name} does not fit "
            f"{format_bytes(self.limit_bytes or 0, exact=True)}, {beside} of which are "
            f"beside the graph.{where}",
            smallest_limit_bytes=floor,
            lower_bound_bytes=floor,
            requested_bytes=floor,
            limit_bytes=self.limit_bytes,
            hint="Raise the limit or lower the batch size.",
        )

    def partition(
        self,
        joint: fx.GraphModule,
        _inputs: Any,
        *,
        num_fwd_outputs: int,
        **_: Any,
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Split a graph of forward and backward by a plan of both."""
        joint.graph.eliminate_dead_code()
        copies = _copy_what_changes(joint.graph)
        step = self.plan(joint.graph, num_fwd_outputs)
        emitter = Emitter(
            joint.graph, step.traced, step.plan, num_fwd_outputs=num_fwd_outputs
        )
        emitted = emitter.emit()
        _drop_copies(emitted, emitter, copies)
        planned = fx.GraphModule(joint, emitted)
        parts: tuple[fx.GraphModule, fx.GraphModule]
        parts = partitioners._extract_fwd_bwd_modules(
            planned, list(emitter.saved), [], num_fwd_outputs=num_fwd_outputs
        )
        watch, title = self._watch(step), Title(title_of(joint.graph.nodes))
        for part in parts:
            part.meta.update({WATCH: watch, _TITLE: title})
        return parts

    def _watch(self, step: Step) -> PeakWatch | None:
        """Return what watches a step; None: no limit, nothing counts, or inductor."""
        sources = [node for node in step.traced.sources if not is_tangent(node)]
        devices = {value.device for node in sources for value in values_of(node)}
        meter = meter_of(devices.pop()) if len(devices) == 1 else None
        if meter is None or step.limit_bytes is None or self.inductor:
            return None
        tensors = {step.traced.storage_of.get(node) for node in sources} - {None}
        there = sum(
            align_up(step.traced.graph.tensors[each].nbytes)
            for each in tensors
            if each is not None
        )

        def tell(missed: int) -> None:
            self.missed_bytes = max(self.missed_bytes, missed)

        return PeakWatch(meter, step.peak.nbytes - there, tell)

    def infer(self, module: fx.GraphModule, _inputs: Any) -> Any:
        """Plan a graph without backward."""
        step = self.plan(module.graph, None)
        emitter = Emitter(module.graph, step.traced, step.plan, num_fwd_outputs=0)
        planned = fx.GraphModule(module, emitter.emit())
        planned.meta[_TITLE] = Title(title_of(module.graph.nodes))
        return self.compile(planned, _inputs)

    def forward(self, module: fx.GraphModule, inputs: Any) -> Any:
        """Compile the forward graph of a step."""
        return self.compile(module, inputs, PeakWatch.forward)

    def backward(self, module: fx.GraphModule, inputs: Any) -> Any:
        """Compile the backward graph of a step."""
        return self.compile(module, inputs, PeakWatch.backward)

    def compile(
        self,
        module: fx.GraphModule,
        inputs: Any,
        watched: Callable[[PeakWatch, Any], Any] | None = None,
    ) -> Any:
        """Compile a graph."""
        if self.inductor:
            from torch._inductor import config
            from torch._inductor.compile_fx import compile_fx_inner

            with config.patch(fallback_random=True):  # numbers as eager draws them
                return compile_fx_inner(module, inputs)
        watch = module.meta.get(WATCH)
        run = boxed(module, module.meta[_TITLE])
        if watch is not None and watched is not None:
            run = watched(watch, run)
            run._boxed_call = True
        return run

    def __repr__(self) -> str:  # PyTorch quotes it
        limit = None if self.limit_bytes is None else format_bytes(self.limit_bytes)
        return f"memcfg.torch.backend({limit!r})"

    def __call__(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        """Compile what was traced: the backend that `torch.compile` calls."""
        if any(isinstance(each, torch.SymInt) for each in inputs):
            raise ValueError("shapes are static: pass torch.compile(dynamic=False)")
        self.parameters = _parameters(module, inputs)
        self._onednn = torch.backends.mkldnn.enabled
        recurrent = any(node.target in _RECURRENT for node in module.graph.nodes)
        decompositions = None
        if self.inductor:  # which has no other code for some ops
            from torch._inductor.decomposition import select_decomp_table

            decompositions = select_decomp_table()
        make = aot_autograd(
            decompositions=decompositions,
            fw_compiler=self.forward,
            bw_compiler=self.backward,
            inference_compiler=self.infer,
            partition_fn=self.partition,
        )
        # oneDNN's recurrent layer can't be differentiated in a traced graph: without
        # it, a layer is traced as the ops of its steps.
        with _onednn(self._onednn and not recurrent):
            try:
                return make(module, inputs)
            except MemcfgError as error:  # PyTorch's frames say nothing of it
                raise error.with_traceback(None) from None


@contextmanager
def _onednn(enabled: bool) -> Iterator[None]:
    """Say meanwhile whether PyTorch may use oneDNN."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(enabled)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def lowest_plan(policy: Policy, graph: Graph) -> Plan:
    """Return the plan of the lowest peak that a policy finds."""
    try:
        return policy(graph, limit_bytes=1)
    except InfeasiblePlanError as error:
        return policy(graph, limit_bytes=error.smallest_limit_bytes)


def _parameters(module: fx.GraphModule, inputs: Sequence[Any]) -> frozenset[int]:
    """Return the places of parameters and buffers among the inputs of a graph."""
    nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
    return frozenset(
        at
        for at, (node, value) in enumerate(zip(nodes, inputs, strict=True))
        if isinstance(value, torch.nn.Parameter)
        or any(each in node.name for each in ("_parameters_", "_buffers_"))
    )


def _copy_what_changes(joint: fx.Graph) -> set[str]:
    """Let forward read copies of the inputs that it changes, such as running means.

    They are changed when forward has ended. What is computed again later would read
    the new values.
    """
    output = next(node for node in joint.nodes if node.op == "output")
    changed = {
        each.mutated_input
        for each in output.meta.get("desc") or ()
        if type(each).__name__ == "InputMutationAOTOutput"
    }
    sources = [node for node in joint.nodes if node.op == "placeholder"]
    names = set()
    for node in sources:
        if node.meta.get("desc") not in changed or not node.users:
            continue
        first = next(each for each in joint.nodes if each in node.users)
        with joint.inserting_before(first):
            copy = joint.call_function(torch.ops.aten.clone.default, (node,))
        copy.meta = {
            key: value for key, value in first.meta.items() if "module_stack" in key
        }
        value = node.meta["val"]
        with value.fake_mode:
            copy.meta["val"] = value.clone()
        node.replace_all_uses_with(copy, delete_user_cb=partial(operator.ne, copy))
        copy.meta[ONCE] = True
        names.add(copy.name)
    return names


def _drop_copies(graph: fx.Graph, emitter: Emitter, names: set[str]) -> None:
    """Read inputs themselves where no op reads them after forward."""
    early = emitter.early
    for node in list(graph.nodes):
        if node.name in names and all(user in early for user in node.users):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _kept_outputs(
    source: fx.Graph, num_fwd_outputs: int | None
) -> Callable[[int], bool]:
    """Say which outputs the user holds, not those that are copied into buffers.

    Without a backward phase these are copied at the end, and held until then.
    """
    if num_fwd_outputs is None:
        return lambda _: True
    output = next(node for node in source.nodes if node.op == "output")
    described = output.meta.get("desc") or ()
    updates = {
        at
        for at, each in enumerate(described)
        if type(each).__name__ == "InputMutationAOTOutput"
    }
    return lambda index: index not in updates


def backend(
    limit: int | str | None,
    *,
    policy: Policy | None = None,
    times: str = "measured",
    inductor: bool = False,
) -> Planner:
    """Make a backend of `torch.compile` that keeps a step within a limit.

    Parameters
    ----------
    limit : int or str or None
        Bytes, such as ``"4GiB"``, of all that a step has in use: parameters, inputs,
        gradients and what lies between. None: no limit.
    policy : Policy or None, default None
        The method that plans; None: as `memcfg.plan.auto`, for bytes in use, since
        PyTorch's allocator has no arena with holes.
    times : str, default "measured"
        Whether seconds and scratch of each distinct op are measured, once, on its
        device, or ``"nominal"``, which knows no scratch.
    inductor : bool, default False
        Whether inductor compiles the planned graphs. It fuses and reorders, so bits
        and the peak are then its own.

    Returns
    -------
    Planner
        What ``torch.compile(model, backend=..., dynamic=False)`` takes.

    Raises
    ------
    ValueError
        If the limit is no number of bytes, or times are of another kind.
    """
    return Planner(
        None if limit is None else parse_bytes(limit),
        policy=policy or ALLOCATED,
        costs=costs_of(times),
        inductor=inductor,
    )


def costs_of(times: str) -> Costs:
    """Return costs by their name; ValueError if it is none."""
    if times not in TIMES:
        raise ValueError(f"times are one of {', '.join(TIMES)}, not {times!r}")
    return nominal_costs if times == "nominal" else MeasuredCosts()
