import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
time = np.linspace(0, 1, 64)
y = rng.integers(0, 3, 160)
phase = rng.uniform(0, 2 * np.pi, (160, 1))
x = np.sin(2 * np.pi * 3 * (y[:, None] + 1) * time + phase)
x = (x + rng.normal(0, 0.2, x.shape))[..., np.newaxis]

model = keras.Sequential(
    [
        keras.layers.Input(shape=(64, 1)),
        keras.layers.Conv1D(8, 5, padding="causal", activation="relu"),
        keras.layers.MaxPooling1D(2),
        keras.layers.SpatialDropout1D(0.05),
        keras.layers.ZeroPadding1D(1),
        keras.layers.SeparableConv1D(16, 3, activation="relu"),
        keras.layers.DepthwiseConv1D(3, activation="relu"),
        keras.layers.AveragePooling1D(2),
        keras.layers.Conv1DTranspose(8, 3, strides=2, activation="elu"),
        keras.layers.Cropping1D((1, 0)),
        keras.layers.GlobalMaxPooling1D(),
        keras.layers.Dense(3, activation="softmax"),
    ]
)
assert model.layers[-3].output.shape == (None, 30, 8)
model.compile(
    keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["acc"]
)
model.fit(x, y, epochs=10, batch_size=16, verbose=0)
assert model.evaluate(x, y, verbose=0)[1] > 0.9
