import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)


class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    """Grow to a rate in some steps, then fall with the root of the step."""

    def __init__(self, rate, steps):
        self.rate, self.steps = rate, steps

    def __call__(self, step):
        step = keras.ops.cast(step, "float32") + 1.0
        grown = step / self.steps
        fallen = keras.ops.sqrt(self.steps / step)
        return self.rate * keras.ops.minimum(grown, fallen)

    def get_config(self):
        return {"rate": self.rate, "steps": self.steps}


schedule = WarmUp(0.1, 10)
values = [float(schedule(step)) for step in (0, 4, 9, 39)]
np.testing.assert_allclose(values, [0.01, 0.05, 0.1, 0.05], rtol=1e-5)
x = rng.normal(size=(160, 3)).astype("float32")
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(schedule), "mse")
history = model.fit(x, x[:, :1], batch_size=16, epochs=6, verbose=0).history["loss"]
assert history[-1] < 0.1 * history[0]
