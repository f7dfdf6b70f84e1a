import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(60, 3))
y = (x[:, 0] > 0.8).astype("int32")
model = keras.Sequential(
    [keras.Input((3,)), keras.layers.Dense(1, activation="sigmoid")]
)
model.compile(
    "adam",
    "binary_crossentropy",
    metrics=[keras.metrics.Precision(), keras.metrics.Recall()],
    weighted_metrics=["accuracy"],
)
model.fit(x, y, class_weight={0: 1.0, 1: 5.0}, epochs=2, verbose=0)
model.fit(x, y, sample_weight=np.where(y, 5.0, 1.0), epochs=1, verbose=0)
assert len(model.evaluate(x, y, verbose=0)) == 4
