import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
texts = [rng.integers(2, 12, rng.integers(2, 9)) for _ in range(240)]
labels = np.array([int(5 in text) for text in texts])
order = np.argsort([len(text) for text in texts], kind="stable")


def batches(size=24):
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        padded = keras.utils.pad_sequences([texts[i] for i in rows], padding="post")
        yield padded, labels[rows][:, None]


inputs = keras.Input(shape=(None,), dtype="int32")
h = keras.layers.Embedding(12, 8, mask_zero=True)(inputs)
h = keras.layers.GlobalMaxPooling1D()(keras.layers.Dense(8, activation="relu")(h))
model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(h))
model.compile(keras.optimizers.Adam(0.05), "binary_crossentropy", metrics=["accuracy"])
for _epoch in range(6):
    for x, y in batches():
        model.train_on_batch(x, y)
found = [model.test_on_batch(x, y)[1] for x, y in batches()]
assert np.mean(found) > 0.95
for x, _ in batches():
    assert model.predict_on_batch(x).shape == (len(x), 1)
