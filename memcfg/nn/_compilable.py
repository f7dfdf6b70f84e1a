"""Models that are told how to train.

Owns `compile` and what every use of data goes through: the model is built, and one
thread at a time is in `fit`. Refuses data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from memcfg import config
from memcfg.nn._argument_checks import positive_int
from memcfg.nn._foundation import Foundation, Parts
from memcfg.nn._outside import outside
from memcfg.nn.layers._symbolic import Shape, show_shape
from memcfg.nn.training._compile_config import Setup, make_setup
from memcfg.nn.training._device import device_of
from memcfg.nn.training._tracing import Program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memcfg._core.engine import Turn
    from memcfg.memory import Pool
    from memcfg.nn._network import Network
    from memcfg.nn.losses import SparseCategoricalCrossentropy
    from memcfg.nn.optimizers import Optimizer
    from memcfg.plan import Plan, Policy
    from memcfg.workspaces import WorkspaceMode

__all__ = ["Compilable", "check_output", "returned"]

_T = TypeVar("_T")


class Compilable(Foundation):
    """The part of a model that `compile` sets up."""

    __slots__ = ()

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer; its ``learning_rate`` may be set between steps.

        Raises
        ------
        RuntimeError
            If the model is not compiled.
        """
        return self._compiled("the optimizer").optimizer

    @property
    def training_workspace_mode(self) -> WorkspaceMode:
        """Where the tensors of a training step live; `compile` sets it.

        Raises
        ------
        RuntimeError
            If the model is not compiled.
        """
        return self._compiled("training_workspace_mode").modes.training

    @property
    def inference_workspace_mode(self) -> WorkspaceMode:
        """Where the tensors of evaluation and prediction live; `compile` sets it.

        Raises
        ------
        RuntimeError
            If the model is not compiled.
        """
        return self._compiled("inference_workspace_mode").modes.inference

    @outside
    def compile(
        self,
        optimizer: Optimizer | str,
        loss: SparseCategoricalCrossentropy,
        *,
        metrics: Sequence[str] | None = None,
        memory: Policy | str | None = None,
        training_workspace_mode: WorkspaceMode | str = "enabled",
        inference_workspace_mode: WorkspaceMode | str = "enabled",
    ) -> None:
        """Say how the model is trained.

        The model is placed on the device of the innermost ``with
        memcfg.device(...)`` block, or on the first one, and remembers its name.
        Compiling again keeps the weights, and with the same optimizer its state.

        Parameters
        ----------
        optimizer : Optimizer or str
            `SGD`, `Adam`, or ``"sgd"``, ``"adam"`` with their defaults.
        loss : SparseCategoricalCrossentropy
            With ``from_logits=True``.
        metrics : sequence of str, optional
            ``["accuracy"]``.
        memory : Policy or str, optional
            A policy of `memcfg.plan` or its name. None: ``memcfg.plan.auto()``. It
            plans the programs whose workspace mode is ``"enabled"``.
        training_workspace_mode : WorkspaceMode or str, default "enabled"
            Where the tensors of a training step live. ``"enabled"``: each has its place
            in a plan, and the step is one compiled program. The other modes run op by
            op. ``"none"``: each tensor is an allocation of its own, freed when its last
            reader is done. ``"single"``: one workspace for the whole iteration.
            ``"separate"``: workspaces by kind of array and by layer. Losses, weights
            and predictions are the same bits in all of them.
        inference_workspace_mode : WorkspaceMode or str, default "enabled"
            The same of evaluation, validation during `fit`, and prediction.

        Raises
        ------
        TypeError, ValueError
            If an argument cannot be honoured, such as a policy where nothing is
            planned; the model is as it was.
        RuntimeError
            If another thread is in `fit`, or this one amid a step; the model is as it
            was.
        """
        modes = (training_workspace_mode, inference_workspace_mode)
        setup = make_setup(optimizer, loss, metrics, memory, modes, _default_device)
        with self._lock.step():
            self._lock.require_no_session(self._trained_elsewhere())
            setup.optimizer.check_free(self)
            if self._network is not None:
                check_output(self._network)
            self._set_up(setup)

    @outside
    def plan(self, batch_size: int = 32) -> Plan:
        """Plan the training step without taking memory.

        Parameters
        ----------
        batch_size : int, default 32
            Samples a step.

        Returns
        -------
        Plan
            What `fit` would run.

        Raises
        ------
        InfeasiblePlanError
            If nothing fits the device's limit; the error says what would.
        RuntimeError
            If the model is not compiled, or its shapes are not known yet.
        """
        size = positive_int(batch_size, "batch_size")
        self._compiled("plan")
        return self._built_programs().plan(Program("train", size))

    def _compiled(self, what: str) -> Setup:
        if self._setup is None:
            raise RuntimeError(
                f"{what} needs a compiled model: call compile(optimizer, loss) first"
            )
        return self._setup

    def _set_up(self, setup: Setup) -> None:
        network, before, programs = self._parts
        setup.optimizer.claim(self)
        if network is not None:
            values = {} if programs is None else programs.known_values()
            if before is None or before.optimizer is not setup.optimizer:
                known = {weight.name for weight in network.weights}
                values = {name: v for name, v in values.items() if name in known}
            programs = self._make_programs(network, setup, values)
        self._replace(Parts(network, setup, programs))

    def _in_training(self) -> Turn:
        """Be the one thread that is in `fit`, in the context that this returns."""
        return self._lock.session(self._trained_elsewhere())

    def _trained_elsewhere(self) -> str:
        return f"{self.name!r}: the model is being trained in another thread"

    def _built_for(self, shape: Shape | None, use: Callable[[], _T]) -> _T:
        """Use the model, built for samples of a shape if it was not; undo a failure.

        All of it is one act for other threads.
        """
        with self._lock.turn():
            fresh = not self.built and shape is not None
            if fresh and shape is not None:
                self._build(shape)
            try:
                return use()
            except BaseException:
                if fresh:
                    self._unbuild()
                raise

    def _build(self, shape: Shape) -> None:
        """Find the shapes of the weights; only `Sequential` can lack them."""

    def _unbuild(self) -> None:
        """Undo `_build`."""

    def _classes(self) -> int:
        """Return how many classes labels choose from."""
        return check_output(self._built_network())

    def _pool(self) -> Pool:
        """Return the pool of the device that the model is on, or will be."""
        if self._programs is not None:
            return self._programs.executor.device.pool
        device = None if self._setup is None else self._setup.device
        return device_of(self.name, device).pool


def _default_device() -> str:
    return config.logical_device().name


def check_output(network: Network) -> int:
    """Return the number of classes, or say that the output is none of logits.

    Parameters
    ----------
    network : Network
        The architecture.

    Returns
    -------
    int
        How many logits there are for a sample.

    Raises
    ------
    ValueError
        If the output has another rank.
    """
    if len(network.output_shape) != 1:
        raise ValueError(
            f"the model's output, of layer {network.outputs.name!r}, has shape "
            f"{show_shape(network.output_shape)}, but cross-entropy reads logits "
            "(None, classes): end with Flatten or GlobalAveragePooling2D and Dense"
        )
    return network.output_shape[0]


def returned(
    logs: dict[str, float], return_dict: bool
) -> float | list[float] | dict[str, float]:
    """Return numbers as Keras does.

    Parameters
    ----------
    logs : dict of str to float
        The loss first.
    return_dict : bool
        Whether to return them by name.

    Returns
    -------
    float, list of float or dict
        The loss; with metrics ``[loss, *metrics]``; or `logs`.
    """
    if return_dict:
        return logs
    values = list(logs.values())
    return values[0] if len(values) == 1 else values
