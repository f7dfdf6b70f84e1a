import keras
import numpy as np

keras.utils.set_random_seed(0)


def batches(seed, size=32):
    rng = np.random.default_rng(seed)
    while True:
        x = rng.uniform(-1, 1, (size, 2)).astype("float32")
        yield x, (x[:, :1] - x[:, 1:] > 0).astype("float32")


model = keras.Sequential(
    [keras.Input((2,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1, "sigmoid")]
)
model.compile(keras.optimizers.Adam(0.03), "binary_crossentropy", metrics=["accuracy"])
history = model.fit(
    batches(0),
    steps_per_epoch=20,
    epochs=6,
    validation_data=batches(1),
    validation_steps=4,
    verbose=0,
)
assert len(history.history["val_loss"]) == 6
assert history.history["val_accuracy"][-1] > 0.9
assert model.evaluate(batches(2), steps=5, verbose=0)[1] > 0.9
found = model.predict(batches(3), steps=3, verbose=0)
assert found.shape == (96, 1)
assert int(model.optimizer.iterations) == 120
