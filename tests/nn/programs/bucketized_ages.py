import keras
import numpy as np

ages = np.array([[3.0], [17.0], [40.0], [80.0]], "float32")
buckets = keras.layers.Discretization(bin_boundaries=[10.0, 20.0, 60.0])
assert np.asarray(buckets(ages)).ravel().tolist() == [0, 1, 2, 3]
