"""Plain weights for those that are computed from parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.compression._choice import compressible

if TYPE_CHECKING:
    from memcfg.nn import Model

__all__ = ["strip"]


def strip(model: Model) -> Model:
    """Return a copy of a model with plain weights.

    Parameters
    ----------
    model : Model
        What `prune`, `share_weights` or another function of `memcfg.compression`
        returned; it is left as it is.

    Returns
    -------
    Model
        A model of the same values and predictions, which can be saved. Pruned weights
        are 0, and training it changes all weights.

    Raises
    ------
    TypeError, ValueError
        If `model` is not a Model, or has no weights of two or more axes.
    RuntimeError
        If the shapes of the model are not known.
    """
    compressible(model, "strip")
    session = model._built_session()
    computed = model._built_network().computed
    return model._with_parts({name: (None, [session.read(name)]) for name in computed})
