"""A traced step of PyTorch as a `memcfg.graph.Graph` of storages.

A tensor of the graph is a storage: a view is no op, and reading a view reads its
storage. The user's own op lies between the forward and the backward ops: it reads the
outputs and makes their gradients.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from memcfg._caller import shown_path
from memcfg.graph import Graph, Op, Tensor, memory_seconds
from memcfg.graph._graph import DTYPES
from memcfg.plan import Compute
from memcfg.torch.spill._tensor_files import place_of
from memcfg.torch.trace._graph_inputs import GraphInput, position_of
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from memcfg.plan import Plan

Costs = Callable[[fx.Node], tuple[float, int]]

ONCE = "memcfg.once"  # in the metadata of nodes that must not be recomputed
# in the metadata of nodes for which a planned step calls another function
RUNS_AS = "memcfg.runs_as"
ELSEWHERE = "memcfg.elsewhere"  # in the metadata of nodes whose bytes lie in a file
LOSS = "loss"  # the user's own op
UPDATE = "step of the optimizer"  # the op that follows the backward phase, if any
PASSING = "before forward"  # the op of a wrapper, if it gathers or sends something
STALE = "outputs of the pass before"  # a tensor that is freed at the end of forward
# Since PyTorch 2.13, a compiled backward frees gradients of outputs once it has read
# them; before, its caller holds them.
_FREES_TANGENTS = hasattr(torch.autograd.Function, "boxed_grads_call")
ALIGNMENTS = {"cpu": 64, "cuda": 512}  # bytes that allocators round to


def nominal_costs(node: fx.Node) -> tuple[float, int]:
    """Return nominal seconds of a node, and no scratch."""
    read = [val for each in node.all_input_nodes for val in values_of(each)]
    traffic = sum(map(nbytes_of, (*read, *values_of(node))))
    return max(memory_seconds(traffic), _flops(node) / 100e9), 0


def _flops(node: fx.Node) -> float:
    """Return the floating-point operations of a convolution or a matrix product."""
    packet = getattr(node.target, "overloadpacket", None)
    made = sum(val.numel() for val in values_of(node))
    read = [values_of(each)[0] for each in node.all_input_nodes if values_of(each)]
    aten = torch.ops.aten
    if packet is aten.convolution:
        return float(2 * made * read[1][0].numel())
    if packet is aten.convolution_backward:
        return float(4 * read[0].numel() * read[2][0].numel())
    if packet in (aten.mm, aten.bmm):
        return float(2 * made * read[0].shape[-1])
    if packet in (aten.addmm, aten.baddbmm):
        return float(2 * made * read[-1].shape[-2])
    return 0.0


def values_of(node: fx.Node) -> list[torch.Tensor]:
    """Return the fake tensors that a node yields."""
    leaves = tree_leaves(node.meta.get("val"))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def nbytes_of(value: torch.Tensor) -> int:
    """Return the bytes of a tensor's storage, rounded as its allocator does.

    Those of a tensor that lies in a file are 0.
    """
    if place_of(value) is not None:
        return 0
    return rounded(int(value.untyped_storage().nbytes()), value.device)


def rounded(nbytes: int, device: torch.device) -> int:
    """Return bytes as the allocator of a device rounds them."""
    return align_up(nbytes, ALIGNMENTS.get(device.type, 512))


def _key(value: torch.Tensor) -> int:
    return int(value.untyped_storage()._cdata)


def is_random(node: fx.Node) -> bool:
    """Return whether a node draws numbers; attention without dropout does not."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    schema = node.target._schema
    for at, argument in enumerate(schema.arguments):
        if argument.name == "dropout_p":
            given = node.args[at] if at < len(node.args) else None
            return bool(node.kwargs.get("dropout_p", given) or 0)
    return True


def _mutates(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _fixed(
    ops: Sequence[Op], keep: Collection[int], shown: Collection[int]
) -> tuple[Op, ...]:
    """Return ops that are not replayable where recomputing would free nothing.

    Tensors held to the end gain nothing from recomputing. Outputs for the user are held
    from the end of forward, so a second copy would exist next to them. An op with a
    result of backward may be recomputed if it has other results as well.
    """
    held, own = frozenset(keep), frozenset(shown)
    return tuple(
        replace(op, replayable=False)
        if op.outputs
        and (held.issuperset(op.outputs) or not own.isdisjoint(op.outputs))
        else op
        for op in ops
    )


def _is_kept(node: fx.Node) -> bool:
    """Return whether a node runs only once, in the order of nodes with side effects."""
    if ONCE in node.meta or isinstance(node.target, torch._ops.HigherOrderOperator):
        return True
    if not isinstance(node.target, torch._ops.OpOverload):
        return False  # Python functions of numbers and tuples
    known = node.target.namespace in ("aten", "memcfg", "prims")
    return is_random(node) or _mutates(node) or not known


def type_of(target: Any) -> str:
    """Return the type of an op in a graph, the same in each process."""
    if isinstance(target, torch._ops.OperatorBase):
        return str(target).removesuffix(".default")
    package = str(target.__module__).partition(".")[0]
    return f"{package}.{target.__qualname__}"


def module_of(node: fx.Node) -> str:
    """Return the path of the module of a node; empty if it is not known."""
    for key in ("nn_module_stack", "fwd_nn_module_stack"):
        stack = node.meta.get(key)
        if stack:
            path = str(list(stack.values())[-1][0])
            path = re.sub(r"^[LG]\['\w+'\]\.?", "", path)
            return re.sub(r"\._modules\['([^']*)'\]", r".\1", path)
    return ""


@lru_cache(4096)
def line_of(calls: str) -> str:
    """Return the innermost file and line outside of PyTorch in a node's stack."""
    for path, number in reversed(re.findall(r'File "([^"]+)", line (\d+)', calls)):
        if f"{os.sep}torch{os.sep}" not in path:
            return f"{shown_path(path)}:{number}"
    return ""


def title_of(nodes: Iterable[fx.Node]) -> str:
    """Return the class of the traced module; empty if it is not known."""
    for node in nodes:
        for path, kind in node.meta.get("nn_module_stack", {}).values():
            if re.fullmatch(r"[LG]\['\w+'\]", path):
                return str(kind.__name__)
    return ""


class SparseRefusedError(ValueError):
    """A step has sparse tensors."""


def check_dense(graph: fx.Graph) -> None:
    """Raise SparseRefusedError if a graph has sparse tensors."""
    for node in graph.nodes:
        for value in values_of(node):
            if value.layout is not torch.strided:
                module = module_of(node)
                where = f" of module {module!r}" if module else ""
                kind = str(value.layout).removeprefix("torch.")
                raise SparseRefusedError(
                    f"the step has a tensor that is {kind} ({node.name}{where}), and "
                    "plans are of dense ones: pass sparse=False to embeddings"
                )


@dataclass
class Traced:
    """A graph of storages, with the nodes of its ops and tensors in the traced graph.

    Parameters
    ----------
    graph : Graph
        The graph to plan.
    nodes : list of fx.Node or None
        The node of each op; None for the user's own op and the optimizer's.
    storage_of : dict of fx.Node to int
        The tensor that a node, or all of its outputs, are views of.
    made : list of list of int
        The tensors that the node of each op makes.
    boundary : int or None
        The index of the user's own op.
    sources : list of fx.Node, default []
        The inputs and constants, which no op makes.
    states : dict of int to fx.Node, default {}
        The earlier state of the generator, by the index of each op that can be
        replayed.
    """

    graph: Graph
    nodes: list[fx.Node | None]
    storage_of: dict[fx.Node, int]
    made: list[list[int]]
    boundary: int | None
    sources: list[fx.Node] = field(default_factory=list)
    states: dict[int, fx.Node] = field(default_factory=dict)

    def unused_states(self, plan: Plan) -> frozenset[int]:
        """Return the unused states of random ops, which a plan computes only once."""
        runs = Counter(each.op for each in plan.actions if isinstance(each, Compute))
        return frozenset(
            self.storage_of[state] for op, state in self.states.items() if runs[op] < 2
        )


class Tracer:
    """Reads a traced graph of forward, or of forward and backward.

    Parameters
    ----------
    source : fx.Graph
        The graph that PyTorch traced.
    num_fwd_outputs : int or None
        The number of its outputs that are forward's; None if it has no backward phase.
    name : str
        The name of the graph.
    inputs : sequence of GraphInput, default ()
        What the user's program calls the inputs; if empty, the graph's own names.
    kept_outputs : callable, optional
        Returns whether the user holds the output at a position.
    costs : callable, optional
        Returns the seconds and scratch bytes of a node.
    loss_bytes : int or None, default None
        Bytes that the user's loss needs; None if unknown.
    states : mapping of fx.Node to fx.Node or None, default None
        The states of generators, by the random ops that may be replayed.
    update_bytes : int or None, default None
        Temporary bytes of the optimizer's step; None if there is no optimizer.
    stale_bytes : int, default 0
        Outputs of the previous pass, which are freed at the end of forward.
    other_losses_bytes : int, default 0
        Bytes that the same loss needs for the outputs of other passes.
    passing_bytes : int, default 0
        Bytes that a wrapper of the model allocates and frees before forward.
    times : str, default "nominal"
        Of which kind the seconds are: ``"nominal"`` or ``"measured"``.
    """

    def __init__(
        self,
        source: fx.Graph,
        *,
        num_fwd_outputs: int | None,
        name: str,
        inputs: Sequence[GraphInput] = (),
        kept_outputs: Callable[[int], bool] = lambda index: True,
        costs: Costs = nominal_costs,
        loss_bytes: int | None = None,
        states: Mapping[fx.Node, fx.Node] | None = None,
        update_bytes: int | None = None,
        stale_bytes: int = 0,
        other_losses_bytes: int = 0,
        passing_bytes: int = 0,
        times: str = "nominal",
    ) -> None:
        self._source = source
        self._update_bytes = update_bytes
        self._stale_bytes = stale_bytes
        self._other_losses_bytes = other_losses_bytes
        self._passing_bytes = passing_bytes
        self._times = times
        self._states = states or {}
        self._fwd = num_fwd_outputs
        self._name = name
        self._inputs = inputs
        self._kept_outputs = kept_outputs
        self._costs = costs
        self._known_loss_bytes = loss_bytes
        self._tensors: list[Tensor] = []
        self._ids: dict[int, int] = {}
        self._storage_of: dict[fx.Node, int] = {}
        self._ops: list[Op] = []
        self._nodes: list[fx.Node | None] = []
        self._made: list[list[int]] = []
        self._token: int | None = None
        self._alive: list[torch.Tensor] = []  # keeps keys of storages from being reused

    def trace(self) -> Traced:
        """Return the traced graph of storages."""
        outputs = self._outputs()
        fwd = outputs if self._fwd is None else outputs[: self._fwd]
        bwd = [] if self._fwd is None else outputs[self._fwd :]
        order, last = self._ordered(fwd)
        boundary = None
        sources = [node for node in order if node.op in ("placeholder", "get_attr")]
        tangents = [node for node in sources if is_tangent(node)]
        for node in sources:
            if node not in tangents:
                self._source_tensor(node)
        self._begin()
        phase = "forward"
        for index, node in enumerate(order):
            if node.op == "call_function":
                self._call(node, phase)
            if index == last and self._fwd is not None:
                self._end_forward(fwd)
                boundary = self._loss(fwd, tangents)
                phase = "backward"
        self._update(bwd)
        keep = self._read(bwd)
        if not _FREES_TANGENTS:
            keep |= self._read(tangents)
        shown = self._read(
            node for index, node in enumerate(fwd) if self._kept_outputs(index)
        )
        keep |= shown
        keep |= self._read(node for node in sources if node not in tangents)
        gradients = self._read(bwd) - self._read(sources)
        for each in gradients:
            tensor = self._tensors[each]
            self._tensors[each] = Tensor(
                tensor.name, tensor.nbytes, "gradient", tensor.shape, tensor.dtype
            )
        for each in self._read(fwd) - gradients:
            tensor = self._tensors[each]
            if tensor.role == "activation":
                self._tensors[each] = Tensor(
                    tensor.name, tensor.nbytes, "output", tensor.shape, tensor.dtype
                )
        graph = Graph(
            self._name,
            tuple(self._tensors),
            _fixed(self._ops, keep, shown),
            tuple(sorted(keep)),
            lines=self._lines(),
            times=self._times,
        )
        states = {
            op: self._states[node]
            for op, node in enumerate(self._nodes)
            if node in self._states
        }
        return Traced(
            graph, self._nodes, self._storage_of, self._made, boundary, sources, states
        )

    def _lines(self) -> dict[str, str]:
        """Return the lines of the user's program by the names of ops, where known."""
        stacks = {
            node.name: node.meta.get("stack_trace") or ""
            for node in self._nodes
            if node is not None
        }
        lines = {name: line_of(calls) for name, calls in stacks.items()}
        return {name: line for name, line in lines.items() if line}

    def _outputs(self) -> list[Any]:
        node = next(node for node in self._source.nodes if node.op == "output")
        return list(node.args[0])

    def _ordered(self, fwd: Iterable[Any]) -> tuple[list[fx.Node], int]:
        """Return the nodes in order, and the index of the last that forward needs.

        An output that is a view may come after nodes that read gradients of outputs.
        These do not exist yet in forward, so such nodes are moved to backward.
        """
        order = list(self._source.nodes)
        sources = [node for node in order if node.op in ("placeholder", "get_attr")]
        ends = {*sources, *(node for node in fwd if isinstance(node, fx.Node))}
        last = max((at for at, node in enumerate(order) if node in ends), default=-1)
        after: dict[fx.Node, None] = {}
        for node in order[: last + 1]:
            if any(is_tangent(each) or each in after for each in node.all_input_nodes):
                after[node] = None
        before = [node for node in order[: last + 1] if node not in after]
        return [*before, *after, *order[last + 1 :]], len(before) - 1

    def _new(
        self, name: str, value: torch.Tensor, role: str, *, is_elsewhere: bool = False
    ) -> int:
        dtype = str(value.dtype).removeprefix("torch.")
        self._tensors.append(
            Tensor(
                name,
                0 if is_elsewhere else nbytes_of(value),
                role,
                tuple(map(int, value.shape)),
                dtype if dtype in DTYPES else None,
            )
        )
        self._alive.append(value)
        self._ids[_key(value)] = len(self._tensors) - 1
        return len(self._tensors) - 1

    def _source_tensor(self, node: fx.Node) -> None:
        for value in values_of(node):
            if _key(value) not in self._ids:
                given = self._input(node)
                role = "parameter" if given.is_state else "input"
                away = ELSEWHERE in node.meta
                self._new(given.name, value, role, is_elsewhere=away)
            self._storage_of[node] = self._ids[_key(value)]

    def _input(self, node: fx.Node) -> GraphInput:
        """Return which input of the captured graph a source is, or its own name."""
        at = position_of(node)
        if at is not None and at < len(self._inputs):
            return self._inputs[at]
        return GraphInput(node.name, node.op == "get_attr")

    def _call(self, node: fx.Node, phase: str) -> None:
        values = values_of(node)
        fresh = list({_key(v): v for v in values if _key(v) not in self._ids}.values())
        role = "activation" if phase == "forward" else "activation_gradient"
        outputs = [
            self._new(
                node.name if not at else f"{node.name}:{at}",
                value,
                role,
                is_elsewhere=ELSEWHERE in node.meta,
            )
            for at, value in enumerate(fresh)
        ]
        single = isinstance(node.meta.get("val"), torch.Tensor)
        parts = not outputs and len(set(map(_key, values))) == 1  # as for `unbind`
        if single or parts:
            self._storage_of[node] = self._ids[_key(values[0])]
        state = self._states.get(node)
        kept = state is None and _is_kept(node)
        if not outputs and not kept:
            return  # a view, or no tensor
        self._alive.extend(values)
        inputs = sorted(self._read(node.all_input_nodes))
        extra = [self._chain()] if kept or state is not None else []
        if kept and self._token is not None:
            inputs.append(self._token)
        if state is not None:  # its state is saved in the order of side effects
            inputs.append(self._storage_of[state])
        if extra:
            self._token = extra[0]
        seconds, scratch = self._costs(node)
        self._append(
            Op(
                node.name,
                type_of(node.target),
                phase,
                tuple(inputs),
                (*outputs, *extra),
                seconds,
                scratch,
                replayable=not kept,
                group=module_of(node),
            ),
            node,
            outputs,
        )

    def _chain(self) -> int:
        """Add a tensor of no bytes that keeps ops with side effects in order."""
        name = f"effect:{len(self._tensors)}"
        self._tensors.append(Tensor(name, 0, "activation"))
        return len(self._tensors) - 1

    def _begin(self) -> None:
        """Add the op of what a wrapper does before forward, which has only scratch."""
        if not self._passing_bytes:
            return
        self._token = self._chain()
        op = Op(
            PASSING,
            PASSING,
            "forward",
            (),
            (self._token,),
            0.0,
            self._passing_bytes,
            replayable=False,
        )
        self._append(op, None, [])

    def _end_forward(self, fwd: Iterable[Any]) -> None:
        """Add the op that frees the outputs held by a user's variable until now."""
        if not self._stale_bytes:
            return
        inputs = sorted(self._read(fwd))
        if self._token is not None:
            inputs.append(self._token)
        inputs.append(len(self._tensors))
        self._tensors.append(Tensor(STALE, self._stale_bytes, "input"))
        self._token = self._chain()
        op = Op(
            f"end of {STALE}",
            STALE,
            "forward",
            tuple(inputs),
            (self._token,),
            0.0,
            0,
            replayable=False,
        )
        self._append(op, None, [])

    def _loss(self, fwd: Iterable[Any], tangents: Sequence[fx.Node]) -> int:
        outputs = [
            self._new(node.name, value, "activation_gradient")
            for node in tangents
            for value in values_of(node)
        ]
        for node in tangents:
            for value in values_of(node):
                self._storage_of[node] = self._ids[_key(value)]
        after = self._chain()
        inputs = sorted(self._read(fwd))
        if self._token is not None:
            inputs.append(self._token)
        self._token = after
        self._append(
            Op(
                LOSS,
                LOSS,
                "forward",
                tuple(inputs),
                (*outputs, after),
                0.0,
                self._loss_bytes(fwd) + self._other_losses_bytes,
                replayable=False,
            ),
            None,
            outputs,
        )
        return len(self._ops) - 1

    def _update(self, bwd: Iterable[Any]) -> None:
        """Add the optimizer's step, if any, which reads the gradients."""
        if self._fwd is None or self._update_bytes is None:
            return
        inputs = sorted(self._read(bwd))
        if self._token is not None:
            inputs.append(self._token)
        self._append(
            Op(
                UPDATE,
                UPDATE,
                "update",
                tuple(inputs),
                (self._chain(),),
                0.0,
                self._update_bytes,
                replayable=False,
                group="(optimizer)",
            ),
            None,
            [],
        )

    def _loss_bytes(self, fwd: Iterable[Any]) -> int:
        """Return the bytes of the user's loss; by default three times the kept outputs.

        Cross entropy has log-probabilities and two gradients in memory at a time. Each
        output counts in full, even if several share a storage.
        """
        if self._known_loss_bytes is not None:
            return self._known_loss_bytes
        kept = [node for at, node in enumerate(fwd) if self._kept_outputs(at)]
        values = [v for n in kept if isinstance(n, fx.Node) for v in values_of(n)]
        return 3 * sum(rounded(int(v.nbytes), v.device) for v in values)

    def _append(self, op: Op, node: fx.Node | None, made: list[int]) -> None:
        self._ops.append(op)
        self._nodes.append(node)
        self._made.append(made)

    def _read(self, nodes: Iterable[Any]) -> set[int]:
        """Return the tensors that nodes are, or are views of."""
        return {
            self._ids[_key(value)]
            for node in nodes
            if isinstance(node, fx.Node)
            for value in values_of(node)
            if _key(value) in self._ids
        }


def is_tangent(node: fx.Node) -> bool:
    return node.op == "placeholder" and "tangents" in str(node.target)
