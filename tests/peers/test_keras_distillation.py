"""Distillation beside Keras's: losses, gradients by ten steps, several outputs."""

from __future__ import annotations

import os

import numpy as np
import pytest

import memcfg as mc

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
keras = pytest.importorskip("keras", reason="needs Keras: tox run -e parity")

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]
BOTH = keras, mc.nn
RANDOM = np.random.default_rng(1)
X = RANDOM.normal(size=(40, 6)).astype(np.float32)
Y = RANDOM.integers(0, 3, 40).astype(np.int32)


def pair(nn, several):
    """A teacher and a student, whose weights are drawn by NumPy."""
    random, models = np.random.default_rng(2), []
    for units in (12, 4):
        x = nn.Input((6,))
        h = nn.layers.Dense(units, activation="tanh", name="hidden")(x)
        m = nn.layers.Dense(5, name="middle")(h)
        ends = [nn.layers.Dense(n, name=f"end_{n}")(m) for n in (3, 2)]
        model = nn.Model(x, ends if several else ends[0])
        drawn = [random.normal(size=np.shape(w)) / 2 for w in model.get_weights()]
        model.set_weights(drawn)
        models.append(model)
    return models


def losses(nn, case):
    made = nn.distillation
    return {
        "divergence": lambda: made.LogitsDistillation(4.0, nn.losses.KLDivergence()),
        "entropy": lambda: made.LogitsDistillation(
            2.0, nn.losses.CategoricalCrossentropy(from_logits=True)
        ),
        "features": lambda: [
            made.FeatureDistillation("mse", "middle", "middle"),
            made.FeatureDistillation(nn.losses.CosineSimilarity()),
        ],
        "several": lambda: [
            made.LogitsDistillation(3.0, [None, nn.losses.KLDivergence()]),
            made.FeatureDistillation(["mae", "mse"]),
        ],
    }[case]()


# Of several outputs and their losses Keras computes distillation alone.
@pytest.mark.parametrize(
    ("case", "share"),
    [
        *((case, share) for case in ("divergence", "features") for share in (0.3, 1.0)),
        *((case, 0.0) for case in ("divergence", "entropy", "features", "several")),
    ],
)
def test_ten_steps(case, share):
    several = case == "several"
    histories, weights = [], []
    for nn in BOTH:
        teacher, student = pair(nn, several)
        kinds = losses(nn, case)
        count = [0.5, 2.0] if isinstance(kinds, list) else None
        distiller = nn.distillation.Distiller(
            teacher,
            student,
            kinds,
            distillation_loss_weights=count,
            student_loss_weight=share,
        )
        loss = nn.losses.SparseCategoricalCrossentropy(from_logits=True)
        distiller.compile(nn.optimizers.SGD(0.05), [loss, loss] if several else loss)
        targets = [Y, Y % 2] if several else Y
        fit = distiller.fit(
            X, targets, batch_size=20, epochs=5, shuffle=False, verbose=0
        )
        found = distiller.evaluate(X, targets, verbose=0, return_dict=True)
        names = ("loss", "student_loss", "distillation_loss", "total_loss")
        histories.append(
            [*([*fit.history[name]] for name in names), [found[name] for name in names]]
        )
        weights.append(student.get_weights())
    for one, other in zip(*histories, strict=True):
        np.testing.assert_allclose(other, one, rtol=2e-4, atol=2e-6)
    for one, other in zip(*weights, strict=True):
        np.testing.assert_allclose(other, one, rtol=2e-4, atol=2e-5)
