import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)


class Sparse(keras.constraints.Constraint):
    """Keep the weights that a mask leaves."""

    def __init__(self, mask):
        self.mask = mask.astype("float32")

    def __call__(self, w):
        return w * self.mask


x = rng.normal(size=(200, 10)).astype("float32")
true = np.where(np.arange(10) < 3, 2.0, 0.0)[:, None]
y = x @ true + 0.1 * rng.normal(size=(200, 1))
dense = keras.Sequential([keras.Input((10,)), keras.layers.Dense(1)])
dense.compile(keras.optimizers.Adam(0.1), "mse")
dense.fit(x, y, epochs=15, verbose=0)
kernel, bias = dense.get_weights()
mask = np.abs(kernel) > 0.5
assert mask.sum() == 3

sparse = keras.Sequential(
    [keras.Input((10,)), keras.layers.Dense(1, kernel_constraint=Sparse(mask))]
)
sparse.compile(keras.optimizers.Adam(0.02), "mse")
sparse.set_weights([kernel * mask, bias])
sparse.fit(x, y, epochs=5, verbose=0)
assert (sparse.get_weights()[0] != 0).sum() == 3
assert sparse.evaluate(x, y, verbose=0) < 0.03
