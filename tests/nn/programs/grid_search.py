import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(160, 4)).astype("float32")
y = (x[:, 0] * x[:, 1] > 0).astype("float32")


def score(units, rate):
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(units, activation="tanh"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(rate), "binary_crossentropy", metrics=["accuracy"]
    )
    history = model.fit(x, y, epochs=20, validation_split=0.2, verbose=0).history
    return max(history["val_accuracy"])


results = {(n, rate): score(n, rate) for n in (1, 16) for rate in (1e-4, 0.03)}
assert max(results, key=results.get) == (16, 0.03)
assert results[16, 0.03] > 0.75
