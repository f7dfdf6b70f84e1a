import keras
from sklearn.datasets import load_digits

layers = keras.layers
keras.utils.set_random_seed(0)
images = load_digits().images[:600, :, :, None] / 16

image = keras.Input((8, 8, 1))
h = layers.Conv2D(8, 3, strides=2, padding="same", activation="relu")(image)
code = layers.Dense(16, name="code")(layers.Flatten()(h))
h = layers.Dense(5 * 5 * 8, activation="relu")(code)
h = layers.Reshape((5, 5, 8))(h)
h = layers.Conv2DTranspose(8, 3, strides=2, padding="same", activation="relu")(h)
h = layers.Cropping2D(cropping=1)(h)
decoded = layers.Conv2D(1, 3, padding="same", activation="sigmoid")(h)

autoencoder = keras.Model(image, decoded)
encoder = keras.Model(image, code)
autoencoder.compile(optimizer=keras.optimizers.Adam(0.005), loss="mse")
history = autoencoder.fit(images, images, epochs=8, verbose=0).history
assert history["loss"][-1] < 0.05 < history["loss"][0]

codes = encoder.predict(images, verbose=0)
assert codes.shape == (600, 16)
assert autoencoder.get_layer("code").output.shape == (None, 16)
assert (codes.std(axis=0) > 0).all()
