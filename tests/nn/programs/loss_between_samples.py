import keras
import numpy as np

ops = keras.ops


class BetweenViews(keras.losses.Loss):
    """Each row of one view is nearest to the row of the other view in its place."""

    def __init__(self, temperature=0.5):
        super().__init__(name="between_views")
        self.temperature = temperature

    def call(self, y_true, y_pred):
        one, other = ops.split(y_pred, 2, axis=-1)
        scores = ops.matmul(one, ops.transpose(other)) / self.temperature
        places = ops.arange(ops.shape(scores)[0])
        return keras.losses.sparse_categorical_crossentropy(
            places, scores, from_logits=True
        )


keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
views = [rng.normal(size=(40, 5)).astype("float32") for _ in range(2)]
views[1] = views[0] + 0.1 * views[1]
inputs = [keras.Input((5,)) for _ in range(2)]
project = keras.Sequential([keras.layers.Dense(4), keras.layers.UnitNormalization()])
outputs = keras.layers.Concatenate()([project(each) for each in inputs])
model = keras.Model(inputs, outputs)
model.compile(keras.optimizers.Adam(0.02), BetweenViews())
none = np.zeros((40, 1))

found = model.evaluate(views, none, batch_size=40, verbose=0)
one, other = np.split(model.predict(views, verbose=0), 2, axis=1)
scores = one @ other.T / 0.5
of_rows = np.log(np.exp(scores).sum(axis=1)) - scores.diagonal()
np.testing.assert_allclose(found, of_rows.mean(), rtol=1e-4)

# The last batch is smaller, and compared within itself.
history = model.fit(views, none, batch_size=16, epochs=30, verbose=0).history["loss"]
assert history[-1] < history[0] - 0.05
