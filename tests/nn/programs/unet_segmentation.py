import keras
import numpy as np

layers = keras.layers
keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
rows, columns = np.mgrid[:16, :16]
centers = rng.integers(4, 12, (48, 2, 1, 1))
masks = (rows - centers[:, 0]) ** 2 + (columns - centers[:, 1]) ** 2 < 12
masks = masks[..., None].astype("float32")
images = masks + rng.normal(0, 0.3, masks.shape)

inputs = layers.Input(shape=(16, 16, 1))
left = layers.Conv2D(8, 3, padding="same", activation="relu")(inputs)
down = layers.MaxPooling2D()(left)
bottom = layers.Conv2D(16, 3, padding="same", activation="relu")(down)
up = layers.UpSampling2D()(bottom)
right = layers.Concatenate()([left, up])
outputs = layers.Conv2D(1, 1, activation="sigmoid")(right)

for loss in (
    keras.losses.Dice(),
    keras.losses.Tversky(alpha=0.4, beta=0.6),
    keras.losses.BinaryFocalCrossentropy(gamma=2.0),
):
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["binary_accuracy"])
    model.fit(images, masks, batch_size=8, epochs=4, verbose=0)
assert model.evaluate(images, masks, verbose=0)[1] > 0.95
