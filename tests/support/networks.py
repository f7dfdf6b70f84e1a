"""Small training graphs that cover every op, for tests of every room."""

from __future__ import annotations

from dataclasses import replace

import memcfg as mc
from memcfg.graph import Builder, Graph, gradients, hoist_updates

CONV = {
    "strides": (1, 1),
    "padding": ((1, 1), (1, 1)),
    "dilation": (1, 1),
    "groups": 1,
}
POOL = {"pool_size": (2, 2), "strides": (2, 2), "padding": ((0, 0), (0, 0))}


class Tracer:
    """A builder with layers: state is declared first, ops are appended after."""

    def __init__(self, name: str, batch: int, shapes: dict[str, tuple[int, ...]]):
        self.builder = Builder(name)
        self.batch = batch
        self.state = {
            key: self.builder.tensor(key, shape, role="parameter")
            for key, shape in shapes.items()
        }
        self.after: list[tuple] = []

    def op(self, type_, *inputs, **attributes):
        return self.builder.apply(type_, inputs, attributes)[0]

    def conv(self, x, name, **changes):
        y = self.op("conv2d", x, self.state[f"{name}/kernel"], **{**CONV, **changes})
        return self.op("bias", y, self.state[f"{name}/bias"])

    def norm(self, x, name):
        s = self.state
        mean, variance = self.builder.apply("batch_moments", (x,))
        (y,) = self.builder.apply(
            "batch_normalization",
            (x, s[f"{name}/gamma"], s[f"{name}/beta"], mean, variance),
            {"epsilon": 1e-3},
            name=name,
        )
        self.after += [(f"{name}/moving_mean", mean)]
        self.after += [(f"{name}/moving_variance", variance)]
        return y

    def finish(self, logits, labels, *, momentum=0.9) -> Graph:
        """Loss, gradients, SGD with momentum, moving averages."""
        b = self.builder
        loss, _ = b.apply("softmax_cross_entropy", (logits, labels), name="loss")
        rate = b.tensor("learning_rate", (), role="input")
        weights = {k: v for k, v in self.state.items() if "moving" not in k}
        weights = {k: v for k, v in weights.items() if not k.startswith("sgd/")}
        for name, value in self.after:
            b.apply(
                "moving_average",
                (self.state[name], value),
                {"momentum": 0.9},
                name=f"{name}/update",
                phase="update",
            )
        found = gradients(b, loss, list(weights.values()))
        for key, weight in weights.items():
            velocity = self.state[f"sgd/{key}"]
            b.apply(
                "sgd_momentum",
                (weight, found[weight], velocity, rate),
                {"momentum": momentum, "nesterov": False},
                name=f"{key}/update",
                phase="update",
            )
        return hoist_updates(b.build([loss]))


def with_velocity(shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Add an SGD velocity for each weight that is trained."""
    trained = {k: v for k, v in shapes.items() if "moving" not in k}
    return {**shapes, **{f"sgd/{k}": v for k, v in trained.items()}}


def conv_shapes(name, channels, filters, window=3):
    return {
        f"{name}/kernel": (window, window, channels, filters),
        f"{name}/bias": (filters,),
    }


def norm_shapes(name, channels):
    return {
        f"{name}/{key}": (channels,)
        for key in ("gamma", "beta", "moving_mean", "moving_variance")
    }


def dense_shapes(name, rows, columns):
    return {f"{name}/kernel": (rows, columns), f"{name}/bias": (columns,)}


def chain(batch=4, depth=4, size=8, width=4, classes=3) -> Graph:
    """Conv, bias, ReLU `depth` times, then pooling and a dense head."""
    shapes: dict[str, tuple[int, ...]] = {}
    for i in range(depth):
        shapes |= conv_shapes(f"c{i}", 2 if i == 0 else width, width)
    shapes |= dense_shapes("head", (size // 2) ** 2 * width, classes)
    t = Tracer("chain", batch, with_velocity(shapes))
    x = t.builder.tensor("x", (batch, size, size, 2), role="input")
    labels = t.builder.tensor("labels", (batch,), "int32", role="input")
    for i in range(depth):
        x = t.op("relu", t.conv(x, f"c{i}"))
    x = t.op("flatten", t.op("max_pool2d", x, **POOL))
    x = t.op("dense", x, t.state["head/kernel"])
    return t.finish(t.op("bias", x, t.state["head/bias"]), labels)


def residual(batch=4, blocks=2, size=6, width=4, classes=3) -> Graph:
    """A stem and residual blocks, average pooling, global average pooling."""
    shapes = conv_shapes("stem", 2, width)
    for i in range(blocks):
        shapes |= conv_shapes(f"a{i}", width, width)
        shapes |= conv_shapes(f"b{i}", width, width)
    shapes |= dense_shapes("head", width, classes)
    t = Tracer("residual", batch, with_velocity(shapes))
    x = t.builder.tensor("x", (batch, size, size, 2), role="input")
    labels = t.builder.tensor("labels", (batch,), "int32", role="input")
    x = t.op("relu", t.conv(x, "stem"))
    for i in range(blocks):
        y = t.conv(t.op("relu", t.conv(x, f"a{i}")), f"b{i}")
        x = t.op("relu", t.op("add", x, y))
    x = t.op("average_pool2d", x, **POOL)
    x = t.op("dense", t.op("global_average_pool2d", x), t.state["head/kernel"])
    return t.finish(t.op("bias", x, t.state["head/bias"]), labels)


def noisy(batch=6, depth=2, size=6, width=4, classes=3) -> Graph:
    """Batch normalisation, dropout, strides and dilation."""
    shapes: dict[str, tuple[int, ...]] = {}
    for i in range(depth):
        shapes |= conv_shapes(f"c{i}", 2 if i == 0 else width, width)
        shapes |= norm_shapes(f"n{i}", width)
    shapes |= dense_shapes("head", width, classes)
    t = Tracer("noisy", batch, with_velocity(shapes))
    x = t.builder.tensor("x", (batch, size, size, 2), role="input")
    labels = t.builder.tensor("labels", (batch,), "int32", role="input")
    step = t.builder.tensor("step", (), "int64", role="input")
    for i in range(depth):
        changes = {"strides": (2, 2)} if i == 0 else {}
        x = t.op("relu", t.norm(t.conv(x, f"c{i}", **changes), f"n{i}"))
        x = t.op("dropout", x, step, rate=0.25, key=17 + i)
    x = t.op("dense", t.op("global_average_pool2d", x), t.state["head/kernel"])
    return t.finish(t.op("bias", x, t.state["head/bias"]), labels)


def branches(batch=4, classes=3) -> Graph:
    """Layer normalisation, then two branches that are joined again."""
    shapes = dense_shapes("d", 32, 6) | {"n/gamma": (6,), "n/beta": (6,)}
    shapes |= dense_shapes("head", 18, classes)
    t = Tracer("branches", batch, with_velocity(shapes))
    x = t.builder.tensor("x", (batch, 4, 4, 2), role="input")
    labels = t.builder.tensor("labels", (batch,), "int32", role="input")
    y = t.op("dense", t.op("flatten", x), t.state["d/kernel"])
    y = t.op("bias", y, t.state["d/bias"])
    weights = (t.state["n/gamma"], t.state["n/beta"])
    y = t.op("layer_normalization", y, *weights, epsilon=1e-3)
    gate = t.op("sigmoid", y)
    y = t.op("concatenate", y, t.op("multiply", y, gate), gate, axis=-1)
    y = t.op("dense", y, t.state["head/kernel"])
    return t.finish(t.op("bias", y, t.state["head/bias"]), labels)


def starts_flat(batch=4):
    """A dense network on flattened images; dropout on them, so in place is legal."""
    shapes = dense_shapes("d", 32, 5) | dense_shapes("head", 5, 3)
    t = Tracer("flat", batch, with_velocity(shapes))
    x = t.builder.tensor("x", (batch, 4, 4, 2), role="input")
    labels = t.builder.tensor("labels", (batch,), "int32", role="input")
    flat = t.op("reshape", t.op("flatten", x), shape=(4, 8, 4))
    flat = t.op("flatten", t.op("reshape", flat, shape=(4, 4, 4, 2)))
    y = t.op(
        "relu",
        t.op("bias", t.op("dense", flat, t.state["d/kernel"]), t.state["d/bias"]),
    )
    y = t.op("dense", y, t.state["head/kernel"])
    return t.finish(t.op("bias", y, t.state["head/bias"]), labels)


def starts_in_place(batch=4):
    """ReLU overwrites what flatten left in the input's room."""
    shapes = dense_shapes("head", 32, 3)
    t = Tracer("in place", batch, with_velocity(shapes))
    x = t.builder.tensor("x", (batch, 4, 4, 2), role="input")
    labels = t.builder.tensor("labels", (batch,), "int32", role="input")
    y = t.op("relu", t.op("relu", t.op("flatten", x)))
    y = t.op("dense", y, t.state["head/kernel"])
    return t.finish(t.op("bias", y, t.state["head/bias"]), labels)


NETWORKS = {
    "chain": chain,
    "residual": residual,
    "noisy": noisy,
    "branches": branches,
}


def zoo_model(name: str, **arguments) -> mc.nn.Model:
    """Compile a network of the zoo; weights are the same every time."""
    mc.nn.set_random_seed(0)
    model = getattr(mc.models, name)(**arguments)
    loss: mc.nn.losses.Loss = mc.nn.SparseCategoricalCrossentropy(from_logits=True)
    if name == "bert_encoder":  # which returns features
        loss = mc.nn.losses.MeanSquaredError()
    model.compile(mc.nn.SGD(1e-4, momentum=0.9), loss)
    return model


def zoo_step(name: str, batch_size: int, **arguments) -> Graph:
    """Trace a training step of a network of the zoo."""
    model = zoo_model(name, **arguments)
    try:
        return model.graph(batch_size)
    finally:
        model.close()


def unscratched(model: mc.nn.Model, batch_size: int) -> Graph:
    """Trace a training step; its bytes are those of any device."""
    model.compile("sgd", mc.nn.SparseCategoricalCrossentropy(from_logits=True))
    graph = model.graph(batch_size)
    bare = (replace(op, scratch_bytes=0, algorithms=()) for op in graph.ops)
    return replace(graph, ops=tuple(bare))


def wide_branches() -> mc.nn.Model:
    """Branches that are pooled when all of them have been computed."""
    nn = mc.nn
    inputs = nn.Input((32, 32, 8))
    wide = [nn.Conv2D(64, 1)(inputs) for _ in range(4)]
    joined = nn.Concatenate()([nn.MaxPooling2D(4)(each) for each in wide])
    return nn.Model(inputs, nn.Dense(4)(nn.Flatten()(joined)))
