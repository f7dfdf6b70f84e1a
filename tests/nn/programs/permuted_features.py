import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(300, 4)).astype("float32")
y = (2 * x[:, 0] - x[:, 2] > 0).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, "sigmoid")])
model.compile(keras.optimizers.Adam(0.1), "binary_crossentropy", metrics=["accuracy"])
model.fit(x, y, epochs=10, verbose=0)
base = model.evaluate(x, y, verbose=0)[1]
drops = []
for column in range(4):
    mixed = x.copy()
    mixed[:, column] = rng.permutation(mixed[:, column])
    drops.append(base - model.evaluate(mixed, y, verbose=0)[1])
assert base > 0.95
assert drops[0] > drops[2] > max(drops[1], drops[3]) + 0.05
