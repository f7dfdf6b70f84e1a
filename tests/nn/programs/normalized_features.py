import keras
import numpy as np

x = np.random.default_rng(0).normal(5, 3, (200, 4)).astype("float32")
normalize = keras.layers.Normalization()
normalize.adapt(x)
model = keras.Sequential([keras.Input((4,)), normalize, keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x.sum(1), epochs=2, verbose=0)
np.testing.assert_allclose(np.asarray(normalize(x)).mean(0), 0, atol=1e-4)
