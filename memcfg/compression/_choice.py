"""The weights of a model that are compressed, and settings for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from memcfg.nn import Model

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.nn._network import Weight

__all__ = ["check_model", "compressible", "plain_steps", "settings_of"]

T = TypeVar("T")


def check_model(model: Any, what: str) -> None:
    """Raise TypeError for what is no model."""
    if not isinstance(model, Model):
        raise TypeError(f"{what} takes a Model, got {type(model).__name__}")


def compressible(model: Any, what: str) -> dict[str, Weight]:
    """Return the weights of two or more axes by name, such as kernels.

    Biases and the weights of normalizations have one axis.
    """
    check_model(model, what)
    network = model._built_network()
    found = {w.name: w for w in network.exchanged if len(w.shape) > 1}
    found = {name: w for name, w in found.items() if w.dtype == "float32"}
    if not found:
        raise ValueError(
            f"{what}: {model.name!r} has no weights of two or more axes, such as the "
            "kernel of Dense"
        )
    return found


def plain_steps(model: Model, what: str) -> None:
    """Raise ValueError for a model whose steps are its own."""
    if model._own_steps() is not None:
        raise ValueError(
            f"{what}: {model.name!r} has steps of its own, which read plain weights: "
            "use a model with the steps of fit"
        )


def settings_of(
    found: Mapping[str, Weight], given: Any, check: Callable[[Any, str], T], what: str
) -> dict[str, T]:
    """Return a setting by weight: one for all, or by name of the weight or layer."""
    if not isinstance(given, Mapping):
        value = check(given, what)
        return dict.fromkeys(found, value)
    if not given:
        raise ValueError(f"{what} names no weight: {given!r}")
    result: dict[str, T] = {}
    for key, value in given.items():
        names = [name for name in found if key in (name, name.rpartition("/")[0])]
        if not names:
            raise ValueError(f"{what}: {key!r} is none of {', '.join(found)}")
        result |= dict.fromkeys(names, check(value, f"{what} of {key!r}"))
    return {name: result[name] for name in found if name in result}
