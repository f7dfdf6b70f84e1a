import keras
import numpy as np

rng = np.random.default_rng(0)
images = rng.uniform(0, 255, (8, 12, 10, 3)).astype("float32")
steps = [
    keras.layers.AutoContrast(),
    keras.layers.RandomColorDegeneration(0.3, seed=1),
    keras.layers.RandomGrayscale(0.2, seed=2),
    keras.layers.RandomHue(0.1, seed=3),
    keras.layers.RandomInvert((0.2, 0.3), seed=4),
    keras.layers.RandomPosterization((4, 8), seed=5),
    keras.layers.RandomSaturation((0.4, 0.6), seed=6),
    keras.layers.RandomSharpness((0.3, 0.7), seed=7),
    keras.layers.Solarization(0.1, (0.8, 0.9), seed=8),
]
for step in steps:
    batch = np.asarray(step(images, training=True))
    assert batch.shape == images.shape
    assert not np.allclose(batch, images), step.name
    assert batch.min() > -1
    assert batch.max() < 256
for step in steps[1:]:
    same = np.asarray(step(images, training=False))
    np.testing.assert_allclose(same, images, rtol=1e-6)
