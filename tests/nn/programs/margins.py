import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(400, 2))
y = np.where(x[:, 0] + x[:, 1] > 0, 1, -1)

for loss in ("hinge", keras.losses.SquaredHinge()):
    svm = keras.Sequential(
        [keras.layers.Dense(1, kernel_regularizer=keras.regularizers.L2(1e-3))]
    )
    svm.compile(keras.optimizers.Adam(0.05), loss, metrics=["hinge", "squared_hinge"])
    svm.fit(x, y, epochs=10, verbose=0)
    decision = svm.predict(x, verbose=0).ravel()
    assert np.mean(np.sign(decision) == y) > 0.97

classes = keras.utils.to_categorical((y > 0).astype(int) + (x[:, 0] > 1))
several = keras.Sequential([keras.layers.Dense(3)])
several.compile(
    keras.optimizers.Adam(0.05),
    keras.losses.CategoricalHinge(),
    metrics=["categorical_accuracy", keras.metrics.CategoricalHinge(name="margin")],
)
several.fit(x, classes, epochs=10, verbose=0)
_, accuracy, margin = several.evaluate(x, classes, verbose=0)
assert accuracy > 0.85
assert margin < 0.5
