import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x, y = rng.normal(size=(60, 20)), rng.normal(size=60)  # nothing to learn
model = keras.Sequential([keras.layers.Dense(64, "relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01), "mse")
stop = keras.callbacks.EarlyStopping(
    monitor="val_loss", patience=3, min_delta=0.001, restore_best_weights=True
)
history = model.fit(
    x, y, epochs=60, validation_split=0.3, callbacks=[stop], verbose=0
).history
assert len(history["loss"]) < 60
assert stop.stopped_epoch == len(history["loss"]) - 1
assert int(np.argmin(history["val_loss"])) == stop.best_epoch
restored = model.evaluate(x[42:], y[42:], verbose=0)
np.testing.assert_allclose(restored, min(history["val_loss"]), rtol=1e-3)
