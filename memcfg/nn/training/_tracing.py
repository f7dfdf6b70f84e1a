"""Tracing of an architecture to the graph of a training or inference step.

Every graph of a model lists the same persistent tensors first, weights in Keras's
order and then the optimizer's state, so that all graphs agree on their offsets.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from memcfg._cached import cached_property
from memcfg.graph import (
    Builder,
    Graph,
    chain_collectives,
    gather_late,
    gradients,
    hoist_updates,
    read_concatenations,
    simplify,
)
from memcfg.nn._constraining import constrain
from memcfg.nn.layers._integers import as_floats
from memcfg.nn.layers._layer import Scope
from memcfg.nn.losses import masked
from memcfg.nn.optimizers._optimizer import Slot
from memcfg.nn.training._objectives import warn_of_unreached
from memcfg.nn.training.ranks._sharding import Parts, shardable
from memcfg.ops._dtypes import item_bytes
from memcfg.ops.collectives import MOST_TENSORS, TOKEN
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from memcfg.graph import Op
    from memcfg.nn._network import Network, Weight
    from memcfg.nn.layers._layer import Shape, SymbolicTensor
    from memcfg.nn.optimizers import Optimizer
    from memcfg.nn.training._encoder import Encoder
    from memcfg.nn.training._objectives import Gauge, Objectives, Term
    from memcfg.ops import Communicator

__all__ = [
    "KINDS",
    "OutputMasks",
    "ProgramKey",
    "Rank",
    "Share",
    "TraceSpec",
    "assigned",
    "input_names",
    "is_assignment",
    "masks_of",
    "move_averages",
    "penalty",
    "shares_of",
    "trace",
    "trace_layers",
    "trace_plain",
    "trace_ranges",
]

KINDS = ("train", "evaluate", "predict", "count")
_BUCKET = 1 << 20  # bytes of gradients that one collective sums, at least


class Share(NamedTuple):
    """How the loss of a part becomes its share of the loss of the whole batch.

    The value is multiplied by the part's share of the samples to the power of `rows`,
    and by its share of each of `counts` numbers that the data decides.
    """

    rows: int
    counts: int


class Rank(NamedTuple):
    """A rank of a group that computes a step together."""

    group: str  # the name that ops know it by
    communicator: Communicator
    encoder: Encoder | None = None  # of gradients, if ranks send encodings of them
    sharding: str | None = None  # one of SHARDINGS: what the ranks divide
    is_staged: bool = False  # whether collectives compute on copies, on the host

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.communicator.size

    def attributes(self, collective: str, nbytes: int) -> dict[str, Any]:
        """Return the attributes of a collective over float32 tensors of `nbytes`."""
        work = self.communicator.work_bytes(collective, nbytes, 4)
        of = {"group": self.group, "ranks": self.size, "work_bytes": work}
        if self.is_staged:  # there the scratch lies, too
            of |= {"work_bytes": 0, "staged_bytes": work}
        return {**of, "encoded": True} if collective == "all_reduce_encoded" else of


class OutputMasks(NamedTuple):
    """The masks that layers give to outputs, each listed once."""

    places: tuple[int | None, ...]  # which of them each output has
    shapes: tuple[Shape, ...]  # per sample


class ProgramKey(NamedTuple):
    """The kind of a program and the size of its batches.

    A program of one of several `parts` of a batch returns its share of the results and,
    in training, of the gradient; the last part updates the weights. ``count`` programs
    return what losses divide by, where that depends on the data. A program of one of
    several `ranks` computes its share of a batch, and sums results and gradients over
    the ranks. `with_outputs`, results are followed by the outputs, unless they are
    them, and by the masks of outputs. A training program that `is_part` trains on some
    samples of a batch that others have too, and draws only their numbers. One that
    `gathers` computes a batch of this rank's own, with weights of which each rank has a
    part.
    """

    kind: str  # one of KINDS
    batch_size: int
    # Per-sample shapes of the sample weights; a single array serves all outputs.
    weights: tuple[Shape, ...] = ()
    parts: int = 1
    lengths: tuple[int, ...] = ()  # of the axes of inputs that have any length
    ranks: int = 1
    with_outputs: bool = False
    is_part: bool = False
    gathers: bool = False

    @property
    def has_share(self) -> bool:
        """Whether the program computes a share of a batch."""
        return self.parts > 1 or self.ranks > 1

    @property
    def joins(self) -> bool:
        """Whether the program has collectives, and runs on all ranks together."""
        return self.ranks > 1 or self.gathers

    @property
    def label(self) -> str:
        """The name of the program in messages and for the executor."""
        count = len(self.weights)
        weighted = (f", {count} weights" if count > 1 else ", weighted") * bool(count)
        if any(self.weights):
            weighted += f" {', '.join(map(str, self.weights))}"
        micro = f", one of {self.parts} micro-batches" if self.parts > 1 else ""
        size = f"batch {self.batch_size}"
        if self.lengths:
            shown = "x".join(map(str, self.lengths))
            size += f", length{'s' * (len(self.lengths) > 1)} {shown}"
        ranks = f", one of {self.ranks} ranks" if self.ranks > 1 else ""
        outputs = ", with outputs" * self.with_outputs
        part = ", part of a batch" * self.is_part
        part += ", weights gathered" * self.gathers
        return f"{self.kind}, {size}{weighted}{micro}{ranks}{outputs}{part}"


def input_names(kind: str, count: int) -> list[str]:
    """Return names for a number of inputs, such as ``x``, ``x_1``."""
    return [f"{kind}_{i}" if i else kind for i in range(count)]


@dataclass(frozen=True)
class TraceSpec:
    """Everything that determines a model's graphs except the batch size."""

    name: str
    network: Network
    optimizer: Optimizer | None = None
    objectives: Objectives | None = None
    frozen: frozenset[str] = frozenset()  # names of weights
    unreached: frozenset[str] = frozenset()  # those that no loss depends on
    accumulates: bool = False  # whether there are gradient accumulators in any case
    # The objectives for a network, if axes of this one have any length.
    resolves: Callable[[Network], Objectives] | None = None
    rank: Rank | None = None  # of programs that run on several ranks

    def at(self, lengths: tuple[int, ...]) -> TraceSpec:
        """Return what determines the graphs of batches of some lengths."""
        if not self.network.open_axes:
            return self
        network = self.network.at(lengths)
        objectives = None if self.resolves is None else self.resolves(network)
        return replace(self, network=network, objectives=objectives)

    @property
    def encodes(self) -> bool:
        """Whether ranks send encodings of gradients."""
        return self.rank is not None and self.rank.encoder is not None

    @cached_property
    def trained(self) -> tuple[Weight, ...]:
        """The weights that are trained by gradients."""
        return tuple(
            weight
            for weight in self.network.weights
            if weight.trainable and weight.name not in self.frozen | self.unreached
        )

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """The optimizer's state for the trained weights, and this rank's residuals."""
        if self.optimizer is None:
            return ()
        made = self.optimizer.state(list(self.trained), accumulates=self.accumulates)
        if self.encodes:
            made += [
                Slot(
                    _residual_name(weight),
                    f"{weight.key}/residual",
                    weight.shape,
                    "float32",
                    0.0,
                    weight.name,
                )
                for weight in self.trained
            ]
        return tuple(made)

    @cached_property
    def divided(self) -> dict[str, Weight]:
        """The trained weights of which each rank updates a part, by name."""
        if self.rank is None or self.rank.sharding is None:
            return {}
        return shardable(self.trained)

    @cached_property
    def parts(self) -> Parts:
        """The state of which this rank has a part."""
        rank, divided = self.rank, self.divided
        if rank is None:
            return Parts({}, 0, 1)
        whole: dict[str, Weight | Slot] = {
            slot.name: slot
            for slot in self.slots
            if slot.weight in divided
            if (slot.shape, slot.dtype) == (divided[slot.weight].shape, "float32")
        }
        if rank.sharding == "parameters":
            weights = (each for each in self.network.weights if each.trainable)
            large = shardable(weights)
            # A constraint follows the update of a whole weight.
            whole |= {name: w for name, w in large.items() if w.constraint is None}
        return Parts(whole, rank.communicator.rank, rank.size)

    @property
    def state_bytes(self) -> int:
        """The bytes of this rank's weights and optimizer state, as arenas hold them."""
        held: list[Weight | Slot] = [*self.network.weights, *self.slots]
        return sum(
            align_up(prod(self.parts.shape_of(each)) * item_bytes(each.dtype))
            for each in held
        )

    def needs_whole(self, key: ProgramKey) -> bool:
        """Return whether a program runs on one rank, and needs what ranks divide."""
        if key.joins or not self.parts.whole:
            return False
        return key.kind == "train" or (self.divides_weights and key.kind != "count")

    @property
    def divides_weights(self) -> bool:
        """Whether each rank has parts of weights."""
        shard = None if self.rank is None else self.rank.sharding
        return shard == "parameters" and bool(self.parts.whole)

    def count_outputs(self, kind: str) -> int | None:
        """Return the number of outputs, which precede the kept state; None: all."""
        if kind == "count":
            return None
        if kind == "predict":
            return len(self.network.outputs)
        assert self.objectives is not None  # `compile` came first
        return self.objectives.value_count


def trace(
    spec: TraceSpec, key: ProgramKey, has: Callable[[str], bool] = lambda _: False
) -> Graph:
    """Trace a program; `has` reports whether the device has a kernel for an op."""
    if spec.needs_whole(key):
        spec = replace(spec, rank=None)
    return _Trace(spec.at(key.lengths), key).graph(has)


@contextmanager
def _reason(noun: str) -> Iterator[None]:
    """Say of what it is that a batch does not run in parts."""
    try:
        yield
    except NotImplementedError as error:
        raise NotImplementedError(f"the {noun} {error}") from None


def shares_of(spec: TraceSpec, key: ProgramKey) -> tuple[Share, ...]:
    """Return the share of each loss; NotImplementedError if one or a metric has none.

    Its text is the reason, beginning with a noun.
    """
    key = ProgramKey("count", 11, key.weights, lengths=key.lengths)
    tracer = _Trace(spec.at(key.lengths), key)
    tracer.training = True  # layers that draw then do
    graph = tracer.graph(lambda _: False)
    if any(graph.tensors[i].name == "step" for op in graph.ops for i in op.inputs):
        raise NotImplementedError(
            "the loss counts steps of a mask that is drawn at random"
        )
    if any(regularizer is None for regularizer, _ in tracer.penalties):
        raise NotImplementedError("the loss has terms of add_loss")
    return tuple(Share(rows, len(counts)) for rows, counts in tracer.rules)


def masks_of(spec: TraceSpec) -> OutputMasks:
    """Return the masks of the outputs of a network without axes of any length."""
    size = spec.network.inputs[0].node.batch_size or 2
    tracer = _Trace(spec, ProgramKey("predict", size))
    tracer._forward()
    found = tracer.distinct_masks()
    return OutputMasks(
        tuple(None if mask is None else found.index(mask) for mask in tracer.masks),
        tuple(tracer.builder.shape(mask)[1:] for mask in found),
    )


def trace_layers(network: Network) -> None:
    """Trace the layers as `predict` does, so that what fails there fails early."""
    size = network.inputs[0].node.batch_size or 1
    _Trace(TraceSpec("", network), ProgramKey("predict", size))._forward()


def trace_plain(
    spec: TraceSpec, key: ProgramKey
) -> tuple[Graph, tuple[int, ...], tuple[int, ...]]:
    """Trace inference without rewrites; also return the ids of inputs and outputs.

    Weights that a model computes from parts are parameters.
    """
    tracer = _Trace(spec.at(key.lengths), key, whole=True)
    outputs = tuple(tracer._forward())
    inputs = tuple(tracer.xs.values())
    return tracer.builder.build(list(dict.fromkeys(outputs))), inputs, outputs


def trace_ranges(
    spec: TraceSpec, key: ProgramKey, tensors: Sequence[int]
) -> tuple[Graph, list[tuple[str, str]]]:
    """Trace the largest numbers of tensors of `trace_plain`, and of their negatives."""
    tracer = _Trace(spec.at(key.lengths), key, whole=True)
    tracer._forward()
    builder = tracer.builder
    builder.compute_dtype = None
    pairs: list[tuple[int, int]] = []
    for tensor in tensors:
        axes = {"axes": tuple(range(len(builder.shape(tensor)))), "keepdims": False}
        negate = {"factor": -1.0, "term": 0.0}
        both = (tensor, *builder.apply("affine", (tensor,), negate))
        most, least = (builder.apply("reduce_max", (each,), axes)[0] for each in both)
        pairs.append((most, least))
    graph = builder.build([each for pair in pairs for each in pair])
    shown = [(graph.tensors[a].name, graph.tensors[b].name) for a, b in pairs]
    return simplify(graph, lambda _: False, differentiates=False), shown


class _Trace:
    """The tracer of one program."""

    def __init__(
        self, spec: TraceSpec, key: ProgramKey, *, whole: bool = False
    ) -> None:
        self.spec = spec
        self.key = key
        self.training = key.kind == "train"
        self.computed = {} if whole else spec.network.computed
        self.divided = spec.divided if key.ranks > 1 else {}
        network, batch = spec.network, key.batch_size
        self.names = input_names("x", len(network.inputs))
        self.builder = Builder(f"{spec.name}, {key.label}", self._reserved())
        self.builder.training = self.training
        self.builder.lines = network.lines
        self.builder.compute_dtype = "float32"  # layers set their own
        self.held: dict[str, int] = {}  # weights, or this rank's parts of them
        self.weights: dict[str, int] = {}  # whole ones, which layers read
        self.state: dict[str, int] = {}
        self.moves: list[tuple[str, int, float | None]] = []
        self.penalties: list[tuple[Any, int]] = []
        self.rules: list[tuple[int, list[int]]] = []  # as of Share, with the counts
        self._shares: dict[str, int] = {}
        self._token: int | None = None  # of the first collective
        self._present: int | None = None
        self._declare_persistent()
        self.xs = {
            tensor: self._input(name, (batch, *read.sample_shape), read.sample_dtype)
            for name, tensor, (read, _) in zip(
                self.names, network.inputs, network.prepared, strict=True
            )
        }
        self._step: int | None = None
        self._position: int | None = None

    def _reserved(self) -> list[str]:
        """Declare the inputs under their reserved names."""
        return [
            *self.names,
            *input_names("y", len(self.spec.network.outputs)),
            *input_names("sample_weight", len(self.key.weights)),
            *("learning_rate", "step", "position", "present"),
            *("threshold", "residual_limit"),
            *self._share_names(),
        ]

    def _share_names(self) -> list[str]:
        """Name the inputs with a part's share: of the samples, and for each loss."""
        objectives = self.spec.objectives
        count = 0 if objectives is None else len(objectives.terms)
        return input_names("share", 1 + count)

    def graph(self, has: Callable[[str], bool]) -> Graph:
        outputs = self._forward()
        if self.key.kind == "predict":
            keep, updated = [*outputs], self._move()
        elif self.key.kind == "count":
            self._loss(outputs)
            keep, updated = [each for _, row in self.rules for each in row], []
        else:
            own = self._loss(outputs)
            keep = self._sum_over_ranks(own, "results", "forward")
            updated = self._updates(loss=own[0]) if self.training else self._move()
            if keep[0] != own[0] and self.training:
                self.builder.note_loss(keep[0], instead_of=own[0])
        if self.key.with_outputs:
            more = [] if self.key.kind == "predict" else outputs
            keep = [*keep, *more, *self.distinct_masks()]
        built = self.builder.build(keep=[*keep, *updated])
        graph = simplify(built, has, differentiates=self.training)
        graph = gather_late(graph)
        graph = read_concatenations(hoist_updates(graph)) if updated else graph
        return chain_collectives(graph)

    def _declare_persistent(self) -> None:
        parts, network = self.spec.parts, self.spec.network
        wholes = [
            each.weight
            for name, each in network.computed.items()
            if name not in self.computed
        ]
        for weight in (*network.weights, *wholes):
            self.held[weight.name] = self.builder.tensor(
                weight.name, parts.shape_of(weight), weight.dtype, role="parameter"
            )
        for slot in self.spec.slots:
            self.state[slot.name] = self.builder.tensor(
                slot.name, parts.shape_of(slot), slot.dtype, role="optimizer_state"
            )

    def _gather_weights(self) -> None:
        """Trace the whole weights of which there are parts, here or on each rank."""
        self.weights |= self.held
        for name, weight in self.spec.parts.whole.items():
            if name in self.held:
                self.weights[name] = self._collective(
                    "all_gather",
                    (self.held[name],),
                    4 * prod(weight.shape),
                    f"{name}/whole",
                    "forward",
                    {"shape": weight.shape, "alone": True},
                )[0]
        builder = self.builder
        dtype, builder.compute_dtype = builder.compute_dtype, None
        for name, each in self.computed.items():
            parts = [self.weights[part] for part in each.parts]
            shape = each.weight.shape
            self.weights[name] = each.by.trace(builder, parts, shape, name)
        builder.compute_dtype = dtype

    def _input(self, name: str, shape: tuple[int, ...], dtype: str) -> int:
        return self.builder.tensor(name, shape, dtype, role="input")

    def step(self) -> int:
        if self._step is None:
            self._step = self._input("step", (), "int64")
        return self._step

    def position(self) -> int:
        """Return the step that layers draw by, with the place of the part's samples."""
        # A part of a batch is predicted by the program of a batch of its size.
        in_parts = self.key.has_share or self.key.is_part
        if not in_parts and self.key.kind != "predict":
            return self.step()
        if self._position is None:
            self._position = self._input("position", (3,), "int64")
        return self._position

    def _share(self, place: int) -> int:
        name = self._share_names()[place]
        if name not in self._shares:
            self._shares[name] = self._input(name, (), "float32")
        return self._shares[name]

    def _if_present(self, value: int) -> int:
        """Multiply a sum over samples by 0 on a rank that has none of the batch."""
        if self.key.ranks == 1:
            return value
        if self._present is None:
            self._present = self._input("present", (), "float32")
        pair = (self.builder.cast(value, "float32"), self._present)
        return self.builder.apply("scale", pair, name="present")[0]

    def _times_share(self, value: int, place: int) -> int:
        """Multiply by the part's share, if the program is of one of several."""
        if not self.key.has_share:
            return value
        pair = (value, self._share(place))
        return self.builder.apply("scale", pair, name="share")[0]

    def _forward(self) -> list[int]:
        """Trace the layers in call order."""
        self._gather_weights()
        network = self.spec.network.of(self.training)
        aliases = {other: self.weights[name] for other, name in network.aliases.items()}
        scope = Scope(
            self.builder,
            "",
            self.weights | aliases,
            training=self.training,
            step=self.position,
            rewritten={} if self.training else None,
        )
        values = dict(self.xs) | network.values_of_reads(scope.weights)
        masks: dict[SymbolicTensor, int | None] = {}
        scope.trace(network.nodes, values, masks)
        if scope.sums and self.key.kind != "predict":
            metric, _ = scope.sums[0]
            raise ValueError(
                f"a layer updates the metric {metric.name!r}, which is no attribute of "
                "it or of an inner layer: set self.metric = ... in the constructor"
            )
        self.masks = [self._float32(masks.get(tensor)) for tensor in network.outputs]
        self.moves = [
            (network.aliases.get(name, name), value, momentum)
            for name, value, momentum in scope.moving
        ]
        scope.penalties += [(None, values[each]) for each in network.losses]
        self.penalties = scope.penalties
        self.rewritten = {
            network.aliases.get(name, name): tensor
            for name, tensor in (scope.rewritten or {}).items()
        }
        for name in self.rewritten.keys() & network.computed:
            raise ValueError(
                f"the model holds parts of {name!r}, which a layer around it replaces "
                "in training: leave this weight out"
            )
        return [self.builder.cast(values[each], "float32") for each in network.outputs]

    def distinct_masks(self) -> list[int]:
        """Return the masks of outputs, each once."""
        return list(dict.fromkeys(mask for mask in self.masks if mask is not None))

    def _float32(self, mask: int | None) -> int | None:
        return None if mask is None else self.builder.cast(mask, "float32")

    def _loss(self, outputs: Sequence[int]) -> list[int]:
        """Trace metrics and losses; the first result is the value to minimise."""
        objectives, batch = self.spec.objectives, self.key.batch_size
        assert objectives is not None  # `compile` came first
        outputs = [as_floats(self.builder, each) for each in outputs]
        names = input_names("y", len(objectives.targets))
        ys = {
            output: self._input(name, (batch, *wanted.shape), wanted.dtype)
            for name, (output, wanted) in zip(
                names, objectives.targets.items(), strict=True
            )
        }
        weights = self._sample_weights(list(objectives.targets))
        # Metrics come before the loss, which may overwrite the output.
        measured = [
            tensor
            for gauge in objectives.gauges
            for tensor in self._measured(
                gauge,
                ys[gauge.output],
                outputs[gauge.output],
                masked(
                    self.builder,
                    weights.get(gauge.output) if gauge.weighted else None,
                    self.masks[gauge.output],
                ),
            )
        ]
        losses = [
            self._loss_of(term, ys, outputs, weights.get(term.output))
            for term in objectives.terms
        ]
        if self.key.has_share or self.key.kind == "count":
            losses = [
                self._shared(place, term, loss, ys, outputs, weights.get(term.output))
                for place, (term, loss) in enumerate(
                    zip(objectives.terms, losses, strict=True), start=1
                )
            ]
        total = self._total(losses, [term.weight for term in objectives.terms])
        for penalty in self._penalties():
            penalty = self._times_share(penalty, 0)
            (total,) = self.builder.apply("add", (total, penalty), name="total_loss")
        return [total, *(losses if objectives.several else ()), *measured]

    def _loss_of(
        self,
        term: Term,
        ys: Mapping[int, int],
        outputs: Sequence[int],
        weights: int | None,
    ) -> int:
        """Append a loss, of the samples and steps that count."""
        y, mask = term.loss._with_mask(
            self.builder, ys[term.output], self.masks[term.output]
        )
        scaled = term.loss.reduction != "sum"
        counted = masked(self.builder, weights, mask, scaled=scaled)
        return term.loss.trace(self.builder, y, outputs[term.output], counted)

    def _measured(
        self, gauge: Gauge, y: int, output: int, weight: int | None
    ) -> list[int]:
        """Return the sums of a metric, or a part's share of them."""
        sums = gauge.metric.trace(self.builder, y, output, weight)
        if not self.key.has_share and self.key.kind != "count":
            return [*map(self._if_present, sums)]
        with _reason("metric"):
            is_mean = gauge.metric.is_mean(self.builder, y, output)
        if is_mean:
            return [self._times_share(each, 0) for each in sums]
        return [*map(self._if_present, sums)]

    def _shared(
        self,
        place: int,
        term: Term,
        loss: int,
        ys: Mapping[int, int],
        outputs: Sequence[int],
        weights: int | None,
    ) -> int:
        """Return a part's share of a loss, and note what of the data decides it."""
        y, mask = term.loss._with_mask(
            self.builder, ys[term.output], self.masks[term.output]
        )
        with _reason("loss"):
            term.loss.check_samples(self.builder, y, outputs[term.output])
        rows, counts = 0, []
        if term.loss.is_mean(self.builder, y, outputs[term.output]):
            rows = 1
        elif term.loss.reduction != "sum":
            divisor = term.loss.divisor(
                self.builder, y, masked(self.builder, weights, mask)
            )
            counts = [] if divisor is None else [divisor]
            rows = 0 if counts else 1
            if mask is not None and term.loss.reduction != "mean_with_sample_weight":
                axes = tuple(range(len(self.builder.shape(mask))))
                counts += self.builder.apply("reduce_sum", (mask,), {"axes": axes})
                rows -= 1
        self.rules.append((rows, counts))
        if self.key.kind == "count":
            return loss
        if (rows, counts) == (0, []):
            return self._if_present(loss)
        return self._times_share(loss, 0 if (rows, counts) == (1, []) else place)

    def _sample_weights(self, outputs: Sequence[int]) -> dict[int, int]:
        """Declare the sample weights; a single array serves all outputs."""
        shapes, batch = self.key.weights, self.key.batch_size
        names = input_names("sample_weight", len(shapes))
        result = [
            self._input(name, (batch, *shape), "float32")
            for name, shape in zip(names, shapes, strict=True)
        ]
        if len(result) == 1:
            return dict.fromkeys(outputs, result[0])
        return dict(zip(outputs, result, strict=True)) if result else {}

    def _total(self, losses: Sequence[int], weights: Sequence[float | None]) -> int:
        terms = []
        for loss, weight in zip(losses, weights, strict=True):
            if weight is not None:
                value = {"shape": (), "value": weight, "dtype": "float32"}
                (by,) = self.builder.apply("fill", (), value, name="loss_weight")
                (loss,) = self.builder.apply("multiply", (loss, by), name="weighted")
            terms.append(loss)
        total = terms[0]
        for term in terms[1:]:
            (total,) = self.builder.apply("add", (total, term), name="total_loss")
        return total

    def _penalties(self) -> list[int]:
        """Trace weight regularizers, and activity regularizers as batch means."""
        network = self.spec.network
        computed = [each.weight for each in network.computed.values()]
        result = [
            weight.regularizer.trace(self.builder, self._read(weight))
            for weight in (*network.weights, *computed)
            if weight.regularizer is not None
            if weight.trainable
            if weight.name not in self.spec.frozen
        ]
        for regularizer, tensor in self.penalties:
            batch = self.key.batch_size
            result.append(penalty(self.builder, regularizer, tensor, batch))
        return result

    def _updates(self, loss: int) -> list[int]:
        """Trace the backward pass, the optimizer and the moving averages."""
        optimizer = self.spec.optimizer
        if optimizer is None:
            raise RuntimeError("a training program needs an optimizer")
        new = self._move()
        trained, unreached = self.spec.trained, self.spec.unreached
        if unreached:
            warn_of_unreached(unreached)
        slopes = gradients(self.builder, loss, [self._read(w) for w in trained])
        weights = self.held | self._rewrite()
        names = [weight.name for weight in trained]
        new += [weights[name] for name in self.rewritten if name not in names]
        for weight in trained:
            if self._read(weight) not in slopes:
                raise ValueError(
                    f"the loss does not depend on the weight {weight.name!r}: an op "
                    "between them has no gradient, so it cannot be trained"
                )
        if not slopes:
            return new
        own = {weight.name: slopes[self._read(weight)] for weight in trained}
        encoded = self.key.ranks > 1 and self.spec.encodes
        if encoded:
            residuals, sent = self._split(list(own.values()))
            new += residuals
            own = dict(zip(own, sent, strict=True))
        operands = {name: self._operand(name, weights[name]) for name in names}
        updated = optimizer.trace(
            self.builder,
            operands,
            self._summed(own, encoded=encoded),
            self.state,
            self._input("learning_rate", optimizer.rate_shape, "float32"),
            self.step,
            self.key.parts,
        )
        updated = self._gathered(updated, operands, weights)
        due = (self.step, self.key.parts)
        return new + constrain(self.builder, updated, trained, self.held, due)

    def _part(self, tensor: int, name: str) -> int:
        """Trace this rank's part of a tensor that all ranks have."""
        rank = self.spec.rank
        assert rank is not None
        place = {"rank": rank.communicator.rank, "ranks": rank.size}
        (part,) = self.builder.apply(
            "part", (tensor,), place, name=f"{name}/part", phase="update"
        )
        return part

    def _operand(self, name: str, weight: int) -> int:
        """Return what the optimizer updates: a weight, or this rank's part of it."""
        is_whole = name in self.divided and name not in self.spec.parts
        return self._part(weight, name) if is_whole else weight

    def _summed(self, own: Mapping[str, int], *, encoded: bool) -> dict[str, int]:
        """Trace the sums of gradients over the ranks, or this rank's parts of them."""
        rank, divided = self.spec.rank, self.divided
        scatters = rank is not None and rank.sharding != "optimizer"
        whole = [name for name in own if not (scatters and name in divided)]
        tensors = [own[name] for name in whole]
        sums = self._sum_over_ranks(tensors, "gradients", "update", encoded=encoded)
        result = {
            name: self._part(each, f"{name}/gradient") if name in divided else each
            for name, each in zip(whole, sums, strict=True)
        }
        for name in (name for name in own if name not in result):
            gradient = self.builder.cast(own[name], "float32", phase="backward")
            result[name] = self._collective(
                "reduce_scatter",
                (gradient,),
                4 * divided[name].size,
                f"{name}/gradient/sum",
                "update",
            )[0]
        return result

    def _gathered(
        self,
        updated: Sequence[int],
        operands: Mapping[str, int],
        weights: Mapping[str, int],
    ) -> list[int]:
        """Trace the whole weights of which ranks have updated parts."""
        taken = {
            operands[name]: name for name in operands if operands[name] != weights[name]
        }
        if not taken:
            return list(updated)
        result = []
        for tensor in updated:
            name = taken.get(self.builder.overwritten(tensor))
            if name is not None:
                shape = self.divided[name].shape
                tensor = self._collective(
                    "all_gather",
                    (tensor, weights[name]),
                    4 * prod(shape),
                    f"{name}/updated",
                    "update",
                    {"shape": shape},
                )[0]
            result.append(tensor)
        return result

    def _split(self, slopes: Sequence[int]) -> tuple[list[int], list[int]]:
        """Trace the encoding of the gradients of the trained weights.

        Returns what is left of each, which is its new residual, and what is sent.
        """
        builder = self.builder
        made = {output: i for i, op in enumerate(builder.ops) for output in op.outputs}
        scalars = [
            self._input(name, (), "float32") for name in ("threshold", "residual_limit")
        ]
        pairs = list(zip(self.spec.trained, slopes, strict=True))
        rows: dict[str, tuple[int, ...]] = {}
        for weight, slope in sorted(pairs, key=lambda pair: made.get(pair[1], -1)):
            name = _residual_name(weight)
            slope = builder.cast(slope, "float32", phase="backward")
            rows[weight.name] = builder.apply(
                "threshold_split",
                (self.state[name], slope, *scalars),
                name=name,
                phase="update",
            )
        rests, sent = zip(*(rows[weight.name] for weight, _ in pairs), strict=True)
        return list(rests), list(sent)

    def _read(self, weight: Weight) -> int:
        """Return what the step reads of a weight, which a layer may have replaced."""
        return self.rewritten.get(weight.name, self.weights[weight.name])

    def _rewrite(self) -> dict[str, int]:
        """Trace the replacements of weights, which updates then change."""
        return {
            name: self.builder.apply(
                "assign",
                (self.held[name], self._held_part(name, tensor)),
                name=f"{name}/replaced",
                phase="update",
            )[0]
            for name, tensor in self.rewritten.items()
        }

    def _held_part(self, name: str, tensor: int) -> int:
        """Return what this rank holds of a tensor in the place of a weight."""
        return self._part(tensor, name) if name in self.spec.parts else tensor

    def _move(self) -> list[int]:
        """Trace the moving averages; a layer called twice updates them twice.

        Those of several ranks are of the mean of their statistics.
        """
        moves = self.moves
        if self.key.ranks > 1:
            kept = [each for each in moves if self._is_integer(each[0])]
            moves = [each for each in moves if not self._is_integer(each[0])]
            values = [self._times_share(value, 0) for _, value, _ in moves]
            means = self._sum_over_ranks(values, "statistics", "update")
            moves = [
                (name, mean, momentum)
                for (name, _, momentum), mean in zip(moves, means, strict=True)
            ] + kept
        return list(move_averages(self.builder, moves, self.weights).values())

    def _is_integer(self, name: str) -> bool:
        """Return whether a weight has integers, such as counts, which have no mean."""
        return self.builder.dtype(self.weights[name]) != "float32"

    def _sum_over_ranks(
        self, tensors: Sequence[int], name: str, phase: str, *, encoded: bool = False
    ) -> list[int]:
        """Trace the sums of tensors over all ranks, in the order of their producers.

        One op sums `_BUCKET` bytes or more, so that there are few collectives. If they
        are `encoded`, ranks send only what is not 0.
        """
        rank = self.spec.rank
        if self.key.ranks == 1 or rank is None:
            return list(tensors)
        builder = self.builder
        made = {output: i for i, op in enumerate(builder.ops) for output in op.outputs}
        first = sorted(dict.fromkeys(tensors), key=lambda each: made.get(each, -1))
        result: dict[int, int] = {}
        bucket: list[int] = []
        nbytes = 0
        for place, tensor in enumerate(first, start=1):
            bucket.append(builder.cast(tensor, "float32", phase="backward"))
            nbytes += 4 * prod(builder.shape(tensor))
            full = nbytes >= _BUCKET or len(bucket) == MOST_TENSORS
            if full or place == len(first):
                kind = "all_reduce_encoded" if encoded else "all_reduce"
                sums = self._collective(kind, bucket, nbytes, f"{name}/sum", phase)
                result |= zip(first[place - len(bucket) : place], sums, strict=False)
                bucket, nbytes = [], 0
        return [result[tensor] for tensor in tensors]

    def _collective(
        self,
        kind: str,
        inputs: Sequence[int],
        nbytes: int,
        name: str,
        phase: str,
        attributes: Mapping[str, Any] | None = None,
    ) -> tuple[int, ...]:
        """Trace a collective, and return its results; `graph` gives it an order."""
        rank = self.spec.rank
        assert rank is not None
        if self._token is None:
            zero = {"shape": TOKEN.shape, "value": 0.0, "dtype": TOKEN.dtype}
            (self._token,) = self.builder.apply("fill", (), zero, name="token")
        _, *results = self.builder.apply(
            kind.removesuffix("_encoded"),
            (self._token, *inputs),
            rank.attributes(kind, nbytes) | dict(attributes or {}),
            name=name,
            phase=phase,
        )
        return tuple(results)


def _residual_name(weight: Weight) -> str:
    """Return the name of what a rank has not sent of a weight's gradient."""
    return f"encoding/{weight.name}/residual"


def penalty(builder: Builder, regularizer: Any, tensor: int, batch: int) -> int:
    """Append the mean penalty on the samples of an activity, or the sum of a loss."""
    shape, tensor = builder.shape(tensor), as_floats(builder, tensor)
    if regularizer is None:
        axes = {"axes": tuple(range(len(shape))), "keepdims": False}
        tensor = builder.cast(tensor, "float32")
        return builder.apply("reduce_sum", (tensor,), axes, name="added_loss")[0]
    value = {"shape": (), "value": 1 / batch, "dtype": "float32"}
    made = regularizer.trace(builder, tensor)
    (by,) = builder.apply("fill", (), value, name="share")
    return builder.apply("multiply", (made, by), name="activity_loss")[0]


def is_assignment(op: Op) -> bool:
    """Return whether an op assigns a weight what a layer's `call` has computed."""
    kinds = ("assign", "integer_assign")
    return op.type in kinds and op.name.endswith("/moved")


def move_averages(
    builder: Builder,
    moves: Iterable[tuple[str, int, float | None]],
    weights: Mapping[str, int],
) -> dict[str, int]:
    """Append the updates of moving averages, and assignments, which have no momentum.

    Returns the new values by name.
    """
    result: dict[str, int] = {}
    for name, value, momentum in moves:
        before = result.get(name, weights[name])
        label = f"{name}/moved"
        if momentum is None:
            result[name] = assigned(builder, before, value, label)
            continue
        attributes = {"momentum": momentum}
        (result[name],) = builder.apply(
            "moving_average", (before, value), attributes, name=label, phase="update"
        )
    return result


def assigned(builder: Builder, before: int, value: int, name: str) -> int:
    """Append the assignment of a tensor to a weight, in the dtype of the weight."""
    dtype = builder.dtype(before)
    if builder.dtype(value) != dtype:
        (value,) = builder.apply("cast", (value,), {"dtype": dtype}, phase="update")
    kind = "assign" if dtype == "float32" else "integer_assign"
    return builder.apply(kind, (before, value), name=name, phase="update")[0]
