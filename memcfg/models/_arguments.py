"""Checks of the arguments of the zoo's functions.

The decorator `network` of all networks explains other libraries' arguments, warns of
images with the channels first, and finds the smallest image that a network accepts.
"""

from __future__ import annotations

import inspect
import warnings
from difflib import get_close_matches
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

from memcfg._caller import outside
from memcfg.nn._argument_checks import integer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from memcfg import nn

__all__ = ["network"]

P = ParamSpec("P")

_WEIGHTS = "weights are random, and load_torchvision_weights(model, file) reads others"
_INSTEAD = {  # of arguments of torchvision's and Keras's networks
    "num_classes": "did you mean 'classes'?",
    "weights": _WEIGHTS,
    "pretrained": _WEIGHTS,
    "include_top": "Model(model.inputs, model.get_layer(name).output) ends earlier",
}
_CHANNELS = (1, 3)  # of grey and of coloured images


def network(make: Callable[P, nn.Model]) -> Callable[P, nn.Model]:
    """Decorate a function that makes a network with checks of its arguments."""
    signature = inspect.signature(make)
    name = make.__name__

    @wraps(make)
    def call(*args: P.args, **options: P.kwargs) -> nn.Model:
        _check_names(name, signature.parameters, options)
        try:
            given = signature.bind(*args, **options)
        except TypeError as error:
            raise TypeError(f"{name}: {error}") from None
        given.apply_defaults()
        if given.arguments.get("classes") is not None:
            integer(given.arguments["classes"], f"{name}: classes")
        shape: Any = given.arguments.get("input_shape")
        if isinstance(shape, list | tuple) and None in shape:
            raise ValueError(
                f"{name}: input_shape must have known lengths, which layers depend on, "
                f"got {tuple(shape)}"
            )
        if not _is_image(shape):
            return make(*args, **options)
        _check_order(name, shape)
        try:
            return make(*args, **options)
        except ValueError as error:
            if "cannot take an input of shape" not in str(error):
                raise
            least = _least(make, given, signature.parameters["input_shape"].default[0])
            if least is None or min(shape[:2]) >= least:
                raise
            raise ValueError(
                f"{name} needs images of at least {least} x {least}, not {shape[0]} x "
                f"{shape[1]}: {error}"
            ) from None

    return call


def _check_names(name: str, known: Collection[str], options: Collection[str]) -> None:
    """Raise TypeError for an unknown argument, with what to do instead."""
    for option in options:
        if option not in known:
            near = get_close_matches(option, known, 1)
            words = f"it has {', '.join(known)}"
            if near:
                words = f"did you mean {near[0]!r}?"
            words = _INSTEAD.get(option, words)
            raise TypeError(f"{name} takes no argument {option!r}: {words}")


def _is_image(shape: Any) -> bool:
    return (
        isinstance(shape, list | tuple)
        and len(shape) == 3
        and all(isinstance(each, int) and each > 0 for each in shape)
    )


def _check_order(name: str, shape: tuple[int, int, int]) -> None:
    """Warn if a shape looks like channels, height and width."""
    first, second, last = shape
    most = max(_CHANNELS) + 1  # with an alpha channel
    if first in _CHANNELS and min(second, last) > most:
        warnings.warn(
            f"{name}: input_shape {tuple(shape)} is an image of height {first}, width "
            f"{second} and {last} channels; if the channels are first, write "
            f"{(second, last, first)}",
            UserWarning,
            stacklevel=outside(),
        )


def _least(
    make: Callable[..., nn.Model], given: inspect.BoundArguments, enough: int
) -> int | None:
    """Return the side of the smallest square image; None if more than `enough`."""
    *_, channels = given.arguments["input_shape"]

    def fits(side: int) -> bool:
        given.arguments["input_shape"] = (side, side, channels)
        try:
            make(*given.args, **given.kwargs)
        except ValueError:
            return False
        return True

    if not fits(enough):
        return None
    low, high = 0, enough  # bisection: `low` is too small, `high` is large enough
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
