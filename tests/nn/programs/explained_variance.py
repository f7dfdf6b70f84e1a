import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(240, 5)).astype("float32")
y = (x @ rng.normal(size=(5, 2)) + 0.3 * rng.normal(size=(240, 2))).astype("float32")
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(2)])
metrics = [keras.metrics.R2Score(name="r2"), keras.metrics.RootMeanSquaredError()]
model.compile(keras.optimizers.Adam(0.1), "mse", metrics=metrics)
model.fit(x, y, epochs=15, verbose=0)
found = model.evaluate(x, y, verbose=0, return_dict=True)
errors = (model.predict(x, verbose=0) - y) ** 2
r2 = 1 - errors.sum(axis=0) / ((y - y.mean(axis=0)) ** 2).sum(axis=0)
np.testing.assert_allclose(found["r2"], r2.mean(), rtol=1e-4)
np.testing.assert_allclose(
    found["root_mean_squared_error"], np.sqrt(errors.mean()), rtol=1e-4
)
assert found["r2"] > 0.8
