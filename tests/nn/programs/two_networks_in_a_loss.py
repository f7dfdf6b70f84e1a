import keras
import numpy as np

ops = keras.ops


def chain(seed):
    made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, use_bias=False)])
    rng = np.random.default_rng(seed)
    made.set_weights([rng.normal(size=(4, 3)).astype("float32")])
    return made


class Twins(keras.Model):
    """Trains both networks, of which `call` uses one."""

    def __init__(self):
        super().__init__()
        self.one, self.other = chain(0), chain(1)

    def call(self, x):
        return self.one(x)

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        return ops.sum(ops.square(self.other(x) - y_pred))


x = np.random.default_rng(2).normal(size=(5, 4)).astype("float32")
model = Twins()
model(x)
one, other = (each.get_weights()[0] for each in (model.one, model.other))
model.compile(keras.optimizers.SGD(0.01))
for _ in range(2):
    model.train_on_batch(x, x)
    slope = 2 * x.T @ (x @ other - x @ one)
    one, other = one + 0.01 * slope, other - 0.01 * slope
np.testing.assert_allclose(model.one.get_weights()[0], one, rtol=1e-4, atol=1e-5)
np.testing.assert_allclose(model.other.get_weights()[0], other, rtol=1e-4, atol=1e-5)
