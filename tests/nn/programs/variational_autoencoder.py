import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)


class Sampling(keras.layers.Layer):
    """Draw from normal distributions, whose distance from a standard one is a loss."""

    def __init__(self, weight=0.02, seed=None, **options):
        super().__init__(**options)
        self.weight = weight
        self.seed = seed
        self.draws = keras.random.SeedGenerator(seed)

    def call(self, inputs):
        mean, log_variance = inputs
        ops = keras.ops
        distance = 1 + log_variance - ops.square(mean) - ops.exp(log_variance)
        self.add_loss(-0.5 * self.weight * ops.mean(distance))
        noise = keras.random.normal(ops.shape(mean), seed=self.draws)
        return mean + ops.exp(0.5 * log_variance) * noise


t = rng.uniform(0, 2 * np.pi, 256)
x = np.stack([np.cos(t), np.sin(t), np.cos(t) * np.sin(t)], 1).astype("float32")
inputs = keras.Input((3,))
h = keras.layers.Dense(24, activation="tanh")(inputs)
z = Sampling(seed=1)([keras.layers.Dense(2)(h), keras.layers.Dense(2)(h)])
h = keras.layers.Dense(24, activation="tanh")(z)
model = keras.Model(inputs, keras.layers.Dense(3)(h))
model.compile(keras.optimizers.Adam(0.01), "mse")
history = model.fit(x, x, epochs=30, batch_size=64, verbose=0).history["loss"]
assert history[-1] < 0.5 * history[0]
