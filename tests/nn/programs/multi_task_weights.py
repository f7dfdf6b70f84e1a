import keras
import numpy as np

inputs = keras.Input((5,))
x = keras.layers.Dense(8, activation="relu")(inputs)
outputs = {
    "age": keras.layers.Dense(1, name="age")(x),
    "kind": keras.layers.Dense(3, activation="softmax", name="kind")(x),
}
model = keras.Model(inputs, outputs)
model.compile(
    "adam",
    loss={"age": "mse", "kind": "sparse_categorical_crossentropy"},
    loss_weights={"age": 0.1, "kind": 1.0},
    metrics={"kind": ["accuracy"]},
)
x = np.random.default_rng(0).normal(size=(24, 5))
y = {"age": x[:, :1], "kind": np.arange(24) % 3}
logs = model.fit(x, y, epochs=1, verbose=0).history
assert "kind_accuracy" in logs
