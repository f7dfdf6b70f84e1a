"""An optimizer on given gradients: on the device, and in NumPy from Keras's formulas.

The oracle shares no code with `memcfg`: float64, one weight after the other, state by
weight and name.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from hypothesis import strategies as st

import memcfg as mc
from memcfg.graph import Builder, hoist_updates
from memcfg.plan import share
from memcfg.runtime import Executor

optimizers = mc.nn.optimizers

parts = st.floats(0.3, 0.99).map(lambda value: round(value, 3))
betas = {"beta_1": parts, "beta_2": parts}
small = {"epsilon": st.sampled_from([1e-7, 1e-3])}
switch = st.booleans()
RULES = {
    "sgd": {"momentum": st.sampled_from([0.0, 0.5, 0.9]), "nesterov": switch},
    "adam": betas | small | {"amsgrad": switch},
    "adamw": betas | small | {"amsgrad": switch},
    "adamax": betas | small,
    "nadam": betas | small,
    "rmsprop": {
        "rho": parts,
        "momentum": st.sampled_from([0.0, 0.7]),
        "centered": switch,
        **small,
    },
    "adagrad": {"initial_accumulator_value": st.sampled_from([0.0, 0.1]), **small},
    "adadelta": {"rho": parts, **small},
    "lion": betas,
    "ftrl": {
        "learning_rate_power": st.sampled_from([-0.5, -0.8, 0.0]),
        "initial_accumulator_value": st.sampled_from([0.1, 0.5]),
        "l1_regularization_strength": st.sampled_from([0.0, 0.3]),
        "l2_regularization_strength": st.sampled_from([0.0, 0.2]),
        "l2_shrinkage_regularization_strength": st.sampled_from([0.0, 0.1]),
        "beta": st.sampled_from([0.0, 0.5]),
    },
    "schedulefreeadamw": {
        **betas,
        "epsilon": st.sampled_from([1e-8, 1e-3]),
        "warmup_steps": st.sampled_from([0, 4]),
    },
    "lamb": betas | small,
    "muon": {
        "momentum": st.sampled_from([0.5, 0.95]),
        "nesterov": switch,
        "ns_steps": st.integers(1, 5),
        "rms_rate": st.sampled_from([None, 0.2]),
        "adam_lr_ratio": st.sampled_from([0.5, 1, 2]),
        "adam_weight_decay": st.sampled_from([0.0, 0.1]),
    },
    "adafactor": {
        "beta_2_decay": st.sampled_from([-0.8, -0.5]),
        "epsilon_2": st.sampled_from([1e-3, 0.5]),
        "clip_threshold": st.sampled_from([0.5, 1.0, 2.0]),
        "relative_step": switch,
    },
}
CLASSES = {
    each.kind: each for each in vars(optimizers).values() if hasattr(each, "kind")
}


@st.composite
def drawn(draw, kind):
    """Settings of an optimizer, each left out as often as not."""
    found = draw(st.fixed_dictionaries({}, optional=RULES[kind]))
    if found.get("nesterov") and not found.get("momentum"):
        found["momentum"] = 0.9
    found |= draw(
        st.fixed_dictionaries(
            {},
            optional={
                "weight_decay": st.sampled_from([0.004, 0.1]),
                "gradient_accumulation_steps": st.integers(2, 4),
            },
        )
    )
    clip = draw(st.sampled_from([None, "clipnorm", "clipvalue", "global_clipnorm"]))
    if clip is not None:
        found[clip] = draw(st.sampled_from([0.3, 3.0]))
    if draw(switch):
        found |= {"use_ema": True, "ema_momentum": draw(parts)}
        found["ema_overwrite_frequency"] = draw(st.sampled_from([None, 1, 3]))
    return found


def values(shapes, seed):
    """Arrays by name."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(size=shape).astype(np.float32)
        for name, shape in shapes.items()
    }


class OnDevice:
    """A program that has an optimizer's updates alone; gradients are its inputs."""

    def __init__(self, optimizer, weights, policy=None):
        self.optimizer, self.names, self.steps = optimizer, list(weights), 0
        builder = Builder("updates")
        given = {
            k: builder.tensor(k, v.shape, role="parameter") for k, v in weights.items()
        }
        described = [
            SimpleNamespace(name=k, key=k, shape=v.shape, dtype="float32")
            for k, v in weights.items()
        ]
        self.slots = optimizer.state(described)
        state = {
            slot.name: builder.tensor(slot.name, slot.shape, role="optimizer_state")
            for slot in self.slots
        }
        gradients = {
            k: builder.tensor(f"d{k}", v.shape, role="input")
            for k, v in weights.items()
        }
        rate = builder.tensor("learning_rate", (), role="input")
        found = {}

        def step():
            if not found:
                found["step"] = builder.tensor("step", (), "int64", role="input")
            return found["step"]

        new = optimizer.trace(builder, given, gradients, state, rate, step)
        self.graph = hoist_updates(builder.build(keep=new))
        values = {k: np.asarray(v, np.float32) for k, v in weights.items()}
        values |= {slot.name: slot.first_value() for slot in self.slots}
        self.executor = Executor(mc.config.logical_device(), name="updates")
        self.executor.load({"train": self.graph}, policy or share(), values)

    def step(self, gradients, rate):
        """Make a step; the weights after it."""
        feeds = {f"d{name}": gradients[name] for name in self.names}
        feeds |= {"learning_rate": rate, "step": self.steps}
        for tensor in self.graph.tensors:
            if tensor.role == "input" and tensor.name in feeds:
                self.executor.feed("train", tensor.name)[...] = feeds[tensor.name]
        assert self.executor.run("train")
        self.steps += 1
        return {name: self.executor.read_state(name) for name in self.names}

    def close(self):
        self.executor.close()


class Oracle:
    """Keras 3's optimizers in NumPy."""

    def __init__(self, kind, settings, weights):
        self.rule, self.settings = getattr(self, f"_{kind}"), settings
        self.weights = {k: np.asarray(v, np.float64) for k, v in weights.items()}
        self.state, self.raw, self.product = {}, 0, 1.0

    def kept(self, weight, name, value=0.0):
        """State of a weight; a new one is full of a value."""
        shape = self.weights[weight].shape
        return self.state.setdefault((weight, name), np.full(shape, value))

    def step(self, gradients, rate):
        s = self.settings
        gradients = {k: np.asarray(g, np.float64) for k, g in gradients.items()}
        window = s.get("gradient_accumulation_steps") or 1
        updates = self.raw // window
        due = (self.raw + 1) % window == 0
        for k, g in gradients.items():
            self.state[k, "sum"] = self.kept(k, "sum") + g
        if due:
            means = {k: self.state[k, "sum"] / window for k in gradients}
            self._apply(self._clipped(means), rate, updates + 1)
            for k in gradients:
                self.state[k, "sum"] = np.zeros_like(means[k])
        if s.get("use_ema"):
            momentum = s.get("ema_momentum", 0.99) if updates else 0
            for k, w in self.weights.items():
                average = momentum * self.kept(k, "ema") + (1 - momentum) * w
                self.state[k, "ema"] = average
                every = s.get("ema_overwrite_frequency")
                if every and (updates + 1) % every == 0:
                    self.weights[k] = average.copy()
        self.raw += 1
        return {k: w.copy() for k, w in self.weights.items()}

    def _clipped(self, gradients):
        s = self.settings
        if s.get("clipvalue"):
            return {
                k: np.clip(g, -s["clipvalue"], s["clipvalue"])
                for k, g in gradients.items()
            }
        squares = {k: (g**2).sum() for k, g in gradients.items()}
        limit = s.get("clipnorm") or s.get("global_clipnorm")
        if limit is None:
            return gradients
        total = sum(squares.values())
        if s.get("global_clipnorm"):
            squares = dict.fromkeys(squares, total)
        return {
            k: g * min(1, limit / np.sqrt(squares[k])) if squares[k] else g
            for k, g in gradients.items()
        }

    def _apply(self, gradients, rate, t):
        if self.rule.__name__ == "_nadam":
            b1 = self.settings.get("beta_1", 0.9)
            self.product *= b1 * (1 - 0.5 * 0.96**t)
        for k, g in gradients.items():
            usual = 0.004 if self.rule.__name__ == "_muon" else 0
            decay = self.settings.get("weight_decay", usual)
            if usual and g.ndim != 2:
                decay = self.settings.get("adam_weight_decay", usual)
            self.weights[k] = self.weights[k] * (1 - decay * rate)
            self.weights[k] = self.weights[k] + self.rule(k, g, rate, t, **self.own())

    def own(self):
        shared = (
            *("weight_decay", "clipnorm", "clipvalue", "global_clipnorm", "use_ema"),
            *("ema_momentum", "ema_overwrite_frequency", "gradient_accumulation_steps"),
        )
        return {k: v for k, v in self.settings.items() if k not in shared}

    def _put(self, weight, name, value):
        self.state[weight, name] = value
        return value

    def _sgd(self, k, g, rate, t, momentum=0.0, nesterov=False):
        v = self._put(k, "v", momentum * self.kept(k, "v") - rate * g)
        return momentum * v - rate * g if nesterov else v

    def _moments(self, k, g, b1, b2):
        m = self._put(k, "m", b1 * self.kept(k, "m") + (1 - b1) * g)
        v = self._put(k, "s", b2 * self.kept(k, "s") + (1 - b2) * g**2)
        return m, v

    def _adam(
        self, k, g, rate, t, beta_1=0.9, beta_2=0.999, epsilon=1e-7, amsgrad=False
    ):
        m, v = self._moments(k, g, beta_1, beta_2)
        if amsgrad:
            v = self._put(k, "top", np.maximum(self.kept(k, "top"), v))
        alpha = rate * np.sqrt(1 - beta_2**t) / (1 - beta_1**t)
        return -alpha * m / (np.sqrt(v) + epsilon)

    _adamw = _adam

    def _ftrl(
        self,
        k,
        g,
        rate,
        t,
        learning_rate_power=-0.5,
        initial_accumulator_value=0.1,
        l1_regularization_strength=0.0,
        l2_regularization_strength=0.0,
        l2_shrinkage_regularization_strength=0.0,
        beta=0.0,
    ):
        w, p = self.weights[k], -learning_rate_power
        a = self.kept(k, "a", initial_accumulator_value)
        n = self._put(k, "a", a + g**2)
        sigma = (n**p - a**p) / rate
        shrunk = g + 2 * l2_shrinkage_regularization_strength * w
        z = self._put(k, "z", self.kept(k, "z") + shrunk - sigma * w)
        by = n**p / rate + 2 * l2_regularization_strength + beta / rate
        beyond = np.maximum(np.abs(z) - l1_regularization_strength, 0)
        return -np.sign(z) * beyond / by - w

    def _schedulefreeadamw(
        self, k, g, rate, t, beta_1=0.9, beta_2=0.999, epsilon=1e-8, warmup_steps=0
    ):
        w = self.weights[k]
        if (k, "z") not in self.state:  # the weight before it decays
            self.state[k, "z"] = w / (1 - self.settings.get("weight_decay", 0) * rate)
        z = self.state[k, "z"]
        mean = (w - (1 - beta_1) * z) / beta_1
        v = self._put(k, "s", beta_2 * self.kept(k, "s") + (1 - beta_2) * g**2)
        warm = rate * min(t / warmup_steps, 1) if warmup_steps else rate
        z = z - warm * g / (np.sqrt(v / (1 - beta_2**t)) + epsilon)
        self._put(k, "z", z)
        mean = mean + (z - mean) / t
        return (1 - beta_1) * z + beta_1 * mean - w

    def _adamax(self, k, g, rate, t, beta_1=0.9, beta_2=0.999, epsilon=1e-7):
        m = self._put(k, "m", beta_1 * self.kept(k, "m") + (1 - beta_1) * g)
        u = self._put(k, "u", np.maximum(beta_2 * self.kept(k, "u"), np.abs(g)))
        return -rate * m / ((1 - beta_1**t) * (u + epsilon))

    def _nadam(self, k, g, rate, t, beta_1=0.9, beta_2=0.999, epsilon=1e-7):
        m, v = self._moments(k, g, beta_1, beta_2)
        now, after = (beta_1 * (1 - 0.5 * 0.96**n) for n in (t, t + 1))
        ahead = after * m / (1 - self.product * after)
        ahead = ahead + (1 - now) * g / (1 - self.product)
        return -rate * ahead / (np.sqrt(v / (1 - beta_2**t)) + epsilon)

    def _rmsprop(
        self, k, g, rate, t, rho=0.9, momentum=0.0, epsilon=1e-7, centered=False
    ):
        v = self._put(k, "s", rho * self.kept(k, "s") + (1 - rho) * g**2)
        if centered:
            mean = self._put(k, "a", rho * self.kept(k, "a") + (1 - rho) * g)
            v = v - mean**2
        step = rate * g / np.sqrt(v + epsilon)
        return -self._put(k, "v", momentum * self.kept(k, "v") + step)

    def _adagrad(self, k, g, rate, t, initial_accumulator_value=0.1, epsilon=1e-7):
        a = self.kept(k, "a", initial_accumulator_value)
        a = self._put(k, "a", a + g**2)
        return -rate * g / np.sqrt(a + epsilon)

    def _adadelta(self, k, g, rate, t, rho=0.95, epsilon=1e-7):
        a = self._put(k, "a", rho * self.kept(k, "a") + (1 - rho) * g**2)
        d = -np.sqrt(self.kept(k, "d") + epsilon) * g / np.sqrt(a + epsilon)
        self._put(k, "d", rho * self.kept(k, "d") + (1 - rho) * d**2)
        return rate * d

    def _lion(self, k, g, rate, t, beta_1=0.9, beta_2=0.99):
        m = self.kept(k, "m")
        self._put(k, "m", beta_2 * m + (1 - beta_2) * g)
        return -rate * np.sign(beta_1 * m + (1 - beta_1) * g)

    def _lamb(self, k, g, rate, t, beta_1=0.9, beta_2=0.999, epsilon=1e-7):
        m, v = self._moments(k, g, beta_1, beta_2)
        unit = m / (1 - beta_1**t) / (np.sqrt(v / (1 - beta_2**t)) + epsilon)
        norms = [np.sqrt((each**2).sum()) for each in (self.weights[k], unit)]
        return -rate * unit * (norms[0] / norms[1] if min(norms) > 0 else 1)

    def _muon(
        self,
        k,
        g,
        rate,
        t,
        momentum=0.95,
        nesterov=True,
        ns_steps=5,
        rms_rate=0.2,
        adam_lr_ratio=1,
        adam_weight_decay=0.004,
    ):
        del adam_weight_decay
        if g.ndim != 2:
            return self._adam(k, g, rate * adam_lr_ratio, t)
        m = self._put(k, "m", momentum * self.kept(k, "m") + g)
        x = g + momentum * m if nesterov else m
        x = x.T if x.shape[0] > x.shape[1] else x
        x = x / (np.linalg.norm(x) + 1e-7)
        for _ in range(ns_steps):
            square = x @ x.T
            x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
        x = x.T if x.shape != g.shape else x
        return -rate * x * (1 if rms_rate is None else rms_rate * max(g.shape) ** 0.5)

    def _adafactor(
        self,
        k,
        g,
        rate,
        t,
        beta_2_decay=-0.8,
        epsilon_1=1e-30,
        epsilon_2=1e-3,
        clip_threshold=1.0,
        relative_step=True,
    ):
        del relative_step
        stays, w = 1 - t**beta_2_decay, self.weights[k]
        squares = g**2 + epsilon_1
        if g.ndim < 2:
            v = self._put(k, "v", stays * self.kept(k, "v") + (1 - stays) * squares)
        else:
            moments = []
            for axis in (-1, -2):
                mean = (1 - stays) * squares.mean(axis)
                if t > 1:
                    mean = mean + stays * self.state[k, axis]
                moments.append(self._put(k, axis, mean))
            rows, columns = moments
            v = np.einsum("...i,...j->...ij", rows, columns)
            v = v / rows.mean(-1)[..., None, None]
        unit = g / np.sqrt(v)
        unit = unit / max(1, np.sqrt((unit**2).mean()) / clip_threshold)
        size = max(epsilon_2, np.sqrt((w**2).mean()))
        return -size * min(rate, 1 / np.sqrt(t)) * unit
