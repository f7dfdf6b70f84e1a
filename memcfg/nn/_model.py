"""Models: layers joined from an input to an output, trained inside a limit.

Owns the public class, and prediction. Everything a caller gives is checked before
memory is taken and before the first step, as far as it is there.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from memcfg.nn._fitting import Fitting
from memcfg.nn._naming import automatic_name
from memcfg.nn._network import Network
from memcfg.nn._outside import outside
from memcfg.nn.inputs._array_checks import check_x
from memcfg.nn.inputs._feed import Feed
from memcfg.nn.inputs._reading import source_of
from memcfg.nn.layers._symbolic import SymbolicTensor
from memcfg.nn.training import _trainer
from memcfg.nn.training._predictions import check_workspace, result_of
from memcfg.nn.training._progress import check_verbose
from memcfg.workspaces import is_attached

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Self

    from memcfg.data import Dataset
    from memcfg.workspaces import Workspace

__all__ = ["Model"]

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]

_LIVE = ("_lock",)  # what a copy has of its own


class Model(Fitting):
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

    __slots__ = ()

    def __init__(
        self,
        inputs: SymbolicTensor | Sequence[SymbolicTensor],
        outputs: SymbolicTensor | Sequence[SymbolicTensor],
        name: str | None = None,
    ) -> None:
        super().__init__(automatic_name("functional") if name is None else name)
        self._adopt(Network(_single(inputs, "inputs"), _single(outputs, "outputs")))

    def __copy__(self) -> NoReturn:
        raise TypeError(
            f"a shallow copy of {self.name!r} would share its layers and its memory: "
            "copy.deepcopy(model) makes another model"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Make another model, which takes memory of its own when it is first used."""
        memo[id(self)] = made = type(self).__new__(type(self))
        state = self.__getstate__()
        values = state.pop("_values")  # copies already
        made.__setstate__(copy.deepcopy(state, memo) | {"_values": values})
        return made

    @outside
    def __getstate__(self) -> dict[str, Any]:
        """Return architecture, settings and values, of a moment between two steps."""
        with self._lock.turn():
            values = self._built_programs().values() if self.built else {}
            steps = 0 if self._setup is None else self._setup.optimizer.iterations
            state = super().__getstate__()
            state["_parts"] = self._parts._replace(programs=None)
        kept = {name: state[name] for name in state if name not in _LIVE}
        return kept | {"_values": values, "_steps": steps}

    @outside
    def __setstate__(self, state: dict[str, Any]) -> None:
        """Become the model of a state, with layers and an optimizer of its own."""
        values, steps = state.pop("_values"), state.pop("_steps")
        Fitting.__init__(self, state.pop("name"))
        super().__setstate__(state)
        if self._parts.network is not None:
            self._adopt(
                self._parts.network, {name: _owned(values[name]) for name in values}
            )
        if self._setup is not None:
            self._setup.optimizer.claim(self)
            self._setup.optimizer.restore(steps)

    @outside
    def predict(
        self,
        x: Array | Dataset | Iterable[Any],
        batch_size: int | None = None,
        verbose: str | int = "auto",
        *,
        steps: int | None = None,
        workspace: Workspace | None = None,
    ) -> Floats:
        """Return the model's outputs.

        Parameters
        ----------
        x : numpy.ndarray, Dataset or iterable
            float32 samples of shape ``(n, ...)``; or batches as in `fit`, of which
            labels are not read: ``x``, ``(x,)`` or ``(x, y)``.
        batch_size : int, optional
            Samples a step; None: 32. Not with batches.
        verbose : {"auto", 0, 1, 2}, default "auto"
            As in `fit`.
        steps : int, optional
            How many batches are read. None: all.
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
        ResourceExhaustedError
            If batches do not fit beside the model, or the result its workspace.
        RuntimeError
            If the device is no longer configured, or another thread compiled the model
            meanwhile.
        BaseException
            What the data raises.

        Warns
        -----
        RuntimeWarning
            If the data ends before `steps` batches.
        """
        shown = check_verbose(verbose)
        source = source_of(x, None, batch_size, self._pool, labelled=False)
        check_workspace(workspace, self._modes())
        with Feed(source, steps, "steps") as feed:
            programs = self._loaded_for([("predict", source)], classes=False)
            shape = self._built_network().output_shape
            result = result_of(source.count(feed.steps), shape, workspace)
            _trainer.predict(programs, feed, result, shown)
        return result.array()

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


def _owned(value: Floats) -> Floats:
    """Return an array of no workspace, file or buffer of others."""
    if value.flags.owndata and not is_attached(value):
        return value
    return np.array(value, np.float32)


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
