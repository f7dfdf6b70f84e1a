import keras
from sklearn.datasets import load_diabetes

keras.utils.set_random_seed(1)
x, y = load_diabetes(return_X_y=True)
x = x / x.std(axis=0)
y = (y - y.mean()) / y.std()

model = keras.Sequential(
    [
        keras.layers.Input((10,)),
        keras.layers.Dense(32, activation="relu", kernel_regularizer="l2"),
        keras.layers.Dense(1),
    ]
)
model.compile(
    optimizer=keras.optimizers.RMSprop(learning_rate=0.002),
    loss="mse",
    metrics=["mae", keras.metrics.R2Score(), keras.metrics.RootMeanSquaredError()],
)
history = model.fit(x, y, epochs=30, validation_split=0.2, verbose=0)
best = min(history.history["val_loss"])
assert best < history.history["val_loss"][0]
results = model.evaluate(x, y[:, None], verbose=0, return_dict=True)
assert results["r2_score"] > 0.4
assert results["mae"] < results["root_mean_squared_error"] < 0.8
