import keras
import numpy as np

texts = np.array(["a good film", "a bad film", "good good", "bad bad film"] * 8)
labels = np.array([1, 0, 1, 0] * 8)
vectorize = keras.layers.TextVectorization(max_tokens=20, output_sequence_length=4)
vectorize.adapt(texts)
x = np.asarray(vectorize(texts))
keras.utils.set_random_seed(0)
model = keras.Sequential(
    [
        keras.layers.Embedding(20, 8),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(keras.optimizers.Adam(0.05), "binary_crossentropy", metrics=["accuracy"])
model.fit(x, labels, epochs=20, verbose=0)
assert model.evaluate(x, labels, verbose=0)[1] == 1.0
