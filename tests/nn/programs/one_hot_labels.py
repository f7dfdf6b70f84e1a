import keras
import numpy as np
from sklearn.datasets import load_iris

keras.utils.set_random_seed(0)
x, y = load_iris(return_X_y=True)
x = (x - x.mean(0)) / x.std(0)
y = keras.utils.to_categorical(y, num_classes=3)

model = keras.models.Sequential()
model.add(keras.layers.Dense(16, activation="tanh", input_shape=(4,)))
model.add(keras.layers.Dense(3))
model.add(keras.layers.Softmax())
model.compile(
    loss=keras.losses.CategoricalCrossentropy(label_smoothing=0.05),
    optimizer=keras.optimizers.Adam(learning_rate=0.02),
    metrics=["acc", keras.metrics.TopKCategoricalAccuracy(k=2, name="top2")],
)
history = model.fit(x, y, epochs=25, batch_size=30, verbose=0)
assert history.history["acc"][-1] > 0.9
assert history.history["top2"][-1] > 0.97

probabilities = model.predict(x, verbose=0)
np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-4)
assert np.mean(probabilities.argmax(1) == y.argmax(1)) > 0.9
