"""Distil a large network into a small one, and search its settings by scikit-learn."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV

from memcfg import nn

nn.set_random_seed(0)
digits = load_digits()
x, y = (digits.data / 16).astype(np.float32), digits.target.astype(np.int32)
few = 120  # labels; the teacher says what it thinks of the other images
train, test = slice(0, 1300), slice(1300, None)


def network(units, name):
    layers = [nn.Dense(n, "relu") for n in units]
    return nn.Sequential([nn.Input((64,)), *layers, nn.Dense(10)], name=name)


loss = nn.SparseCategoricalCrossentropy(from_logits=True)
teacher = network((256, 256), "teacher")
teacher.compile("adam", loss, metrics=["accuracy"])
teacher.fit(x[train], y[train], epochs=15, verbose=0)
best = teacher.evaluate(x[test], y[test], verbose=0)[1]

alone = network((12,), "alone")
alone.compile(nn.Adam(0.01), loss, metrics=["accuracy"])
alone.fit(x[:few], y[:few], epochs=60, verbose=0)
before = alone.evaluate(x[test], y[test], verbose=0)[1]

# Both models, their losses and the update are one planned step.
student = network((12,), "student")
distiller = nn.distillation.Distiller(
    teacher,
    student,
    nn.distillation.LogitsDistillation(temperature=3.0),
    student_loss_weight=0.0,  # no labels
)
distiller.compile(nn.Adam(0.01), loss)
distiller.fit(x[train], y[train], epochs=20, verbose=0)
after = (student.predict(x[test], verbose=0).argmax(1) == y[test]).mean()
share = student.count_params() / teacher.count_params()
print(f"teacher {best:.3f}, student {after:.3f} with {share:.1%} of its weights")
print(f"such a network alone, of {few} labels: {before:.3f}")
step = distiller.plan(32)
print(f"a step of 32 images takes {step.peak_bytes / 1024:.0f} KiB")
assert after > before


def made(X, y, units):
    nn.set_random_seed(0)
    model = network(units, "searched")
    entropy = nn.losses.CategoricalCrossentropy(from_logits=True)
    model.compile(nn.Adam(0.01), entropy)
    return model


estimator = nn.wrappers.SKLearnClassifier(made, fit_kwargs={"epochs": 8, "verbose": 0})
choices = {"model_kwargs": [{"units": units} for units in ((2,), (32,))]}
search = GridSearchCV(estimator, choices, cv=2).fit(x[train], y[train])
print(f"of the search: {search.best_params_['model_kwargs']['units']}")
assert search.score(x[test], y[test]) > 0.8
