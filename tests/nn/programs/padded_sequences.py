import keras
import numpy as np

rows = [[1, 2, 3], [4], [5, 6]]
padded = keras.utils.pad_sequences(rows, maxlen=4, padding="post")
assert padded.tolist() == [[1, 2, 3, 0], [4, 0, 0, 0], [5, 6, 0, 0]]
hot = keras.utils.to_categorical([0, 2, 1], num_classes=3)
assert hot.shape == (3, 3)
unit = keras.utils.normalize(np.array([[3.0, 4.0]]))
np.testing.assert_allclose(unit, [[0.6, 0.8]])
