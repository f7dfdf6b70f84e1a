import keras
import numpy as np
from sklearn.datasets import load_digits

keras.utils.set_random_seed(0)
x, y = load_digits(return_X_y=True)
x = x / 16
base = keras.Sequential(
    [keras.Input((64,)), keras.layers.Dense(48, "relu"), keras.layers.Dense(24, "relu")]
)
old = keras.Sequential([base, keras.layers.Dense(5, activation="softmax")])
old.compile("adam", "sparse_categorical_crossentropy")
old.fit(x[y < 5], y[y < 5], epochs=6, batch_size=64, verbose=0)

base.trainable = False
frozen = [w.copy() for w in base.get_weights()]
new = keras.Sequential([base, keras.layers.Dense(5, activation="softmax")])
new.compile(
    keras.optimizers.Adam(0.03), "sparse_categorical_crossentropy", metrics=["accuracy"]
)
assert len(new.trainable_weights) == 2
assert len(new.non_trainable_weights) == 4
new.fit(x[y > 4], y[y > 4] - 5, epochs=20, batch_size=64, verbose=0)
assert all(map(np.array_equal, frozen, base.get_weights()))
before = new.evaluate(x[y > 4], y[y > 4] - 5, verbose=0)
assert before[1] > 0.8

base.trainable = True
new.compile(
    keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy", metrics=["accuracy"]
)
new.fit(x[y > 4], y[y > 4] - 5, epochs=3, verbose=0)
assert not any(map(np.array_equal, frozen, base.get_weights()))
assert new.evaluate(x[y > 4], y[y > 4] - 5, verbose=0)[0] < before[0]
