import keras
import numpy as np

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])
model.compile(keras.optimizers.SGD(1.0, clipnorm=0.1), "mse")
before = model.get_weights()[0]
model.train_on_batch(np.full((4, 2), 100.0), np.zeros(4))
moved = np.linalg.norm(model.get_weights()[0] - before)
assert abs(moved - 0.1) < 1e-4
