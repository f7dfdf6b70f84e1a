"""Weight sharing: few values for all weights of a layer, which are trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.compression._choice import compressible, plain_steps, settings_of
from memcfg.compression._k_means import k_means
from memcfg.compression._pruning import survivors
from memcfg.compression._sparse_weight import SparseWeight
from memcfg.nn._argument_checks import integer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memcfg.nn import Model

__all__ = ["MAX_BITS", "bits_of", "share_weights", "shared"]

MAX_BITS = 16


def share_weights(
    model: Model,
    bits: int | Mapping[str, int] = 5,
    *,
    init: str = "linear",
    seed: int = 0,
) -> Model:
    """Return a copy of a model in which weights share few values.

    The weights of each layer that are not 0 are clustered, and the copy holds the
    centroids and the cluster of each weight. Training changes the centroids: the
    gradient of a centroid is the sum of the gradients of its weights, and optimizer
    state is as large as the codebook.

    Parameters
    ----------
    model : Model
        The model, such as what `prune` returned; it is left as it is. Weights that are
        0 stay 0.
    bits : int or mapping of str to int, default 5
        A weight has at most ``2**bits`` values, of 1 to 16 bits; or by name of a
        weight or layer, as of `prune`. Weights that are not named stay.
    init : {"linear", "density", "random"}, default "linear"
        The first centroids, as of `k_means`.
    seed : int, default 0
        As of `k_means`.

    Returns
    -------
    Model
        The copy, compiled as `model`, with a new optimizer.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, a name is unknown, or a weight has a constraint.
    RuntimeError
        If the shapes of the model are not known.

    References
    ----------
    Han et al., "Deep compression: compressing deep neural networks with pruning,
    trained quantization and Huffman coding", ICLR 2016.

    Examples
    --------
    >>> import numpy as np
    >>> import memcfg as mc
    >>> model = mc.nn.Sequential([mc.nn.Input((100,)), mc.nn.Dense(10)])
    >>> model.compile("adam", "mse")
    >>> shared = mc.compression.share_weights(model, bits=3)
    >>> len(np.unique(shared.layers[0].kernel.numpy()))
    8
    """
    found = compressible(model, "share_weights")
    plain_steps(model, "share_weights")
    chosen = {}
    for name, count in settings_of(found, bits, bits_of, "share_weights: bits").items():
        weight = found[name]
        if weight.constraint is not None:
            raise ValueError(
                f"share_weights: {name!r} has a constraint, which needs the whole "
                "weight: name the weights to share, or leave the constraint out"
            )
        value = model._read_weight(weight.layer, weight.spec_name)
        _, (values, *indices) = survivors(value)
        clusters = k_means(values, 2**count, init=init, seed=seed)
        chosen[name] = shared(clusters.centroids, clusters.codes, *indices)
    return model._with_parts(chosen)


def shared(codebook: Any, codes: Any, *indices: Any) -> tuple[SparseWeight, list[Any]]:
    """Return how a model holds weights that share values; without indices, all do."""
    by = SparseWeight(len(codes), sparse=bool(indices), shared=len(codebook))
    return by, [np.asarray(codebook, np.float32), codes, *indices]


def bits_of(value: Any, what: str) -> int:
    """Return a number of bits of codes."""
    bits = integer(value, what)
    if bits > MAX_BITS:
        raise ValueError(f"{what} must be at most {MAX_BITS}, got {bits}")
    return bits
