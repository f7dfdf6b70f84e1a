"""The arguments of `fit` that are not data, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memcfg.nn._argument_checks import nonnegative_int, positive_int
from memcfg.nn.training._progress import check_verbose

__all__ = ["FitOptions", "check_on_nan", "fit_options"]


@dataclass(frozen=True, slots=True)
class FitOptions:
    """The checked arguments of `fit` that are not data.

    Parameters
    ----------
    epochs, initial_epoch : int
        The epochs ``initial_epoch`` to ``epochs - 1`` are run.
    verbose : int
        0, 1 or 2.
    guard : bool
        Whether a loss that is not finite stops training.
    steps_per_epoch, validation_steps : int or None
        How many batches an epoch and a validation have; None: a pass.
    """

    epochs: int
    initial_epoch: int
    verbose: int
    guard: bool
    steps_per_epoch: int | None
    validation_steps: int | None


def fit_options(given: dict[str, Any]) -> FitOptions:
    """Check the arguments of `fit` that are not data.

    Parameters
    ----------
    given : dict
        The arguments by name.

    Returns
    -------
    FitOptions
        The same, checked.

    Raises
    ------
    TypeError, ValueError
        If one cannot be honoured.
    """
    return FitOptions(
        epochs=positive_int(given["epochs"], "epochs"),
        initial_epoch=nonnegative_int(given["initial_epoch"], "initial_epoch"),
        verbose=check_verbose(given["verbose"]),
        guard=check_on_nan(given["on_nan"]),
        steps_per_epoch=_steps(given, "steps_per_epoch"),
        validation_steps=_steps(given, "validation_steps"),
    )


def check_on_nan(on_nan: Any) -> bool:
    """Return whether a loss that is not finite stops training.

    Parameters
    ----------
    on_nan : {"raise", "ignore"}
        What was given.

    Returns
    -------
    bool
        True for ``"raise"``.

    Raises
    ------
    ValueError
        If it is something else.
    """
    if on_nan not in ("raise", "ignore"):
        raise ValueError(f'on_nan is "raise" or "ignore", not {on_nan!r}')
    return bool(on_nan == "raise")


def _steps(given: dict[str, Any], name: str) -> int | None:
    return None if given[name] is None else positive_int(given[name], name)
