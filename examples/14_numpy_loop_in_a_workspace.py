"""Train a network written in NumPy, with and without a workspace: where memory goes."""

import numpy as np

import memcfg as mc

MIB = 2**20
STEPS, BATCH, INPUTS, WIDTH = 15, 2048, 32, 256
COLUMNS = 16  # letters for a step
LETTERS = "_▁▂▃▄▅▆▇█"

generator = np.random.default_rng(0)
x = generator.normal(size=(STEPS, BATCH, INPUTS)).astype(np.float32)
y = np.sin(x.sum(axis=2, keepdims=True))


class Network:
    """Two layers and their momentum, which outlive the steps."""

    def __init__(self) -> None:
        generator = np.random.default_rng(1)
        shapes = ((INPUTS, WIDTH), (WIDTH, 1))
        self.weights = [generator.normal(0, 0.1, s).astype("f4") for s in shapes]
        self.speeds = [np.zeros_like(weights) for weights in self.weights]

    def step(self, x: np.ndarray, y: np.ndarray) -> float:
        """Plain NumPy; what it makes is gone when it returns."""
        first, second = self.weights
        hidden = np.maximum(x @ first, 0)
        error = hidden @ second - y
        slope = error * (2 / len(x))
        back = (slope @ second.T) * (hidden > 0)
        gradients = [x.T @ back, hidden.T @ slope]
        for w, v, g in zip(self.weights, self.speeds, gradients, strict=True):
            v *= 0.9
            v -= 0.05 * g
            w += v
        return float(np.mean(error**2))


# Pools that note each call. Without a workspace, each array of NumPy's is one.
names = ("without", "workspace")
pools = {name: mc.memory.tracking(mc.memory.Pool(name=name)) for name in names}
scopes = {
    "without": mc.memory.numpy_allocator(pools["without"]),
    "workspace": mc.Workspace(
        mc.WorkspaceConfig(allocation="strict"), "steps", resource=pools["workspace"]
    ),
}
losses: dict[str, list[float]] = {name: [] for name in names}
taken: dict[str, list[int]] = {name: [0] for name in names}
events: dict[str, list[int]] = {name: [0] for name in names}
for name in names:
    network = Network()
    for x_part, y_part in zip(x, y, strict=True):
        with scopes[name]:
            losses[name].append(network.step(x_part, y_part))
        taken[name].append(pools[name].stats().allocation_count)
        events[name].append(len(pools[name].trace()))

print(f"loss {losses['without'][0]:.3f} to {losses['without'][-1]:.3f}, both the same")
assert losses["without"] == losses["workspace"]
for name in names:
    counts = " ".join(str(count) for count in np.diff(taken[name]))
    print(f"{name:9}  {counts:45} allocations in the steps")
assert set(np.diff(taken["workspace"])[2:]) == {0}

print("\nbytes in use during steps 1, 2 and 3:")
for name, pool in pools.items():
    trace = pool.trace()
    change = trace.nbytes.astype(int) * np.where(trace.action == 1, -1, 1)
    in_use = np.concatenate([[0], np.cumsum(change)])
    letters = []
    for begin, end in zip(events[name][:3], events[name][1:4], strict=True):
        at = np.ceil(np.linspace(begin, end, COLUMNS)).astype(int)
        letters.append("".join(LETTERS[int(n * 8 // (7 * MIB))] for n in in_use[at]))
    peak = f"at most {pool.stats().peak_bytes / MIB:.1f} MiB"
    print(f"{name:9}  {' '.join(letters)} {peak}")
