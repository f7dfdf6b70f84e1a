import keras
import numpy as np

layers = keras.layers
keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
source = rng.integers(1, 6, (320, 4))
target = source[:, ::-1]
shifted = np.concatenate([np.zeros((320, 1), int), target[:, :-1]], axis=1)

encoder_inputs = keras.Input(shape=(4,), name="source")
decoder_inputs = keras.Input(shape=(4,), name="shifted")
embedded = layers.Embedding(6, 12)(encoder_inputs)
_, state_h, state_c = layers.LSTM(32, return_state=True)(embedded)
decoded = layers.LSTM(32, return_sequences=True)(
    layers.Embedding(6, 12)(decoder_inputs), initial_state=[state_h, state_c]
)
outputs = layers.Dense(6, activation="softmax")(decoded)
model = keras.Model([encoder_inputs, decoder_inputs], outputs)
model.compile(
    keras.optimizers.Adam(0.02), "sparse_categorical_crossentropy", metrics=["accuracy"]
)
model.fit([source, shifted], target, batch_size=32, epochs=12, verbose=0)
assert model.evaluate([source, shifted], target, verbose=0)[1] > 0.8
