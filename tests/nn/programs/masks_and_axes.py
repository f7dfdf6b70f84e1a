import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
lengths = rng.integers(2, 8, 300)
steps = (np.arange(8) < lengths[:, None]).astype("float32")
x = rng.normal(size=(300, 8, 4)).astype("float32")
y = np.array([row[:n, 0].mean() for row, n in zip(x, lengths, strict=True)])

inputs = keras.Input((8, 4))
marks = keras.Input((8,))
mask = keras.ops.not_equal(marks, 0)
h = keras.layers.LSTM(8, return_sequences=True)(inputs, mask=mask)
h = keras.layers.LayerNormalization(axis=-1)(h)
h = keras.layers.Dense(8, activation="selu", lora_rank=4)(h)
h = keras.layers.AlphaDropout(0.05, noise_shape=(None, 1, 8))(h)
h = keras.layers.ActivityRegularization(l2=1e-5)(h)
mean = keras.layers.GlobalAveragePooling1D()(h, mask=mask)
model = keras.Model([inputs, marks], keras.layers.Dense(1)(mean))
model.compile(keras.optimizers.Adam(0.02), "mse")
logs = model.fit([x, steps], y[:, None], epochs=12, batch_size=50, verbose=0).history
assert logs["loss"][-1] < 0.5 * logs["loss"][0]

# What a mask leaves out does not count.
other = x.copy()
other[steps == 0] = 9.0
np.testing.assert_allclose(
    model.predict([other, steps], verbose=0),
    model.predict([x, steps], verbose=0),
    rtol=1e-3,
    atol=1e-4,
)
