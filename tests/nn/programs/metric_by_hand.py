import keras
import numpy as np

metric = keras.metrics.SparseCategoricalAccuracy()
metric.update_state([0, 1, 2], np.eye(3, dtype="float32"))
metric.update_state([0, 1], np.array([[0, 1, 0], [0, 1, 0]], "float32"))
assert abs(float(metric.result()) - 0.8) < 1e-6
metric.reset_state()
assert float(metric.result()) == 0
mean = keras.metrics.Mean()
for value in (1.0, 2.0, 6.0):
    mean.update_state(value)
assert float(mean.result()) == 3.0
