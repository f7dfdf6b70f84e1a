"""`Progbar`: the progress of a loop of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._checks import count
from memcfg.nn._argument_checks import nonnegative
from memcfg.nn.training.progress._progress import Progress

if TYPE_CHECKING:
    from collections.abc import Iterable


class Progbar:
    """Show the progress of a loop, as `Model.fit` does.

    Parameters
    ----------
    target : int or None
        The number of steps; None if unknown.
    width : int, default 20
        Characters of the bar.
    verbose : {0, 1, 2}, default 1
        Nothing, a bar, or one line at the end.
    interval : float, default 0.05
        Seconds between two updates of the bar, at least.
    stateful_metrics : iterable of str, optional
        Values that are shown as they are; the others are averaged over steps.
    stateless_metrics : iterable of str, optional
        Values that are averaged over steps; the others are shown as they are.
    unit_name : str, default "step"
        What a step is called.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range, or both kinds of metrics
        are given.

    Examples
    --------
    >>> import memcfg as mc
    >>> bar = mc.nn.utils.Progbar(3, verbose=0)
    >>> bar.update(1, values=[("loss", 1.0)])
    >>> bar.add(1, values=[("loss", 0.5)])
    >>> bar.values
    {'loss': 0.75}
    """

    def __init__(
        self,
        target: int | None,
        width: int = 20,
        verbose: int = 1,
        interval: float = 0.05,
        stateful_metrics: Iterable[str] | None = None,
        stateless_metrics: Iterable[str] | None = None,
        unit_name: str = "step",
    ) -> None:
        if stateful_metrics is not None and stateless_metrics is not None:
            raise ValueError("give stateful_metrics or stateless_metrics, not both")
        if verbose not in (0, 1, 2):
            raise ValueError(f"verbose is 0, 1 or 2, not {verbose!r}")
        self.target = None if target is None else count(target, "target", minimum=0)
        self._as_they_are = (
            None if stateless_metrics is not None else set(stateful_metrics or ())
        )
        self._averaged = set(stateless_metrics or ())
        self._sums: dict[str, tuple[float, int]] = {}
        self._seen = 0
        self._progress = Progress(
            verbose,
            self.target,
            logs=lambda: self.values,
            width=count(width, "width"),
            interval=nonnegative(interval, "interval"),
            unit=unit_name,
        )
        self._open = False

    @property
    def values(self) -> dict[str, float]:
        """The values that are shown, by name."""
        return {name: total / steps for name, (total, steps) in self._sums.items()}

    def update(
        self,
        current: int,
        values: Iterable[tuple[str, Any]] | None = None,
        finalize: bool | None = None,
    ) -> None:
        """Show that so many steps are done.

        Parameters
        ----------
        current : int
            The number of steps that are done.
        values : iterable of (str, float), optional
            Names and values of the last step.
        finalize : bool, optional
            Whether this is the last update. None: if `current` reaches the target.

        Raises
        ------
        TypeError, ValueError
            If `current` is not an integer, or negative.
        """
        done = count(current, "current", minimum=0)
        if finalize is None:
            finalize = self.target is not None and done >= self.target
        steps = max(1, done - self._seen)
        for name, value in values or ():
            number = float(np.mean(value))
            if finalize or not self._is_averaged(name):
                self._sums[name] = number, 1
                continue
            total, before = self._sums.get(name, (0.0, 0))
            self._sums[name] = total + number * steps, before + steps
        self._seen = done
        if not self._open:
            self._progress.__enter__()
            self._open = True
        self._progress.move(done)
        if finalize:
            self._progress.__exit__()
            self._open = False

    def add(self, n: int, values: Iterable[tuple[str, Any]] | None = None) -> None:
        """Show that more steps are done.

        Parameters
        ----------
        n : int
            The number of steps.
        values : iterable of (str, float), optional
            Names and values of the last step.

        Raises
        ------
        TypeError, ValueError
            As for `update`.
        """
        self.update(self._seen + n, values)

    def _is_averaged(self, name: str) -> bool:
        if self._as_they_are is None:
            return name in self._averaged
        return name not in self._as_they_are
