"""The dtypes of activations and weights, by Keras's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["DTypePolicy", "dtype_policy", "set_dtype_policy"]

_COMPUTE = {"float32": "float32", "mixed_bfloat16": "bfloat16"}
_REFUSED = {
    "bfloat16": "weights are kept in float32",
    "float16": "losses would have to be scaled",
    "mixed_float16": "losses would have to be scaled",
    "float64": "kernels compute float32",
}


class DTypePolicy:
    """The dtypes in which a layer computes and keeps its weights.

    In ``"mixed_bfloat16"`` activations and products are bfloat16 (products are summed
    in float32); weights, their gradients, the optimizer's state, the statistics of
    normalisation, softmax, recurrent cells and losses are float32.

    Parameters
    ----------
    name : {"float32", "mixed_bfloat16"}
        The name of the policy.

    Raises
    ------
    ValueError
        If the name is unknown.

    Examples
    --------
    >>> import memcfg as mc
    >>> policy = mc.nn.DTypePolicy("mixed_bfloat16")
    >>> policy.compute_dtype, policy.variable_dtype
    ('bfloat16', 'float32')
    """

    __slots__ = ("name",)

    name: str

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or name not in _COMPUTE:
            known = " or ".join(map(repr, _COMPUTE))
            why = _REFUSED.get(name) if isinstance(name, str) else None
            because = f" ({why})" if why else ""
            raise ValueError(f"a dtype policy is {known}, not {name!r}{because}")
        object.__setattr__(self, "name", name)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{self!r} cannot be changed: make another one")

    @property
    def compute_dtype(self) -> str:
        """The dtype of activations and products."""
        return _COMPUTE[self.name]

    @property
    def variable_dtype(self) -> str:
        """The dtype of weights, ``"float32"``."""
        return "float32"

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor.

        Returns
        -------
        dict
            The arguments by name.
        """
        return {"name": self.name}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> DTypePolicy:
        """Make a policy from the result of `get_config`.

        Parameters
        ----------
        config : mapping of str to object
            The arguments of the constructor.

        Returns
        -------
        DTypePolicy
            The policy.
        """
        return cls(**config)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DTypePolicy) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __reduce__(self) -> Any:
        return DTypePolicy, (self.name,)

    def __repr__(self) -> str:
        return f'<DTypePolicy "{self.name}">'


_FLOAT32 = DTypePolicy("float32")
_current = _FLOAT32


def as_policy(value: Any) -> DTypePolicy:
    """Return the policy of a name or a policy; ValueError for anything else."""
    if isinstance(value, Mapping):  # as Keras writes it
        config = value.get("config", value)
        value = config.get("name") if isinstance(config, Mapping) else config
    return value if isinstance(value, DTypePolicy) else DTypePolicy(value)


def reset() -> None:
    """Reset the policy to float32."""
    set_dtype_policy(_FLOAT32)


def set_dtype_policy(policy: str | DTypePolicy) -> None:
    """Set the default policy of new layers.

    Parameters
    ----------
    policy : {"float32", "mixed_bfloat16"} or DTypePolicy
        The policy or its name.

    Raises
    ------
    ValueError
        If the name is unknown.

    See Also
    --------
    dtype_policy : Return it.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.config.set_dtype_policy("mixed_bfloat16")
    >>> mc.nn.Dense(10).compute_dtype
    'bfloat16'
    >>> mc.config.set_dtype_policy("float32")
    """
    global _current
    _current = as_policy(policy)


def dtype_policy() -> DTypePolicy:
    """Return the default policy of new layers.

    Returns
    -------
    DTypePolicy
        The policy that `set_dtype_policy` has set; ``"float32"`` initially.
    """
    return _current
