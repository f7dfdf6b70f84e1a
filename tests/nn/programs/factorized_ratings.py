import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
users, items, size = 20, 15, 600
u, v = rng.normal(size=(users, 3)), rng.normal(size=(items, 3))
pairs = np.stack([rng.integers(0, users, size), rng.integers(0, items, size)], 1)
ratings = (u[pairs[:, 0]] * v[pairs[:, 1]]).sum(axis=1)

user = keras.Input((1,), dtype="int32", name="user")
item = keras.Input((1,), dtype="int32", name="item")
left = keras.layers.Flatten()(keras.layers.Embedding(users, 6, name="users")(user))
right = keras.layers.Flatten()(keras.layers.Embedding(items, 6)(item))
score = keras.layers.Dot(axes=1)([left, right])
model = keras.Model({"user": user, "item": item}, score)
model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"])
data = {"user": pairs[:, :1], "item": pairs[:, 1:]}
history = model.fit(data, ratings, batch_size=64, epochs=25, verbose=0).history
assert history["loss"][-1] < 0.1 * history["loss"][0]
assert model.get_layer("users").get_weights()[0].shape == (20, 6)
