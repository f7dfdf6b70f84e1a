import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)


def contrastive(y_true, distance):
    near = y_true * keras.ops.square(distance)
    far = (1 - y_true) * keras.ops.square(keras.ops.maximum(1.0 - distance, 0.0))
    return keras.ops.mean(near + far, axis=-1)


def distance(pair):
    gap = keras.ops.sum(keras.ops.square(pair[0] - pair[1]), axis=1, keepdims=True)
    return keras.ops.sqrt(keras.ops.maximum(gap, 1e-7))


centres = 2 * rng.normal(size=(4, 6))
labels = rng.integers(0, 4, (300, 2))
pairs = (centres[labels] + rng.normal(size=(300, 2, 6))).astype("float32")
same = (labels[:, :1] == labels[:, 1:]).astype("float32")
tower = keras.Sequential(
    [keras.Input((6,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(2)]
)
left, right = keras.Input((6,)), keras.Input((6,))
gap = keras.layers.Lambda(distance, output_shape=(1,))([tower(left), tower(right)])
model = keras.Model([left, right], gap)
model.compile(keras.optimizers.Adam(0.02), contrastive)
model.fit([pairs[:, 0], pairs[:, 1]], same, epochs=20, verbose=0)
found = model.predict([pairs[:, 0], pairs[:, 1]], verbose=0)
assert found[same == 1].mean() < 0.5 * found[same == 0].mean()
assert ((found < 0.5) == (same == 1)).mean() > 0.85
