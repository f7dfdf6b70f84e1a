import keras
import numpy as np

rng = np.random.default_rng(0)
x = rng.normal(size=(128, 6))
y = x.sum(axis=1, keepdims=True)


def train(batch_size=32, **options):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05, **options), "mse")
    model.fit(x, y, batch_size=batch_size, epochs=3, shuffle=False, verbose=0)
    return model.get_weights()[0]


plain = train()
whole = train(batch_size=64)
halves = train(batch_size=32, gradient_accumulation_steps=2)
np.testing.assert_allclose(whole, halves, rtol=1e-4)
for clip in ({"clipvalue": 0.1}, {"clipnorm": 0.1}, {"global_clipnorm": 0.1}):
    clipped = train(**clip)
    assert np.abs(clipped - 1).max() > np.abs(plain - 1).max()
averaged = train(use_ema=True, ema_momentum=0.9)
assert not np.allclose(averaged, plain)
assert np.abs(train(weight_decay=0.5)).sum() < np.abs(plain).sum()
