import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(256, 8)).astype("float32")
y = (x @ rng.normal(size=(8, 1))).astype("float32")
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.15), "mse")


class Average(keras.callbacks.Callback):
    """The mean of the weights after each epoch from the fourth on."""

    def on_train_begin(self, logs=None):
        self.kept = []

    def on_epoch_end(self, epoch, logs=None):
        if epoch >= 3:
            self.kept.append(self.model.get_weights())

    def on_train_end(self, logs=None):
        self.model.set_weights(
            [np.mean(w, axis=0) for w in zip(*self.kept, strict=True)]
        )


average = Average()
first = model.evaluate(x, y, verbose=0)
model.fit(x, y, epochs=10, callbacks=[average], verbose=0)
assert len(average.kept) == 7
np.testing.assert_allclose(
    model.get_weights()[0], np.mean([w[0] for w in average.kept], axis=0), rtol=1e-5
)
assert model.evaluate(x, y, verbose=0) < 0.01 * first
