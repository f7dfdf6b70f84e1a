"""See which tensor has which bytes when, in a step that recomputes within a limit."""

import sys
import tempfile
from pathlib import Path

import numpy as np

from memcfg import nn
from memcfg.plan import look_ahead

layers = [nn.Input((32, 32, 3))]
for block in range(6):
    layers += [
        nn.Conv2D(16, 3, padding="same", use_bias=False, name=f"conv{block}"),
        nn.BatchNormalization(name=f"norm{block}"),
        nn.ReLU(name=f"relu{block}"),
    ]
model = nn.Sequential([*layers, nn.GlobalAvgPool2D(), nn.Dense(10)])
loss = nn.SparseCategoricalCrossentropy(from_logits=True)
model.compile(nn.SGD(0.05, momentum=0.9), loss, memory=look_ahead())  # its lowest peak

rng = np.random.default_rng(0)
images = rng.standard_normal((64, 32, 32, 3), np.float32)
model.fit(images, rng.integers(0, 10, 64), batch_size=32, epochs=2, verbose=0)

# One more step, on made-up data, measures the peak and the times. Weights stay.
timeline = model.memory_timeline(verify=True)
print(timeline)

# The highest box ends at the predicted peak, which is the measured one, to the byte.
highest = max(box.offset + box.nbytes for box in timeline.boxes)
assert highest == timeline.peak_bytes == timeline.measured_peak_bytes

# At each op, the bytes in use are those of the boxes that are there.
for number, event in enumerate(timeline.events):
    there = [box for box in timeline.boxes if box.begin <= number < box.end]
    assert event.live_bytes == sum(box.nbytes for box in there)

again = [arrow for arrow in timeline.arrows if arrow.kind == "recomputed"]
print(f"\n{len(again)} tensors are computed again; the first arrows:")
for arrow in again[:3]:
    box = timeline.boxes[arrow.target]
    print(f"  {box.name}: {box.nbytes:,} bytes, made at {Path(box.line).name}")

# A page to zoom and search, a picture, and a file for https://ui.perfetto.dev. Name a
# folder to keep them.
with tempfile.TemporaryDirectory() as temporary:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
    for suffix in ("html", "svg", "json"):
        path = folder / f"step.{suffix}"
        timeline.save(path)
        print(f"{path.name}: {path.stat().st_size:,} bytes")
