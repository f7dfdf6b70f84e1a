import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.uniform(-1, 1, (200, 1)).astype("float32")
y = x**3
model = keras.Sequential(
    [
        keras.Input((1,)),
        keras.layers.Dense(48, activation="relu"),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(1),
    ]
)
model.compile(keras.optimizers.Adam(0.02), "mse")
model.fit(x, y, epochs=20, verbose=0)
grid = np.array([[0.2], [3.0]], "float32")
draws = np.stack(
    [keras.ops.convert_to_numpy(model(grid, training=True)) for _ in range(40)]
)
spread = draws.std(axis=0)[:, 0]
assert spread[1] > 3 * spread[0] > 0
fixed = [keras.ops.convert_to_numpy(model(grid, training=False)) for _ in range(2)]
np.testing.assert_array_equal(*fixed)
np.testing.assert_allclose(draws.mean(axis=0), fixed[0], atol=0.4)
