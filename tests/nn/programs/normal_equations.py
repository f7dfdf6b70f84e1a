import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(200, 5)).astype("float32")
true = np.array([1.0, -2.0, 0.5, 0.0, 3.0], "float32")
y = x @ true + 0.7 + 0.01 * rng.normal(size=200).astype("float32")
design = np.concatenate([x, np.ones((200, 1), "float32")], axis=1)
solved = keras.ops.solve(design.T @ design, (design.T @ y)[:, None])
solved = keras.ops.convert_to_numpy(solved)[:, 0]

layer = keras.layers.Dense(1)
model = keras.Sequential([keras.Input((5,)), layer])
model.compile(keras.optimizers.SGD(0.1, momentum=0.8), "mse")
model.fit(x, y, batch_size=200, epochs=120, verbose=0)
kernel, bias = layer.get_weights()
np.testing.assert_allclose([*kernel[:, 0], *bias], solved, atol=5e-3)
np.testing.assert_allclose(solved[:5], true, atol=5e-3)
