"""Train on a .npy file four times as large as all the memory that the device has."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import memcfg as mc
from memcfg import nn

MIB = 2**20
SAMPLES, SHAPE = 2048, (32, 32, 3)  # of float32: 24 MiB

cpu = mc.config.list_physical_devices("CPU")[0]
limit = mc.config.LogicalDeviceConfiguration(memory_limit=6)  # MiB
mc.config.set_logical_device_configuration(cpu, [limit])
pool = mc.config.logical_device().pool
folder = TemporaryDirectory()
path = Path(folder.name, "images.npy")

# Images that are brighter on the left or on the right, written part by part.
labels = np.random.default_rng(0).integers(0, 2, SAMPLES)
file = np.lib.format.open_memmap(path, "w+", np.float32, (SAMPLES, *SHAPE))
for start in range(0, SAMPLES, 256):
    part = np.random.default_rng(start).random((256, *SHAPE), np.float32)
    side = labels[start : start + 256, None, None, None]
    part[:, :, :16] += 0.2 * (side == 0)
    part[:, :, 16:] += 0.2 * (side == 1)
    file[start : start + 256] = part
del file, part

# A pass reads rows of the file in another order each time, straight into the blocks of
# a ring; a step reads its batch where it lies. AUTOTUNE says how many are read ahead.
images = np.load(path, mmap_mode="r")
data = mc.data.Dataset.from_tensor_slices((images, labels))
data = data.shuffle(SAMPLES, seed=1).batch(64).prefetch(mc.data.AUTOTUNE)

nn.set_random_seed(1)
model = nn.Sequential(
    [
        nn.Conv2D(8, 3, strides=2, activation="relu"),
        nn.Conv2D(16, 3, strides=2, activation="relu"),
        nn.Flatten(),
        nn.Dense(2),
    ]
)
model.compile(
    nn.Adam(0.003),
    nn.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit(data, epochs=2, verbose=2)

print(f"\nfile   {path.stat().st_size / MIB:6.2f} MiB")
print(f"limit  {pool.limit / MIB:6.2f} MiB")
print(f"peak   {pool.stats().peak_bytes / MIB:6.2f} MiB")
print(f"model  {model.memory_plan.peak_bytes / MIB:6.2f} MiB of it, by a plan that is")
print(f"       called {model.memory_plan.method!r}; the rest are batches read ahead")
assert pool.stats().peak_bytes <= pool.limit < path.stat().st_size / 3
assert history.history["accuracy"][-1] > 0.9

# The same pipeline by hand tells what AUTOTUNE chose.
with iter(data) as batches:
    right = sum(
        np.sum(model.predict_on_batch(x).argmax(1) == y, dtype=int) for x, y in batches
    )
print(f"\n{right} of {SAMPLES} images are told apart.\n\n{batches.report()}")
folder.cleanup()
