import tempfile
from pathlib import Path

import keras
import numpy as np

ops = keras.ops


class FScore(keras.metrics.Metric):
    def __init__(self, threshold=0.5, name="f_score", **kwargs):
        super().__init__(name=name, **kwargs)
        self.threshold = threshold
        self.precision = keras.metrics.Precision(thresholds=threshold)
        self.recall = keras.metrics.Recall(thresholds=threshold)

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.precision.update_state(y_true, y_pred, sample_weight)
        self.recall.update_state(y_true, y_pred, sample_weight)

    def result(self):
        p, r = self.precision.result(), self.recall.result()
        return 2 * ((p * r) / (p + r + keras.backend.epsilon()))

    def reset_state(self):
        self.precision.reset_state()
        self.recall.reset_state()

    def get_config(self):
        return {**super().get_config(), "threshold": self.threshold}


def specificity(y_true, y_pred):
    negative = 1 - y_true
    kept = ops.sum(negative * (1 - ops.round(y_pred)))
    return kept / (ops.sum(negative) + keras.backend.epsilon())


def doubled_error(y_true, y_pred):
    return 2 * ops.mean(ops.square(y_true - y_pred), axis=-1)


keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(80, 3)).astype("float32")
y = (x[:, :1] + x[:, 1:2] > 0).astype("float32")
model = keras.Sequential(
    [
        keras.Input((3,)),
        keras.layers.Dense(4, activation="tanh"),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
metrics = [FScore(0.4), specificity, keras.metrics.AUC(name="auc")]
model.compile(keras.optimizers.Adam(0.05), doubled_error, metrics=metrics)
history = model.fit(x, y, epochs=5, verbose=0).history
assert history["f_score"][-1] > 0.7
logs = model.evaluate(x, y, batch_size=80, verbose=0, return_dict=True)
said = model.predict(x, verbose=0) > 0.4
hits = (said * y).sum()
assert abs(logs["f_score"] - 2 * hits / (said.sum() + y.sum())) < 1e-4

path = Path(tempfile.mkdtemp()) / "model.keras"
model.save(path)
own = {
    "FScore": FScore,
    "specificity": specificity,
    "doubled_error": doubled_error,
}
again = keras.models.load_model(path, custom_objects=own)
found = again.evaluate(x, y, batch_size=80, verbose=0, return_dict=True)
for name, value in logs.items():
    assert abs(found[name] - value) < 1e-5, name
