import keras
import numpy as np

data = np.arange(50, dtype="float32")
windows = keras.utils.timeseries_dataset_from_array(
    data[:-5], data[5:], sequence_length=5, batch_size=8
)
x, y = next(iter(windows))
assert np.asarray(x).shape == (8, 5)
np.testing.assert_array_equal(np.asarray(x)[0], np.arange(5))
assert float(np.asarray(y)[0]) == 5
