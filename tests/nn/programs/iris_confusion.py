import keras
import numpy as np
from sklearn.datasets import load_iris

keras.utils.set_random_seed(0)
x, y = load_iris(return_X_y=True)
normal = keras.layers.Normalization()
normal.adapt(x)
model = keras.Sequential(
    [keras.Input((4,)), normal, keras.layers.Dense(3, activation="softmax")]
)
model.compile(
    keras.optimizers.Adam(0.1),
    "categorical_crossentropy",
    metrics=["accuracy", keras.metrics.TopKCategoricalAccuracy(2, name="top2")],
)
one_hot = keras.utils.to_categorical(y, 3)
model.fit(x, one_hot, epochs=20, verbose=0)
_, accuracy, top2 = model.evaluate(x, one_hot, verbose=0)
table = np.zeros((3, 3), int)
np.add.at(table, (y, model.predict(x, verbose=0).argmax(axis=1)), 1)
np.testing.assert_allclose(np.trace(table) / 150, accuracy, atol=1e-6)
assert table[0, 0] == 50
assert accuracy > 0.93
assert top2 > 0.99

shares = model.predict(x, verbose=0)
model.layers[-1].activation = keras.activations.linear
powers = np.exp(model.predict(x, verbose=0))
np.testing.assert_allclose(powers / powers.sum(1, keepdims=True), shares, atol=1e-5)
