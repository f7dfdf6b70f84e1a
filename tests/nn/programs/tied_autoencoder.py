import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)


class Transposed(keras.layers.Layer):
    """Undo a dense layer by its own kernel."""

    def __init__(self, dense, **options):
        super().__init__(**options)
        self.dense = dense

    def build(self, input_shape):
        width = self.dense.kernel.shape[0]
        self.shift = self.add_weight(shape=(width,), initializer="zeros", name="shift")

    def call(self, x):
        return keras.ops.matmul(x, keras.ops.transpose(self.dense.kernel)) + self.shift


x = (rng.normal(size=(256, 2)) @ rng.normal(size=(2, 8))).astype("float32")
inputs = keras.Input((8,))
encode = keras.layers.Dense(2, use_bias=False)
code = encode(inputs)
model = keras.Model(inputs, Transposed(encode)(code))
model.compile(keras.optimizers.Adam(0.03), "mse")
history = model.fit(x, x, epochs=60, verbose=0).history["loss"]
assert model.count_params() == 8 * 2 + 8
assert history[-1] < 0.05 * history[0]
