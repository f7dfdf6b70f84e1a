"""A binary classifier with class weights: the rare class counts like the other."""

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from memcfg import nn

x, y = load_breast_cancer(return_X_y=True)
x = ((x - x.mean(0)) / x.std(0)).astype(np.float32)
# Of the malignant ones, class 0, only every third is there.
rare = np.flatnonzero(y == 0)[::3]
chosen = np.sort(np.concatenate([rare, np.flatnonzero(y == 1)]))
x, y = x[chosen], y[chosen]
parts = train_test_split(x, y, test_size=0.3, random_state=0, stratify=y)
x_train, x_test, y_train, y_test = parts
counts = np.bincount(y_train)
weights = {label: len(y_train) / (2 * int(n)) for label, n in enumerate(counts)}
print(f"{counts.tolist()} samples weigh", {k: round(w, 2) for k, w in weights.items()})


def trained(**options):
    """Train a small network; return its accuracy, and that of the rare class."""
    nn.set_random_seed(3)
    model = nn.Sequential(
        [
            nn.Input((30,)),
            nn.Dense(16, activation="relu", kernel_regularizer="l2"),
            nn.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(nn.Adam(0.005), "binary_crossentropy", weighted_metrics=["accuracy"])
    model.fit(x_train, y_train, epochs=20, seed=0, verbose=0, **options)
    logs = model.evaluate(x_test, y_test, verbose=0, return_dict=True)
    of_rare = model.evaluate(
        x_test, y_test, verbose=0, sample_weight=(y_test == 0), return_dict=True
    )
    return logs["accuracy"], of_rare["accuracy"]


plain, weighed = trained(), trained(class_weight=weights)
print("all, rare: plain", np.round(plain, 3), "weighed", np.round(weighed, 3))
assert weighed[0] >= 0.95
assert weighed[1] >= plain[1]
