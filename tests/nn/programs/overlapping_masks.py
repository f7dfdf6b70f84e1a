import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.random((48, 8, 8, 1)).astype("float32")
y = (x[..., 0] > 0.6).astype("int32")
model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(8, 1, activation="relu"),
        keras.layers.Conv2D(2, 1, activation="softmax"),
    ]
)
iou = keras.metrics.MeanIoU(num_classes=2, sparse_y_pred=False, name="iou")
model.compile(keras.optimizers.Adam(0.05), "categorical_crossentropy")
model.fit(x, keras.utils.to_categorical(y, 2), epochs=15, batch_size=16, verbose=0)
found = model.predict(x, verbose=0)
iou.update_state(y, found)
chosen = found.argmax(axis=-1)
wanted = [
    ((chosen == k) & (y == k)).sum() / ((chosen == k) | (y == k)).sum() for k in (0, 1)
]
np.testing.assert_allclose(float(iou.result()), np.mean(wanted), rtol=1e-5)
assert float(iou.result()) > 0.8
