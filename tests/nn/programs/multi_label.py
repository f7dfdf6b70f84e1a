import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(300, 6)).astype("float32")
labels = np.stack([x[:, 0] > 0, x[:, 1] + x[:, 2] > 0, x[:, 3] > 0.5], axis=1)
y = labels.astype("float32")
model = keras.Sequential(
    [
        keras.Input((6,)),
        keras.layers.Dense(24, activation="relu"),
        keras.layers.Dense(3, activation="sigmoid"),
    ]
)
metrics = [
    keras.metrics.BinaryAccuracy(name="right"),
    keras.metrics.Precision(name="precision"),
    keras.metrics.Recall(name="recall"),
]
model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy", metrics=metrics)
model.fit(x, y, epochs=15, verbose=0)
found = model.evaluate(x, y, verbose=0, return_dict=True)
chosen = model.predict(x, verbose=0) > 0.5
np.testing.assert_allclose(found["right"], (chosen == labels).mean(), atol=1e-6)
np.testing.assert_allclose(found["precision"], labels[chosen].mean(), atol=1e-6)
np.testing.assert_allclose(found["recall"], chosen[labels].mean(), atol=1e-6)
assert found["right"] > 0.93
