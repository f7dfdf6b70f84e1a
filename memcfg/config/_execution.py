"""Settings of TensorFlow's eager execution that memcfg stores only.

Owns the values and their checks. Nothing in memcfg reads them: a step is one static
graph on one device, run to its end.
"""

from __future__ import annotations

from memcfg.config._state import registry

__all__ = [
    "get_device_policy",
    "get_synchronous_execution",
    "set_device_policy",
    "set_synchronous_execution",
]

_POLICIES = ("silent", "silent_for_int32", "warn", "explicit")


def get_device_policy() -> str:
    """Return the running thread's device policy. Stored only.

    Returns
    -------
    str
        What `set_device_policy` was given in this thread; ``"silent"`` by default.
    """
    return str(getattr(registry.options.of_thread, "policy", _POLICIES[0]))


def set_device_policy(device_policy: str | None) -> None:
    """Set the running thread's device policy. Stored only.

    memcfg has no op whose operands lie on two devices, so the policy has no effect.

    Parameters
    ----------
    device_policy : str or None
        ``"silent"``, ``"silent_for_int32"``, ``"warn"`` or ``"explicit"``; None is
        ``"silent"``. It can be changed at any time.

    Raises
    ------
    ValueError
        If it is none of these.
    """
    policy = _POLICIES[0] if device_policy is None else device_policy
    if policy not in _POLICIES:
        raise ValueError(
            f"device_policy is one of {', '.join(_POLICIES)} or None, not "
            f"{device_policy!r}"
        )
    registry.options.of_thread.policy = policy


def get_synchronous_execution() -> bool:
    """Tell the running thread's execution mode. Stored only.

    Returns
    -------
    bool
        What `set_synchronous_execution` was given in this thread; True by default.
    """
    return bool(getattr(registry.options.of_thread, "synchronous", True))


def set_synchronous_execution(enable: bool | None) -> None:
    """Set the running thread's execution mode. Stored only.

    memcfg runs each step to its end before a call returns, whatever stands here.

    Parameters
    ----------
    enable : bool or None
        None is True. It can be changed at any time.

    Raises
    ------
    TypeError
        If it is neither.
    """
    if not isinstance(enable, bool | None):
        raise TypeError(f"expected True, False or None, not {enable!r}")
    registry.options.of_thread.synchronous = enable is not False
