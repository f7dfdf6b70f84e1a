import keras
import numpy as np


class LogisticEndpoint(keras.layers.Layer):
    def __init__(self, name=None):
        super().__init__(name=name)
        self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)
        self.accuracy_metric = keras.metrics.BinaryAccuracy(name="accuracy")

    def call(self, targets, logits, sample_weight=None):
        loss = self.loss_fn(targets, logits, sample_weight)
        self.add_loss(loss)
        self.accuracy_metric.update_state(targets, logits, sample_weight)
        return keras.ops.softmax(logits)


keras.utils.set_random_seed(3)
inputs = keras.Input(shape=(3,), name="inputs")
targets = keras.Input(shape=(10,), name="targets")
logits = keras.layers.Dense(10)(inputs)
predictions = LogisticEndpoint(name="predictions")(targets, logits)

model = keras.Model(inputs=[inputs, targets], outputs=predictions)
model.compile(optimizer=keras.optimizers.Adam(1e-1))
rng = np.random.default_rng(0)
x = rng.normal(size=(60, 3)).astype("float32")
y = (x @ rng.normal(size=(3, 10)) > 0).astype("float32")
data = {"inputs": x, "targets": y}
history = model.fit(data, epochs=20, verbose=0).history
assert sorted(history) == ["accuracy", "loss"]
assert history["loss"][-1] < history["loss"][0]
assert history["accuracy"][-1] > 0.8
assert [metric.name for metric in model.metrics] == ["loss", "accuracy"]

layer = LogisticEndpoint()
layer(np.ones((2, 2), "float32"), np.array([[1.0, -1.0], [2.0, 3.0]], "float32"))
assert float(layer.accuracy_metric.result()) == 0.75
