import keras
import numpy as np

optimizers = keras.optimizers
rng = np.random.default_rng(0)
x = rng.normal(size=(200, 4))
y = x @ [1.0, -2.0, 0.5, 0.0] + 1

for optimizer in (
    "sgd",
    optimizers.SGD(learning_rate=0.01, momentum=0.9),
    optimizers.RMSprop(learning_rate=0.01, rho=0.9, centered=True),
    optimizers.Adam(learning_rate=0.05, amsgrad=True),
    optimizers.AdamW(learning_rate=0.05, weight_decay=1e-3),
    optimizers.Adamax(learning_rate=0.05),
    optimizers.Nadam(learning_rate=0.05),
    optimizers.Adagrad(learning_rate=0.3),
    optimizers.Adadelta(learning_rate=20.0),
    optimizers.Lion(learning_rate=0.02),
    optimizers.Adafactor(learning_rate=0.1),
    optimizers.Ftrl(learning_rate=2.0, l1_regularization_strength=0.01),
    optimizers.ScheduleFreeAdamW(learning_rate=0.1, warmup_steps=5),
):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer=optimizer, loss="mse")
    history = model.fit(x, y, epochs=15, verbose=0).history["loss"]
    assert history[-1] < 0.15 * history[0], (optimizer, history)
    assert int(model.optimizer.iterations) == 15 * 7
