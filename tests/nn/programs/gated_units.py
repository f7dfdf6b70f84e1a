import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)


class GatedLinear(keras.layers.Layer):
    def __init__(self, units, kind="swish", **options):
        super().__init__(**options)
        self.units = units
        self.kind = kind
        self.act = keras.activations.get(kind)

    def build(self, input_shape):
        shape = (input_shape[-1], 2 * self.units)
        self.w = self.add_weight(shape=shape, initializer="glorot_normal", name="w")

    def call(self, x):
        value, gate = keras.ops.split(keras.ops.matmul(x, self.w), 2, axis=-1)
        return value * self.act(gate)

    def get_config(self):
        return super().get_config() | {"units": self.units, "kind": self.kind}


x = rng.normal(size=(200, 3)).astype("float32")
y = x[:, :1] * x[:, 1:2]
model = keras.Sequential([keras.Input((3,)), GatedLinear(16), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.03), "mse")
history = model.fit(x, y, epochs=40, verbose=0).history["loss"]
assert history[-1] < 0.1 * history[0]
again = GatedLinear.from_config(model.layers[0].get_config())
assert (again.units, again.kind) == (16, "swish")
