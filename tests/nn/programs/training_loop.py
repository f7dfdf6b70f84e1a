import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(320, 4)).astype(np.float32)
y = (x[:, 0] * x[:, 1] > 0).astype(np.int64)

model = keras.Sequential(
    [
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
for _epoch in range(12):
    model.reset_metrics()
    order = rng.permutation(320)
    for batch in np.split(order, 10):
        logs = model.train_on_batch(x[batch], y[batch], return_dict=True)
assert set(logs) == {"loss", "accuracy"}
model.reset_metrics()
loss, accuracy = model.test_on_batch(x, y)
assert accuracy > 0.9
np.testing.assert_allclose(
    [loss, accuracy], model.evaluate(x, y, batch_size=64, verbose=0), rtol=1e-4
)
found = model.predict_on_batch(x[:7])
assert found.shape == (7, 1)
np.testing.assert_allclose(found, model.predict(x[:7], verbose=0), rtol=1e-4)
weighed = model.test_on_batch(x, y, sample_weight=np.full(320, 2.0))
np.testing.assert_allclose(weighed[0], 2 * loss, rtol=1e-3)
