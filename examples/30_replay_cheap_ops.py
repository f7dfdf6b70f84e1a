"""Normalise, activate and concatenate twice, convolve once: half of the memory.

A densely connected network concatenates all that it has made so far, layer after layer.
Those copies, and what batch normalisation makes of them, are cheap to make again from
what the convolutions gave. The same weights, to the last bit.
"""

from collections import Counter

import numpy as np

import memcfg as mc

nn = mc.nn
LAYERS, GROWTH, BATCH = 8, 8, 32

generator = np.random.default_rng(0)
x = generator.normal(size=(128, 16, 16, 3)).astype(np.float32)
y = generator.integers(0, 10, len(x))


def normalized(h, filters, window):
    """Batch normalisation, ReLU, convolution."""
    h = nn.ReLU()(nn.BatchNormalization()(h))
    return nn.Conv2D(filters, window, padding="same", use_bias=False)(h)


def densely_connected():
    inputs = nn.Input((16, 16, 3))
    h = nn.Conv2D(2 * GROWTH, 3, padding="same")(inputs)
    for _ in range(LAYERS):
        made = normalized(normalized(h, 4 * GROWTH, 1), GROWTH, 3)
        h = nn.Concatenate()([h, made])
    h = nn.ReLU()(nn.BatchNormalization()(h))
    return nn.Model(inputs, nn.Dense(10)(nn.GlobalAveragePooling2D()(h)))


def train(policy):
    """Train under a policy; return the weights, the plan and the graph."""
    nn.set_random_seed(0)
    model = densely_connected()
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(0.05, momentum=0.9), loss, memory=policy)
    model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0, seed=0)
    report = model.memory_report(verify=True)
    assert report.measured_peak_bytes == model.memory_plan.peak_bytes
    return model.get_weights(), model.memory_plan, model.graph(BATCH)


shared, most, _ = train(mc.plan.share())
replayed, least, graph = train(mc.plan.replay_elementwise())

runs = Counter(a.op for a in least.actions if isinstance(a, mc.plan.Compute))
twice = Counter(graph.ops[op].type for op, count in runs.items() if count == 2)
extra = least.predicted.recompute_seconds / most.predicted.seconds
print(f"share: {most.peak_bytes:,} bytes")
print(f"replay_elementwise: {least.peak_bytes:,} bytes, nominal time +{extra:.1%}")
print("computed twice:", dict(twice))
assert least.peak_bytes < 0.6 * most.peak_bytes
assert twice["concatenate"] > 0
assert twice["batch_normalization_relu"] > 0
assert "conv2d" not in twice
for first, second in zip(shared, replayed, strict=True):
    assert np.array_equal(first, second)
print("bit-identical weights")
