import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
good, bad = range(2, 10), range(10, 18)
labels = rng.integers(0, 2, 120)
reviews = [
    [int(rng.choice(good if label else bad)) for _ in range(rng.integers(1, 4))]
    + [int(word) for word in rng.integers(18, 40, rng.integers(1, 6))]
    for label in labels
]
x = keras.utils.pad_sequences(reviews, maxlen=8, padding="post")

model = keras.Sequential(
    [
        keras.layers.Input((8,)),
        keras.layers.Embedding(input_dim=40, output_dim=8, mask_zero=True),
        keras.layers.Bidirectional(keras.layers.LSTM(8), merge_mode="concat"),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
model.optimizer.learning_rate.assign(0.02)
model.fit(x, labels, epochs=8, batch_size=20, verbose=0)
assert model.evaluate(x, labels, verbose=0)[1] > 0.95

good, bad, empty = model.predict(np.array([[5], [12], [0]]).repeat(8, 1), verbose=0)
assert good > 0.8 > 0.2 > bad
