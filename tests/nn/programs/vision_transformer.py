import keras
import numpy as np

layers, ops = keras.layers, keras.ops
keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
images = rng.random((240, 8, 8, 1)).astype("float32") / 2
labels = rng.integers(0, 4, 240)
for i, label in enumerate(labels):  # which quarter is brighter
    row, column = divmod(int(label), 2)
    images[i, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 0.5


class Patches(layers.Layer):
    def call(self, images):
        patches = ops.image.extract_patches(images, size=4)
        return ops.reshape(patches, (-1, 4, 16))


class WithPositions(layers.Layer):
    def __init__(self, count, width):
        super().__init__()
        self.count = count
        self.projection = layers.Dense(width)
        self.positions = layers.Embedding(count, width)

    def call(self, patches):
        numbers = ops.expand_dims(ops.arange(0, self.count), axis=0)
        return self.projection(patches) + self.positions(numbers)


inputs = keras.Input((8, 8, 1))
h = WithPositions(4, 16)(Patches()(inputs))
attended = layers.MultiHeadAttention(2, 8)(layers.LayerNormalization()(h), h)
h = layers.Add()([h, attended])
outputs = layers.Dense(4)(layers.GlobalAveragePooling1D()(layers.Dense(16, "gelu")(h)))
model = keras.Model(inputs, outputs)
table = model.layers[2].positions
before = np.array(table.get_weights()[0])
model.compile(
    keras.optimizers.AdamW(0.01),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(images, labels, epochs=15, verbose=0)
assert model.evaluate(images, labels, verbose=0)[1] > 0.9
assert (np.abs(table.get_weights()[0] - before).max(axis=1) > 1e-3).all()
