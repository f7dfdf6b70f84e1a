import keras
import numpy as np


def build(**options):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.1, **options), "mse")
    return model


x = np.random.default_rng(0).normal(size=(32, 3))
y = np.random.default_rng(1).normal(size=(32, 2))
whole, parts = build(), build(gradient_accumulation_steps=4)
whole.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0)
parts.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
for a, b in zip(whole.get_weights(), parts.get_weights(), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
