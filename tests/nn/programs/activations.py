import keras
import numpy as np

layers = keras.layers
keras.utils.set_random_seed(0)
x = np.linspace(-4, 4, 33).reshape(-1, 1).astype("float32")
inputs = keras.Input((1,))
formulas = {
    "relu": np.maximum(x, 0),
    "relu6": np.clip(x, 0, 6),
    "leaky_relu": np.where(x > 0, x, 0.2 * x),
    "elu": np.where(x > 0, x, np.expm1(x)),
    "sigmoid": 1 / (1 + np.exp(-x)),
    "hard_sigmoid": np.clip(x / 6 + 0.5, 0, 1),
    "tanh": np.tanh(x),
    "softplus": np.log1p(np.exp(x)),
    "softsign": x / (1 + abs(x)),
    "swish": x / (1 + np.exp(-x)),
    "linear": x,
}
for name, wanted in formulas.items():
    model = keras.Model(inputs, layers.Activation(name)(inputs))
    np.testing.assert_allclose(
        model.predict(x, verbose=0), wanted, atol=1e-5, err_msg=name
    )

h = keras.activations.selu(inputs)
h = layers.Dense(8, activation=keras.activations.gelu)(h)
for layer in (layers.ELU(0.5), layers.LeakyReLU(), layers.PReLU(), layers.ReLU(6.0)):
    h = layer(layers.Dense(8)(h))
model = keras.Model(inputs, layers.Softmax()(layers.Dense(3)(h)))
y = np.digitize(x[:, 0], [-1, 1])
model.compile(
    keras.optimizers.Adam(0.02), "sparse_categorical_crossentropy", metrics=["accuracy"]
)
model.fit(x, y, epochs=60, verbose=0)
assert model.evaluate(x, y, verbose=0)[1] > 0.9
