import keras
import numpy as np

steps = 20
schedule = keras.optimizers.schedules.CosineDecay(0.1, steps, alpha=0.1)
assert abs(float(schedule(0)) - 0.1) < 1e-6
assert abs(float(schedule(steps)) - 0.01) < 1e-6
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(schedule, momentum=0.9, nesterov=True), "mse")
x = np.random.default_rng(0).normal(size=(40, 2))
losses = model.fit(x, x[:, :1], batch_size=4, epochs=4, verbose=0).history["loss"]
assert losses[-1] < losses[0]
