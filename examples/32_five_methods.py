"""Train one network under five published methods at one limit, and compare them."""

import time

import numpy as np

import memcfg as mc

nn, planning = mc.nn, mc.plan
METHODS = ("chen_sqrt", "chen_budget", "revolve", "replay_elementwise", "auto")
BATCH, STEPS = 8, 2


def compiled(memory):
    nn.set_random_seed(1)
    model = mc.models.resnet(14)
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(0.01, momentum=0.9), loss, memory=memory)
    return model


rng = np.random.default_rng(0)
x = rng.standard_normal((BATCH, 32, 32, 3), np.float32)
y = rng.integers(0, 10, BATCH)

graph = compiled("share").graph(BATCH)
share = planning.share()(graph).peak_bytes
limit = share * 3 // 4
mc.config.set_memory_limit("CPU:0", limit)
print(f"{share:,} bytes with share, {limit:,} are allowed")

print(f"{'method':<20}{'predicted':>12}{'measured':>12}{'more work':>11}{'step':>10}")
weights = []
for method in METHODS:
    model = compiled(method)
    try:
        plan = model.plan(BATCH)
    except mc.errors.InfeasiblePlanError as error:
        print(f"{method:<20}{error.smallest_limit_bytes:>12,} bytes are its least")
        continue
    model.train_on_batch(x, y)
    began = time.perf_counter()
    for _ in range(STEPS):
        model.train_on_batch(x, y)
    taken = (time.perf_counter() - began) / STEPS
    measured = model.memory_report(verify=True).measured_peak_bytes
    weights.append(model.get_weights())
    model.close()
    assert measured == plan.peak_bytes <= limit
    spent = plan.predicted
    more = spent.recompute_seconds / (spent.seconds - spent.recompute_seconds)
    print(
        f"{method:<20}{plan.peak_bytes:>12,}{measured:>12,}{more:>11.1%}{taken:>9.3f}s"
    )

assert len(weights) > 1
for other in weights[1:]:  # whatever was computed twice
    assert all(map(np.array_equal, weights[0], other))
