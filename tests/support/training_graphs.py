"""Training steps made without the tracer: chains, and random directed graphs."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from memcfg.graph import Algorithm, Graph, Op, Tensor, Tier
from memcfg.plan.search import Request

if TYPE_CHECKING:
    from memcfg.plan import Plan


@dataclass
class Sketch:
    """A graph in the making."""

    tensors: list[Tensor] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)

    def tensor(self, name: str, nbytes: int, role: str) -> int:
        self.tensors.append(Tensor(name, nbytes, role))
        return len(self.tensors) - 1

    def op(self, name: str, phase: str, inputs, outputs, **fields) -> None:
        self.ops.append(Op(name, name, phase, tuple(inputs), tuple(outputs), **fields))

    def graph(self, name: str, keep=()) -> Graph:
        return Graph(name, tuple(self.tensors), tuple(self.ops), tuple(keep))


def chain(
    n: int, *, reads: str = "input", nbytes: int = 64, in_place: bool = False
) -> Graph:
    """n uniform ops and their gradients; gradient op i reads x[i-1], x[i] or both."""
    sketch = Sketch()
    x = [sketch.tensor("x0", nbytes, "input")]
    for i in range(1, n + 1):
        x.append(sketch.tensor(f"x{i}", nbytes, "activation"))
        pairs = ((x[i - 1], x[i]),) if in_place else ()
        sketch.op(
            f"f{i}", "forward", x[i - 1 : i], x[i : i + 1], seconds=1.0, in_place=pairs
        )
    gradient = sketch.tensor(f"g{n}", nbytes, "activation_gradient")
    sketch.op("loss", "backward", [x[n]], [gradient], seconds=1.0)
    for i in range(n, 0, -1):
        read = {"input": [x[i - 1]], "output": [x[i]], "both": [x[i - 1], x[i]]}[reads]
        below = sketch.tensor(f"g{i - 1}", nbytes, "activation_gradient")
        pairs = ((gradient, below),) if in_place else ()
        sketch.op(
            f"b{i}", "backward", [*read, gradient], [below], seconds=2.0, in_place=pairs
        )
        gradient = below
    return sketch.graph(f"chain of {n}", keep=[gradient])


def unit_chain(n: int) -> Graph:
    """n forward ops, a loss, n gradients: Checkmate's chain, inputs for nothing."""
    sketch = Sketch()
    y = [sketch.tensor(f"y{i}", 64, "activation") for i in range(2 * n + 1)]
    for i in range(2 * n + 1):
        reads = {y[i - 1]} if i else set()
        if i > n:
            reads.add(y[2 * n - i])
        phase = "forward" if i <= n else "backward"
        sketch.op(f"op{i}", phase, sorted(reads), [y[i]], seconds=1.0)
    return sketch.graph(f"unit chain of {n}", [y[-1]])


def five(t4_bytes=128):
    """Make T1 to T5 in a row, a second each; T3 is not read again, x and T1 last.

    The lane moves 64 bytes a second, and a backward op takes two.
    """
    sizes = {"x": 64, "T1": 64, "T2": 128, "T3": 64, "T4": t4_bytes, "T5": 64}
    tensors = [Tensor(k, v, "activation") for k, v in sizes.items()]
    tensors += [Tensor(f"d{n}", 64, "activation_gradient") for n in (5, 4, 2, 1)]
    ops = [
        Op(f"f{n}", "f", "forward", (n - 1,), (n,), seconds=1.0) for n in range(1, 6)
    ]
    reads = ((5,), (4, 6), (2, 7), (1, 0, 8))
    ops += [
        Op(f"b{n}", "b", "backward", read, (6 + place,), seconds=2.0)
        for place, (n, read) in enumerate(zip((5, 4, 2, 1), reads, strict=True))
    ]
    graph = Graph("five", tuple(tensors), tuple(ops), keep=(9,))
    return replace(graph, tiers=(Tier("host", 64.0),))


SUB_BATCHES = (  # of a convolution, as if over slices of a batch
    Algorithm("im2col", 1.0, 65536),
    Algorithm("im2col/2", 1.25, 32768),
    Algorithm("im2col/4", 1.75, 16384),
    Algorithm("reference", 1.0, 0),
)


def attended(count, every=1, nbytes=640):
    """A chain of which some layers, and their backward, read one tensor beside."""
    sketch = Sketch()
    context = sketch.tensor("context", nbytes, "input")
    x = [sketch.tensor("x0", nbytes, "input")]
    for n in range(1, count + 1):
        x.append(sketch.tensor(f"x{n}", nbytes, "activation"))
        beside = [] if n % every else [context]
        sketch.op(f"f{n}", "forward", [x[-2], *beside], [x[-1]], seconds=1.0)
    g = sketch.tensor(f"g{count}", nbytes, "activation_gradient")
    sketch.op("loss", "backward", [x[-1]], [g], seconds=1.0)
    for n in reversed(range(count)):
        below = sketch.tensor(f"g{n}", nbytes, "activation_gradient")
        beside = [] if n % every else [context]
        sketch.op(f"b{n}", "backward", [x[n], g, *beside], [below], seconds=2.0)
        g = below
    return sketch.graph("attended", [g])


def reachable(before) -> list[set[int]]:
    """By node, all that it waits for."""
    found: list[set[int]] = []
    for others in before:
        found.append({*others}.union(*(found[other] for other in others)))
    return found


class _RandomStep:
    """A random forward graph, its reverse, and updates."""

    def __init__(self, seed: int, forward_ops: int) -> None:
        self.chance = random.Random(seed)
        self.sketch = Sketch()
        self.values: list[int] = []  # tensors that forward ops may read
        self.weights: dict[int, int] = {}  # parameter -> gradient
        self.gradients: dict[int, list[int]] = {}  # tensor -> partial gradients
        self.build(forward_ops)

    def size(self) -> int:
        return self.chance.choice([0, 1, 60, 64, 65, 128, 200, 256, 512, 1000, 4096])

    def build(self, forward_ops: int) -> None:
        for i in range(self.chance.randint(1, 2)):
            self.values.append(self.sketch.tensor(f"in{i}", self.size(), "input"))
        forward = [self.forward(i) for i in range(forward_ops)]
        for record in reversed(forward):
            self.backward(*record)
        self.update()

    def forward(self, i: int):
        chance, sketch = self.chance, self.sketch
        recent = self.values[-4:] if chance.random() < 0.8 else self.values
        reads = [chance.choice(recent) for _ in range(chance.choice([1, 1, 1, 2, 3]))]
        size = sketch.tensors[reads[0]].nbytes if chance.random() < 0.5 else self.size()
        outputs = [sketch.tensor(f"t{i}", size, "activation")]
        if chance.random() < 0.2:
            outputs.append(sketch.tensor(f"t{i}b", self.size(), "activation"))
        pairs = ()
        if chance.random() < 0.5 and sketch.tensors[reads[0]].nbytes >= size:
            pairs = ((reads[0], outputs[0]),)
        weight = []
        if chance.random() < 0.4:
            if self.weights and chance.random() < 0.2:  # a tied weight
                weight = [chance.choice(list(self.weights))]
            else:
                weight = [sketch.tensor(f"w{i}", self.size(), "parameter")]
            self.weights.setdefault(weight[0], -1)
        sketch.op(
            f"f{i}",
            "forward",
            [*reads, *weight],
            outputs,
            in_place=pairs,
            seconds=chance.choice([0.0, 1.0, 5.0]),
            scratch_bytes=chance.choice([0, 0, 0, 100, 2048]),
            replayable=chance.random() < 0.9,
        )
        self.values += outputs
        return i, reads, weight, outputs

    def backward(self, i: int, reads, weight, outputs) -> None:
        chance, sketch = self.chance, self.sketch
        incoming = self.collect(outputs[0])
        saved = [t for t in {*reads, *outputs} if chance.random() < 0.5]
        for target in [*dict.fromkeys(reads), *weight]:
            size = sketch.tensors[target].nbytes
            role = "gradient" if target in weight else "activation_gradient"
            made = sketch.tensor(f"d{i}.{target}", size, role)
            inputs = [*saved, *incoming, *(weight if target not in weight else [])]
            pairs = tuple(
                (t, made)
                for t in incoming
                if sketch.tensors[t].nbytes == size and chance.random() < 0.7
            )
            sketch.op(
                f"b{i}.{target}",
                "backward",
                inputs,
                [made],
                seconds=2.0,
                scratch_bytes=chance.choice([0, 0, 512]),
                in_place=pairs,
            )
            self.gradients.setdefault(target, []).append(made)

    def collect(self, tensor: int) -> list[int]:
        """The gradient of a tensor; parts are added up."""
        parts = self.gradients.get(tensor, [])
        while len(parts) > 1:
            a, b = parts.pop(), parts.pop()
            nbytes = self.sketch.tensors[a].nbytes
            total = self.sketch.tensor(f"sum{a}", nbytes, "activation_gradient")
            self.sketch.op(
                f"add{a}",
                "backward",
                [a, b],
                [total],
                in_place=((a, total), (b, total)),
            )
            parts.append(total)
        return parts

    def update(self) -> None:
        for weight in self.weights:
            name = self.sketch.tensors[weight].name
            nbytes = self.sketch.tensors[weight].nbytes
            new = self.sketch.tensor(f"{name}'", nbytes, "parameter")
            gradient = self.collect(weight)
            pairs = ((weight, new),)
            self.sketch.op(
                f"u{name}",
                "update",
                [weight, *gradient],
                [new],
                in_place=pairs,
                replayable=False,
            )

    def keep(self) -> list[int]:
        ends = [op.outputs[0] for op in self.sketch.ops if op.phase == "update"]
        return [*ends, self.values[-1]]


def plan_in_order(graph: Graph, limit_bytes: int | None = None) -> Plan:
    """Share memory with the ops in the order of the graph."""
    request = Request.of(graph, "in order", limit_bytes)
    return request.scheduled(range(len(graph.ops)))


def random_step(seed: int, forward_ops: int = 12, *, kept: float = 0.0) -> Graph:
    """A random training step; updates stand as early as they may.

    Of what other ops make, this part is kept: chance decides, also between the outputs
    of one op.
    """
    step = _RandomStep(seed, forward_ops)
    chance = random.Random(seed)
    made = [t for op in step.sketch.ops if op.phase != "update" for t in op.outputs]
    more = [t for t in made if chance.random() < kept]
    keep = dict.fromkeys((*step.keep(), *more))
    graph = step.sketch.graph(f"random {seed}", keep)
    return early_updates(graph) if seed % 2 else graph


def early_updates(graph: Graph) -> Graph:
    """Move every update right behind the last op that it needs or overtakes."""
    ops: list[Op] = [op for op in graph.ops if op.phase != "update"]
    for update in (op for op in graph.ops if op.phase == "update"):
        needs = set(update.inputs)
        last = max(
            (k for k, op in enumerate(ops) if needs & {*op.inputs, *op.outputs}),
            default=-1,
        )
        ops.insert(last + 1, update)
    return Graph(graph.name, graph.tensors, tuple(ops), graph.keep)


CHEAP = (
    *("relu", "bias_relu", "batch_normalization_add_relu", "concatenate"),
    *("max_pool2d", "dropout", "interpolate", "reshape", "add", "softmax"),
)
DEAR = ("conv2d", "conv2d_gradient_input", "dense", "matmul", "lstm", "unheard of")


def typed_step(seed: int, forward_ops: int = 12) -> Graph:
    """A random step whose forward ops are of types and times that real ones have.

    The nominal machine moves 10 GB a second and takes 1 microsecond to start an op;
    one op in ten takes longer than its bytes do.
    """
    chance = random.Random(seed)
    graph = random_step(seed, forward_ops)
    ops = []
    for op in graph.ops:
        traffic = sum(graph.tensors[t].nbytes for t in (*op.inputs, *op.outputs))
        seconds = traffic / 10e9 + 1e-6
        if op.phase == "forward":
            kind = chance.choice(CHEAP if chance.random() < 0.6 else DEAR)
            seconds *= chance.choice([0.5, *[1] * 8, 1.01])
            op = replace(op, type=kind, seconds=seconds)
        ops.append(op)
    return replace(graph, ops=tuple(ops))


def is_cheap(graph: Graph, index: int) -> bool:
    """Whether an op of such a step may be computed twice to save memory."""
    op = graph.ops[index]
    traffic = sum(graph.tensors[t].nbytes for t in (*op.inputs, *op.outputs))
    fast = op.seconds <= traffic / 10e9 + 1e-6
    return op.phase == "forward" and op.type in CHEAP and op.replayable and fast


def with_algorithms(graph, seed, most=4):
    """Give ops up to four algorithms, the default first, NumPy's last; some none.

    Seconds are powers of two, so that sums are exact.
    """
    chance = random.Random(seed)

    def extended(op):
        count = chance.randrange(most + 1)
        if not count:
            return op
        rows = [
            Algorithm(
                f"a{i}", 2.0 ** chance.randrange(-3, 4), 64 * chance.randrange(90)
            )
            for i in range(count)
        ]
        oracle = Algorithm("reference", 1e-9, 0)
        first = rows[0]
        return replace(
            op,
            seconds=first.seconds,
            scratch_bytes=first.scratch_bytes,
            algorithms=(*rows, oracle),
        )

    return replace(graph, ops=tuple(map(extended, graph.ops)))
