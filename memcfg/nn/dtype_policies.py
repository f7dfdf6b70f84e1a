"""Keras's policies of dtypes, which `memcfg.config` has, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from memcfg._missing import refuse
from memcfg.config import DTypePolicy
from memcfg.config._dtype_policy import as_policy
from memcfg.nn.exchange._configs import serialize_keras_object

__all__ = ["DTypePolicy", "FloatDTypePolicy", "deserialize", "get", "serialize"]

FloatDTypePolicy = DTypePolicy


def get(identifier: Any) -> DTypePolicy:
    """Return the policy of a name, a configuration or a policy.

    Parameters
    ----------
    identifier : str, dict or DTypePolicy
        The policy.

    Returns
    -------
    DTypePolicy
        The policy.

    Raises
    ------
    ValueError
        If the name is unknown.
    """
    return as_policy(identifier)


def serialize(dtype_policy: DTypePolicy) -> dict[str, Any]:
    """Return a policy as a configuration.

    Parameters
    ----------
    dtype_policy : DTypePolicy
        The policy.

    Returns
    -------
    dict
        The configuration.
    """
    result: dict[str, Any] = serialize_keras_object(dtype_policy)
    return result


def deserialize(config: Any, custom_objects: Any = None) -> DTypePolicy:
    """Return the policy of a configuration.

    Parameters
    ----------
    config : dict or str
        What `serialize` returned, or a name.
    custom_objects : None
        Must be None or empty: policies cannot be user-defined.

    Returns
    -------
    DTypePolicy
        The policy.

    Raises
    ------
    TypeError
        If there are `custom_objects`.
    ValueError
        If the name is unknown.
    """
    if custom_objects:
        raise TypeError(
            "deserialize: policies cannot be user-defined, so custom_objects must "
            f"be None, got {custom_objects!r}"
        )
    return as_policy(config)


if not TYPE_CHECKING:  # otherwise type checkers would accept any name

    def __getattr__(name: str) -> NoReturn:
        refuse(__name__, name, ": weights are float32" if "Policy" in name else "")
