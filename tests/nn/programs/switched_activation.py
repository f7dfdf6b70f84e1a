import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
KINDS = [keras.ops.relu, keras.ops.tanh, lambda x: x]


class Activated(keras.layers.Layer):
    def __init__(self, kind, **options):
        super().__init__(**options)
        self.kind = kind

    def call(self, x):
        return keras.ops.switch(self.kind, KINDS, x)

    def get_config(self):
        return {**super().get_config(), "kind": self.kind}


x = rng.normal(size=(20, 3)).astype("float32")
for kind, wanted in enumerate([np.maximum(x, 0), np.tanh(x), x]):
    model = keras.Sequential([keras.Input((3,)), Activated(kind)])
    np.testing.assert_allclose(model.predict(x, verbose=0), wanted, atol=1e-5)
    copy = keras.models.clone_model(model)
    np.testing.assert_allclose(copy.predict(x, verbose=0), wanted, atol=1e-5)
