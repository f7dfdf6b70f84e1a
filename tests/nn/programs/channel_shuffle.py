import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)


class Shuffled(keras.layers.Layer):
    def __init__(self, groups):
        super().__init__()
        self.groups = groups

    def call(self, x):
        _, height, width, channels = x.shape
        split = (-1, height, width, self.groups, channels // self.groups)
        x = keras.ops.transpose(keras.ops.reshape(x, split), (0, 1, 2, 4, 3))
        return keras.ops.reshape(x, (-1, height, width, channels))


inputs = keras.Input((6, 6, 4))
h = keras.layers.Conv2D(8, 1, groups=2, use_bias=False)(inputs)
h = keras.layers.DepthwiseConv2D(3, padding="same")(Shuffled(2)(h))
h = keras.layers.Conv2D(8, 1, groups=2, activation="relu")(h)
model = keras.Model(inputs, keras.layers.GlobalAveragePooling2D()(h))
assert model.count_params() == 2 * 8 + 10 * 8 + 5 * 8
x = rng.random((5, 6, 6, 4)).astype("float32")
shuffled = keras.ops.convert_to_numpy(Shuffled(2)(x))
np.testing.assert_array_equal(shuffled, x[..., [0, 2, 1, 3]])
# Both groups of the input reach each group of the output.
other = x.copy()
other[..., 0] += 1
assert (model.predict(x, verbose=0) != model.predict(other, verbose=0))[:, 4:].any()
