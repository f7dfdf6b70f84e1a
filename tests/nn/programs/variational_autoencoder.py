import keras
import numpy as np

ops = keras.ops
keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)


class Sampling(keras.layers.Layer):
    def __init__(self, seed=None, **options):
        super().__init__(**options)
        self.seed = seed
        self.draws = keras.random.SeedGenerator(seed)

    def call(self, inputs):
        mean, log_variance = inputs
        noise = keras.random.normal(ops.shape(mean), seed=self.draws)
        return mean + ops.exp(0.5 * log_variance) * noise


class Autoencoder(keras.Model):
    """Its distance from a standard normal distribution is a loss and a metric."""

    def __init__(self):
        super().__init__()
        self.encoder = keras.layers.Dense(24, activation="tanh")
        self.mean, self.log_variance = keras.layers.Dense(2), keras.layers.Dense(2)
        self.sampling = Sampling(seed=1)
        self.decoder = keras.Sequential(
            [keras.layers.Dense(24, activation="tanh"), keras.layers.Dense(3)]
        )
        self.distance = keras.metrics.Mean(name="distance")

    def call(self, x):
        h = self.encoder(x)
        mean, log_variance = self.mean(h), self.log_variance(h)
        terms = 1 + log_variance - ops.square(mean) - ops.exp(log_variance)
        distance = -0.5 * ops.mean(terms)
        self.add_loss(0.02 * distance)
        self.distance.update_state(distance)
        return self.decoder(self.sampling([mean, log_variance]))


t = rng.uniform(0, 2 * np.pi, 256)
x = np.stack([np.cos(t), np.sin(t), np.cos(t) * np.sin(t)], 1).astype("float32")
model = Autoencoder()
model.compile(keras.optimizers.Adam(0.01), "mse")
history = model.fit(x, x, epochs=30, batch_size=64, verbose=0).history
assert history["loss"][-1] < 0.5 * history["loss"][0]
assert history["distance"][-1] > history["distance"][0] > 0
