import keras
import numpy as np

schedules = keras.optimizers.schedules
x = np.random.default_rng(0).normal(size=(64, 3))
y = x.sum(axis=1)
wanted = {
    schedules.ExponentialDecay(0.1, decay_steps=10, decay_rate=0.5): 0.05,
    schedules.InverseTimeDecay(0.1, decay_steps=10, decay_rate=1.0): 0.05,
    schedules.PiecewiseConstantDecay([5, 100], [0.1, 0.02, 0.01]): 0.02,
    schedules.PolynomialDecay(0.1, 20, end_learning_rate=0.0, power=1.0): 0.05,
    schedules.CosineDecay(0.1, decay_steps=20): 0.05,
    schedules.CosineDecay(0.0, 10, warmup_target=0.1, warmup_steps=20): 0.05,
    schedules.CosineDecayRestarts(0.1, first_decay_steps=10): 0.1,
}
for schedule, rate in wanted.items():
    keras.utils.set_random_seed(0)
    np.testing.assert_allclose(float(schedule(10)), rate, rtol=1e-4)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(learning_rate=schedule), loss="mse")
    history = model.fit(x, y, batch_size=32, epochs=5, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    np.testing.assert_allclose(float(model.optimizer.learning_rate), rate, rtol=1e-4)
