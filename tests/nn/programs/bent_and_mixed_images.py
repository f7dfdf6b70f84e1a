import keras
import numpy as np

rng = np.random.default_rng(0)
images = rng.uniform(0, 255, (8, 16, 12, 3)).astype("float32")
steps = [
    keras.layers.RandomShear(0.2, 0.1, seed=1),
    keras.layers.RandomErasing(factor=1.0, seed=2),
    keras.layers.RandomGaussianBlur(factor=1.0, kernel_size=3, seed=3),
    keras.layers.RandomColorJitter((0, 255), 0.2, 0.2, 0.2, 0.1, seed=4),
    keras.layers.RandomPerspective(factor=1.0, scale=0.3, seed=5),
    keras.layers.RandomElasticTransform(factor=1.0, seed=6),
    keras.layers.AugMix(num_chains=2, seed=7),
    keras.layers.RandAugment(num_ops=1, seed=8),
]
for step in steps:
    batch = np.asarray(step(images, training=True))
    assert batch.shape == images.shape, step.name
    assert np.isfinite(batch).all(), step.name

even = keras.layers.Equalization()(images)
local = keras.layers.ContrastLimitedAdaptiveHistogramEqualization(
    tile_grid_size=(2, 2)
)(images)
for batch in map(np.asarray, (even, local)):
    assert batch.std() > 0.9 * images.std()

chain = keras.layers.Pipeline([keras.layers.Rescaling(1 / 255), steps[0]])
assert np.asarray(chain(images, training=True)).max() <= 1.01

labels = np.eye(2, dtype="float32")[np.arange(8) % 2]
for mix in (keras.layers.MixUp(alpha=0.4, seed=1), keras.layers.CutMix(seed=1)):
    mixed = mix({"images": images, "labels": labels}, training=True)
    np.testing.assert_allclose(np.asarray(mixed["labels"]).sum(1), 1, rtol=1e-4)
