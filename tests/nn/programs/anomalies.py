import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
usual = rng.normal(size=(300, 2)) @ np.array(
    [[1.0, 0.5, -0.5, 2.0], [0.3, 1.0, 1.0, 0.0]]
)
odd = rng.normal(size=(40, 4)) * 2
model = keras.Sequential(
    [
        keras.Input((4,)),
        keras.layers.Dense(2, name="code"),
        keras.layers.Dense(4),
    ]
)
model.compile(keras.optimizers.Adam(0.05), "mae")
model.fit(usual, usual, epochs=20, batch_size=50, verbose=0)


def errors(x):
    return np.abs(model.predict(x, verbose=0) - x).mean(axis=1)


threshold = np.quantile(errors(usual), 0.98)
assert (errors(odd) > threshold).mean() > 0.8
encoder = keras.Model(model.inputs, model.get_layer("code").output)
assert encoder.predict(odd, verbose=0).shape == (40, 2)
