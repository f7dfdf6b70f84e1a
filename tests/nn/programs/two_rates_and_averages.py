import keras
import numpy as np

rng = np.random.default_rng(0)
x = rng.normal(size=(128, 6)).astype("float32")
y = (x @ rng.normal(size=(6, 1))).astype("float32")
model = keras.Sequential(
    [
        keras.Input((6,)),
        keras.layers.Dense(16, activation="relu", name="body"),
        keras.layers.Dense(1, name="head"),
    ]
)
slow = keras.optimizers.SGD(1e-4)
fast = keras.optimizers.Adam(0.05)
model.compile(
    keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(slow, {".*head.*": fast})
    ),
    "mse",
)
body, _, head, _ = [np.copy(each) for each in model.get_weights()]
model.fit(x, y, batch_size=32, epochs=2, verbose=0)
after = model.get_weights()
assert np.abs(after[2] - head).max() > 10 * np.abs(after[0] - body).max() > 0

model.compile(keras.optimizers.Adam(0.05, use_ema=True, ema_momentum=0.5), "mse")
seen = []
watch = keras.callbacks.LambdaCallback(
    on_epoch_end=lambda epoch, logs: seen.append(logs["val_loss"])
)
swap = keras.callbacks.SwapEMAWeights()
monitor = keras.callbacks.RemoteMonitor("http://localhost:1", send_as_json=True)
assert monitor.path.endswith("/")
model.fit(x, y, validation_data=(x, y), epochs=4, verbose=0, callbacks=[swap, watch])
assert seen[-1] < seen[0]
