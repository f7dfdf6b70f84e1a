import keras
import numpy as np
from sklearn.datasets import load_breast_cancer

keras.utils.set_random_seed(0)
x, y = load_breast_cancer(return_X_y=True)
normalize = keras.layers.Normalization()
normalize.adapt(x)

inputs = keras.Input(shape=(30,))
h = normalize(inputs)
h = keras.layers.Dense(16, activation="relu", kernel_initializer="he_normal")(h)
outputs = keras.layers.Dense(1, activation="sigmoid")(h)
model = keras.Model(inputs, outputs)
model.compile(
    optimizer=keras.optimizers.Adam(5e-3),
    loss="binary_crossentropy",
    metrics=[
        "accuracy",
        keras.metrics.AUC(name="auc"),
        keras.metrics.Precision(name="precision"),
        keras.metrics.Recall(name="recall"),
    ],
)
weights = {0: np.mean(y == 1), 1: np.mean(y == 0)}
model.fit(x, y, batch_size=32, epochs=12, class_weight=weights, verbose=0)
loss, accuracy, auc, precision, recall = model.evaluate(x, y, verbose=0)
assert loss < 0.15
assert accuracy > 0.95
assert auc > 0.99
assert precision > 0.95
assert recall > 0.93
