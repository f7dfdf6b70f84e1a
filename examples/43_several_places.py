"""Train with two places that tensors leave for: the host's memory, and then a file.

The host has room for a third of what leaves; what does not fit there lies in a file.
Each place has a limit and two lanes of its own.
"""

import tempfile

import numpy as np

import memcfg as mc

nn, planning = mc.nn, mc.plan
BATCH, LAYERS = 8, 12

rng = np.random.default_rng(0)
x = rng.standard_normal((BATCH, 32, 32, 3), np.float32)
y = rng.integers(0, 5, BATCH)


def train(memory, spill_to=None, spill_limit=None):
    """Train a few steps; return the plan, the weights and what the report says."""
    mc.config.reset()
    cpu = mc.config.list_physical_devices("CPU")[0]
    device = mc.config.LogicalDeviceConfiguration(
        spill_to=spill_to, spill_limit=spill_limit
    )
    mc.config.set_logical_device_configuration(cpu, [device])
    nn.set_random_seed(0)
    convolutions = [
        nn.Conv2D(16, 3, padding="same", activation="relu") for _ in range(LAYERS)
    ]
    ends = [nn.GlobalAveragePooling2D(), nn.Dense(5)]
    model = nn.Sequential([nn.Input((32, 32, 3)), *convolutions, *ends])
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    try:
        model.compile(nn.SGD(0.01, momentum=0.9), loss, memory=memory)
        for _ in range(3):
            model.train_on_batch(x, y)
        return model.memory_plan, model.get_weights(), model.memory_report()
    finally:
        model.close()


_, expected, _ = train(planning.keep_all())
whole, _, _ = train(planning.vdnn_all(), "host")
away = whole.summary.by_tier["host"]
with tempfile.TemporaryDirectory() as folder:
    places, limits = ("host", folder), (f"{away // 3}B", None)
    plan, weights, _ = train(planning.vdnn_all(), places, limits)
there = plan.summary.by_tier
assert 0 < there["host"] <= away // 3
assert there["file"] > 0
assert all(map(np.array_equal, weights, expected))
print(f"leaves:      {away:,} bytes at a time")
print(f"on the host: {there['host']:,} of at most {away // 3:,}")
print(f"in the file: {there['file']:,}; same bits")
