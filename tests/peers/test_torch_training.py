"""Losses, optimizers, clipping and schedules beside PyTorch's own."""

from __future__ import annotations

import numpy as np
import pytest
from beside_torch import MARKS, array, close, dense, nn, shaken, torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from optimizer_rules import CLASSES, OnDevice, values

pytestmark = MARKS
F = torch.nn.functional
switch, length = st.booleans(), st.integers(1, 5)
TINY = 1e-15  # where Keras adds epsilon inside of a root and PyTorch outside


def drawn(count):
    phases = (Phase.explicit, Phase.generate)  # to shrink takes minutes
    return settings(max_examples=count, deadline=None, phases=phases)


def train(loss, theirs, targets, rows, *, activation=None, weight=None, steps=10):
    """Losses and weights of a Dense layer; `theirs` is of outputs and targets."""
    wide = rows[-1]
    x = np.random.default_rng(5).normal(size=(*rows[:-1], 3)).astype(np.float32)
    module = shaken(torch.nn.Linear(3, wide))
    ours = nn.Sequential([nn.Input(x.shape[1:]), nn.Dense(wide, activation)])
    ours.set_weights([each.copy() for each in dense(module)])
    ours.compile(nn.SGD(0.1), loss)
    end = {"sigmoid": torch.sigmoid, "softplus": F.softplus, None: lambda z: z}
    end["softmax"] = lambda z: F.softmax(z, -1)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        output = end[activation](module(torch.from_numpy(x)))
        wanted = theirs(output, torch.as_tensor(targets))
        wanted.backward()
        optimizer.step()
        found = ours.train_on_batch(x, targets, sample_weight=weight)
        close(found, wanted.item())
        for a, b in zip(ours.get_weights(), dense(module), strict=True):
            close(a, b)
    ours.close()


SHAPES = st.one_of(st.tuples(length, length), st.tuples(length, length, length))
CLASSES_LAST = st.tuples(SHAPES, st.integers(2, 5)).map(
    lambda each: (*each[0], each[1])
)


def distributions(random, shape):
    raw = random.uniform(0.1, 1, shape)
    return (raw / raw.sum(-1, keepdims=True)).astype(np.float32)


# By name: the loss, PyTorch's, what the targets are, and the last activation.
REGRESSIONS = {
    "mse": (nn.losses.MeanSquaredError, F.mse_loss, "real", None),
    "mae": (nn.losses.MeanAbsoluteError, F.l1_loss, "real", None),
    "msle": (
        nn.losses.MeanSquaredLogarithmicError,
        lambda p, t: F.mse_loss(torch.log1p(p), torch.log1p(t)),
        *("positive", "softplus"),
    ),
    "poisson": (
        nn.losses.Poisson,
        lambda p, t: F.poisson_nll_loss(p, t, log_input=False, eps=1e-7),
        *("positive", "softplus"),
    ),
    "cosine similarity": (
        nn.losses.CosineSimilarity,
        lambda p, t: -F.cosine_similarity(p, t, dim=-1).mean(),
        *("real", None),
    ),
    "hinge": (
        nn.losses.Hinge,
        lambda p, t: F.margin_ranking_loss(p, torch.zeros_like(p), t, margin=1),
        *("signs", None),
    ),
    "squared hinge": (
        nn.losses.SquaredHinge,
        lambda p, t: (
            F.margin_ranking_loss(
                *(p, torch.zeros_like(p), t), margin=1, reduction="none"
            ).square().mean()
        ),
        *("signs", None),
    ),
    "kl divergence": (
        nn.losses.KLDivergence,
        lambda p, t: F.kl_div(p.log(), t, reduction="none").sum(-1).mean(),
        *("distributions", "softmax"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REGRESSIONS)
@drawn(6)
@given(shape=SHAPES, seed=st.integers(0, 99))
def test_losses(name, shape, seed):
    kind, theirs, targets, activation = REGRESSIONS[name]
    random = np.random.default_rng(seed)
    made = {
        "real": lambda: random.normal(size=shape),
        "positive": lambda: random.uniform(0.1, 2, shape),
        "signs": lambda: random.choice([-1.0, 1.0], shape),
        "distributions": lambda: distributions(random, shape),
    }[targets]()
    train(kind(), theirs, made.astype(np.float32), shape, activation=activation)


@drawn(6)
@given(shape=SHAPES, delta=st.floats(0.1, 2))
def test_huber(shape, delta):
    t = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    train(
        nn.losses.Huber(delta), lambda p, t: F.huber_loss(p, t, delta=delta), t, shape
    )


@drawn(10)
@given(shape=SHAPES, logits=switch, smoothing=st.sampled_from([0.0, 0.2]))
def test_binary_crossentropy(shape, logits, smoothing):
    t = np.random.default_rng(0).integers(0, 2, shape).astype(np.float32)

    def theirs(p, t):
        t = t * (1 - smoothing) + smoothing / 2
        of_logits = F.binary_cross_entropy_with_logits
        return of_logits(p, t) if logits else F.binary_cross_entropy(p, t)

    loss = nn.losses.BinaryCrossentropy(from_logits=logits, label_smoothing=smoothing)
    train(loss, theirs, t, shape, activation=None if logits else "sigmoid")


def cross_entropy(logits, **options):
    """PyTorch's, of logits, or of the probabilities that softmax made of them."""

    def theirs(p, t):
        p = p if logits else p.log()
        if t.ndim == p.ndim:
            return F.cross_entropy(p.flatten(0, -2), t.flatten(0, -2), **options)
        return F.cross_entropy(p.flatten(0, -2), t.flatten(), **options)

    return theirs


@drawn(10)
@given(shape=CLASSES_LAST, logits=switch, smoothing=st.sampled_from([0.0, 0.2]))
def test_categorical_crossentropy(shape, logits, smoothing):
    t = distributions(np.random.default_rng(0), shape)
    loss = nn.losses.CategoricalCrossentropy(
        from_logits=logits, label_smoothing=smoothing
    )
    theirs = cross_entropy(logits, label_smoothing=smoothing)
    train(loss, theirs, t, shape, activation=None if logits else "softmax")


@drawn(10)
@given(shape=CLASSES_LAST, logits=switch, ignored=st.sampled_from([None, -1, 0]))
def test_sparse_categorical_crossentropy(shape, logits, ignored):
    t = np.random.default_rng(0).integers(0, shape[-1], shape[:-1])
    if ignored is not None:
        t[np.random.default_rng(1).random(t.shape) < 0.3] = ignored
        t.flat[0] = shape[-1] - 1
    options = {} if ignored is None else {"ignore_index": ignored}
    loss = nn.losses.SparseCategoricalCrossentropy(
        from_logits=logits, ignore_class=ignored
    )
    activation = None if logits else "softmax"
    train(loss, cross_entropy(logits, **options), t, shape, activation=activation)


@drawn(5)
@given(samples=length, classes=st.integers(2, 5))
def test_weights_of_samples(samples, classes):
    random = np.random.default_rng(0)
    t = random.integers(0, classes, samples)
    weight = random.uniform(0.1, 2, samples).astype(np.float32)

    def theirs(p, t):
        rows = F.cross_entropy(p, t, reduction="none")
        return (rows * torch.from_numpy(weight)).mean()

    loss = nn.losses.SparseCategoricalCrossentropy(from_logits=True)
    train(loss, theirs, t, (samples, classes), weight=weight)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_reductions(reduction):
    t = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)

    def theirs(p, t):
        rows = F.mse_loss(p, t, reduction="none").mean(-1)
        return getattr(rows, reduction)()

    train(nn.losses.MeanSquaredError(reduction=reduction), theirs, t, (4, 3))


part = st.floats(0.3, 0.99)
betas, tiny = {"beta_1": part, "beta_2": part}, {"epsilon": st.just(TINY)}


def moments(o, **others):
    return {"betas": (o["beta_1"], o["beta_2"]), "eps": TINY} | others


# By kind: PyTorch's class, our settings, and hers of them.
OPTIMIZERS = {
    "sgd": (
        "SGD",
        {"momentum": st.sampled_from([0.5, 0.9]), "nesterov": switch},
        lambda o: o,
    ),
    "adam": (
        *("Adam", betas | tiny),
        moments,
    ),
    "adamw": (
        *("AdamW", betas | tiny | {"weight_decay": st.floats(0.0, 0.1)}),
        lambda o: moments(o, weight_decay=o["weight_decay"]),
    ),
    "adamax": ("Adamax", betas | tiny, moments),
    "nadam": ("NAdam", betas | tiny, lambda o: moments(o, momentum_decay=1.0)),
    "rmsprop": (
        "RMSprop",
        {"rho": part, "momentum": st.sampled_from([0.0, 0.7]), **tiny},
        lambda o: {"alpha": o["rho"], "momentum": o["momentum"], "eps": TINY},
    ),
    "adagrad": (
        "Adagrad",
        {"initial_accumulator_value": st.sampled_from([0.0, 0.1]), **tiny},
        lambda o: {
            "initial_accumulator_value": o["initial_accumulator_value"],
            "eps": TINY,
        },
    ),
    "adadelta": (
        "Adadelta",
        {"rho": part, "epsilon": st.sampled_from([1e-7, 1e-3])},
        lambda o: {"rho": o["rho"], "eps": o["epsilon"]},
    ),
    "adafactor": (
        "Adafactor",
        {
            "beta_2_decay": st.sampled_from([-0.8, -0.5]),
            "epsilon_2": st.sampled_from([1e-3, 0.5]),
            "clip_threshold": st.sampled_from([1.0, 2.0]),
        },
        lambda o: {
            "beta2_decay": o["beta_2_decay"],
            "eps": (TINY, o["epsilon_2"]),
            "d": o["clip_threshold"],
        },
    ),
}


def steps_beside(ours, theirs, shapes, rate, clip=None):
    """Ten steps of the same gradients; weights after each."""
    weights = values(shapes, 0)
    device = OnDevice(ours, weights)
    tensors = [torch.from_numpy(each.copy()) for each in weights.values()]
    parameters = [torch.nn.Parameter(each) for each in tensors]
    optimizer = theirs(parameters)
    for number in range(10):
        gradients = values(shapes, 1 + number)
        found = device.step(gradients, rate)
        for each, g in zip(parameters, gradients.values(), strict=True):
            each.grad = torch.from_numpy(g.copy())
        if clip:
            clip(parameters)
        optimizer.step()
        for value, each in zip(found.values(), parameters, strict=True):
            close(value, array(each))
    device.close()


@st.composite
def named_shapes(draw, least=0):
    sizes = st.lists(st.integers(1, 9), min_size=least, max_size=3).map(tuple)
    return {
        f"w{i}": each
        for i, each in enumerate(draw(st.lists(sizes, min_size=1, max_size=3)))
    }


@pytest.mark.parametrize("kind", OPTIMIZERS)
@drawn(10)
@given(data=st.data())
def test_ten_steps(kind, data):
    name, own, translate = OPTIMIZERS[kind]
    chosen = {key: data.draw(each) for key, each in own.items()}
    # PyTorch's Adafactor has no row and column of a vector's either.
    shapes = data.draw(named_shapes(1 if kind == "adafactor" else 0))
    rate = data.draw(st.floats(1e-3, 0.1))
    steps_beside(
        CLASSES[kind](rate, **chosen),
        lambda given: getattr(torch.optim, name)(given, rate, **translate(chosen)),
        shapes,
        rate,
    )


@drawn(10)
@given(
    shapes=named_shapes(), limit=st.floats(0.1, 5), momentum=st.sampled_from([0, 0.9])
)
@pytest.mark.parametrize("how", ["global_clipnorm", "clipvalue", "clipnorm"])
def test_clipping(how, shapes, limit, momentum):
    def clip(parameters):
        if how == "clipvalue":
            return torch.nn.utils.clip_grad_value_(parameters, limit)
        groups = [parameters] if how == "global_clipnorm" else [[p] for p in parameters]
        for group in groups:
            torch.nn.utils.clip_grad_norm_(group, limit)
        return None

    steps_beside(
        nn.SGD(0.05, momentum=momentum, **{how: limit}),
        lambda given: torch.optim.SGD(given, 0.05, momentum=momentum),
        shapes,
        0.05,
        clip=clip,
    )


@drawn(6)
@given(decay=st.floats(0.0, 0.1), momentum=st.sampled_from([0.0, 0.9]))
def test_decay_of_weights_in_the_loss(decay, momentum):
    """PyTorch's `weight_decay` of SGD is the slope of an L2 penalty of half of it."""
    random = np.random.default_rng(0)
    x = random.normal(size=(6, 5)).astype(np.float32)
    t = random.normal(size=(6, 2)).astype(np.float32)
    module = shaken(torch.nn.Linear(5, 2))
    penalty = {
        name: nn.regularizers.L2(decay / 2)
        for name in ("kernel_regularizer", "bias_regularizer")
    }
    ours = nn.Sequential([nn.Input((5,)), nn.Dense(2, **penalty)])
    ours.set_weights([each.copy() for each in dense(module)])
    ours.compile(nn.SGD(0.05, momentum=momentum), "mse")
    parameters = module.parameters()
    optimizer = torch.optim.SGD(parameters, 0.05, momentum, weight_decay=decay)
    for _ in range(10):
        optimizer.zero_grad()
        F.mse_loss(module(torch.from_numpy(x)), torch.from_numpy(t)).backward()
        optimizer.step()
        ours.train_on_batch(x, t)
        for a, b in zip(ours.get_weights(), dense(module), strict=True):
            close(a, b)
    ours.close()


schedules, lr = nn.optimizers.schedules, torch.optim.lr_scheduler
count = st.integers(1, 30)
SCHEDULES = {
    "exponential": (
        {"gamma": st.floats(0.5, 1.0)},
        lambda o: schedules.ExponentialDecay(0.1, 1, o["gamma"]),
        lambda opt, o: lr.ExponentialLR(opt, o["gamma"]),
    ),
    "steps": (
        {"every": count, "gamma": st.floats(0.5, 1.0)},
        lambda o: schedules.ExponentialDecay(0.1, o["every"], o["gamma"], True),
        lambda opt, o: lr.StepLR(opt, o["every"], o["gamma"]),
    ),
    "polynomial": (
        {"total": count, "power": st.floats(0.5, 3)},
        lambda o: schedules.PolynomialDecay(0.1, o["total"], 0.0, o["power"]),
        lambda opt, o: lr.PolynomialLR(opt, o["total"], o["power"]),
    ),
    "cosine": (
        {"total": st.just(40), "least": st.floats(0, 0.1)},
        lambda o: schedules.CosineDecay(0.1, o["total"], o["least"] / 0.1),
        lambda opt, o: lr.CosineAnnealingLR(opt, o["total"], o["least"]),
    ),
    "pieces": (
        {"first": count, "second": st.integers(31, 39)},
        lambda o: schedules.PiecewiseConstantDecay(
            [o["first"] - 1, o["second"] - 1], [0.1, 0.01, 0.001]
        ),
        lambda opt, o: lr.MultiStepLR(opt, [o["first"], o["second"]], 0.1),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
@drawn(8)
@given(data=st.data())
def test_schedules(name, data):
    own, ours, theirs = SCHEDULES[name]
    chosen = {key: data.draw(each) for key, each in own.items()}
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)
    wanted, schedule = theirs(optimizer, chosen), ours(chosen)
    for step in range(40):
        expected = wanted.get_last_lr()[0]
        assert schedule(step) == pytest.approx(expected, rel=1e-4, abs=1e-7)
        optimizer.step()
        wanted.step()
