import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x, y = rng.normal(size=(64, 3)), rng.normal(size=64)


def schedule(epoch, rate):
    return 0.1 if epoch < 2 else rate * 0.5


model = keras.Sequential([keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.5), "mse")
history = model.fit(
    x,
    y,
    epochs=4,
    verbose=0,
    callbacks=[keras.callbacks.LearningRateScheduler(schedule)],
)
np.testing.assert_allclose(history.history["learning_rate"], [0.1, 0.1, 0.05, 0.025])

reduce = keras.callbacks.ReduceLROnPlateau(
    monitor="loss", factor=0.1, patience=2, min_lr=1e-4
)
history = model.fit(x, y, initial_epoch=4, epochs=40, verbose=0, callbacks=[reduce])
assert history.epoch == list(range(4, 40))
rates = history.history["learning_rate"]
np.testing.assert_allclose(rates[0], 0.025)
assert rates[-1] < rates[0] / 5
