"""A setting of how long models may plan; `reset` puts it back."""

from __future__ import annotations

from memcfg.config._registry import registry


def get_alternatives_seconds() -> float | None:
    """Return the value that `set_alternatives_seconds` has set; None by default."""
    return registry.options.alternatives_seconds


def set_alternatives_seconds(seconds: float | None) -> float | None:
    """Set how long a model whose plan does not fit searches for alternatives.

    These are other limits and batches, which `memcfg.errors.InfeasiblePlanError` names.

    Parameters
    ----------
    seconds : float or None
        Processor seconds; 0: the error names none. None: eight, or four times those of
        the refused plan if that is more, but at most 30.

    Returns
    -------
    float or None
        What was set before.

    Raises
    ------
    TypeError
        If it is neither a number nor None.
    ValueError
        If it is negative or NaN.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.config.set_alternatives_seconds(0.5)
    >>> mc.config.set_alternatives_seconds(None)
    0.5
    """
    if seconds is not None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise TypeError(f"seconds must be a number or None, not {seconds!r}")
        if not seconds >= 0:
            raise ValueError(f"seconds must not be negative, got {seconds}")
    before = registry.options.alternatives_seconds
    registry.options.alternatives_seconds = seconds
    return before
