import keras
import numpy as np

layers, regularizers = keras.layers, keras.regularizers
rng = np.random.default_rng(0)
x = rng.normal(size=(128, 10))
y = x[:, 0] - x[:, 1]


def train(**options):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([layers.Dense(16, "relu", **options), layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mse"])
    history = model.fit(x, y, epochs=20, verbose=0).history
    return history["loss"][-1] - history["mse"][-1], model.get_weights()


penalty, plain = train()
assert abs(penalty) < 1e-5
for regularizer in (regularizers.L1(0.01), regularizers.L1L2(0.005, 0.01), "l1"):
    penalty, weights = train(kernel_regularizer=regularizer)
    assert penalty > 0.01
    assert np.abs(weights[0]).mean() < 0.8 * np.abs(plain[0]).mean()
penalty, _ = train(activity_regularizer=regularizers.L2(0.1))
assert penalty > 0.001
_, weights = train(bias_regularizer=regularizers.L2(1.0))
assert np.abs(weights[1]).max() < np.abs(plain[1]).max()
