"""Example 01 on a GPU: the same network, and a limit on the GPU's memory."""

import sys

import numpy as np

import memcfg as mc

gpus = mc.config.list_physical_devices("GPU")
if not gpus:
    try:
        mc.config.logical_device("GPU:0")
    except ValueError as error:
        print(error)  # says what is missing
    sys.exit()

mc.config.set_logical_device_configuration(
    gpus[0],
    [mc.config.LogicalDeviceConfiguration(memory_limit=512)],  # MiB
)
print(mc.config.get_device_details(gpus[0]))

generator = np.random.default_rng(1)
y = generator.integers(0, 10, 960)
x = generator.normal(0, 1.0, (960, 20, 20, 1)).astype(np.float32)
for image, place in zip(x, y, strict=True):
    row, column = 3 + 10 * (place // 5), 4 * (place % 5)
    image[row : row + 4, column : column + 4] += 1

with mc.device("/GPU:0"):
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
history = model.fit(
    x[:800], y[:800], batch_size=64, epochs=5, validation_data=(x[800:], y[800:])
)
assert history.history["val_accuracy"][-1] > 0.9
print(mc.config.get_memory_info("GPU:0"))
