"""DL4J's spelling of the arguments of `ParallelWrapper`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.nn.models import Model
    from memcfg.parallel.encoding import (
        ResidualClippingPostProcessor,
        ThresholdAlgorithm,
    )
    from memcfg.workspaces import WorkspaceMode

__all__ = ["ParallelWrapperBuilder"]


class ParallelWrapperBuilder:
    """Collect the arguments of a `ParallelWrapper`, as DL4J's Builder does.

    Parameters
    ----------
    model : Model
        The model to train.
    make : callable
        Makes the wrapper from the model and the arguments.
    """

    def __init__(self, model: Model, make: Callable[..., Any]) -> None:
        self._model = model
        self._make = make
        self._arguments: dict[str, Any] = {}

    def workers(self, number: int) -> Self:
        """Set `workers`."""
        return self._with(workers=number)

    def prefetch_buffer(self, size: int) -> Self:
        """Set `prefetch_buffer`."""
        return self._with(prefetch_buffer=size)

    def averaging_frequency(self, frequency: int) -> Self:
        """Set `averaging_frequency`."""
        return self._with(averaging_frequency=frequency)

    def average_updaters(self, really: bool) -> Self:
        """Set `average_updaters`."""
        return self._with(average_updaters=really)

    def report_score_after_averaging(self, really: bool) -> Self:
        """Set `report_score_after_averaging`."""
        return self._with(report_score_after_averaging=really)

    def workspace_mode(self, mode: WorkspaceMode | str) -> Self:
        """Set `workspace_mode`."""
        return self._with(workspace_mode=mode)

    def training_mode(self, mode: str) -> Self:
        """Set `training_mode`."""
        return self._with(training_mode=mode)

    def shard(self, what: str | None) -> Self:
        """Set `shard`."""
        return self._with(shard=what)

    def threshold_algorithm(self, algorithm: ThresholdAlgorithm) -> Self:
        """Set `threshold_algorithm`."""
        return self._with(threshold_algorithm=algorithm)

    def residual_post_processor(self, processor: ResidualClippingPostProcessor) -> Self:
        """Set `residual_post_processor`."""
        return self._with(residual_post_processor=processor)

    def build(self) -> Any:
        """Return the wrapper.

        Returns
        -------
        ParallelWrapper
            With the arguments that were set, and defaults for the others.

        Raises
        ------
        TypeError, ValueError, RuntimeError, MissingDependencyError
            What `ParallelWrapper` raises.
        """
        return self._make(self._model, **self._arguments)

    def _with(self, **argument: Any) -> Self:
        self._arguments |= argument
        return self
