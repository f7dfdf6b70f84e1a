import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.random((64, 8, 8, 1)).astype("float32") * 0.2
x[:32, 2:6, :3] += 0.8  # a bar on the left
x[32:, :3, 2:6] += 0.8  # a bar at the top
y = np.repeat([0, 1], 32)
augment = keras.Sequential(
    [keras.layers.RandomFlip("horizontal", seed=1), keras.layers.RandomContrast(0.2)],
    name="augment",
)
inputs = keras.Input((8, 8, 1))
h = keras.layers.Conv2D(6, 3, activation="relu")(augment(inputs))
h = keras.layers.Flatten()(keras.layers.MaxPooling2D()(h))
model = keras.Model(inputs, keras.layers.Dense(2, activation="softmax")(h))
model.compile(
    keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"]
)
model.fit(x, y, epochs=20, verbose=0)
mirrored = x[:, :, ::-1]
assert model.evaluate(x, y, verbose=0)[1] > 0.95
assert model.evaluate(mirrored, y, verbose=0)[1] > 0.9
# Outside of training, nothing is random.
again = [model.predict(x, verbose=0) for _ in range(2)]
np.testing.assert_array_equal(*again)
