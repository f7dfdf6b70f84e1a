import keras
import numpy as np

rng = np.random.default_rng(0)
x = rng.uniform(-1, 1, (256, 1))
y = 2 * x + 1
y[::16] += 40  # outliers

found = []
for loss in ("mean_squared_error", "mae", keras.losses.Huber(delta=0.5), "log_cosh"):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(
        keras.optimizers.Adam(0.05), loss, metrics=[keras.metrics.LogCoshError()]
    )
    model.fit(x, y, epochs=30, verbose=0)
    kernel, bias = model.get_weights()
    found.append((kernel.item(), bias.item()))
assert found[0][1] > 2  # the mean is drawn to the outliers
np.testing.assert_allclose(found[1:], [(2, 1)] * 3, atol=0.3)

rate = np.exp(x)
for loss in ("poisson", "msle", keras.losses.MeanAbsolutePercentageError()):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(1, activation="exponential")])
    metrics = ["mape", keras.metrics.Poisson(), keras.metrics.MeanSquaredError()]
    model.compile("adam", loss=loss, metrics=metrics)
    model.optimizer.learning_rate = 0.05
    logs = model.fit(x, rate, epochs=20, verbose=0).history
    assert logs["mape"][-1] < 5
    assert logs["mean_squared_error"][-1] < 0.01
assert abs(logs["loss"][-1] - logs["mape"][-1]) < 0.01
