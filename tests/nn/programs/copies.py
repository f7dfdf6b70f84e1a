import copy
import pickle

import keras
import numpy as np

keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(64, 4))
y = x.prod(axis=1, keepdims=True)


def build():
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse")
    return model


model, other = build(), build()
model.fit(x, y, epochs=2, verbose=0)
assert not np.allclose(other.predict(x, verbose=0), model.predict(x, verbose=0))
other.set_weights(model.get_weights())
np.testing.assert_allclose(
    other.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-5
)
other.layers[0].set_weights([np.zeros((4, 16)), np.zeros(16)])
found = other.predict(x, verbose=0)
np.testing.assert_allclose(found, np.broadcast_to(found[:1], (64, 1)))

for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
    np.testing.assert_allclose(
        copied.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-5
    )
    before = model.get_weights()
    copied.fit(x, y, epochs=1, verbose=0)
    assert all(map(np.array_equal, before, model.get_weights()))
