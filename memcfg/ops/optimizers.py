"""Update ops: they overwrite state once a step, and are never recomputed.

An optimizer's op is one formula of a weight, its gradient and its slots; ``rate`` is
the learning rate, ``t`` the number of the update from 1. Each has a variant
``_accumulated``, whose gradient is a sum over the steps of a window, and which changes
the state only at the window's last step. Formulas are Keras 3's; the classes of
`memcfg.nn.optimizers` cite the papers.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from memcfg.ops._expression import (
    equal,
    floor,
    maximum,
    minimum,
    rounded,
    select,
    sqrt,
)
from memcfg.ops._formula import elementwise

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memcfg.ops._expression import Expression

__all__: list[str] = []

_SCALARS = ("rate", "step", "product", "unit_norm", "weight_norm")


def _update(name: str, formula: Callable[..., Any], state: Sequence[str]) -> None:
    """Register an update of `state`, and its variant for accumulated gradients."""
    _register(name, formula, state, accumulated=False)
    _register(f"{name}_accumulated", formula, state, accumulated=True)


def _register(
    name: str, formula: Callable[..., Any], state: Sequence[str], *, accumulated: bool
) -> None:
    parameters = inspect.signature(formula).parameters.values()
    read = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    operands = ["step" if each == "t" else each for each in read]
    if accumulated and "step" not in operands:
        operands.append("step")

    def whole(*given: Expression, **settings: Any) -> tuple[Expression, ...]:
        values = dict(zip(operands, given, strict=True))
        number = values.get("step")
        if accumulated:
            steps, divisor = settings.pop("steps"), settings.pop("divisor")
            if "g" in values:
                values["g"] = values["g"] / divisor
            number = floor(values["step"] / steps)
        if number is not None:
            values["t"] = number + 1
        before = [values[each] for each in state]
        if "w" in values:
            decay = settings["weight_decay"] * values["rate"]
            values["w"] = values["w"] - values["w"] * decay
        made = formula(*(values[each] for each in read), **_wanted(formula, settings))
        new: tuple[Expression, ...] = made if isinstance(made, tuple) else (made,)
        if accumulated:
            due = equal(values["step"] + 1, values["t"] * steps)
            new = tuple(select(due, *pair) for pair in zip(new, before, strict=True))
        return new

    own = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    more: dict[str, Any] = {"weight_decay": 0.0} if "w" in operands else {}
    more |= {"steps": inspect.Parameter.empty, "divisor": 1.0} if accumulated else {}
    keywords = [
        inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default)
        for key, default in more.items()
        if key not in {p.name for p in own}
    ]
    positional = [
        inspect.Parameter(each, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        for each in operands
    ]
    whole.__signature__ = inspect.Signature([*positional, *own, *keywords])  # type: ignore[attr-defined]
    scalars = [each for each in operands if each in _SCALARS]
    elementwise(name, whole, scalars=scalars, state=state)


def _wanted(formula: Callable[..., Any], settings: dict[str, Any]) -> dict[str, Any]:
    known = inspect.signature(formula).parameters
    return {key: value for key, value in settings.items() if key in known}


def _moving_average(
    moving: Expression, value: Expression, *, momentum: Expression
) -> Expression:
    return momentum * moving + (1 - rounded(momentum)) * value


def _assign_last(
    variable: Expression, value: Expression, step: Expression, *, parts: Expression
) -> Expression:
    """Return the value in the last of the parts of a step, which are counted."""
    last = equal(step + 1, (floor(step / parts) + 1) * parts)
    return select(last, value, variable)


def _sgd_momentum(
    w: Expression,
    g: Expression,
    v: Expression,
    rate: Expression,
    *,
    momentum: Expression,
    nesterov: bool = False,
) -> tuple[Expression, Expression]:
    velocity = momentum * v - rate * g
    step = momentum * velocity - rate * g if nesterov else velocity
    return w + step, velocity


def _moments(
    g: Expression, m: Expression, v: Expression, b1: Expression, b2: Expression
) -> tuple[Expression, Expression]:
    return m + (g - m) * (1 - b1), v + (g * g - v) * (1 - b2)


def _adam(
    w: Expression,
    g: Expression,
    m: Expression,
    v: Expression,
    rate: Expression,
    t: Expression,
    *,
    beta_1: Expression,
    beta_2: Expression,
    epsilon: Expression,
) -> tuple[Expression, ...]:
    alpha = rate * sqrt(1 - beta_2**t) / (1 - beta_1**t)
    first, second = _moments(g, m, v, beta_1, beta_2)
    return w - alpha * first / (sqrt(second) + epsilon), first, second


def _adam_amsgrad(
    w: Expression,
    g: Expression,
    m: Expression,
    v: Expression,
    most: Expression,
    rate: Expression,
    t: Expression,
    *,
    beta_1: Expression,
    beta_2: Expression,
    epsilon: Expression,
) -> tuple[Expression, ...]:
    alpha = rate * sqrt(1 - beta_2**t) / (1 - beta_1**t)
    first, second = _moments(g, m, v, beta_1, beta_2)
    top = maximum(most, second)
    return w - alpha * first / (sqrt(top) + epsilon), first, second, top


def _adamax(
    w: Expression,
    g: Expression,
    m: Expression,
    u: Expression,
    rate: Expression,
    t: Expression,
    *,
    beta_1: Expression,
    beta_2: Expression,
    epsilon: Expression,
) -> tuple[Expression, ...]:
    first, norm = m + (g - m) * (1 - beta_1), maximum(beta_2 * u, abs(g))
    alpha = rate / (1 - beta_1**t)
    return w - alpha * first / (norm + epsilon), first, norm


def _schedule(beta_1: Expression, t: Expression) -> Expression:
    """Return Nadam's momentum of an update."""
    return beta_1 * (1 - 0.5 * 0.96**t)


def _nadam(
    w: Expression,
    g: Expression,
    m: Expression,
    v: Expression,
    rate: Expression,
    product: Expression,  # of the momenta of all updates, including this one
    t: Expression,
    *,
    beta_1: Expression,
    beta_2: Expression,
    epsilon: Expression,
) -> tuple[Expression, ...]:
    now, after = _schedule(beta_1, t), _schedule(beta_1, t + 1)
    first, second = _moments(g, m, v, beta_1, beta_2)
    ahead = first * (after / (1 - product * after)) + g * ((1 - now) / (1 - product))
    root = sqrt(second / (1 - beta_2**t))
    return w - rate * ahead / (root + epsilon), first, second


def _adagrad(
    w: Expression,
    g: Expression,
    a: Expression,
    rate: Expression,
    *,
    epsilon: Expression,
) -> tuple[Expression, ...]:
    total = a + g * g
    return w - rate * g / sqrt(total + epsilon), total


def _ftrl(
    w: Expression,
    g: Expression,
    a: Expression,
    z: Expression,
    rate: Expression,
    *,
    learning_rate_power: Expression,
    l1_regularization_strength: Expression,
    l2_regularization_strength: Expression,
    l2_shrinkage_regularization_strength: Expression,
    beta: Expression,
) -> tuple[Expression, ...]:
    shrunk = g + 2 * l2_shrinkage_regularization_strength * w
    total, l1 = a + g * g, l1_regularization_strength
    powers = [each ** (-learning_rate_power) for each in (total, a)]
    linear = z + (shrunk - (powers[0] - powers[1]) / rate * w)
    penalty = 2 * (l2_regularization_strength + beta / (2 * rate))
    near = minimum(maximum(linear, -l1), l1)
    return (near - linear) / (powers[0] / rate + penalty), total, linear


def _schedule_free(
    w: Expression,
    g: Expression,
    z: Expression,
    v: Expression,
    rate: Expression,
    t: Expression,
    *,
    beta_1: Expression,
    beta_2: Expression,
    epsilon: Expression,
    warmup_steps: Expression,
    weight_decay: Expression | float = 0.0,
) -> tuple[Expression, ...]:
    # A weight's first update finds zeros: the iterate begins with the weight, which
    # has decayed by now.
    first = select(equal(z, 0), w / (1 - weight_decay * rate), z)
    before = select(equal(v, 0), first, z)
    warm = rate * minimum(t / maximum(warmup_steps, 1), 1)
    squares = v + (g * g - v) * (1 - beta_2)
    after = before - warm * g / (sqrt(squares / (1 - beta_2**t)) + epsilon)
    mean = (w - (1 - beta_1) * before) / beta_1
    moved = (1 - 1 / t) * mean + after / t
    return (1 - beta_1) * after + beta_1 * moved, after, squares


def _adadelta(
    w: Expression,
    g: Expression,
    a: Expression,
    d: Expression,
    rate: Expression,
    *,
    rho: Expression,
    epsilon: Expression,
) -> tuple[Expression, ...]:
    squares = rho * a + (1 - rho) * (g * g)
    delta = sqrt(d + epsilon) * g / sqrt(squares + epsilon)
    return w - rate * delta, squares, rho * d + (1 - rho) * (delta * delta)


def _lion(
    w: Expression,
    g: Expression,
    m: Expression,
    rate: Expression,
    *,
    beta_1: Expression,
    beta_2: Expression,
) -> tuple[Expression, ...]:
    c = beta_1 * m + (1 - beta_1) * g
    sign = select(c < 0, -1, select(c > 0, 1, c))  # NaN stays NaN
    return w - rate * sign, beta_2 * m + (1 - beta_2) * g


def _rmsprop(
    w: Expression,
    g: Expression,
    v: Expression,
    rate: Expression,
    *,
    rho: Expression,
    epsilon: Expression,
) -> tuple[Expression, ...]:
    squares = rho * v + (1 - rho) * (g * g)
    return w - rate * g / sqrt(squares + epsilon), squares


def _with_momentum(m: Expression, momentum: Expression, step: Expression) -> Expression:
    """Add by a difference: which of two NaN a sum returns is up to the compiler."""
    return step - (-momentum) * m


def _rmsprop_momentum(
    w: Expression,
    g: Expression,
    v: Expression,
    m: Expression,
    rate: Expression,
    *,
    rho: Expression,
    momentum: Expression,
    epsilon: Expression,
) -> tuple[Expression, ...]:
    squares = rho * v + (1 - rho) * (g * g)
    step = _with_momentum(m, momentum, rate * g / sqrt(squares + epsilon))
    return w - step, squares, step


def _rmsprop_centered(
    w: Expression,
    g: Expression,
    v: Expression,
    a: Expression,
    rate: Expression,
    *,
    rho: Expression,
    epsilon: Expression,
) -> tuple[Expression, ...]:
    squares, mean = rho * v + (1 - rho) * (g * g), rho * a + (1 - rho) * g
    return w - rate * g / sqrt(squares - mean * mean + epsilon), squares, mean


def _rmsprop_centered_momentum(
    w: Expression,
    g: Expression,
    v: Expression,
    m: Expression,
    a: Expression,
    rate: Expression,
    *,
    rho: Expression,
    momentum: Expression,
    epsilon: Expression,
) -> tuple[Expression, ...]:
    squares, mean = rho * v + (1 - rho) * (g * g), rho * a + (1 - rho) * g
    step = rate * g / sqrt(squares - mean * mean + epsilon)
    step = _with_momentum(m, momentum, step)
    return w - step, squares, step, mean


def _adafactor_moment(
    moment: Expression,
    mean: Expression,  # of squared gradients
    t: Expression,
    *,
    beta_2_decay: Expression,
) -> Expression:
    stays = 1 - t**beta_2_decay
    return stays * moment + (1 - stays) * mean


def _adafactor_vector(
    moment: Expression,
    g: Expression,
    t: Expression,
    *,
    beta_2_decay: Expression,
    epsilon_1: Expression,
) -> Expression:
    return _adafactor_moment(moment, g * g + epsilon_1, t, beta_2_decay=beta_2_decay)


def _adafactor(
    w: Expression,
    unit: Expression,
    rate: Expression,
    t: Expression,
    unit_norm: Expression,
    weight_norm: Expression,  # before the weight decays
    *,
    size: Expression,
    epsilon_2: Expression,
    clip_threshold: Expression,
    weight_decay: Expression,
) -> Expression:
    root = weight_norm / sqrt(size) * abs(1 - weight_decay * rate)
    alpha = maximum(epsilon_2, root) * minimum(rate, 1 / sqrt(t))
    clip = maximum(1, unit_norm / sqrt(size) / clip_threshold)
    return w - unit * (alpha / clip)


def _lamb_unit(
    m: Expression,
    v: Expression,
    step: Expression,
    *,
    beta_1: Expression,
    beta_2: Expression,
    epsilon: Expression,
    steps: Any = 1.0,
) -> Expression:
    t = floor(step / steps) + 1
    return m / (1 - beta_1**t) / (sqrt(v / (1 - beta_2**t)) + epsilon)


def _lamb(
    w: Expression,
    unit: Expression,
    rate: Expression,
    unit_norm: Expression,
    weight_norm: Expression,  # before the weight decays
    *,
    weight_decay: Expression,
) -> Expression:
    length = weight_norm * abs(1 - weight_decay * rate)
    ratio = select(length > 0, select(unit_norm > 0, length / unit_norm, 1), 1)
    return w - unit * (ratio * rate)


def _average(
    average: Expression,
    w: Expression,
    step: Expression,
    *,
    momentum: Expression,
    steps: Expression,
    parts: Any = 1.0,
) -> Expression:
    batch = floor(step / parts)
    stays = select(
        floor(batch / steps) < 1, 0, momentum
    )  # the first average is the weight
    ends = equal(step + 1, (batch + 1) * parts)  # of several parts of a batch the last
    return select(ends, stays * average + (1 - stays) * w, average)


def _average_overwriting(
    w: Expression,
    average: Expression,
    step: Expression,
    *,
    momentum: Expression,
    steps: Expression,
    frequency: Expression,
    parts: Any = 1.0,
) -> tuple[Expression, Expression]:
    new = _average(average, w, step, momentum=momentum, steps=steps, parts=parts)
    batch = floor(step / parts)
    number = floor(batch / steps) + 1
    due = equal(number, floor(number / frequency) * frequency)
    ends = equal(step + 1, (batch + 1) * parts)
    return select(ends, select(due, new, w), w), new


def _accumulate(
    total: Expression, g: Expression, step: Expression, *, steps: Expression
) -> Expression:
    first = equal(step, floor(step / steps) * steps)
    return select(first, 0, total) + g


def _accumulate_parts(
    total: Expression,
    g: Expression,
    step: Expression,
    *,
    steps: Expression,
    parts: Expression,
) -> Expression:
    """Add the gradient that the parts of a step have summed, with its last part."""
    number = floor(step / parts)
    last = equal(step + 1, (number + 1) * parts)
    first = equal(number * parts, floor(step / steps) * steps)
    return select(last, select(first, 0, total) + g, total)


def _clip_by_norm(
    g: Expression, length: Expression, *, norm: Expression, divisor: Expression
) -> Expression:
    return g * (norm / maximum(length, norm * divisor) + (length - length))


def _clip_by_value(
    g: Expression, *, limit: Expression, divisor: Expression
) -> Expression:
    return minimum(maximum(g / divisor, -limit), limit)


def _threshold_split(
    residual: Expression,
    g: Expression,
    threshold: Expression,
    residual_limit: Expression,
) -> tuple[Expression, Expression]:
    """Return what is left of a gradient, and its elements of at least the threshold.

    What is not finite becomes NaN in both.
    """
    v = residual + g
    sent = select(v < threshold, select(v > -threshold, 0, -threshold), threshold)
    sent = sent + (v - v)
    rest = minimum(maximum(v - sent, -residual_limit), residual_limit)
    return rest, sent


elementwise("moving_average", _moving_average, state=("moving",))
elementwise("assign", lambda variable, value: value, state=("variable",))
elementwise("assign_last", _assign_last, scalars=("step",), state=("variable",))
elementwise("accumulate", _accumulate, scalars=("step",), state=("total",))
elementwise("accumulate_parts", _accumulate_parts, scalars=("step",), state=("total",))
elementwise("average", _average, scalars=("step",), state=("average",))
elementwise(
    "average_overwriting",
    _average_overwriting,
    scalars=("step",),
    state=("w", "average"),
)
elementwise(
    "threshold_split",
    _threshold_split,
    scalars=("threshold", "residual_limit"),
    state=("residual", "g"),
)
elementwise("clip_by_norm", _clip_by_norm, scalars=("length",))
elementwise("clip_by_value", _clip_by_value)
elementwise("mean_gradient", lambda g, *, divisor: g / divisor)
elementwise("over_root", lambda g, squares: g / sqrt(squares))

_update("sgd", lambda w, g, rate: w - rate * g, ("w",))
_update("sgd_momentum", _sgd_momentum, ("w", "v"))
_update("adam", _adam, ("w", "m", "v"))
_update("adam_amsgrad", _adam_amsgrad, ("w", "m", "v", "most"))
_update("adamax", _adamax, ("w", "m", "u"))
_update("nadam", _nadam, ("w", "m", "v"))
_update(
    "nadam_product",
    lambda product_before, t, *, beta_1: product_before * _schedule(beta_1, t),
    ("product_before",),
)
_update("adagrad", _adagrad, ("w", "a"))
_update("adadelta", _adadelta, ("w", "a", "d"))
_update("ftrl", _ftrl, ("w", "a", "z"))
_update("schedule_free_adamw", _schedule_free, ("w", "z", "v"))
_update("lion", _lion, ("w", "m"))
_update("rmsprop", _rmsprop, ("w", "v"))
_update("rmsprop_momentum", _rmsprop_momentum, ("w", "v", "m"))
_update("rmsprop_centered", _rmsprop_centered, ("w", "v", "a"))
_update("rmsprop_centered_momentum", _rmsprop_centered_momentum, ("w", "v", "m", "a"))
_update("adafactor_moment", _adafactor_moment, ("moment",))
_update("adafactor_vector", _adafactor_vector, ("moment",))
_update("adafactor", _adafactor, ("w",))
_update(
    "lamb_moments",
    lambda m, v, g, *, beta_1, beta_2: _moments(g, m, v, beta_1, beta_2),
    ("m", "v"),
)
elementwise("lamb_unit", _lamb_unit, scalars=("step",))
_update("lamb", _lamb, ("w",))
_update("muon_momentum", lambda m, g, *, momentum: momentum * m + g, ("m",))
_update("muon", lambda w, unit, rate, *, factor: w - unit * (factor * rate), ("w",))
