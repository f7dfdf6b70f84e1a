import keras
import numpy as np

metrics = keras.metrics
keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(400, 3))
y = (x[:, 0] + rng.normal(0, 0.7, 400) > 0).astype("float32")[:, None]
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, "sigmoid")])
model.compile(
    keras.optimizers.Adam(0.05),
    "binary_crossentropy",
    metrics=[
        metrics.BinaryAccuracy(threshold=0.5, name="accuracy"),
        metrics.BinaryCrossentropy(name="ce"),
        metrics.TruePositives(name="tp"),
        metrics.FalsePositives(name="fp"),
        metrics.TrueNegatives(name="tn"),
        metrics.FalseNegatives(name="fn"),
        metrics.AUC(curve="PR", name="pr"),
        metrics.SensitivityAtSpecificity(0.8, name="sensitivity"),
        metrics.SpecificityAtSensitivity(0.8, name="specificity"),
        metrics.PrecisionAtRecall(0.8, name="precision"),
        metrics.RecallAtPrecision(0.8, name="recall"),
    ],
)
model.fit(x, y, epochs=10, verbose=0)
logs = model.evaluate(x, y, verbose=0, return_dict=True)
found = model.predict(x, verbose=0) > 0.5
assert logs["tp"] == np.sum(found & (y == 1))
assert logs["fp"] == np.sum(found & (y == 0))
assert logs["tn"] == np.sum(~found & (y == 0))
assert logs["fn"] == np.sum(~found & (y == 1))
np.testing.assert_allclose(logs["accuracy"], (logs["tp"] + logs["tn"]) / 400, rtol=1e-5)
np.testing.assert_allclose(logs["ce"], logs["loss"], rtol=1e-3)
for name in ("pr", "sensitivity", "specificity", "precision", "recall"):
    assert 0.6 < logs[name] < 1, name
