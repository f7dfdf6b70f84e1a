import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.integers(0, 2, (256, 3, 1)).astype("float32")
y = x.sum(axis=(1, 2)) % 2
model = keras.Sequential(
    [
        keras.Input((3, 1)),
        keras.layers.SimpleRNN(16, activation="tanh"),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(keras.optimizers.Adam(0.03), "binary_crossentropy", metrics=["accuracy"])
model.fit(x, y, batch_size=64, epochs=40, verbose=0)
assert model.evaluate(x, y, verbose=0)[1] == 1.0
