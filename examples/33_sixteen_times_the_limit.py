"""Train a network whose tensors take sixteen times what its device has.

The inputs of layers leave for the host's memory while the layers compute, and come back
for the backward phase. The weights are those of a device with room for all, to the bit.
"""

import numpy as np

import memcfg as mc
from memcfg.errors import InfeasiblePlanError

nn, planning = mc.nn, mc.plan
BATCH, LAYERS, STEPS = 8, 24, 3

rng = np.random.default_rng(0)
x = rng.standard_normal((BATCH, 32, 32, 3), np.float32)
y = rng.integers(0, 5, BATCH)


def deep():
    nn.set_random_seed(0)
    layers = [
        nn.Conv2D(16, 3, padding="same", activation="relu") for _ in range(LAYERS)
    ]
    ends = [nn.GlobalAveragePooling2D(), nn.Dense(5)]
    return nn.Sequential([nn.Input((32, 32, 3)), *layers, *ends])


def train(memory):
    """Train a few steps; return the plan, the weights and the device's peak."""
    model = deep()
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(0.01, momentum=0.9), loss, memory=memory, on_oom="raise")
    for _ in range(STEPS):
        model.train_on_batch(x, y)
    found = model.memory_plan, model.get_weights()
    peak = mc.config.get_memory_info("CPU:0")["peak"]
    model.close()
    return *found, peak


room_for_all, expected, _ = train(planning.keep_all())
limit = room_for_all.peak_bytes // 16

mc.config.reset()
cpu = mc.config.list_physical_devices("CPU")[0]
mc.config.set_logical_device_configuration(
    cpu,
    [
        mc.config.LogicalDeviceConfiguration(
            memory_limit=f"{limit}B", spill_to="host", spill_limit="64MiB"
        )
    ],
)
try:
    train(planning.share())
except InfeasiblePlanError as error:
    print(f"without swapping: {error.smallest_limit_bytes:,} bytes are needed")
plan, weights, peak = train(planning.vdnn_dyn())
print(plan)
print(f"all tensors: {room_for_all.peak_bytes:,} bytes")
print(f"the limit:   {limit:,} bytes; at most in use: {peak:,}")
assert plan.peak_bytes <= peak <= limit
assert plan.predicted.moved_bytes > 0
assert all(map(np.array_equal, weights, expected))
print("bit-identical weights")
