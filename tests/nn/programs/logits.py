import keras
import numpy as np
from sklearn.datasets import make_blobs

keras.utils.set_random_seed(0)
x, y = make_blobs(300, centers=5, n_features=4, random_state=1)
x = x.astype("float32") / 10

model = keras.Sequential([keras.layers.Dense(32, "relu"), keras.layers.Dense(5)])
model.compile(
    optimizer=keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[
        keras.metrics.SparseCategoricalAccuracy(),
        keras.metrics.SparseTopKCategoricalAccuracy(k=2, name="top2"),
        keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="ce"),
    ],
)
model.fit(x, y.reshape(-1, 1), epochs=15, validation_split=0.2, verbose=0)
logs = model.evaluate(x, y, return_dict=True, verbose=0)
assert set(logs) == {"loss", "sparse_categorical_accuracy", "top2", "ce"}
assert logs["sparse_categorical_accuracy"] > 0.95
assert logs["top2"] >= logs["sparse_categorical_accuracy"]
np.testing.assert_allclose(logs["ce"], logs["loss"], rtol=1e-3)

logits = model.predict(x, verbose=0)
assert logits.min() < 0
assert np.mean(np.argmax(logits, axis=-1) == y) > 0.95
