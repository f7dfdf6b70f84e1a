import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
text = "the cat sat on the mat. " * 20
letters = sorted(set(text))
numbers = np.array([letters.index(letter) for letter in text])
x = np.stack([numbers[i : i + 6] for i in range(len(numbers) - 7)])
y = numbers[6:-1]
inputs = keras.Input((None,), dtype="int32")
h = keras.layers.Embedding(len(letters), 8)(inputs)
h = keras.layers.GRU(32)(h)
model = keras.Model(inputs, keras.layers.Dense(len(letters), "softmax")(h))
model.compile(keras.optimizers.Adam(0.02), "sparse_categorical_crossentropy")
model.fit(x, y, epochs=12, batch_size=32, verbose=0)

written = list(numbers[:6])
for _step in range(12):
    chances = model.predict_on_batch(np.array([written[-6:]]))
    written.append(int(np.argmax(chances)))
made = "".join(letters[number] for number in written)
assert made in text
