import keras
import numpy as np
from sklearn.datasets import load_iris
from sklearn.model_selection import KFold

keras.utils.set_random_seed(0)
x, y = load_iris(return_X_y=True)
x = (x - x.mean(axis=0)) / x.std(axis=0)
base = keras.Sequential(
    [
        keras.Input((4,)),
        keras.layers.Dense(12, activation="relu"),
        keras.layers.Dense(3, activation="softmax"),
    ]
)
scores = []
for train, test in KFold(3, shuffle=True, random_state=0).split(x):
    model = keras.models.clone_model(base)
    model.compile(
        keras.optimizers.Adam(0.05),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    model.fit(x[train], y[train], batch_size=25, epochs=12, verbose=0)
    scores.append(model.evaluate(x[test], y[test], verbose=0)[1])
assert len(scores) == 3
assert np.mean(scores) > 0.9
