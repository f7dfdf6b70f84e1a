import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
# Words 0-4 occur together, and words 5-9.
groups = rng.integers(0, 2, 1200)
targets = groups * 5 + rng.integers(0, 5, 1200)
near = groups * 5 + rng.integers(0, 5, 1200)
far = (1 - groups) * 5 + rng.integers(0, 5, 1200)
pairs = np.concatenate([np.stack([targets, near], 1), np.stack([targets, far], 1)])
labels = np.repeat([1.0, 0.0], 1200)

words = keras.Input((2,), dtype="int32")
vectors = keras.layers.Embedding(10, 4, name="vectors")(words)
score = keras.layers.Dot(axes=-1, normalize=True)([vectors[:, 0], vectors[:, 1]])
model = keras.Model(words, keras.layers.Dense(1, activation="sigmoid")(score))
model.compile(keras.optimizers.Adam(0.05), "binary_crossentropy", metrics=["accuracy"])
model.fit(pairs, labels, batch_size=200, epochs=8, verbose=0)
assert model.evaluate(pairs, labels, verbose=0)[1] > 0.95
(table,) = model.get_layer("vectors").get_weights()
table /= np.linalg.norm(table, axis=1, keepdims=True)
alike = table @ table.T
assert alike[:5, :5].mean() > alike[:5, 5:].mean() + 0.5
