import keras
import numpy as np


def asymmetric(y_true, y_pred):
    error = y_true - y_pred
    return error**2 + 0.9 * error * abs(error)


class Weighted(keras.losses.Loss):
    def __init__(self, factor, name="weighted"):
        super().__init__(name=name)
        self.factor = factor

    def call(self, y_true, y_pred):
        return self.factor * (y_true - y_pred) ** 2


keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(400, 2))
y = (x @ [1.0, -1.0] + rng.normal(0, 0.5, 400))[:, None]
means = []
for loss in (asymmetric, Weighted(3.0)):
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.05), loss=loss, metrics=["mse", asymmetric])
    logs = model.fit(x, y, epochs=15, verbose=0).history
    means.append(np.mean(y - model.predict(x, verbose=0)))
assert means[0] < -0.2  # too little costs more
assert abs(means[1]) < 0.1
np.testing.assert_allclose(logs["loss"], 3 * np.array(logs["mse"]), rtol=1e-3)
assert logs["asymmetric"][-1] > 0
