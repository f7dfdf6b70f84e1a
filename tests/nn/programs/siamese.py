import keras
import numpy as np

layers = keras.layers
keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
classes = rng.integers(0, 4, (2, 400))
classes[1, ::2] = classes[0, ::2]
left, right = np.eye(4)[classes] * 2 + rng.normal(0, 0.4, (2, 400, 4))
same = (classes[0] == classes[1]).astype("float32")

embed = keras.Sequential(
    [layers.Dense(16, activation="relu"), layers.Dense(4)], name="embed"
)
a, b = keras.Input((4,)), keras.Input((4,))
distance = abs(embed(a) - embed(b))
model = keras.Model([a, b], layers.Dense(1, activation="sigmoid")(distance))
assert len(model.trainable_weights) == 6  # both towers have the same
model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy", metrics=["accuracy"])
model.fit([left, right], same, epochs=12, verbose=0)
assert model.evaluate([left, right], same, verbose=0)[1] > 0.9

cosine = layers.Dot(axes=1, normalize=True)([embed(a), embed(a)])
similarity = keras.Model(a, cosine).predict(left, verbose=0)
np.testing.assert_allclose(similarity, 1, rtol=1e-4)
