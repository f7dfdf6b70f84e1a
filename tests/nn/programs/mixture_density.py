import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
COUNT = 2


def likelihood(y_true, y_pred):
    ops = keras.ops
    logits, means, scales = ops.split(y_pred, 3, axis=-1)
    scales = ops.softplus(scales) + 1e-2
    terms = -0.5 * ops.square((y_true[:, :1] - means) / scales) - ops.log(scales)
    return -ops.logsumexp(ops.log_softmax(logits) + terms, axis=-1)


x = rng.uniform(0, 1, (500, 1)).astype("float32")
upper = rng.integers(0, 2, (500, 1))
y = (np.where(upper, 1 + x, -1 - x) + 0.05 * rng.normal(size=(500, 1))).astype(
    "float32"
)
model = keras.Sequential(
    [keras.Input((1,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(3 * COUNT)]
)
model.compile(keras.optimizers.Adam(0.03), likelihood)
model.fit(x, np.repeat(y, 3 * COUNT, axis=1), batch_size=100, epochs=40, verbose=0)
means = np.sort(model.predict(np.array([[0.5]]), verbose=0)[0, 2:4])
np.testing.assert_allclose(means, [-1.5, 1.5], atol=0.2)
