"""Activations of layers as functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ActivationOf"]


class ActivationOf:
    """The activation of a layer, as the function that Keras has in this attribute.

    The layer computes by the attribute of this name with ``_op``, which is the name of
    an op, None for the identity, or a function of the user's.
    """

    # The function of an op; the module `activations` sets it.
    function_of: ClassVar[Callable[[Any], Callable[..., Any]]]

    def __set_name__(self, owner: Any, name: str) -> None:
        self.name, self.slot = name, f"_{name}_op"
        owner._kept_as = {**getattr(owner, "_kept_as", {}), name: self.slot}

    def __get__(self, layer: Any, owner: type | None = None) -> Any:
        if layer is None:
            return self
        return ActivationOf.function_of(getattr(layer, self.slot))

    def __set__(self, layer: Any, value: Any) -> None:
        layer._change(self.name, value)
