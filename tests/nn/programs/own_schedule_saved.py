import tempfile
from pathlib import Path

import keras
import numpy as np

ops = keras.ops


class WarmUpCosine(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, peak, warm_up, total):
        super().__init__()
        self.peak = peak
        self.warm_up = warm_up
        self.total = total

    def __call__(self, step):
        step = ops.cast(step, "float32")
        part = (step - self.warm_up) / float(self.total - self.warm_up)
        cosine = 0.5 * self.peak * (1 + ops.cos(np.pi * part))
        return ops.where(step < self.warm_up, self.peak * step / self.warm_up, cosine)

    def get_config(self):
        return {"peak": self.peak, "warm_up": self.warm_up, "total": self.total}


schedule = WarmUpCosine(0.1, 5, 20)
rates = [float(schedule(step)) for step in range(21)]
assert rates[0] == 0
assert abs(rates[5] - 0.1) < 1e-6
assert abs(rates[20]) < 1e-6

rng = np.random.default_rng(0)
x, y = rng.random((32, 3)), rng.random((32, 1))
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
assert getattr(model, "optimizer", None) is None  # not compiled yet
model.compile(keras.optimizers.SGD(schedule, momentum=0.9), "mse")
model.fit(x, y, batch_size=8, epochs=2, verbose=0)
assert int(model.optimizer.iterations) == 8
assert abs(float(model.optimizer.learning_rate) - rates[8]) < 1e-6

path = Path(tempfile.mkdtemp()) / "model.keras"
model.save(path)
own = {"WarmUpCosine": WarmUpCosine}
again = keras.models.load_model(path, custom_objects=own)
assert abs(float(again.optimizer.learning_rate) - rates[8]) < 1e-6
config = keras.optimizers.schedules.serialize(schedule)
assert keras.optimizers.schedules.deserialize(config, own).warm_up == 5
