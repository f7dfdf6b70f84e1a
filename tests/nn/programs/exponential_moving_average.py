import keras
import numpy as np

keras.utils.set_random_seed(0)
optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5)
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile(optimizer, "mse")
x = np.random.default_rng(0).normal(size=(64, 2))
model.fit(x, x.sum(1), epochs=4, verbose=0)
assert model.evaluate(x, x.sum(1), verbose=0) < 1
