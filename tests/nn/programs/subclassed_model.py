import keras
import numpy as np


class MLP(keras.Model):
    def __init__(self, units, classes):
        super().__init__()
        self.hidden = [keras.layers.Dense(n, activation="relu") for n in units]
        self.dropout = keras.layers.Dropout(0.2)
        self.head = keras.layers.Dense(classes, activation="softmax")

    def call(self, inputs, training=False):
        h = inputs
        for layer in self.hidden:
            h = layer(h)
        return self.head(self.dropout(h, training=training))


keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(300, 5)).astype("float32")
y = (x[:, :3]).argmax(axis=1)
model = MLP([32, 16], 3)
model.compile(
    optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"]
)
model.fit(x, y, epochs=20, batch_size=16, verbose=0)
assert len(model.weights) == 6
assert model.evaluate(x, y, verbose=0)[1] > 0.9
assert model.predict(x[:4], verbose=0).shape == (4, 3)
