"""Predict with a network eight times as large as its memory limit.

The weights stay in a compressed file. Each layer's are read and decoded while the layer
before computes, and freed after it; a wide layer comes in blocks of columns. The limit
is that of the whole program: samples and results count, too.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import memcfg as mc

nn, compression = mc.nn, mc.compression
rng = np.random.default_rng(0)


def pruned(shape):
    """Return weights as pruning and sharing leave them: a tenth, of 15 values."""
    values = rng.normal(0, 1, 15).astype(np.float32) / np.sqrt(0.1 * shape[0])
    kept = rng.random(shape) < 0.1
    return np.where(kept, values[rng.integers(0, 15, shape)], np.float32(0))


layers = [nn.Dense(1024, activation="relu", name=f"dense{i}") for i in range(4)]
model = nn.Sequential([nn.Input((1024,)), *layers, nn.Dense(10, name="out")])
for layer in model.layers:
    kernel, bias = layer.get_weights()
    layer.set_weights([pruned(kernel.shape), bias])
samples = rng.normal(size=(8, 1024)).astype(np.float32)
expected = model.predict(samples, verbose=0)

with TemporaryDirectory() as folder:
    path = Path(folder, "model.mcz")
    small = compression.CompressedModel(model, section_bytes="512KiB")
    small.save(path)
    dense = small.dense_bytes
    model.close()
    limit = dense // 8
    with mc.budget(f"{limit}B"):
        streamed = compression.load(path).streamed()
        outputs = streamed.predict(samples, batch_size=8, verbose=0)
        report = streamed.memory_report()
        streamed.close()

print(f"weights: {dense:,} bytes, in a file of {small.nbytes:,}")
print(f"limit: {limit:,} bytes; peak: {report.measured_peak_bytes:,}, as predicted")
assert report.measured_peak_bytes == report.predicted_peak_bytes <= limit
assert np.allclose(outputs, expected, rtol=1e-4, atol=1e-4)
print(f"greatest difference of an output: {np.abs(outputs - expected).max():.1e}")
