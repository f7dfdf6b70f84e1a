import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)


class Detector(keras.Model):
    def __init__(self):
        super().__init__()
        conv = {"strides": 2, "padding": "same", "activation": "relu"}
        self.stages = [keras.layers.Conv2D(6, 3, **conv) for _ in range(2)]
        self.flat = keras.layers.Flatten()
        self.box = keras.layers.Dense(2)
        self.kind = keras.layers.Dense(2, activation="softmax")

    def call(self, x):
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        h = self.flat(x)
        return {"maps": maps, "heads": {"box": self.box(h), "kind": self.kind(h)}}


x = np.zeros((96, 8, 8, 1), "float32")
places = rng.integers(0, 6, (96, 2))
kinds = np.arange(96) % 2
for image, (row, column), kind in zip(x, places, kinds, strict=True):
    image[row : row + 2, column : column + 2] = 1 if kind else 0.4
y = {"maps": [np.zeros((96, 4, 4, 6)), np.zeros((96, 2, 2, 6))]}
y["heads"] = {"box": places / 6, "kind": kinds}
model = Detector()
model.compile(
    keras.optimizers.Adam(0.02),
    loss={"heads": {"box": "mse", "kind": "sparse_categorical_crossentropy"}},
    loss_weights={"heads": {"box": 2.0, "kind": 1.0}},
)
history = model.fit(x, y, epochs=30, verbose=0).history
assert {"heads/box_loss", "heads/kind_loss"} <= set(history)
found = model.predict(x, verbose=0)
assert [each.shape for each in found["maps"]] == [(96, 4, 4, 6), (96, 2, 2, 6)]
assert (found["heads"]["kind"].argmax(1) == kinds).mean() > 0.95
assert np.abs(found["heads"]["box"] - places / 6).mean() < 0.15
