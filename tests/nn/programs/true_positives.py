import keras
import numpy as np

ops = keras.ops


class TruePositives(keras.metrics.Metric):
    def __init__(self, name="found", **kwargs):
        super().__init__(name=name, **kwargs)
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_true = ops.cast(y_true, "bool")
        values = ops.logical_and(ops.equal(y_true, True), ops.greater(y_pred, 0.5))
        values = ops.cast(values, self.dtype)
        if sample_weight is not None:
            sample_weight = ops.cast(sample_weight, self.dtype)
            values = values * ops.broadcast_to(sample_weight, ops.shape(values))
        self.count.assign_add(ops.sum(values))

    def result(self):
        return self.count

    def reset_state(self):
        self.count.assign(0.0)


metric = TruePositives()
metric.update_state([[0], [1], [2]], [[0.9], [0.9], [0.8]])
assert float(metric.result()) == 2
rng = np.random.default_rng(0)
x = rng.normal(size=(64, 3)).astype("float32")
y = (x[:, :1] > 0).astype("float32")
model = keras.Sequential(
    [keras.Input((3,)), keras.layers.Dense(1, "sigmoid", kernel_initializer="ones")]
)
model.compile("sgd", "binary_crossentropy", metrics=[TruePositives()])
wanted = ((model.predict(x, verbose=0) > 0.5) & (y > 0)).sum()
assert model.evaluate(x, y, batch_size=16, verbose=0)[1] == wanted
