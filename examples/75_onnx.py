"""Export to ONNX, run it elsewhere, import it, and fine-tune it within a limit.

The classifier learns four kinds of images here. It is exported with weights in float32
and in int8, run by another program that only has ONNX, read back, and taught one more
kind, with the first layers as they are.
"""

import os
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

import memcfg as mc

nn = mc.nn
rng = np.random.default_rng(0)
patterns = rng.normal(0, 1, (5, 12, 12, 1))


def images(count, kinds):
    """Return noisy patterns, and their kinds."""
    y = rng.integers(0, kinds, count)
    x = patterns[y] + rng.normal(0, 1.5, (count, 12, 12, 1))
    return x.astype(np.float32), y


nn.utils.set_random_seed(0)
model = nn.Sequential(
    [
        nn.Input((12, 12, 1), name="image"),
        nn.Conv2D(8, 3, padding="same", name="edges"),
        nn.BatchNormalization(name="scale"),
        nn.ReLU(),
        nn.MaxPooling2D(name="pool"),
        nn.Flatten(),
        nn.Dense(4, name="kinds"),
    ]
)
loss = nn.SparseCategoricalCrossentropy(from_logits=True)
model.compile(nn.Adam(0.01), loss, metrics=["accuracy"])
model.fit(*images(400, 4), epochs=3, verbose=0)
x, y = images(200, 4)

with TemporaryDirectory() as folder:
    path, small = f"{folder}/model.onnx", f"{folder}/int8.onnx"
    model.export(path)
    model.export(small, quantize="int8", calibration_data=x[:64])

    # Elsewhere: ONNX's own reference here; onnxruntime takes the same file.
    kinds = [node.op_type for node in onnx.load(path).graph.node]
    print("nodes:", *kinds)
    here = model.predict(x, verbose=0)
    for name in (path, small):
        (there,) = ReferenceEvaluator(name).run(None, {"image": x})
        right = (there.argmax(-1) == y).mean()
        apart = np.abs(there - here).max() / np.abs(here).max()
        size = os.path.getsize(name)
        print(f"{os.path.basename(name)}: {size} bytes, {right:.1%}, {apart:.0e} apart")

    again = nn.models.from_onnx(path)
print("same numbers:", np.allclose(again.predict(x, verbose=0), here, atol=1e-5))

# Another classifier behind the layers that are there, within a limit.
model.close()
for layer in again.layers:
    layer.trainable = False
tuned = nn.Model(again.inputs, nn.Dense(5, name="five")(again.layers[-1].input))
tuned.compile(nn.Adam(0.01), loss, metrics=["accuracy"])
limit = "3MiB"
with mc.budget(limit):
    tuned.fit(*images(600, 5), epochs=4, batch_size=64, verbose=0)
    _, accuracy = tuned.evaluate(*images(200, 5), verbose=0)
    print(f"five kinds in {limit}: {accuracy:.0%}")
