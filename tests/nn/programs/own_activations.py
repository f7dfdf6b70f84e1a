import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(200, 6, 3)).astype("float32")
y = (x.sum(axis=(1, 2)) > 0).astype("float32")


def mish(x):
    return x * keras.ops.tanh(keras.ops.softplus(x))


def build(activation):
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input((6, 3)),
            keras.layers.Conv1D(8, 3, activation=activation),
            keras.layers.SimpleRNN(8, activation=activation),
            keras.layers.Dense(8, activation=keras.layers.LeakyReLU(0.1)),
            keras.layers.Dense(1, activation=lambda x: keras.ops.sigmoid(2 * x)),
        ]
    )


own, known = build(mish), build("mish")
for model in (own, known):
    model.compile(
        keras.optimizers.Adam(0.02), "binary_crossentropy", metrics=["accuracy"]
    )
    model.fit(x, y, epochs=8, shuffle=False, verbose=0)
assert own.layers[0].activation is mish
assert own.evaluate(x, y, verbose=0)[1] > 0.9
np.testing.assert_allclose(
    own.predict(x, verbose=0), known.predict(x, verbose=0), atol=1e-3
)
