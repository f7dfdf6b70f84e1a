import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(200, 3)).astype("float32")
y = np.sin(x).sum(axis=1, keepdims=True)
members = []
for seed in range(3):
    keras.utils.set_random_seed(seed)
    member = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)],
        name=f"member_{seed}",
    )
    member.compile(keras.optimizers.Adam(0.03), "mse")
    member.fit(x, y, epochs=12, verbose=0)
    members.append(member)
inputs = keras.Input((3,))
mean = keras.layers.Average()([member(inputs) for member in members])
ensemble = keras.Model(inputs, mean)
ensemble.compile(loss="mse")
alone = [member.evaluate(x, y, verbose=0) for member in members]
together = ensemble.evaluate(x, y, verbose=0)
assert together <= np.mean(alone) + 1e-6
parts = [member.predict(x, verbose=0) for member in members]
np.testing.assert_allclose(
    ensemble.predict(x, verbose=0), np.mean(parts, axis=0), rtol=1e-4, atol=1e-5
)
