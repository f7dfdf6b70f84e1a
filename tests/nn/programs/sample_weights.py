import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(300, 2))
y = x @ [1.0, 2.0]
wrong = rng.random(300) < 0.3
y[wrong] += 20
weight = np.where(wrong, 0.0, 1.0)

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile(
    keras.optimizers.Adam(0.05), "mse", metrics=["mae"], weighted_metrics=["mae", "mse"]
)
held = (x[:60], y[:60], weight[:60])
history = model.fit(
    x[60:],
    y[60:],
    sample_weight=weight[60:],
    epochs=20,
    validation_data=held,
    verbose=0,
).history
assert history["val_loss"][-1] < 0.5
np.testing.assert_allclose(model.get_weights()[0][:, 0], [1, 2], atol=0.2)
results = model.evaluate(x, y, sample_weight=weight, verbose=0, return_dict=True)
assert results["mae"] > 4  # that of all samples
assert results["mse"] < 1  # that of those that count
np.testing.assert_allclose(results["loss"], results["mse"] * weight.mean(), rtol=1e-2)
