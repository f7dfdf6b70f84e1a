"""The timeline of a method on one small network, for its page in docs/methods.

All methods plan the same step within the same limit, or within the smallest that they
accept: a network of convolutions without scratch of any processor, at nominal times.
Methods for cells plan a recurrent network, those that solve a mixed-integer program a
shorter one, and those that choose algorithms get convolutions with three of them, as in
``python bench allocation``.

``python bench/tables/method_picture.py`` draws two that depend on the processor's
kernels: a worker with divided weights, and inference from a compressed file.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

import memcfg as mc
from memcfg import nn
from memcfg.errors import InfeasiblePlanError
from memcfg.graph import Algorithm, Graph

PART = 80  # per cent of the peak of `share`
BATCH = 32
LANE = 0.7  # times the activations that a lane moves in a step
CELLS = "bptt_hidden", "bptt_internal", "bptt_mixed"
ATTENTION = ("meng_attention",)
SOLVED = "checkmate", "checkmate_lp", "retention_intervals"
CHOOSE = "by_need", "by_priority", "balanced", "modnn", "ucudnn_wr", "ucudnn_wd"
FOLDER = Path(__file__).resolve().parents[2] / "docs" / "methods"


def convolutions(count: int = 5) -> nn.Model:
    """Return a chain of convolutions with one pooling."""
    layers = [nn.Input((32, 32, 3))]
    for number in range(1, count + 1):
        name = f"conv{number}"
        layers.append(nn.Conv2D(16, 3, padding="same", use_bias=False, name=name))
        layers.append(nn.ReLU(name=f"relu{number}"))
        if number == count - 1:
            layers.append(nn.MaxPooling2D(name="pool"))
    layers += [nn.Flatten(name="flatten"), nn.Dense(10, use_bias=False, name="classes")]
    return nn.Sequential(layers, name="convolutions")


def recurrent() -> nn.Model:
    """Return a recurrent network of twelve steps, a cell a step."""
    cells = nn.SimpleRNN(32, unroll=True, name="rnn")
    layers = [nn.Input((12, 4)), cells, nn.Dense(3, name="classes")]
    return nn.Sequential(layers, name="unrolled")


def attentive() -> nn.Model:
    """Return a decoder with additive attention, step by step."""
    return mc.models.seq2seq_attention(
        1, 24, vocabulary_size=20, sequence_length=6, attention="additive"
    )


def graph_of(method: str) -> Graph:
    """Return the step that a method plans."""
    model = convolutions(3 if method in SOLVED else 5)
    if method in CELLS:
        model = recurrent()
    if method in ATTENTION:
        model = attentive()
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(0.1, momentum=0.9), loss)
    graph = model.graph(BATCH * (8 if method in CELLS else 1))
    model.close()
    ops = tuple(bare(op) for op in graph.ops)
    if method in CHOOSE:
        ops = tuple(with_algorithms(graph, op) for op in ops)
    seconds = sum(op.seconds for op in graph.ops)
    moved = sum(t.nbytes for t in graph.tensors if t.role == "activation")
    tier = mc.graph.Tier("host", LANE * moved / seconds, is_stated=True)
    name = f"{graph.name} by {method}"
    return replace(graph, ops=ops, tiers=(tier,), name=name)


def bare(op: mc.graph.Op) -> mc.graph.Op:
    """Return an op without what depends on the processor."""
    return replace(op, scratch_bytes=0, algorithms=())


def with_algorithms(graph: Graph, op: mc.graph.Op) -> mc.graph.Op:
    """Give a convolution a faster algorithm with scratch, and a slower one without."""
    if "conv" not in op.type:
        return op
    out = max(graph.tensors[each].nbytes for each in op.outputs)
    rows = (
        Algorithm("default", op.seconds, out // 2),
        Algorithm("fast", 0.7 * op.seconds, 2 * out),
        Algorithm("slow", 2.0 * op.seconds, 0),
    )
    return replace(op, scratch_bytes=out // 2, algorithms=rows)


def picture(method: str) -> str:
    """Return the timeline as SVG."""
    graph = graph_of(method)
    limit = mc.plan.share()(graph).peak_bytes * PART // 100
    policy = mc.plan.NAMED_POLICIES[method]()
    try:
        plan = policy(graph, limit)
    except InfeasiblePlanError as refusal:
        limit = refusal.smallest_limit_bytes
        plan = policy(graph, limit)
    mc.plan.validate(graph, plan)
    return mc.plan.memory_timeline(graph, plan).to_svg()


def dense() -> tuple[nn.Model, np.ndarray]:
    """Return four dense layers and samples."""
    layers = [nn.Dense(256, activation="relu", name=f"dense{i}") for i in range(1, 5)]
    model = nn.Sequential([nn.Input((256,)), *layers], name="dense")
    model.compile("adam", "mse")
    return model, np.zeros((256, 256), np.float32)


def sharded() -> str:
    """Return the timeline of one of four workers that divide the weights."""
    model, x = dense()
    with mc.parallel.ParallelWrapper(
        model, workers=4, training_mode="all_reduce", shard="parameters"
    ) as wrapper:
        wrapper.fit(x, x, batch_size=64, verbose=0)
        return model.memory_timeline().to_svg()


def streamed() -> str:
    """Return the timeline of inference from a compressed file."""
    model, x = dense()
    small = mc.compression.share_weights(mc.compression.prune(model, 0.1), bits=4)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.mcz")
        mc.compression.CompressedModel(small).save(path)
        reader = mc.compression.load(path).streamed()
        reader.predict(x, batch_size=256, verbose=0)
        return reader.memory_timeline().to_svg()


if __name__ == "__main__":
    (FOLDER / "zero.svg").write_text(sharded(), encoding="utf-8")
    (FOLDER / "deep-compression.svg").write_text(streamed(), encoding="utf-8")
