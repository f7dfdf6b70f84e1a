import keras
import numpy as np

inputs = keras.Input((5, 8))
q, k, v = (keras.layers.Dense(8)(inputs) for _ in range(3))
scores = keras.ops.matmul(q, keras.ops.transpose(k, (0, 2, 1))) / 8**0.5
weights = keras.ops.softmax(scores, axis=-1)
model = keras.Model(inputs, [keras.ops.matmul(weights, v), weights])
out, seen = model.predict(np.random.default_rng(0).normal(size=(2, 5, 8)), verbose=0)
np.testing.assert_allclose(seen.sum(-1), 1, rtol=1e-5)
assert out.shape == (2, 5, 8)
