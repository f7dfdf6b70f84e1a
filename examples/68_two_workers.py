"""Train one model with two workers, each within the limit of its own device.

A batch is divided between them. Gradients are summed within the step, so the numbers
are those of one model with the whole batch; with weights that are averaged every five
batches, workers wait for each other less often.
"""

import numpy as np
from sklearn.datasets import load_digits

import memcfg as mc
from memcfg import nn as keras

LIMIT = 320 << 10  # bytes of each device; one model alone needs 300 KB

digits = load_digits()
x = (digits.data / 16).astype("float32")
y = digits.target

(cpu,) = mc.config.list_physical_devices("CPU")
device = mc.config.LogicalDeviceConfiguration(memory_limit=f"{LIMIT}B")
mc.config.set_logical_device_configuration(cpu, [device, device])


def made():
    """Return the same compiled model each time."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.2), loss, metrics=["accuracy"])
    return model


given = {"batch_size": 128, "epochs": 6, "seed": 0, "verbose": 0}
alone = made()
print(f"one model needs {alone.plan(128).peak_bytes} B")
print(f"  loss {alone.fit(x, y, **given).history['loss'][-1]:.4f}")
alone.close()

for mode, frequency in (("all_reduce", 1), ("averaging", 5)):
    model = made()
    with mc.parallel.ParallelWrapper(
        model, workers=2, training_mode=mode, averaging_frequency=frequency
    ) as wrapper:
        logs = wrapper.fit(x, y, **given).history
        for report in wrapper.memory_reports(verify=True):
            peak = report.measured_peak_bytes
            assert peak == report.predicted_peak_bytes <= LIMIT
            print(f"{mode}: {report.device} took {peak} of {report.limit_bytes} B")
    print(f"  loss {logs['loss'][-1]:.4f}, accuracy {logs['accuracy'][-1]:.3f}")
    answers = model.predict(x[:5], verbose=0).argmax(1)
    print(f"  the model predicts {answers}, the digits are {np.array(y[:5])}")
    model.close()
