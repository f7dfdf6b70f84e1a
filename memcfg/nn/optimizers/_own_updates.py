"""Updates of weights by a user's `update_step`, traced with Keras's names."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from memcfg.nn.layers._layer import (
    Scope,
    SymbolicTensor,
    Variable,
    WeightSpec,
    calls_to,
    is_whole,
    start_of,
)

__all__ = [
    "HeldVariable",
    "add_state",
    "current_iterations",
    "declared",
    "trace_update",
]

_FIRST = {"zeros": 0.0, "ones": 1.0}
_iterations: ContextVar[Any] = ContextVar("iterations", default=None)
_made: ContextVar[list[HeldVariable] | None] = ContextVar("made", default=None)


def current_iterations() -> Any:
    """Return the number of updates as a tensor of the `update_step` that is traced."""
    return _iterations.get()


class _Symbols:
    """What ops and operators ask of a weight, here of a held variable."""

    @staticmethod
    def symbol(variable: HeldVariable) -> Any:
        """Return the value at this place of the update."""
        return variable._symbol


class HeldVariable(Variable):
    """A weight, or state of it, in `update_step`; `assign` replaces its value."""

    __slots__ = ("_symbol", "first", "of")

    functions = _Symbols()

    def __init__(
        self, name: str, shape: tuple[int, ...], first: float = 0.0, symbol: Any = None
    ) -> None:
        of_itself: Any = object()  # in the place of a layer: it equals no other
        super().__init__(of_itself, 0, name)
        self.of = WeightSpec(name, shape, None)  # type: ignore[arg-type]
        self.first = first
        self._symbol = symbol

    @property
    def _spec(self) -> WeightSpec:
        return self.of

    def assign(self, value: Any) -> None:
        """Replace the value by a tensor of this shape."""
        if isinstance(value, HeldVariable):
            value = value._symbol
        if not is_whole(value) or value.shape != self.shape:
            raise ValueError(
                f"{self.path!r} of an update_step must have shape {self.shape}, got "
                f"{value!r}"
            )
        self._symbol = value

    def assign_add(self, value: Any) -> None:
        """Add a tensor to the value."""
        self.assign(self + value)

    def assign_sub(self, value: Any) -> None:
        """Subtract a tensor from the value."""
        self.assign(self - value)


def declared(optimizer: Any, variable: HeldVariable) -> list[HeldVariable]:
    """Return the state that the optimizer's `build` makes for one weight."""
    made: list[HeldVariable] = []
    token = _made.set(made)
    try:
        optimizer.build([variable])
    finally:
        _made.reset(token)
    return made


def add_state(reference: Any, name: str | None, initializer: Any) -> HeldVariable:
    """Note a state tensor of the shape of a weight; RuntimeError outside of `build`."""
    made = _made.get()
    if made is None or not isinstance(reference, HeldVariable):
        raise RuntimeError("the state of an optimizer is made in its build(variables)")
    if initializer not in _FIRST:
        raise ValueError(
            f"the state of an optimizer starts with 'zeros' or 'ones', not "
            f"{initializer!r}"
        )
    name = name or "state"
    taken = {each.path for each in made}
    if name in taken:
        name = next(n for i in range(1, 99) if (n := f"{name}_{i}") not in taken)
    made.append(HeldVariable(name, reference.shape, _FIRST[initializer]))
    return made[-1]


def trace_update(
    optimizer: Any, updates: Any, name: str, operands: tuple[int, int]
) -> list[int]:
    """Append the ops of `update_step`; return the new values of weight and state."""
    kind, builder = type(optimizer).__name__, updates.builder
    if updates.steps is not None:
        raise ValueError(
            f"{kind}.update_step updates in every step: leave out "
            "gradient_accumulation_steps"
        )
    weight, gradient = operands
    label = f"{optimizer.kind}/{name}"
    shape = builder.shape(weight)
    (count,) = builder.apply(
        "cast",
        (updates.step(),),
        {"dtype": "float32"},
        name=f"{label}/iterations",
        phase="backward",
    )
    given = {"gradient": gradient, "rate": updates.rate, "iterations": count}
    starts = {each: start_of(builder.shape(i), "float32") for each, i in given.items()}
    values = {starts[each]: i for each, i in given.items()}
    variable = HeldVariable(name, shape)
    held = [variable, *declared(optimizer, variable)]
    before = [weight, *(updates.state[f"{label}/{each.path}"] for each in held[1:])]
    firsts: list[SymbolicTensor] = []
    for each, tensor in zip(held, before, strict=True):
        each._symbol = start_of(builder.shape(tensor), "float32")
        firsts.append(each._symbol)
        values[each._symbol] = tensor
    if optimizer.weight_decay and not optimizer._decay(name):
        variable.assign_sub(variable * (starts["rate"] * optimizer.weight_decay))
    token = _iterations.set(starts["iterations"])
    try:
        optimizer.update_step(starts["gradient"], variable, starts["rate"])
    finally:
        _iterations.reset(token)
    if variable._symbol is firsts[0]:
        raise ValueError(f"{kind}.update_step assigns no value to the weight {name!r}")
    ends = [each._symbol for each in held]
    phase, builder.phase = builder.phase, "backward"
    scope = Scope(builder, label, {}, training=False)
    scope.trace(calls_to([x for x in ends if x not in values]), values, {})
    builder.phase = phase
    for each in held:
        each._symbol = None  # copies of the optimizer have none
    return [
        builder.apply(
            "assign", (old, values[end]), name=f"{label}/{each.path}", phase="update"
        )[0]
        for each, old, end in zip(held, before, ends, strict=True)
    ]
