import keras
import numpy as np

keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("adam", "mse", metrics=["mae"])
rng = np.random.default_rng(0)
for _ in range(5):
    x = rng.normal(size=(16, 3))
    logs = model.train_on_batch(x, x.sum(1), return_dict=True)
assert set(logs) == {"loss", "mae"}
loss, mae = model.test_on_batch(x, x.sum(1))
assert loss > 0
assert mae > 0
