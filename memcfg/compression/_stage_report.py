"""What each stage of compression took and gave."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from memcfg._html import report_of_text
from memcfg._tables import draw, new_table
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Report", "Stage", "WeightSummary"]


class Stage(NamedTuple):
    """A model after a stage of compression.

    Parameters
    ----------
    name : str
        The stage: ``"given"``, ``"pruned"``, ``"shared"`` or ``"coded"``.
    nbytes : int
        Of the given model, the bytes of its weights; of the pruned one, those of what
        is left, with indices, by the formula of the paper; of others, those of a file,
        whose codes have fixed widths if it is shared.
    accuracy : float
        What must not fall, as `evaluate` measures it.
    seconds : float
        The median time of a batch of predictions: of the coded model by `streamed`,
        which decodes the file in each step, of others by a plain copy as of `strip`.
    predict_peak : int
        The bytes of memory in a step of `predict` of the same, as planned. Plain copies
        have equal ones.
    train_peak : int
        The bytes of memory in a step of training at this stage, as planned; of the
        coded model, which is not trained, those of the shared one.
    """

    name: str
    nbytes: int
    accuracy: float
    seconds: float
    predict_peak: int
    train_peak: int


class WeightSummary(NamedTuple):
    """A compressed weight.

    Parameters
    ----------
    name : str
        Its name.
    size : int
        The number of elements.
    kept : int
        The number of elements that are not 0.
    values : int
        The number of distinct values of these.
    nbytes : int
        The bytes of its code.
    """

    name: str
    size: int
    kept: int
    values: int
    nbytes: int


class Report:
    """Tables of the stages of compression, and of the weights.

    Parameters
    ----------
    metric : str
        What the accuracy of stages is.
    batch_size : int
        Samples of a step that was timed and planned.
    stages : sequence of Stage
        The stages, in order.
    weights : sequence of WeightSummary
        The compressed weights.
    """

    __slots__ = ("batch_size", "metric", "stages", "weights")

    def __init__(
        self,
        metric: str,
        batch_size: int,
        stages: Sequence[Stage],
        weights: Sequence[WeightSummary],
    ) -> None:
        self.metric = metric
        self.batch_size = batch_size
        self.stages = tuple(stages)
        self.weights = tuple(weights)

    def __str__(self) -> str:
        numbers = ("size", "ratio", self.metric, "time", "predict peak", "train peak")
        table = new_table("stage", numbers=numbers)
        for stage in self.stages:
            table.add_row(
                stage.name,
                format_bytes(stage.nbytes),
                f"{self.stages[0].nbytes / stage.nbytes:.1f}",
                f"{stage.accuracy:.4f}",
                f"{1e3 * stage.seconds:.2f} ms",
                format_bytes(stage.predict_peak),
                format_bytes(stage.train_peak),
            )
        columns = ("elements", "kept", "values", "bits", "ratio")
        of = new_table("weight", numbers=columns)
        for each in self.weights:
            of.add_row(
                each.name,
                f"{each.size:,}",
                f"{each.kept / each.size:.2%}",
                f"{each.values}",
                f"{8 * each.nbytes / max(each.kept, 1):.2f}",
                f"{4 * each.size / each.nbytes:.1f}",
            )
        return (
            f"Compression, with batches of {self.batch_size}\n{draw(table)}\n"
            f"Weights, with the bits of a kept element\n{draw(of)}"
        )

    def _repr_html_(self) -> str:
        """Return the same for notebooks."""
        return report_of_text(f"Stages of a compression\n{self}")
