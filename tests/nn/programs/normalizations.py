import keras
import numpy as np

layers = keras.layers
keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = (rng.normal(size=(64, 6, 6, 8)) * 3 + 5).astype("float32")

inputs = keras.Input((6, 6, 8))
by_layer = layers.LayerNormalization(axis=-1)(inputs)
by_group = layers.GroupNormalization(groups=4)(inputs)
plain = layers.BatchNormalization(center=False, scale=False)(inputs)
known = layers.Normalization(mean=5.0, variance=9.0)(inputs)
model = keras.Model(inputs, [by_layer, by_group, plain, known])
assert len(model.trainable_weights) == 4
by_layer, by_group, plain, known = model.predict(x, verbose=0)
np.testing.assert_allclose(by_layer.mean(-1), 0, atol=1e-4)
np.testing.assert_allclose(by_layer.std(-1), 1, atol=1e-2)
groups = by_group.reshape(64, 36, 4, 2)
np.testing.assert_allclose(groups.mean((1, 3)), 0, atol=1e-4)
np.testing.assert_allclose(plain, x / np.sqrt(1.001), rtol=1e-4)
np.testing.assert_allclose(known, (x - 5) / 3, atol=1e-4)

norm = keras.Sequential(
    [keras.Input((6, 6, 8)), layers.BatchNormalization(momentum=0.5)]
)
norm.compile("sgd", "mse")
norm.fit(x, np.zeros_like(x), epochs=8, batch_size=32, verbose=0)
np.testing.assert_allclose(norm.get_weights()[2], x.mean((0, 1, 2)), rtol=0.05)
np.testing.assert_allclose(norm.get_weights()[3], x.var((0, 1, 2)), rtol=0.1)
