"""Less memory for a little more computing: the same weights, to the last bit."""

import numpy as np

import memcfg as mc

nn = mc.nn

generator = np.random.default_rng(0)
x = generator.normal(size=(256, 16, 16, 8)).astype(np.float32)
y = generator.integers(0, 10, 256)


def train(policy):
    """Train a deep chain under a policy; return its weights and its peak in bytes."""
    nn.set_random_seed(0)
    layers = []
    for _ in range(12):
        layers += [nn.Conv2D(8, 3, padding="same"), nn.BatchNormalization(), nn.ReLU()]
    model = nn.Sequential([*layers, nn.GlobalAveragePooling2D(), nn.Dense(10)])
    model.compile(
        nn.SGD(0.05, momentum=0.9),
        nn.SparseCategoricalCrossentropy(from_logits=True),
        memory=policy,
    )
    model.fit(x, y, batch_size=64, epochs=2, verbose=0, seed=0)
    return model.get_weights(), model.memory_plan


kept, everything = train(mc.plan.keep_all())
for policy in (mc.plan.share(), mc.plan.sqrt_checkpoint()):
    weights, plan = train(policy)
    part = plan.peak_bytes / everything.peak_bytes
    print(f"{plan.method}: {plan.peak_bytes:,} bytes, {part:.0%} of keep_all")
    assert plan.peak_bytes < everything.peak_bytes
    for first, second in zip(kept, weights, strict=True):
        assert np.array_equal(first, second)
print("bit-identical weights")
