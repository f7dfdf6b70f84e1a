import keras
import numpy as np

ops = keras.ops
QUANTILES = [[0.1, 0.5, 0.9]]


def pinball(y_true, y_pred):
    error, q = y_true - y_pred, ops.convert_to_tensor(QUANTILES)
    return ops.mean(ops.maximum(q * error, (q - 1) * error), axis=-1)


def focal(y_true, y_pred):
    labels = ops.cast(ops.reshape(y_true, (-1,)), "int32")
    chosen = ops.sum(ops.one_hot(labels, 3) * ops.softmax(y_pred), axis=-1)
    return -ops.square(1 - chosen) * ops.log(chosen + 1e-7)


class Margin(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return ops.maximum(1 + y_true[:, 0] - ops.max(y_pred, axis=-1), 0)


def largest(y_true, y_pred):
    return ops.max(y_pred, axis=-1)


keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(48, 4)).astype("float32")
column = x.sum(axis=1, keepdims=True)
labels = rng.integers(0, 3, 48)


def made(loss, **options):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile(keras.optimizers.SGD(0.1), loss, **options)
    return model


for loss, y in ((pinball, column), (focal, labels), (focal, labels[:, None])):
    model = made(loss)
    outputs = model.predict(x, verbose=0)
    wanted = np.mean(ops.convert_to_numpy(loss(ops.convert_to_tensor(y), outputs)))
    found = model.evaluate(x, y, verbose=0)
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    history = model.fit(x, y, epochs=4, verbose=0, validation_data=(x, y)).history
    assert history["loss"][-1] < found
    assert model.train_on_batch(x, y) < found

model = made(Margin())
assert np.isfinite(model.fit(x, column, verbose=0).history["loss"]).all()

# A metric of one's own beside a loss of labels.
model = made(
    keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=[largest]
)
logs = model.evaluate(x, labels[:, None], verbose=0, return_dict=True)
outputs = model.predict(x, verbose=0)
np.testing.assert_allclose(logs["largest"], outputs.max(axis=1).mean(), rtol=1e-4)

# Two outputs, one of whose losses reads another shape.
inputs = keras.Input((4,))
one = keras.layers.Dense(3, name="range")(inputs)
two = keras.layers.Dense(1, name="value")(inputs)
model = keras.Model(inputs, {"range": one, "value": two})
model.compile("sgd", {"range": pinball, "value": "mse"})
history = model.fit(x, {"range": column, "value": column}, epochs=2, verbose=0).history
assert history["range_loss"][1] < history["range_loss"][0]
