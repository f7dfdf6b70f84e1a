"""Models: layers joined from an input to an output, trained inside a limit.

Owns `fit`, `evaluate` and `predict`, the passes over whole data. Everything a caller
gives is checked before memory is taken and before the first step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from memcfg.nn import _fit
from memcfg.nn._arguments import positive_int
from memcfg.nn._compilable import Compilable, returned
from memcfg.nn._data import check_shape, check_x
from memcfg.nn._history import History
from memcfg.nn._names import automatic_name
from memcfg.nn._network import Network
from memcfg.nn._outside import outside
from memcfg.nn._progress import check_verbose
from memcfg.nn._results import check_workspace, make_result
from memcfg.nn._split import Parts, split
from memcfg.nn._steps import programs_for
from memcfg.nn._symbolic import SymbolicTensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.workspaces import Workspace

__all__ = ["Model"]

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]


class Model(Compilable):
    """A model between symbolic tensors.

    Parameters
    ----------
    inputs : SymbolicTensor
        From `Input`.
    outputs : SymbolicTensor
        The result of a layer.
    name : str, optional
        None: ``"functional"``, ``"functional_1"``, ...

    Raises
    ------
    TypeError
        If `inputs` or `outputs` is not one symbolic tensor.
    ValueError
        If the output does not depend on the input alone, two layers have one name,
        or a layer with weights belongs to another model.

    Examples
    --------
    >>> import memcfg as mc
    >>> x = mc.nn.Input((8,))
    >>> y = mc.nn.Dense(8, activation="relu")(x)
    >>> model = mc.nn.Model(x, mc.nn.Dense(3)(mc.nn.Add()([x, y])))
    >>> model.count_params()
    99
    """

    def __init__(
        self,
        inputs: SymbolicTensor | Sequence[SymbolicTensor],
        outputs: SymbolicTensor | Sequence[SymbolicTensor],
        name: str | None = None,
    ) -> None:
        super().__init__(automatic_name("functional") if name is None else name)
        self.history: History | None = None
        self._adopt(Network(_single(inputs, "inputs"), _single(outputs, "outputs")))

    @outside
    def fit(  # noqa: PLR0913  (Keras's signature)
        self,
        x: Array,
        y: Array,
        batch_size: int = 32,
        epochs: int = 1,
        verbose: str | int = "auto",
        *,
        validation_split: float = 0.0,
        validation_data: tuple[Array, Array] | None = None,
        shuffle: bool = True,
        seed: int | None = None,
        initial_epoch: int = 0,
        validation_batch_size: int | None = None,
        on_nan: str = "raise",
    ) -> History:
        """Train.

        Every program that training needs is planned and loaded at once before the
        first step. The last batch of an epoch may be smaller. Other threads may use the
        model meanwhile, but not call `fit` or `compile`; their steps come between two
        steps of this call.

        Parameters
        ----------
        x : numpy.ndarray
            float32 samples of shape ``(n, ...)``; never modified.
        y : numpy.ndarray
            Integer labels of shape ``(n,)`` or ``(n, 1)``.
        batch_size : int, default 32
            Samples a step.
        epochs : int, default 1
            The number of the last epoch.
        verbose : {"auto", 0, 1, 2}, default "auto"
            0: nothing; 1: a progress bar an epoch; 2: a line an epoch. ``"auto"``: 1 on
            a terminal, 2 elsewhere.
        validation_split : float, default 0.0
            This part of the samples, at their end, is evaluated and not trained on.
        validation_data : tuple of numpy.ndarray, optional
            ``(x, y)`` to evaluate after each epoch.
        shuffle : bool, default True
            Whether each epoch has an order of its own.
        seed : int, optional
            Decides the orders. None: drawn from `set_random_seed`'s sequence.
        initial_epoch : int, default 0
            Epochs before it are left out, as if they had been run before.
        validation_batch_size : int, optional
            Samples a step of validation. None: `batch_size`.
        on_nan : {"raise", "ignore"}, default "raise"
            What a loss that is NaN or infinite does.

        Returns
        -------
        History
            The numbers of each epoch, means over its samples.

        Raises
        ------
        RuntimeError
            If the model is not compiled, its device is no longer configured, or another
            thread is training it; nothing changed then.
        TypeError, ValueError
            If the data or an argument is wrong; nothing changed then.
        InfeasiblePlanError
            If no plan fits the device's limit; no memory was taken then.
        NonFiniteLossError
            If a loss is NaN or infinite; weights and optimizer are as before that
            step.
        """
        with self._in_training():
            self._compiled("fit")
            options = _fit.fit_options(
                {
                    "batch_size": batch_size,
                    "validation_batch_size": validation_batch_size,
                    "epochs": epochs,
                    "initial_epoch": initial_epoch,
                    "verbose": verbose,
                    "shuffle": shuffle,
                    "seed": seed,
                    "on_nan": on_nan,
                }
            )
            parts = split(x, y, validation_split, validation_data)
            return self._train(parts, options)

    def _train(self, parts: Parts, options: _fit.FitOptions) -> History:
        setup = self._compiled("fit")
        with self._built_for(parts.x):
            data = self._dataset(parts.x, parts.y)
            held = parts.held
            validation = held and self._dataset(*held, what="validation ")
            programs = self._built_programs()
            programs.require(_fit.required(data, validation, options))
        self.history = history = History()
        _fit.train(programs, setup, (data, validation), options, history)
        return history

    @outside
    def evaluate(
        self,
        x: Array,
        y: Array,
        batch_size: int = 32,
        verbose: str | int = "auto",
        *,
        return_dict: bool = False,
    ) -> float | list[float] | dict[str, float]:
        """Return loss and metrics on data, as means over the samples.

        Parameters
        ----------
        x : numpy.ndarray
            float32 samples.
        y : numpy.ndarray
            Integer labels.
        batch_size : int, default 32
            Samples a step.
        verbose : {"auto", 0, 1, 2}, default "auto"
            As in `fit`.
        return_dict : bool, default False
            Whether to return the numbers by name.

        Returns
        -------
        float, list of float or dict
            The loss; with metrics ``[loss, *metrics]``; or by name.

        Raises
        ------
        RuntimeError
            If the model is not compiled, its device is no longer configured, or another
            thread compiled it meanwhile.
        TypeError, ValueError
            If the data or an argument is wrong.
        InfeasiblePlanError
            If no plan fits the device's limit.
        """
        size, shown = positive_int(batch_size, "batch_size"), check_verbose(verbose)
        with self._lock:
            setup = self._compiled("evaluate")
            with self._built_for(x):
                data = self._dataset(x, y)
                programs = self._built_programs()
                programs.require(programs_for("evaluate", len(data), size))
        logs = _fit.evaluate(programs, setup, data, size, shown)
        return returned(logs, return_dict)

    @outside
    def predict(
        self,
        x: Array,
        batch_size: int = 32,
        verbose: str | int = "auto",
        *,
        workspace: Workspace | None = None,
    ) -> Floats:
        """Return the model's outputs.

        Parameters
        ----------
        x : numpy.ndarray
            float32 samples of shape ``(n, ...)``.
        batch_size : int, default 32
            Samples a step.
        verbose : {"auto", 0, 1, 2}, default "auto"
            As in `fit`.
        workspace : Workspace, optional
            Where the result is made; it must be open. None: outside of all workspaces,
            also inside of one.

        Returns
        -------
        numpy.ndarray
            float32 of shape ``(n, ...)``, logits if the model ends in them.

        Raises
        ------
        TypeError, ValueError
            If the data or an argument is wrong.
        WorkspaceError
            If the workspace is not open.
        WorkspaceConfigError
            If there is a workspace, and the model's `inference_workspace_mode` is
            ``"none"``, which stands for no workspaces at all.
        InfeasiblePlanError
            If no plan fits the device's limit.
        RuntimeError
            If the device is no longer configured, or another thread compiled the model
            meanwhile.
        """
        size, shown = positive_int(batch_size, "batch_size"), check_verbose(verbose)
        with self._built_for(x):
            samples = check_x(x)
            network, programs = self._built_network(), self._built_programs()
            check_shape(samples, network.input_shape)
            check_workspace(workspace, self._modes())
            programs.require(programs_for("predict", len(samples), size))
            shape = (len(samples), *network.output_shape)
            result = make_result(shape, workspace)
        _fit.predict(programs, samples, result, size, shown)
        return result

    def predict_on_batch(self, x: Array) -> Floats:
        """Return the model's outputs for one batch.

        Parameters
        ----------
        x : numpy.ndarray
            float32 samples.

        Returns
        -------
        numpy.ndarray
            float32, one row a sample.

        Raises
        ------
        TypeError, ValueError
            If the data is wrong.
        InfeasiblePlanError
            If no plan fits the device's limit.
        """
        return self.predict(x, batch_size=len(check_x(x)), verbose=0)


def _single(
    tensors: SymbolicTensor | Sequence[SymbolicTensor], what: str
) -> SymbolicTensor:
    several = tensors if isinstance(tensors, list | tuple) else [tensors]
    if len(several) != 1 or not isinstance(several[0], SymbolicTensor):
        raise TypeError(
            f"{what} is one symbolic tensor, which starts from Input(shape); several "
            f"are not supported yet. Got {tensors!r}"
        )
    return several[0]
