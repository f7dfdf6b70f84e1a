"""Distillation: what both models compute, what is trained, files, plans."""

from __future__ import annotations

import re

import numpy as np
import pytest

import memcfg as mc

nn = mc.nn
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(48, 8)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)


def network(units, kind):
    layers = [nn.Dense(units, "tanh", name=f"{kind}_hidden")]
    layers += [nn.Dense(5, name=f"{kind}_middle"), nn.Dense(3, name=f"{kind}_end")]
    return nn.Sequential([nn.Input((8,)), *layers], name=kind)


def made(losses, loss="sparse", student=4, **options):
    distiller = nn.distillation.Distiller(
        network(16, "teacher"), network(student, "student"), losses, **options
    )
    if loss == "sparse":
        loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    distiller.compile(nn.SGD(0.1), loss, metrics=["accuracy"])
    return distiller


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def by_hand(distiller, temperature):
    """The losses of `evaluate`, by NumPy."""
    logits = distiller.student.predict(X, verbose=0)
    wanted = softmax(distiller.teacher.predict(X, verbose=0) / temperature)
    found = softmax(logits / temperature)
    divergence = (wanted * np.log(wanted / found)).sum(-1).mean() * temperature**2
    own = -np.log(softmax(logits)[np.arange(48), Y]).mean()
    return own, divergence


def test_losses_are_those_of_the_paper():
    distiller = made(nn.distillation.LogitsDistillation(4.0), student_loss_weight=0.3)
    own, divergence = by_hand(distiller, 4.0)
    found = distiller.evaluate(X, Y, batch_size=48, verbose=0, return_dict=True)
    total = 0.3 * own + 0.7 * divergence
    wanted = {"student_loss": own, "distillation_loss": divergence, "loss": total}
    for name, value in (wanted | {"total_loss": total}).items():
        assert found[name] == pytest.approx(value, rel=1e-5)
    assert 0 <= found["accuracy"] <= 1


def test_only_the_student_is_trained():
    distiller = made(nn.distillation.LogitsDistillation())
    teacher, student = distiller.teacher, distiller.student
    assert not teacher.trainable
    before = [model.get_weights() for model in (teacher, student)]
    history = distiller.fit(X, Y, epochs=8, verbose=0, validation_data=(X, Y)).history
    for value, after in zip(before[0], teacher.get_weights(), strict=True):
        np.testing.assert_array_equal(value, after)
    assert all(
        (a != b).any() for a, b in zip(before[1], student.get_weights(), strict=True)
    )
    assert history["distillation_loss"][-1] < history["distillation_loss"][0]
    assert history["val_student_loss"][-1] < history["val_student_loss"][0]
    predicted = distiller.predict(X, verbose=0)
    np.testing.assert_array_equal(predicted, student.predict(X, verbose=0))


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_one_loss_alone(share):
    distiller = made(nn.distillation.LogitsDistillation(2.0), student_loss_weight=share)
    own, divergence = by_hand(distiller, 2.0)
    found = distiller.evaluate(X, Y, batch_size=48, verbose=0, return_dict=True)
    assert found["loss"] == pytest.approx(own if share else divergence, rel=1e-5)
    assert found["distillation_loss" if share else "student_loss"] == 0


def test_features_of_layers():
    features = nn.distillation.FeatureDistillation(
        "mse", teacher_layer_name="teacher_middle", student_layer_name="student_middle"
    )
    whole = nn.distillation.FeatureDistillation("mae")
    distiller = made([features, whole], distillation_loss_weights=[2, 0.5])
    values = []
    for name in ("teacher", "student"):
        model = getattr(distiller, name)
        inner = nn.Model(
            model.input, [model.get_layer(f"{name}_middle").output, model.output]
        )
        values.append(inner.predict(X, verbose=0))
    (t1, t2), (s1, s2) = values
    wanted = 2 * ((t1 - s1) ** 2).mean() + 0.5 * np.abs(t2 - s2).mean()
    found = distiller.evaluate(X, Y, batch_size=48, verbose=0, return_dict=True)
    assert found["distillation_loss"] == pytest.approx(wanted, rel=1e-5)
    assert np.isfinite(distiller.fit(X, Y, verbose=0).history["loss"][0])


def test_several_outputs_and_losses_of_ones_own():
    def two(units):
        x = nn.Input((8,))
        h = nn.Dense(units, "relu")(x)
        return nn.Model(x, [nn.Dense(3)(h), nn.Dense(2)(h)])

    class Near(nn.distillation.DistillationLoss):
        def compute_loss(self, teacher_outputs, student_outputs, **kwargs):
            return nn.ops.mean((teacher_outputs[1] - student_outputs[1]) ** 2)

    some = nn.distillation.LogitsDistillation(
        2.0, loss=[nn.losses.KLDivergence(), None]
    )
    distiller = nn.distillation.Distiller(two(16), two(4), [some, Near()])
    distiller.compile("adam", ["mse", "mae"])
    targets = [np.zeros((48, 3), np.float32), np.zeros((48, 2), np.float32)]
    found = distiller.evaluate(X, targets, batch_size=48, verbose=0, return_dict=True)
    wanted, given = (
        m.predict(X, verbose=0) for m in (distiller.teacher, distiller.student)
    )
    p, q = (softmax(each[0] / 2) for each in (wanted, given))
    divergence = (p * np.log(p / q)).sum(-1).mean() * 4
    near = ((wanted[1] - given[1]) ** 2).mean()
    assert found["distillation_loss"] == pytest.approx(divergence + near, rel=1e-5)
    own = (given[0] ** 2).mean() + np.abs(given[1]).mean()
    assert found["student_loss"] == pytest.approx(own, rel=1e-5)
    np.testing.assert_array_less(
        0, distiller.fit(X, targets, verbose=0).history["loss"]
    )


@pytest.mark.parametrize("name", ["x.keras", "x.memcfg"])
def test_files_have_both_models(tmp_path, name):
    features = nn.distillation.FeatureDistillation(
        nn.losses.MeanAbsoluteError(), "teacher_middle", "student_middle"
    )
    losses = [nn.distillation.LogitsDistillation(2.5), features]
    distiller = made(losses, distillation_loss_weights=[1, 3], student_loss_weight=0.25)
    distiller.fit(X, Y, verbose=0)
    distiller.save(tmp_path / name)
    again = nn.models.load_model(tmp_path / name)
    assert isinstance(again, nn.distillation.Distiller)
    assert again.student_loss_weight == 0.25
    assert again.distillation_loss_weights == [1, 3]
    assert again.distillation_losses[0].temperature == 2.5
    assert again.distillation_losses[1].student_layer_name == "student_middle"
    assert not again.teacher.trainable
    results = [
        each.evaluate(X, Y, verbose=0, return_dict=True) for each in (distiller, again)
    ]
    assert results[0] == results[1]
    one, other = (
        each.fit(X, Y, verbose=0, shuffle=False) for each in (distiller, again)
    )
    assert one.history == other.history
    same = nn.distillation.Distiller.from_config(distiller.get_config())
    assert same.student.count_params() == distiller.student.count_params()


def test_a_step_within_a_limit_has_the_bits_of_no_limit():
    results = []
    for memory in (None, mc.plan.sqrt_checkpoint()):
        nn.set_random_seed(3)
        distiller = made(nn.distillation.LogitsDistillation())
        distiller.compile("adam", nn.SparseCategoricalCrossentropy(from_logits=True))
        if memory is not None:
            distiller.compile("adam", distiller.loss, memory=memory)
        distiller.fit(X, Y, epochs=2, verbose=0, shuffle=False)
        results.append(distiller.student.get_weights())
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda d: d.LogitsDistillation(0), "above zero"),
        (lambda d: d.LogitsDistillation(loss=None), "at least one loss"),
        (lambda d: d.FeatureDistillation(loss=[None, None]), "at least one loss"),
        (lambda d: d.LogitsDistillation(loss="klx"), "unknown loss"),
        (lambda d: d.Distiller(1, network(2, "s"), d.LogitsDistillation()), "a Model"),
        (
            lambda d: d.Distiller(
                network(2, "t"),
                nn.Sequential([nn.Input((7,)), nn.Dense(3)]),
                d.LogitsDistillation(),
            ),
            "an input of the teacher has shape",
        ),
        (lambda d: made(None), "objects with a compute_loss"),
        (lambda d: made(d.LogitsDistillation(), student_loss_weight=2), r"in \[0, 1\]"),
        (
            lambda d: made(d.LogitsDistillation(), distillation_loss_weights=[1, 2]),
            "2 distillation_loss_weights for 1",
        ),
        (
            lambda d: made(d.FeatureDistillation("mse", "nowhere")),
            "in the teacher: .*nowhere",
        ),
        (lambda d: made(d.LogitsDistillation(), loss=None), "needs the loss"),
    ],
)
def test_what_is_refused(call, told):
    with pytest.raises(ValueError, match=told):
        call(nn.distillation)


def test_what_is_refused_in_a_step():
    class Rows(nn.distillation.DistillationLoss):
        def compute_loss(self, teacher_outputs, student_outputs, **kwargs):
            return nn.ops.mean(teacher_outputs - student_outputs, axis=-1)

    with pytest.raises(ValueError, match=r"Rows\.compute_loss must return a scalar"):
        made(Rows()).fit(X, Y, verbose=0)
    nested = nn.distillation.FeatureDistillation(["mse", "mse"])
    with pytest.raises(ValueError, match="different forms"):
        made(nested).fit(X, Y, verbose=0)
    with pytest.raises(NotImplementedError, match="must define compute_loss"):
        nn.distillation.DistillationLoss().compute_loss(1, 2)

    class Own(nn.Model):
        def call(self, x):
            return x

    with pytest.raises(ValueError, match=r"the student 'own\w*' has no symbolic"):
        nn.distillation.Distiller(
            network(2, "t"),
            Own(),
            nn.distillation.FeatureDistillation("mse", None, "end"),
        )


def test_models_that_share_layers_are_refused():
    common = nn.Dense(4, "relu", name="common")
    teacher, student = (
        nn.Sequential([nn.Input((8,)), common, nn.Dense(3)]) for _ in range(2)
    )
    loss = nn.distillation.LogitsDistillation()
    for other in (student, teacher):
        with pytest.raises(ValueError, match="teacher and student share 'common'"):
            nn.distillation.Distiller(teacher, other, loss)
    assert len(student.trainable_weights) == 4


@pytest.mark.parametrize(
    ("given", "options", "error", "words"),
    [
        ([], {}, ValueError, "must not be empty"),
        (nn.distillation.LogitsDistillation, {}, ValueError, "LogitsDistillation()"),
        (None, {"distillation_loss_weights": 0.5}, TypeError, "must be a list"),
    ],
)
def test_losses_that_are_none_are_refused(given, options, error, words):
    teacher, student = (nn.Sequential([nn.Input((8,)), nn.Dense(3)]) for _ in range(2))
    given = nn.distillation.LogitsDistillation() if given is None else given
    with pytest.raises(error, match=re.escape(words)):
        nn.distillation.Distiller(teacher, student, given, **options)
    assert teacher.trainable
    with pytest.raises(TypeError, match="a loss is a name, a Loss or None, got 5"):
        nn.distillation.LogitsDistillation(loss=5)
