import keras
import numpy as np

ops = keras.ops
keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)


class Pairs(keras.Model):
    def __init__(self):
        super().__init__()
        self.image = keras.layers.Dense(4)
        self.text = keras.layers.Dense(4)

    def call(self, inputs):
        images = ops.normalize(self.image(inputs["image"]), axis=-1)
        texts = ops.normalize(self.text(inputs["text"]), axis=-1)
        return 10 * ops.matmul(images, ops.transpose(texts))

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        labels = ops.arange(ops.shape(y_pred)[0])
        entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return (entropy(labels, y_pred) + entropy(labels, ops.transpose(y_pred))) / 2


z = rng.normal(size=(64, 4)).astype("float32")
pairs = {"image": z @ rng.normal(size=(4, 8)), "text": z @ rng.normal(size=(4, 6))}
model = Pairs()
model.compile(keras.optimizers.Adam(0.02))
losses = model.fit(pairs, batch_size=16, epochs=20, verbose=0).history["loss"]
assert losses[0] > 1
assert losses[-1] < 0.5
scores = ops.convert_to_numpy(model(pairs, training=False))
assert (scores.argmax(1) == np.arange(64)).mean() > 0.7
