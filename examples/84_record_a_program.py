"""Record who holds which bytes of a device while a loader and two models share it."""

import sys
import tempfile
from pathlib import Path

import numpy as np

import memcfg as mc

LIMIT = 3 * 2**19  # bytes
generator = np.random.default_rng(0)
x = generator.random((4000, 64), np.float32)
y = (x.sum(axis=1) > 32).astype(np.int64)
data = mc.data.Dataset.from_tensor_slices((x, y)).batch(32)
data = data.map(lambda x, y: ((x - 0.5) * 2, y)).cache().shuffle(8, seed=1).prefetch(4)

with mc.budget(LIMIT), mc.config.record_memory_history("CPU:0") as history:
    pool = mc.config.logical_device("CPU:0").pool
    pool.reset_peak()
    for width in (64, 1024):  # the second model needs some of the cache's memory
        layers = [mc.nn.Input((64,)), mc.nn.Dense(width, "relu"), mc.nn.Dense(2)]
        model = mc.nn.Sequential(layers, name=f"width_{width}")
        model.compile("sgd", mc.nn.SparseCategoricalCrossentropy(from_logits=True))
        model.fit(data, epochs=2, verbose=0)
        errors = np.abs(model.predict(x[:256], verbose=0)).sum(axis=1)
        model.close()
    peak = pool.stats().peak_bytes

timeline = history.timeline()
print(timeline)

# What was recorded is what the pool counted, to the byte.
assert timeline.peak_bytes == peak <= LIMIT
assert timeline.limit_bytes == LIMIT
for number in range(0, len(timeline.events), 7):
    there = [box for box in timeline.boxes if box.begin <= number < box.end]
    assert timeline.events[number].live_bytes == sum(box.nbytes for box in there)

most = {}
for box in timeline.boxes:
    most[box.role] = max(most.get(box.role, 0), box.nbytes)
print("\nThe largest block of each holder:")
for role, nbytes in sorted(most.items(), key=lambda row: -row[1]):
    print(f"  {role}: {nbytes:,} bytes")

# A page to zoom and search, a picture, and a file for https://ui.perfetto.dev. Name a
# folder to keep them.
with tempfile.TemporaryDirectory() as temporary:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
    for suffix in ("html", "svg", "json"):
        path = folder / f"program.{suffix}"
        timeline.save(path)
        print(f"{path.name}: {path.stat().st_size:,} bytes")
