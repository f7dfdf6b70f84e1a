import os
import tempfile

import keras
import numpy as np

keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(64, 6, 3)).astype("float32")
y = x[:, -1].sum(axis=1)
inputs = keras.Input((6, 3), name="series")
h = keras.layers.Bidirectional(keras.layers.LSTM(4))(inputs)
h = keras.layers.Dropout(0.1)(keras.layers.LayerNormalization()(h))
model = keras.Model(inputs, keras.layers.Dense(1, kernel_regularizer="l2")(h))
model.compile(keras.optimizers.Adam(0.01), loss="mse", metrics=["mae"])
model.fit(x, y, epochs=2, verbose=0)
with tempfile.TemporaryDirectory() as folder:
    model.save(os.path.join(folder, "whole.keras"))
    model.save_weights(os.path.join(folder, "alone.weights.h5"))
    loaded = keras.models.load_model(os.path.join(folder, "whole.keras"))
    before = model.predict(x, verbose=0)
    model.set_weights([np.zeros_like(each) for each in model.get_weights()])
    model.load_weights(os.path.join(folder, "alone.weights.h5"))
for each in (model, loaded):
    np.testing.assert_allclose(each.predict(x, verbose=0), before, rtol=1e-5)
assert loaded.input_shape == (None, 6, 3)
assert float(loaded.optimizer.learning_rate) == np.float32(0.01)
assert int(loaded.optimizer.iterations) == int(model.optimizer.iterations) == 4
history = loaded.fit(x, y, epochs=3, verbose=0).history
assert history["loss"][-1] < history["loss"][0]
