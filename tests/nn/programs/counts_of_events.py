import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(400, 2)).astype("float32")
rates = np.exp(0.8 * x[:, 0] - 0.4 * x[:, 1] + 0.3)
y = rng.poisson(rates).astype("float32")[:, None]
model = keras.Sequential(
    [keras.Input((2,)), keras.layers.Dense(1, activation="exponential")]
)
model.compile(
    keras.optimizers.Adam(0.05), keras.losses.Poisson(), metrics=["mean_squared_error"]
)
model.fit(x, y, batch_size=50, epochs=20, verbose=0)
kernel, bias = model.get_weights()
np.testing.assert_allclose(kernel[:, 0], [0.8, -0.4], atol=0.2)
assert abs(bias[0] - 0.3) < 0.2
assert model.predict(x, verbose=0).min() > 0
