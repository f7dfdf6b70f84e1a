import keras
import numpy as np

loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
logits = np.array([[5.0, 0.0, 0.0]], "float32")
plain = keras.losses.CategoricalCrossentropy(from_logits=True)
hot = np.array([[1.0, 0.0, 0.0]], "float32")
assert float(loss(hot, logits)) > float(plain(hot, logits))
each = keras.losses.MeanSquaredError(reduction="none")([[1.0], [2.0]], [[0.0], [0.0]])
np.testing.assert_allclose(np.asarray(each), [1, 4])
