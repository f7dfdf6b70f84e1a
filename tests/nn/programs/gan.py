import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
generator = keras.Sequential(
    [
        keras.Input((2,)),
        keras.layers.Dense(8, activation="tanh"),
        keras.layers.Dense(1),
    ],
    name="generator",
)
discriminator = keras.Sequential(
    [
        keras.Input((1,)),
        keras.layers.Dense(16),
        keras.layers.LeakyReLU(0.2),
        keras.layers.Dense(1, activation="sigmoid"),
    ],
    name="discriminator",
)
discriminator.compile(keras.optimizers.Adam(0.01, beta_1=0.5), "binary_crossentropy")
discriminator.trainable = False
noise = keras.Input((2,))
gan = keras.Model(noise, discriminator(generator(noise)))
gan.compile(keras.optimizers.Adam(0.01, beta_1=0.5), "binary_crossentropy")
assert len(gan.trainable_weights) == 4

ones, zeros = np.ones((64, 1)), np.zeros((64, 1))
first = generator.predict(rng.normal(size=(256, 2)), verbose=0).mean()
for _step in range(150):
    fake = generator.predict_on_batch(rng.normal(size=(64, 2)))
    discriminator.trainable = True
    discriminator.train_on_batch(rng.normal(4, 0.5, (64, 1)), ones)
    discriminator.train_on_batch(fake, zeros)
    discriminator.trainable = False
    gan.train_on_batch(rng.normal(size=(64, 2)), ones)
last = generator.predict(rng.normal(size=(256, 2)), verbose=0).mean()
assert abs(last - 4) < abs(first - 4) / 2
