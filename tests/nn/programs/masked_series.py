import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
lengths = rng.integers(2, 9, 200)
x = rng.uniform(0.1, 1, (200, 8, 3))
for series, length in zip(x, lengths, strict=False):
    series[length:] = -1.0
y = np.array([s[:n].mean() for s, n in zip(x, lengths, strict=False)])

inputs = keras.Input((8, 3))
h = keras.layers.Masking(mask_value=-1.0)(inputs)
h = keras.layers.GRU(12, dropout=0.0, recurrent_dropout=0.0)(h)
model = keras.Model(inputs, keras.layers.Dense(1)(h))
model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"])
model.fit(x, y, epochs=12, batch_size=25, verbose=0)
assert model.evaluate(x, y, verbose=0)[1] < 0.1

alone = x[:1].copy()
alone[0, lengths[0] :] = -1.0
np.testing.assert_allclose(
    model.predict(alone, verbose=0), model.predict(x, verbose=0)[:1], rtol=1e-4
)
