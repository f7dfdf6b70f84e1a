"""How much accuracy each weight costs if it alone is pruned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg._html import report_of_text
from memcfg._tables import draw, new_table
from memcfg.compression._choice import compressible, plain_steps
from memcfg.compression._measure import measure, metric_of
from memcfg.compression._pruning import pruned_value
from memcfg.compression._strip import strip
from memcfg.nn._argument_checks import integer, nonnegative

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memcfg.nn import Model

__all__ = ["Sensitivity", "sensitivity"]

DENSITIES = (0.8, 0.6, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.05, 0.02)


class Sensitivity:
    """Accuracy by weight and density, of a model in which one weight is pruned.

    Parameters
    ----------
    metric : str
        What was measured.
    base : float
        Its value before pruning.
    scores : mapping of str to mapping of float to float
        Its value by name of the weight and density.
    """

    __slots__ = ("base", "metric", "scores")

    def __init__(
        self, metric: str, base: float, scores: Mapping[str, Mapping[float, float]]
    ) -> None:
        self.metric = metric
        self.base = base
        self.scores = {name: dict(each) for name, each in scores.items()}

    def densities(self, tolerance: float) -> dict[str, float]:
        """Return the smallest density of each weight that loses little.

        Parameters
        ----------
        tolerance : float
            What the metric may fall by, for each weight alone and without training.

        Returns
        -------
        dict of str to float
            Densities as `prune` takes them; 1.0 for a weight that loses more at all.

        Raises
        ------
        TypeError, ValueError
            If `tolerance` is not a number of 0 or more.
        """
        least = self.base - nonnegative(tolerance, "tolerance")
        result = {}
        for name, scores in self.scores.items():
            result[name] = 1.0
            for density in sorted(scores, reverse=True):
                if scores[density] < least:
                    break
                result[name] = density
        return result

    def __str__(self) -> str:
        known = sorted({d for each in self.scores.values() for d in each}, reverse=True)
        table = new_table("weight", numbers=[f"{density:g}" for density in known])
        for name, scores in self.scores.items():
            cells = (f"{scores[d]:.4f}" if d in scores else "" for d in known)
            table.add_row(name, *cells)
        return f"{self.metric} {self.base:.4f}; by density\n{draw(table)}"

    def _repr_html_(self) -> str:
        """Return the text form as HTML."""
        return report_of_text(str(self))


def sensitivity(
    model: Model,
    data: Any,
    densities: Sequence[float] = DENSITIES,
    *,
    structure: str = "element",
    metric: str | None = None,
    batch_size: int = 32,
) -> Sensitivity:
    """Measure the accuracy of a model with each weight pruned alone, without training.

    Parameters
    ----------
    model : Model
        A compiled model, which is left as it is.
    data : tuple, Dataset or sequence of batches
        ``(x, y)``, ``(x, y, sample_weight)``, or batches that can be read several
        times.
    densities : sequence of float, optional
        The shares to keep; by default ten from 0.8 to 0.02.
    structure : {"element", "filter", "row"}, default "element"
        As of `prune`.
    metric : str, optional
        What is measured, by its name in the result of `evaluate`; more is better. None:
        an accuracy.
    batch_size : int, default 32
        Samples a step, of arrays.

    Returns
    -------
    Sensitivity
        The measurements.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, or the model does not measure the metric.
    RuntimeError
        If the model is not compiled.

    References
    ----------
    Han et al., "Learning both weights and connections for efficient neural networks",
    NeurIPS 2015, section 4.
    """
    found = compressible(model, "sensitivity")
    plain_steps(model, "sensitivity")
    size = integer(batch_size, "batch_size")
    if len(densities) == 0:
        raise ValueError("sensitivity: densities has none")
    copy = strip(model)
    measured = measure(copy, data, size)
    name = metric_of(measured, metric, "sensitivity")
    session = copy._built_session()
    scores: dict[str, dict[float, float]] = {}
    for weight in found:
        value = session.read(weight)
        scores[weight] = {}
        for density in densities:
            session.write(weight, pruned_value(value, density, structure))
            scores[weight][density] = measure(copy, data, size)[name]
        session.write(weight, value)
    copy.close()
    return Sensitivity(name, measured[name], scores)
