"""DL4J's spelling of the settings of a `ParallelInference`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from memcfg.nn import Model
    from memcfg.parallel.inference._inference_mode import InferenceMode
    from memcfg.parallel.inference._load_balance_mode import LoadBalanceMode

__all__ = ["InferenceBuilder"]

T = TypeVar("T")


class InferenceBuilder:
    """Collect the settings of a `ParallelInference` one by one, as DL4J does.

    Parameters
    ----------
    model : Model
        The model.
    make : callable
        Makes the result of `build` from the model and the settings.
    """

    def __init__(self, model: Model, make: Callable[..., Any]) -> None:
        self._model = model
        self._make = make
        self._settings: dict[str, Any] = {}

    def _set(self, name: str, value: Any) -> Self:
        self._settings[name] = value
        return self

    def inference_mode(self, mode: InferenceMode | str) -> Self:
        """Set the mode.

        Parameters
        ----------
        mode : InferenceMode or str
            As of `ParallelInference`.
        """
        return self._set("inference_mode", mode)

    def workers(self, workers: int | None) -> Self:
        """Set the number of workers.

        Parameters
        ----------
        workers : int or None
            As of `ParallelInference`.
        """
        return self._set("workers", workers)

    def batch_limit(self, limit: int | None) -> Self:
        """Set the largest batch.

        Parameters
        ----------
        limit : int or None
            Samples, as of `ParallelInference`.
        """
        return self._set("batch_limit", limit)

    def queue_limit(self, limit: int) -> Self:
        """Set how many requests may wait.

        Parameters
        ----------
        limit : int
            As of `ParallelInference`.
        """
        return self._set("queue_limit", limit)

    def max_wait(self, seconds: float) -> Self:
        """Set how long a request waits for others.

        Parameters
        ----------
        seconds : float
            As of `ParallelInference`.
        """
        return self._set("max_wait", seconds)

    def on_full(self, action: str) -> Self:
        """Set what is done with a request for which the queue has no space.

        Parameters
        ----------
        action : {"block", "raise"}
            As of `ParallelInference`.
        """
        return self._set("on_full", action)

    def load_balance_mode(self, mode: LoadBalanceMode | str) -> Self:
        """Set which worker computes next.

        Parameters
        ----------
        mode : LoadBalanceMode or str
            As ``load_balance`` of `ParallelInference`.
        """
        return self._set("load_balance", mode)

    def build(self) -> Any:
        """Return the `ParallelInference` with these settings.

        Returns
        -------
        ParallelInference
            A new one at each call.

        Raises
        ------
        TypeError, ValueError, RuntimeError, InfeasiblePlanError
            As of `ParallelInference`.
        """
        return self._make(self._model, **self._settings)
