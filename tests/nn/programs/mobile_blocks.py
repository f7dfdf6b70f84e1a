import keras
import numpy as np

layers = keras.layers
keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(96, 12, 12, 4)).astype("float32")
y = rng.integers(0, 2, 96)
x[y == 1] *= 2

inputs = keras.Input((12, 12, 4))
h = layers.Rescaling(0.5, offset=0.1)(inputs)
h = layers.SeparableConv2D(8, 3, padding="same", activation="relu6")(h)
h = layers.DepthwiseConv2D(3, strides=2, depth_multiplier=2, padding="same")(h)
h = layers.LeakyReLU(negative_slope=0.1)(h)
h = layers.Conv2D(16, 3, groups=4, dilation_rate=2, padding="same")(h)
h = layers.PReLU(shared_axes=[1, 2])(h)
h = layers.BatchNormalization(momentum=0.8)(h)
h = layers.SpatialDropout2D(0.1)(h)
h = layers.AveragePooling2D(2)(h)
h = layers.add([layers.GlobalMaxPooling2D()(h), layers.GlobalAveragePooling2D()(h)])
outputs = layers.Dense(2, activation="softmax")(h)
model = keras.Model(inputs=inputs, outputs=outputs, name="mobile")
assert model.name == "mobile"
assert model.layers[2].get_weights()[0].shape == (3, 3, 4, 1)
assert model.layers[5].get_weights()[0].shape == (3, 3, 4, 16)

model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(x, y, batch_size=16, epochs=10, verbose=0)
assert history.history["accuracy"][-1] > 0.9
