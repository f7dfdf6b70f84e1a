import keras
import numpy as np

layers = keras.layers
rng = np.random.default_rng(0)
a, b = rng.normal(size=(2, 20, 3)).astype("float32")
x, y = keras.Input((3,)), keras.Input((3,))
results = {
    "add": (layers.Add()([x, y]), a + b),
    "subtract": (layers.Subtract()([x, y]), a - b),
    "multiply": (layers.Multiply()([x, y]), a * b),
    "average": (layers.Average()([x, y]), (a + b) / 2),
    "maximum": (layers.Maximum()([x, y]), np.maximum(a, b)),
    "minimum": (layers.minimum([x, y]), np.minimum(a, b)),
    "concatenate": (layers.Concatenate(axis=-1)([x, y]), np.hstack([a, b])),
    "dot": (layers.dot([x, y], axes=1), np.sum(a * b, 1, keepdims=True)),
    "operators": ((x - y) * 2 / (y * y + 1), (a - b) * 2 / (b * b + 1)),
    "powers": (1 - x**2 + abs(-y), 1 - a**2 + abs(b)),
    "columns": (x[:, :2] + y[:, 1:], a[:, :2] + b[:, 1:]),
}
model = keras.Model([x, y], {name: tensor for name, (tensor, _) in results.items()})
found = model.predict([a, b], verbose=0)
for name, (_, wanted) in results.items():
    np.testing.assert_allclose(found[name], wanted, rtol=1e-4, atol=1e-5, err_msg=name)
both = keras.Model([x, y], layers.Minimum()([x, layers.add([x, y])]))
np.testing.assert_allclose(
    both.predict([a, b], verbose=0), np.minimum(a, a + b), atol=1e-6
)
