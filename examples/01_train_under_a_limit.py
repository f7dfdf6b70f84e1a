"""Train inside a hard memory limit, and see where every byte went."""

import tempfile
from pathlib import Path

import numpy as np

import memcfg as mc


def squares(samples, seed):
    """Return noisy images with a bright square in one of ten places."""
    generator = np.random.default_rng(seed)
    places = generator.integers(0, 10, samples)
    x = generator.normal(0, 1.0, (samples, 20, 20, 1)).astype(np.float32)
    for image, place in zip(x, places, strict=True):
        row, column = 3 + 10 * (place // 5), 4 * (place % 5)
        image[row : row + 4, column : column + 4] += 1
    return x, places


x, y = squares(960, seed=1)
xv, yv = squares(200, seed=2)

cpu = mc.config.list_physical_devices("CPU")[0]
mc.config.set_logical_device_configuration(
    cpu,
    [mc.config.LogicalDeviceConfiguration(memory_limit=48)],  # MiB
)
mc.nn.set_random_seed(0)
model = mc.nn.Sequential(
    [
        mc.nn.Conv2D(32, 3, padding="same", activation="relu"),
        mc.nn.MaxPool2D(2),
        mc.nn.Flatten(),
        mc.nn.Dense(10),
    ]
)
model.compile(
    optimizer=mc.nn.SGD(0.05, momentum=0.9),
    loss=mc.nn.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
    memory=mc.plan.auto(),
)
history = model.fit(x, y, batch_size=64, epochs=5, validation_data=(xv, yv), seed=0)
model.evaluate(xv, yv)
model.predict(xv)
model.summary()
loss = model.train_on_batch(x[:64], y[:64])

print(model.memory_plan)
print(model.memory_report())
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "w.safetensors"
    model.save_weights(path)
    model.load_weights(path)

assert history.history["val_accuracy"][-1] > 0.9
assert model.memory_plan.peak_bytes <= 48 * 2**20
print(mc.config.get_memory_info("CPU:0"))
