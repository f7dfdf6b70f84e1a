import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(300, 4))
price = x @ [1.0, -1.0, 2.0, 0.5]
kind = (x[:, 0] > 0).astype(int) + (x[:, 1] > 0)

inputs = keras.Input((4,))
h = keras.layers.Dense(32, activation="relu")(inputs)
model = keras.Model(
    inputs,
    [
        keras.layers.Dense(1, name="price")(h),
        keras.layers.Dense(3, activation="softmax", name="kind")(h),
    ],
)
model.compile(
    optimizer=keras.optimizers.Adam(0.01),
    loss={"price": "mse", "kind": keras.losses.SparseCategoricalCrossentropy()},
    loss_weights={"price": 0.5, "kind": 2.0},
    metrics={"price": ["mae"], "kind": ["accuracy"]},
)
history = model.fit(x, {"price": price, "kind": kind}, epochs=15, verbose=0).history
assert {"loss", "price_loss", "kind_loss", "price_mae", "kind_accuracy"} <= set(history)
total = 0.5 * np.array(history["price_loss"]) + 2 * np.array(history["kind_loss"])
np.testing.assert_allclose(history["loss"], total, rtol=0.05)
assert history["kind_accuracy"][-1] > 0.85
prices, kinds = model.predict(x, verbose=0)
assert prices.shape == (300, 1)
assert kinds.shape == (300, 3)
assert np.abs(prices[:, 0] - price).mean() < 0.3
