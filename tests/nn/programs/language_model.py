import keras
import numpy as np

keras.utils.set_random_seed(0)
text = "the quick brown fox jumps over the lazy dog. " * 12
letters = sorted(set(text))
codes = np.array([letters.index(c) for c in text])
windows = np.lib.stride_tricks.sliding_window_view(codes, 13)[::2]
x, y = windows[:, :-1], windows[:, 1:]

inputs = keras.Input(shape=(12,), dtype="int32")
h = keras.layers.Embedding(len(letters), 12)(inputs)
h = keras.layers.GRU(32, return_sequences=True)(h)
h = keras.layers.TimeDistributed(keras.layers.Dense(len(letters)))(h)
outputs = keras.layers.Activation("softmax")(h)
model = keras.Model(inputs, outputs)
assert model.output_shape == (None, 12, len(letters))
model.compile(
    optimizer=keras.optimizers.Adam(0.02, clipnorm=1.0),
    loss="sparse_categorical_crossentropy",
    metrics=["accuracy"],
)
history = model.fit(x, y, batch_size=32, epochs=10, verbose=0)
assert history.history["loss"][-1] < history.history["loss"][0] / 3
assert history.history["accuracy"][-1] > 0.75

# The same with one matrix for letters that are read and letters that are guessed.
letters_of = keras.layers.ReversibleEmbedding(len(letters), 24)
h = keras.layers.GRU(24, return_sequences=True)(letters_of(inputs))
tied = keras.Model(inputs, letters_of(h, reverse=True))
assert len(tied.trainable_weights) == 4
tied.compile(
    optimizer=keras.optimizers.Adam(0.02),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
losses = tied.fit(x, y, batch_size=32, epochs=10, verbose=0).history["loss"]
assert losses[-1] < losses[0] / 2
