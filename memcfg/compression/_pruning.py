"""Pruning by magnitude: what is left of weights is trained, and has the state."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._checks import unknown
from memcfg.compression._choice import compressible, plain_steps, settings_of
from memcfg.compression._sparse_weight import SparseWeight
from memcfg.nn._argument_checks import integer, real

if TYPE_CHECKING:
    from memcfg.nn import Model

__all__ = ["density_of", "density_schedule", "prune", "pruned_value", "survivors"]

STRUCTURES = ("element", "filter", "row")
SCOPES = ("layer", "global")


def prune(
    model: Model,
    density: float | Mapping[str, float],
    *,
    structure: str = "element",
    scope: str = "layer",
) -> Model:
    """Return a copy of a model without its smallest weights.

    The copy holds the values that are left and their indices. They are trained as
    before, and optimizer state and gradients are as large as they are: pruned weights
    have none. Weights with a single axis, such as biases, stay as they are.

    Parameters
    ----------
    model : Model
        The model, which is left as it is. Weights that are 0 stay pruned.
    density : float or mapping of str to float
        The share of weights to keep, above 0 and at most 1; or one by name of a weight,
        such as ``"dense/kernel"``, or of a layer. Weights that are not named stay.
    structure : {"element", "filter", "row"}, default "element"
        What is kept or pruned together: single elements; the filters of a convolution
        and the units of a `Dense`, which are the last axis; or its input channels, the
        axis before it. Filters and rows are ranked by their norms.
    scope : {"layer", "global"}, default "layer"
        Whether each weight keeps its share, or all together: what is ranked is then
        magnitude by standard deviation of the weight, so that one quality parameter
        sets the thresholds of all, as in [1]_.

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

    See Also
    --------
    density_schedule : Densities to reach one step by step.
    strip : A model with plain weights again.

    References
    ----------
    .. [1] Han et al., "Learning both weights and connections for efficient neural
       networks", NeurIPS 2015.

    Examples
    --------
    >>> import memcfg as mc
    >>> model = mc.nn.Sequential([mc.nn.Input((100,)), mc.nn.Dense(10)])
    >>> model.compile("adam", "mse")
    >>> pruned = mc.compression.prune(model, 0.08)
    >>> (pruned.layers[0].kernel.numpy() != 0).sum().item()
    80
    """
    for value, known, what in (
        (structure, STRUCTURES, "structure"),
        (scope, SCOPES, "scope"),
    ):
        if value not in known:
            raise unknown(what, value, known, "prune: ")
    found = compressible(model, "prune")
    plain_steps(model, "prune")
    densities = settings_of(found, density, density_of, "prune: density")
    values = {
        name: model._read_weight(found[name].layer, found[name].spec_name)
        for name in densities
    }
    if scope == "global":
        if isinstance(density, Mapping):
            raise ValueError("prune: a global density is one number")
        masks = _global_masks(values, density, structure)
    else:
        masks = {
            name: _mask(_scores(values[name], structure), densities[name])
            for name in values
        }
    chosen = {}
    for name, mask in masks.items():
        if found[name].constraint is not None:
            raise ValueError(
                f"prune: {name!r} has a constraint, which needs the whole weight: name "
                "the weights to prune, or leave the constraint out"
            )
        chosen[name] = survivors(values[name], mask)
    return model._with_parts(chosen)


def survivors(value: Any, mask: Any = None) -> tuple[SparseWeight, list[Any]]:
    """Return how a model holds the elements of a weight that are in a mask and not 0.

    At least one is kept.
    """
    flat = value.ravel()
    kept = flat != 0 if mask is None else np.broadcast_to(mask, value.shape).ravel()
    indices = np.flatnonzero(kept & (flat != 0)).astype(np.int32)
    if not len(indices):
        indices = np.array([np.abs(flat).argmax()], np.int32)
    if len(indices) == len(flat):
        return SparseWeight(len(flat), sparse=False), [flat.copy()]
    return SparseWeight(len(indices), sparse=True), [flat[indices], indices]


def pruned_value(value: Any, density: Any, structure: str) -> Any:
    """Return a copy of a weight with its smallest elements or slices 0."""
    share = density_of(density, "a density")
    if structure not in STRUCTURES:
        raise unknown("structure", structure, STRUCTURES)
    return np.where(_mask(_scores(value, structure), share), value, np.float32(0))


def density_schedule(density: float, steps: int, begin: float = 1.0) -> list[float]:
    """Return densities for pruning step by step, with training in between.

    The share that is pruned rises as a cubic function of the step: many weights go at
    first, when most are redundant, and fewer as fewer are left.

    Parameters
    ----------
    density : float
        The last one, above 0 and at most `begin`.
    steps : int
        How many.
    begin : float, default 1.0
        The density before the first step.

    Returns
    -------
    list of float
        The densities, which end with `density`.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid.

    References
    ----------
    Zhu and Gupta, "To prune, or not to prune", ICLR workshop 2018.

    Examples
    --------
    >>> from memcfg import compression
    >>> [round(each, 3) for each in compression.density_schedule(0.1, 3)]
    [0.367, 0.133, 0.1]
    """
    end, start = density_of(density, "density"), density_of(begin, "begin")
    count = integer(steps, "steps")
    if end > start:
        raise ValueError(f"density must be at most begin, {start}, got {end}")
    return [end + (start - end) * (1 - i / count) ** 3 for i in range(1, count + 1)]


def density_of(value: Any, what: str) -> float:
    """Return a density."""
    number = real(value, what)
    if not 0 < number <= 1:
        raise ValueError(f"{what} must be above 0 and at most 1, got {value!r}")
    return number


def _scores(value: Any, structure: str) -> Any:
    """Return what is ranked, in a shape that broadcasts to that of the weight."""
    if structure == "element":
        return np.abs(value)
    kept = value.ndim - (1 if structure == "filter" else 2)
    axes = tuple(axis for axis in range(value.ndim) if axis != kept)
    squares = np.square(value, dtype=np.float64)
    return np.sqrt(squares.sum(axes, keepdims=True))


def _mask(scores: Any, density: float) -> Any:
    """Return which of the scores are among the largest ones."""
    flat = scores.ravel()
    count = math.ceil(density * flat.size)
    mask = np.zeros(flat.size, bool)
    mask[np.argpartition(flat, flat.size - count)[flat.size - count :]] = True
    return mask.reshape(scores.shape)


def _global_masks(values: Any, density: float, structure: str) -> dict[str, Any]:
    """Return masks of a common threshold, in standard deviations of each weight."""
    scores, sizes = {}, []
    for name, value in values.items():
        each = _scores(value, structure)
        spread = float(value[value != 0].std(dtype=np.float64)) if value.any() else 0.0
        scale = math.sqrt(value.size / each.size)  # of the norms of large slices
        scores[name] = each / (scale * spread or 1.0)
        sizes.append(np.full(each.size, value.size // each.size))
    ranked = np.concatenate([each.ravel() for each in scores.values()])
    order = np.argsort(-ranked, kind="stable")
    covered = np.cumsum(np.concatenate(sizes)[order])
    count = int(np.searchsorted(covered, math.ceil(density * covered[-1]))) + 1
    kept = np.zeros(len(ranked), bool)
    kept[order[:count]] = True
    masks, begin = {}, 0
    for name, each in scores.items():
        masks[name] = kept[begin : begin + each.size].reshape(each.shape)
        begin += each.size
    return masks
