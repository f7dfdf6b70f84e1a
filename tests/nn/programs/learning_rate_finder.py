import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(320, 4)).astype("float32")
y = x.sum(axis=1, keepdims=True)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(1e-4), "mse")


class Finder(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.rates, self.losses = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.rates.append(float(self.model.optimizer.learning_rate))
        self.losses.append(logs["loss"])
        self.model.optimizer.learning_rate = self.rates[-1] * 2
        if self.losses[-1] > 4 * min(self.losses):
            self.model.stop_training = True


finder = Finder()
model.fit(x, y, batch_size=16, epochs=3, callbacks=[finder], verbose=0)
np.testing.assert_allclose(np.diff(np.log2(finder.rates)), 1, atol=1e-3)
best = finder.rates[int(np.argmin(finder.losses))]
assert finder.rates[0] < best <= finder.rates[-1]
