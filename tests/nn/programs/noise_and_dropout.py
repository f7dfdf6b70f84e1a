import keras
import numpy as np

layers = keras.layers
x = np.ones((64, 4, 4, 8), "float32")
y = np.zeros((64, 4, 4, 8), "float32")
for layer in (
    layers.Dropout(0.5),
    layers.SpatialDropout2D(0.5),
    layers.GaussianNoise(1.0),
    layers.GaussianDropout(0.5),
):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4, 4, 8)), layer])
    np.testing.assert_array_equal(model.predict(x, verbose=0), x)  # idle
    model.compile("sgd", "mse")
    noisy = model.train_on_batch(x, y)
    np.testing.assert_allclose(noisy, 2, rtol=0.15)  # twice the energy
    np.testing.assert_allclose(model.test_on_batch(x, y), 1, rtol=0.35)

sequence = keras.Sequential([keras.Input((16, 8)), layers.SpatialDropout1D(0.5)])
sequence.compile("sgd", "mse")
losses = [
    sequence.train_on_batch(x.reshape(64, 16, 8), y.reshape(64, 16, 8))
    for _ in range(3)
]
assert len(set(map(float, losses))) == 3
