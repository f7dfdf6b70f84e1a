import keras
import numpy as np


class Hits(keras.metrics.Metric):
    def __init__(self, name="hits", **kwargs):
        super().__init__(name=name, **kwargs)
        self.hits = self.add_variable(shape=(), initializer="zeros", name="hits")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        right = keras.ops.equal(y_true, keras.ops.cast(y_pred > 0.5, "float32"))
        values = keras.ops.mean(keras.ops.cast(right, "float32"), axis=-1)
        self.hits.assign_add(keras.ops.sum(values))
        self.count.assign_add(keras.ops.sum(keras.ops.ones_like(values)))

    def result(self):
        return self.hits / self.count

    def reset_state(self):
        self.hits.assign(0.0)
        self.count.assign(0.0)


keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(300, 2)).astype("float32")
y = (x.sum(axis=1, keepdims=True) > 0).astype("float32")
model = keras.Sequential([keras.layers.Dense(1, activation="sigmoid")])
model.compile(
    keras.optimizers.Adam(0.1),
    loss=keras.losses.binary_crossentropy,
    metrics=[
        Hits(),
        keras.metrics.binary_accuracy,
        keras.metrics.PearsonCorrelation(axis=0),
        keras.metrics.ConcordanceCorrelation(axis=0),
        keras.metrics.AUC(multi_label=True, num_labels=1),
    ],
)
logs = model.fit(x, y, epochs=10, batch_size=100, verbose=0).history
np.testing.assert_allclose(logs["hits"], logs["binary_accuracy"], rtol=1e-5)
assert logs["hits"][-1] > 0.95
assert 0.5 < logs["concordance_correlation"][-1] < logs["pearson_correlation"][-1] < 1
found = model.evaluate(x, y, verbose=0, return_dict=True)
p = model.predict(x, verbose=0)
assert abs(found["hits"] - np.mean((p > 0.5) == y)) < 1e-6
each = keras.losses.binary_crossentropy(y, p)
assert each.shape == (300,)
np.testing.assert_allclose(np.mean(each), found["loss"], rtol=1e-4)

precision = keras.metrics.Precision(top_k=1)
precision.update_state([[0.0, 1.0]], [[0.2, 0.4]])
assert float(precision.result()) == 1.0
