import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(20, 4)).astype("float32")
w = np.eye(4, 3, dtype="float32")
p = keras.ops.convert_to_numpy(keras.ops.softmax(keras.ops.matmul(x, w)))
np.testing.assert_allclose(p.sum(1), 1, rtol=1e-5)
hot = keras.ops.convert_to_numpy(keras.ops.one_hot(np.argmax(p, 1), 3))
assert hot.shape == (20, 3)
loss = keras.losses.CategoricalCrossentropy()(hot, p)
assert 0 < float(loss) < 2
