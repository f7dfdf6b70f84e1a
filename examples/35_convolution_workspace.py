"""Let convolutions have the scratch that is free: by moment, by shares, in parts.

Every algorithm is real and measured here; which of them is worth its scratch depends on
the machine, and on what else it does.
"""

import os

import numpy as np

import memcfg as mc

os.environ.setdefault("MEMCFG_ALGORITHM_CACHE", "none")  # leave no files behind
nn, planning = mc.nn, mc.plan
BATCH, STEPS = 16, 2
METHODS = (
    *("share", "workspace_performance", "workspace_memory", "workspace_dynamic"),
    *("workspace_priority", "workspace_balanced", "ucudnn_wr", "ucudnn_wd"),
)

rng = np.random.default_rng(0)
x = rng.standard_normal((BATCH, 32, 32, 16), np.float32)
y = rng.integers(0, 10, BATCH)


def compiled(memory):
    nn.set_random_seed(1)
    wide = {"padding": "same", "activation": "relu"}
    layers = [nn.Conv2D(16, 5, **wide), nn.MaxPool2D(), nn.Conv2D(32, 3, **wide)]
    ends = [nn.Conv2D(64, 3, strides=2, **wide), nn.GlobalAveragePooling2D()]
    model = nn.Sequential([nn.Input((32, 32, 16)), *layers, *ends, nn.Dense(10)])
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(0.01), loss, memory=memory, times="measured")
    return model


graph = compiled("share").graph(BATCH)
for op in graph.ops:
    if op.type.startswith("conv2d"):
        print(op.name)
        for each in op.algorithms:
            if each.name != "reference":
                took = f"{each.seconds * 1e3:.2f} ms"
                print(f"    {each.name:<10}{took:>10}{each.scratch_bytes:>12,} bytes")

least = planning.workspace_memory()(graph).peak_bytes
limit = 2 * least
print(f"{limit:,} bytes are allowed; the least scratch has a peak of {least:,}")
mc.config.set_memory_limit("CPU:0", limit)
expected = None
for method in METHODS:
    model = compiled(method)
    try:
        plan = model.plan(BATCH)
    except mc.errors.InfeasiblePlanError as error:
        print(f"{method:<23}{error.smallest_limit_bytes:>11,} bytes are its least")
        continue
    for _ in range(STEPS):
        model.train_on_batch(x, y)
    measured = model.memory_report(verify=True).measured_peak_bytes
    weights = model.get_weights()
    model.close()
    assert measured == plan.peak_bytes <= limit
    expected = expected or weights
    for one, other in zip(weights, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
    named = (a for a in plan.actions if isinstance(a, planning.Compute) and a.algorithm)
    others = ", ".join(dict.fromkeys(a.algorithm for a in named))
    took = f"{plan.predicted.seconds * 1e3:.1f} ms"
    print(f"{method:<23}{measured:>11,} bytes{took:>10}  {others}")
