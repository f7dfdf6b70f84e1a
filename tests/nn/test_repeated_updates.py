"""Several updates of one weight in one function, as in the critic's loop of WGAN-GP."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import memcfg as mc
from memcfg.errors import InfeasiblePlanError

nn, ops = mc.nn, mc.nn.ops
layers, optimizers = nn.layers, nn.optimizers

CRITIC_STEPS = 3


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Wasserstein(nn.Model):
    """A GAN whose critic is updated several times in a step, with a penalty."""

    def __init__(self, hidden=6):
        super().__init__()
        nn.set_random_seed(0)
        self.critic = nn.Sequential(
            [
                nn.Input((2,)),
                layers.Dense(hidden, activation="tanh", name="hidden"),
                layers.Dense(1, name="score"),
            ],
            name="critic",
        )
        self.generator = nn.Sequential(
            [nn.Input((3,)), layers.Dense(2, name="made")], name="generator"
        )

    def compile(self, critic_optimizer, generator_optimizer, **options):
        super().compile(**options)
        self.critic_optimizer = critic_optimizer
        self.generator_optimizer = generator_optimizer

    def slope(self, points):
        with mc.GradientTape() as tape:
            tape.watch(points)
            scores = self.critic(points, training=True)
        return tape.gradient(scores, points)

    def train_step(self, data):
        ((real, noise, shares),) = data
        for step in range(CRITIC_STEPS):
            with mc.GradientTape() as tape:
                fake = self.generator(noise[:, step], training=True)
                between = real + shares[:, step] * (fake - real)
                norm = ops.sqrt(ops.sum(ops.square(self.slope(between)), axis=1))
                critic_loss = (
                    ops.mean(self.critic(fake, training=True))
                    - ops.mean(self.critic(real, training=True))
                    + 10.0 * ops.mean((norm - 1.0) ** 2)
                )
            weights = self.critic.trainable_variables
            slopes = tape.gradient(critic_loss, weights)
            self.critic_optimizer.apply_gradients(zip(slopes, weights, strict=True))
        with mc.GradientTape() as tape:
            fake = self.generator(noise[:, CRITIC_STEPS], training=True)
            generator_loss = -ops.mean(self.critic(fake, training=True))
        weights = self.generator.trainable_variables
        slopes = tape.gradient(generator_loss, weights)
        self.generator_optimizer.apply_gradients(zip(slopes, weights, strict=True))
        return {"critic": critic_loss, "generator": generator_loss}


def batches(steps=3, size=8):
    for step in range(steps):
        rng = np.random.default_rng(step)
        real = rng.normal(1.0, 0.5, (size, 2)).astype(np.float32)
        noise = rng.normal(size=(size, CRITIC_STEPS + 1, 3)).astype(np.float32)
        yield real, noise, rng.random((size, CRITIC_STEPS, 1), np.float32)


class Reference:
    """The same in NumPy: slopes by central differences, in float64, and Adam."""

    def __init__(self, critic, generator):
        self.critic = [each.astype(np.float64) for each in critic]
        self.generator = [each.astype(np.float64) for each in generator]
        self.moments = {}

    def score(self, x):
        w, b, v, c = self.critic
        return (np.tanh(x @ w + b) @ v + c)[:, 0]

    def slope(self, x):
        w, b, v, _ = self.critic
        return (v[:, 0] * (1 - np.tanh(x @ w + b) ** 2)) @ w.T

    def made(self, noise):
        w, b = self.generator
        return noise @ w + b

    def critic_loss(self, real, noise, shares):
        fake = self.made(noise)
        norm = np.linalg.norm(self.slope(real + shares * (fake - real)), axis=1)
        gap = self.score(fake).mean() - self.score(real).mean()
        return gap + 10 * np.mean((norm - 1) ** 2)

    def generator_loss(self, noise):
        return -self.score(self.made(noise)).mean()

    def descend(self, name, loss, rate, step):
        """Update the weights of a network in Adam's way."""
        slopes = []
        for weight in (weights := getattr(self, name)):
            slope = np.empty_like(weight)
            for place in np.ndindex(weight.shape):
                ends, kept = [], weight[place]
                for shift in (1e-5, -1e-5):
                    weight[place] = kept + shift
                    ends.append(loss())
                weight[place] = kept
                slope[place] = (ends[0] - ends[1]) / 2e-5
            slopes.append(slope)
        for i, (weight, slope) in enumerate(zip(weights, slopes, strict=True)):
            m, v = self.moments.get((name, i), (0.0, 0.0))
            m, v = 0.5 * m + 0.5 * slope, 0.9 * v + 0.1 * slope**2
            self.moments[name, i] = m, v
            scale = np.sqrt(1 - 0.9 ** (step + 1)) / (1 - 0.5 ** (step + 1))
            weight -= rate(step) * scale * m / (np.sqrt(v) + 1e-7)

    def train(self, steps):
        """Return the losses of each step."""
        result = []
        for number, (real, noise, shares) in enumerate(steps):
            for step in range(CRITIC_STEPS):
                given = real, noise[:, step], shares[:, step]
                loss = self.critic_loss(*given)
                self.descend(
                    "critic",
                    lambda given=given: self.critic_loss(*given),
                    lambda n: 0.05 * 0.5 ** (n / 4),
                    CRITIC_STEPS * number + step,
                )
            last = noise[:, CRITIC_STEPS]
            result.append((loss, self.generator_loss(last)))
            self.descend(
                "generator",
                lambda last=last: self.generator_loss(last),
                lambda _: 0.02,
                number,
            )
        return result


def trained(limit=None, memory=None, hidden=6, size=8):
    """Return a model, the losses of each step, and the bytes of one."""
    model = Wasserstein(hidden)
    decaying = optimizers.schedules.ExponentialDecay(0.05, 4, 0.5)
    model.compile(
        nn.Adam(decaying, beta_1=0.5, beta_2=0.9),
        nn.Adam(0.02, beta_1=0.5, beta_2=0.9),
        memory=memory,
    )
    before = [model.critic.get_weights(), model.generator.get_weights()]
    mc.config.set_memory_limit("CPU:0", limit)
    try:
        losses = [
            model.train_on_batch(each, return_dict=True) for each in batches(size=size)
        ]
        report = model.memory_report(verify=True)
        after = [*model.critic.get_weights(), *model.generator.get_weights()]
    finally:
        model.close()
        mc.config.set_memory_limit("CPU:0", None)
    assert report.measured_peak_bytes == report.predicted_peak_bytes
    return model, before, after, losses, report.measured_peak_bytes


def test_the_loop_of_a_critic_computes_what_numpy_does():
    model, before, after, losses, _ = trained()
    reference = Reference(*before)
    expected = reference.train(batches())
    found = [(each["critic"], each["generator"]) for each in losses]
    assert_allclose(found, expected, rtol=2e-4, atol=2e-5)
    for ours, theirs in zip(
        after, [*reference.critic, *reference.generator], strict=True
    ):
        assert_allclose(ours, theirs, rtol=2e-3, atol=2e-5)
    assert model.critic_optimizer.iterations == 3 * CRITIC_STEPS
    assert model.generator_optimizer.iterations == 3


LARGE = {"hidden": 64, "size": 64}


@functools.cache
def kept():
    """Return the bits of three steps that keep everything, and their peak."""
    _, _, weights, losses, peak = trained(memory="keep_all", **LARGE)
    return [each.tobytes() for each in weights], losses, peak


@pytest.mark.parametrize(
    "memory",
    [
        *("auto", "sqrt_checkpoint"),
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("share", "look_ahead", "replay_elementwise", "capuchin")
        ),
    ],
)
def test_the_loop_of_a_critic_has_the_same_bits_within_half_of_its_memory(memory):
    weights, losses, peak = kept()
    _, _, others, same, less = trained(limit=peak // 2, memory=memory, **LARGE)
    assert less <= peak // 2
    assert losses == same
    assert [each.tobytes() for each in others] == weights


@pytest.mark.slow
def test_the_loop_of_a_critic_does_not_fit_within_its_weights():
    with pytest.raises(InfeasiblePlanError, match="train_step"):
        trained(limit=2048, **LARGE)


class Halved(nn.Optimizer):
    """An optimizer of a user's, with state."""

    def __init__(self, learning_rate=0.1, name=None):
        super().__init__(learning_rate, name=name)

    def build(self, variables):
        super().build(variables)
        self.sums = [
            self.add_variable_from_reference(each, "sum") for each in variables
        ]

    def update_step(self, gradient, variable, learning_rate):
        held = self.sums[self._get_variable_index(variable)]
        self.assign(held, held / 2 + gradient)
        rate = learning_rate / (ops.cast(self.iterations, "float32") + 1.0)
        self.assign_sub(variable, held * rate)


def decaying():
    return optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)


def several():
    rules = {"first/.*": nn.SGD(decaying(), momentum=0.9)}
    return optimizers.MultiOptimizer(optimizers.OptimizerMap(nn.Adam(0.1), rules))


MADE = {
    "SGD": lambda: nn.SGD(decaying(), momentum=0.9, nesterov=True),
    "Adam": lambda: nn.Adam(decaying(), amsgrad=True, weight_decay=0.01),
    "Nadam": lambda: nn.Nadam(0.1),
    "Adamax": lambda: nn.Adamax(0.1),
    "RMSprop": lambda: nn.RMSprop(0.1, centered=True, momentum=0.5),
    "Adafactor": lambda: optimizers.Adafactor(0.1),
    "Lamb": lambda: optimizers.Lamb(0.1, clipnorm=1.0),
    "ScheduleFreeAdamW": lambda: optimizers.ScheduleFreeAdamW(0.1, warmup_steps=4),
    "averaged": lambda: nn.SGD(
        0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2
    ),
    "accumulated": lambda: nn.Adam(decaying(), gradient_accumulation_steps=2),
    "clipped": lambda: nn.Adam(0.1, global_clipnorm=0.5),
    "several": several,
    "own": Halved,
}


def updated(make, together, calls=4):
    """Return losses and state of four updates: by two calls of a function, or four."""
    nn.set_random_seed(0)
    model = nn.Sequential(
        [
            nn.Input((3,)),
            layers.Dense(
                4, activation="tanh", name="first", kernel_constraint="max_norm"
            ),
            layers.Dense(1, name="second"),
        ]
    )
    optimizer = make()

    def update(x):
        with mc.GradientTape() as tape:
            loss = ops.mean(ops.square(model(x, training=True) - x[:, :1] * x[:, 1:2]))
        weights = model.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    xs = [numbers(16, 3, seed=i) for i in range(calls)]
    if together:
        step = mc.function(lambda first, second: (update(first), update(second)))
        losses = [v for a, b in zip(xs[::2], xs[1::2], strict=True) for v in step(a, b)]
    else:
        step = mc.function(update)
        losses = [step(x) for x in xs]
    state = optimizer.variables
    return losses, model.get_weights(), state, optimizer.iterations


@pytest.mark.parametrize("name", MADE)
def test_two_updates_in_a_function_are_two_calls_of_one(name):
    losses, weights, state, iterations = updated(MADE[name], together=True)
    expected, others, other_state, number = updated(MADE[name], together=False)
    assert iterations == number
    assert_array_equal(losses, expected)
    for ours, theirs in zip(weights + state, others + other_state, strict=True):
        assert_array_equal(ours, theirs)


def test_gradients_count_each_value_of_a_weight():
    """As TensorFlow's tape does: what is read before an update, and after it."""
    layer = nn.Dense(1, use_bias=False, kernel_initializer="ones")
    layer(np.ones((1, 1)))
    optimizer = nn.SGD(0.25)

    @mc.function
    def slopes(x):
        with mc.GradientTape(persistent=True) as tape:
            first = ops.sum(layer(x) ** 2)  # x**2 w**2, w = 1
            (slope,) = tape.gradient(first, [layer.kernel])
            optimizer.apply([slope], [layer.kernel])
            second = ops.sum(layer(x) ** 3)  # x**3 w**3, w = 1 - x**2 / 2
            both = first + second
        found = [tape.gradient(each, layer.kernel) for each in (first, second, both)]
        layer.kernel.assign(layer.kernel * 2.0)
        with mc.GradientTape() as tape:
            third = ops.sum(layer(x)) + ops.sum(layer.kernel**2)
        return *found, tape.gradient(third, layer.kernel)

    first, second, both, third = (each.item() for each in slopes(np.full((1, 1), 3.0)))
    w = 1 - 9 / 2
    assert first == 18
    assert second == 3 * 27 * w**2
    assert both == first + second
    assert third == 3 + 2 * (2 * w)
    assert layer.kernel.numpy() == 2 * w


def test_a_weight_is_updated_by_two_optimizers():
    layer = nn.Dense(1, use_bias=False, kernel_initializer="ones")
    layer(np.ones((1, 1)))
    first, second = nn.SGD(0.5), nn.SGD(0.25, momentum=0.5)

    @mc.function
    def step(x):
        for optimizer in (first, second, second):
            with mc.GradientTape() as tape:
                loss = ops.sum(layer(x))
            optimizer.apply(tape.gradient(loss, [layer.kernel]), [layer.kernel])
        return loss

    losses = [step(np.ones((1, 1))).item() for _ in range(2)]
    w, velocity, expected = 1.0, 0.0, []
    for _ in range(2):
        w -= 0.5
        for _ in range(2):
            expected.append(w)
            velocity = 0.5 * velocity - 0.25
            w += velocity
    assert losses == expected[1::2]
    assert layer.kernel.numpy() == w
    assert (first.iterations, second.iterations) == (2, 4)


def test_a_loss_that_is_not_finite_stops_before_the_first_update():
    model = Wasserstein()
    model.compile(nn.SGD(0.1), nn.SGD(0.1))
    real, noise, shares = next(batches())
    model.train_on_batch((real, noise, shares))
    before = [*model.critic.get_weights(), *model.generator.get_weights()]
    with pytest.raises(mc.errors.NonFiniteLossError):
        model.train_on_batch((np.full_like(real, np.nan), noise, shares))
    after = [*model.critic.get_weights(), *model.generator.get_weights()]
    for ours, theirs in zip(after, before, strict=True):
        assert_array_equal(ours, theirs)
    assert model.critic_optimizer.iterations == CRITIC_STEPS
