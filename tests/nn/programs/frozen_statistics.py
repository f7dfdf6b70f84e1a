import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = (3 * rng.normal(size=(128, 4)) + 5).astype("float32")
y = x.sum(axis=1, keepdims=True)
norm = keras.layers.BatchNormalization(momentum=0.5)
model = keras.Sequential([keras.Input((4,)), norm, keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.05), "mse")
model.fit(x, y, epochs=6, verbose=0)
gamma, beta, mean, variance = norm.get_weights()
np.testing.assert_allclose(mean, x.mean(axis=0), atol=1.2)

norm.trainable = False
model.compile(keras.optimizers.Adam(0.05), "mse")
assert len(model.trainable_weights) == 2
model.fit(x - 50, y, epochs=2, verbose=0)
for before, after in zip(
    [gamma, beta, mean, variance], norm.get_weights(), strict=True
):
    np.testing.assert_array_equal(before, after)
by_hand = (x - mean) / np.sqrt(variance + norm.epsilon) * gamma + beta
inner = keras.Model(model.inputs, norm.output)
np.testing.assert_allclose(inner.predict(x, verbose=0), by_hand, rtol=1e-4, atol=1e-4)
