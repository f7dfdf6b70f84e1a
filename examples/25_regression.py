"""Regression under a limit, as well as scikit-learn's network on the same samples."""

import warnings

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import mean_squared_error, r2_score
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPRegressor
from sklearn.preprocessing import StandardScaler

import memcfg as mc

nn = mc.nn
mc.config.set_memory_limit("CPU:0", "64KiB")
UNITS, EPOCHS, RATE, BATCH = 64, 20, 0.001, 32
data = load_diabetes(return_X_y=True)


def standardised(seed):
    """Split the patients; measure all in deviations of those to learn from."""
    x, x_test, y, y_test = train_test_split(*data, random_state=seed)
    of_x, of_y = StandardScaler().fit(x), StandardScaler().fit(y[:, None])
    x, x_test = of_x.transform(x), of_x.transform(x_test)
    return x, of_y.transform(y[:, None]), x_test, of_y.transform(y_test[:, None])


def by_memcfg(x, y, x_test, seed):
    nn.set_random_seed(seed)
    hidden = nn.Dense(UNITS, activation="relu")
    model = nn.Sequential([nn.Input((10,)), hidden, nn.Dense(1)])
    model.compile(nn.Adam(RATE), "mse", metrics=["mae"])
    model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0, seed=seed)
    predictions, peak = model.predict(x_test, verbose=0), model.memory_plan.peak_bytes
    model.close()
    return predictions, peak


def by_scikit_learn(x, y, x_test, seed):
    model = MLPRegressor(
        hidden_layer_sizes=(UNITS,),
        learning_rate_init=RATE,
        batch_size=BATCH,
        max_iter=EPOCHS,
        random_state=seed,
    )
    with warnings.catch_warnings():  # it counts epochs, as memcfg does
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(x, y[:, 0])
    return model.predict(x_test)


found = []
for seed in range(6):
    x, y, x_test, y_test = standardised(seed)
    ours, peak = by_memcfg(x, y, x_test, seed)
    for predictions in (ours, by_scikit_learn(x, y, x_test, seed)):
        found.append(r2_score(y_test, predictions))
        found.append(mean_squared_error(y_test, predictions))
r2, mse, r2_theirs, mse_theirs = np.reshape(found, (-1, 4)).mean(axis=0)
print(f"memcfg        R2 {r2:.3f}  MSE {mse:.3f}, in {peak} bytes")
print(f"scikit-learn  R2 {r2_theirs:.3f}  MSE {mse_theirs:.3f}")
assert r2 > r2_theirs - 0.03
