"""`MultiOptimizer`: each weight updated by the optimizer that a map gives it."""

from __future__ import annotations

import re
import warnings
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from memcfg._caller import outside
from memcfg._core import Counter
from memcfg.nn.exchange._configs import Configured, deserialize_keras_object, plain
from memcfg.nn.optimizers._optimizer import Optimizer, Slot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from memcfg.graph import Builder
    from memcfg.nn._network import Weight
    from memcfg.nn.layers._layer import Variable

__all__ = ["MultiOptimizer", "OptimizerMap"]


class _Named(NamedTuple):
    """A weight, as passed to a user's map."""

    path: str
    name: str
    shape: tuple[int, ...]


class OptimizerMap(MutableMapping[str, Optimizer], Configured):
    """Optimizers by the names of weights.

    Parameters
    ----------
    default_optimizer : Optimizer
        The optimizer of weights that no expression matches.
    optimizer_map : dict of str to Optimizer, optional
        Optimizers by regular expressions, which match the whole path of a weight, such
        as ``"encoder/.*"``. Paths begin with the layer, also in a `Sequential`.

    Raises
    ------
    TypeError
        If an entry is not an optimizer.

    Examples
    --------
    >>> import memcfg as mc
    >>> optimizers = mc.nn.optimizers
    >>> chosen = optimizers.OptimizerMap(optimizers.SGD(0.1))
    >>> chosen["head/.*"] = optimizers.Adam()
    >>> chosen["head/kernel"].kind, chosen["body/kernel"].kind
    ('adam', 'sgd')
    """

    __slots__ = ("_default", "_optimizers")

    def __init__(
        self,
        default_optimizer: Optimizer,
        optimizer_map: Mapping[str, Optimizer] | None = None,
    ) -> None:
        self._default = _checked(default_optimizer)
        self._optimizers: dict[str, Optimizer] = {}
        for key, optimizer in (optimizer_map or {}).items():
            self[key] = optimizer

    @property
    def default_optimizer(self) -> Optimizer:
        """The optimizer of weights that no expression matches."""
        return self._default

    def __getitem__(self, key: str) -> Optimizer:
        if key in self._optimizers:
            return self._optimizers[key]
        found = [each for each in self._optimizers if re.fullmatch(each, key)]
        if len(found) > 1:
            raise ValueError(f"{key!r} has several optimizers: {', '.join(found)}")
        return self._optimizers[found[0]] if found else self._default

    def __setitem__(self, key: str, optimizer: Optimizer) -> None:
        if not isinstance(key, str):
            raise TypeError(f"a key of an OptimizerMap is a string, not {key!r}")
        if key in self._optimizers:
            raise ValueError(f"{key!r} already has an optimizer")
        self._optimizers[re.compile(key).pattern] = _checked(optimizer)

    def __delitem__(self, key: str) -> None:
        del self._optimizers[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._optimizers)

    def __len__(self) -> int:
        return len(self._optimizers)

    def __call__(self, variable: Any) -> Optimizer:
        """Return the optimizer of a weight, which has a ``path``."""
        return self[variable.path]

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor, as Keras writes them.

        Returns
        -------
        dict
            The arguments by name; optimizers as configurations.
        """
        return {
            "default_optimizer": plain(self._default),
            "optimizer_map": plain(self._optimizers),
        }

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> Any:
        """Create a map from the result of `get_config`.

        Parameters
        ----------
        config : mapping of str to object
            The arguments.
        custom_objects : dict, optional
            Your own optimizers and schedules by name.

        Returns
        -------
        OptimizerMap
            The map.
        """
        names = ("default_optimizer", "optimizer_map")
        return cls(
            *(deserialize_keras_object(config[n], custom_objects) for n in names)
        )


def _checked(optimizer: Any) -> Optimizer:
    """Return one that a map may have; TypeError for anything else."""
    if not isinstance(optimizer, Optimizer) or isinstance(optimizer, MultiOptimizer):
        raise TypeError(f"an OptimizerMap has optimizers, got {optimizer!r}")
    return optimizer


class MultiOptimizer(Optimizer):
    """An optimizer that leaves each weight to one of several.

    Every optimizer has its own learning rate, clipping and moving averages, over the
    weights that are left to it.

    Parameters
    ----------
    optimizer_map : OptimizerMap or callable
        Returns the optimizer of a weight, which has a ``path``.
    loss_scale_factor : None, optional
        Not supported: gradients are float32 and need no scaling.
    name : str, optional
        The name. None: the class's name with a number.

    Raises
    ------
    TypeError, ValueError
        If `optimizer_map` is not callable, or an optimizer accumulates gradients.

    Examples
    --------
    >>> import memcfg as mc
    >>> optimizers = mc.nn.optimizers
    >>> slow, fast = optimizers.SGD(1e-4), optimizers.Adam(1e-2)
    >>> chosen = optimizers.OptimizerMap(slow, {"head/.*": fast})
    >>> model = mc.nn.Sequential([mc.nn.Input((4,)), mc.nn.Dense(2, name="head")])
    >>> model.compile(optimizers.MultiOptimizer(chosen), "mse")
    """

    __slots__ = ("_asked", "_chosen", "_optimizers", "_paths", "_told", "optimizer_map")

    kind = "multioptimizer"

    def __init__(
        self,
        optimizer_map: OptimizerMap | Callable[[Any], Optimizer],
        loss_scale_factor: None = None,
        name: str | None = None,
    ) -> None:
        if not callable(optimizer_map):
            raise TypeError(
                "MultiOptimizer: pass an OptimizerMap or a function, got "
                f"{optimizer_map!r}"
            )
        self._optimizers: list[Optimizer] = []
        self._chosen: dict[str, Optimizer] = {}  # by the names of weights
        self._paths: dict[tuple[Any, str], str] = {}  # by layer and name within it
        self._asked: dict[_Named, Optimizer] = {}  # what a function has answered
        self._told = False  # of expressions that match nothing
        self.optimizer_map = optimizer_map
        several = []
        if isinstance(optimizer_map, OptimizerMap):
            several = [*optimizer_map.values(), optimizer_map.default_optimizer]
        super().__init__(
            0.0,
            use_ema=any(each.use_ema for each in several),
            loss_scale_factor=loss_scale_factor,
            name=name,
        )
        for each in several:
            self._add(each)

    def _add(self, optimizer: Any) -> int:
        """Return the number of an optimizer, which may be new."""
        if optimizer not in self._optimizers:
            if optimizer.gradient_accumulation_steps is not None:
                raise ValueError(
                    "MultiOptimizer: its optimizers cannot have "
                    "gradient_accumulation_steps: use larger batches, which compile's "
                    "on_oom divides"
                )
            self._optimizers.append(_checked(optimizer))
        return self._optimizers.index(optimizer)

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers."""
        return list(self._optimizers)

    @property
    def learning_rate(self) -> float:
        """Not there: each optimizer has its own."""
        raise AttributeError(
            "a MultiOptimizer has no learning_rate: use that of one of its optimizers"
        )

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        if hasattr(self, "_learning_rate"):
            raise AttributeError(
                "a MultiOptimizer has no learning_rate: set that of an optimizer of it"
            )
        self._learning_rate = value

    def rates_after(self, steps: int) -> Any:
        """Return what the step reads of learning rates that follows so many others.

        Parameters
        ----------
        steps : int
            The number of steps that one program runs before.

        Returns
        -------
        numpy.ndarray
            As `rates`.
        """
        made = super().rates_after(steps)
        for each in self._optimizers:
            each._iterations = self._iterations
        return made

    def exclude_from_weight_decay(
        self,
        var_list: Sequence[Variable] | None = None,
        var_names: Sequence[str] | None = None,
    ) -> None:
        """Exclude some weights from weight decay, by any of the optimizers.

        Parameters
        ----------
        var_list : sequence of Variable, optional
            The weights, as of `Layer.weights`.
        var_names : sequence of str, optional
            Regular expressions, as of `Optimizer.exclude_from_weight_decay`.

        Raises
        ------
        TypeError, RuntimeError
            As of `Optimizer.exclude_from_weight_decay`.
        """
        for each in self._optimizers:
            each.exclude_from_weight_decay(var_list, var_names)

    # State and updates

    @property
    def rate_shape(self) -> tuple[int, ...]:
        """The shape of the learning rates: one for each optimizer."""
        return (len(self._optimizers),)

    @property
    def rates(self) -> np.ndarray:
        """The learning rates of the next step."""
        for each in self._optimizers:  # schedules are of the steps of all
            each._iterations = self._iterations
        return np.array([each.learning_rate for each in self._optimizers], np.float32)

    def state(
        self, weights: Sequence[Weight], *, accumulates: bool = False
    ) -> list[Slot]:
        """List the state tensors of weights, optimizer by optimizer.

        Parameters
        ----------
        weights : sequence of Weight
            The trainable weights.
        accumulates : bool, default False
            Whether weights have a gradient accumulator in any case.

        Returns
        -------
        list of Slot
            The tensors.

        Raises
        ------
        ValueError
            If two optimizers would keep a scalar of one name.
        """
        groups: dict[int, list[Weight]] = {}
        for weight in weights:
            known = self._paths.get((weight.layer, weight.spec_name), weight.name)
            self._paths[weight.layer, weight.spec_name] = known
            chosen = self._optimizer_of(known, weight)
            self._chosen[weight.name] = chosen
            groups.setdefault(self._add(chosen), []).append(weight)
        self._warn_of_lone_keys()
        result: list[Slot] = []
        for number in sorted(groups):
            own = self._optimizers[number]
            result += own.state(groups[number], accumulates=accumulates)
        names = [slot.name for slot in result]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(
                f"MultiOptimizer: two optimizers of one kind share {', '.join(twice)}: "
                "use one of them for all those weights"
            )
        return result

    def why_whole(self) -> str:
        """Say what of an update needs more than the elements at one place.

        Returns
        -------
        str
            What one of the optimizers says, if one does.
        """
        return next(filter(None, (each.why_whole() for each in self._optimizers)), "")

    def _optimizer_of(self, path: str, weight: Weight) -> Optimizer:
        """Return what the map says; a function that makes optimizers is called once."""
        seen = _Named(path, weight.spec_name, weight.shape)
        if isinstance(self.optimizer_map, OptimizerMap):
            return self.optimizer_map(seen)
        if seen not in self._asked:
            self._asked[seen] = self.optimizer_map(seen)
        return self._asked[seen]

    def _warn_of_lone_keys(self) -> None:
        """Warn once of expressions of the map that match no trained weight."""
        if self._told or not isinstance(self.optimizer_map, OptimizerMap):
            return
        self._told = True
        for key in self.optimizer_map:
            if not any(re.fullmatch(key, path) for path in self._paths.values()):
                some = ", ".join([*self._paths.values()][:3])
                warnings.warn(
                    f"MultiOptimizer: {key!r} matches no weight that is trained, such "
                    f"as {some}",
                    RuntimeWarning,
                    stacklevel=outside(),
                )

    def trace(
        self,
        builder: Builder,
        weights: Mapping[str, int],
        gradients: Mapping[str, int],
        state: Mapping[str, int],
        rate: int,
        step: Callable[[], int],
        parts: int = 1,
    ) -> list[int]:
        """Append the updates of a step, optimizer by optimizer.

        Parameters
        ----------
        builder : Builder
            Collects the ops.
        weights, gradients, state : mapping of str to int
            As of `Optimizer.trace`.
        rate : int
            Id of the learning rates.
        step : callable
            Returns the id of the step number.
        parts : int, default 1
            As of `Optimizer.trace`.

        Returns
        -------
        list of int
            Ids of the new values of weights and state.
        """
        new: list[int] = []
        for number, own in enumerate(self._optimizers):
            names = [name for name in weights if self._chosen[name] is own]
            if not names:
                continue
            label = f"{self.kind}/{number}/rate"
            ends = {"begin": (number,), "end": (number + 1,), "strides": (1,)}
            (one,) = builder.apply("slice", (rate,), ends, name=label, phase="backward")
            (one,) = builder.apply(
                "reshape", (one,), {"shape": ()}, name=f"{label}/one", phase="backward"
            )
            new += own.trace(
                builder,
                {name: weights[name] for name in names},
                {name: gradients[name] for name in names},
                state,
                one,
                step,
                parts,
            )
        return new

    def apply(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None
    ) -> None:
        """Update weights, in a function that `memcfg.function` traces or at once.

        Parameters
        ----------
        grads : sequence of (SymbolicTensor, array_like or None)
            The gradients.
        trainable_variables : sequence of Variable
            The weights; the map is given their paths.

        Raises
        ------
        TypeError, ValueError
            As of `Optimizer.apply`.
        """
        for each in trainable_variables or ():
            if isinstance(getattr(each, "path", None), str):
                self._paths[each._layer, each.name] = each.path
        super().apply(grads, trainable_variables)

    def _claim(self, owner: object) -> None:
        super()._claim(owner)
        for each in self._optimizers:
            each._claim(owner)

    def _check_free(self, owner: object) -> None:
        super()._check_free(owner)
        for each in self._optimizers:
            each._check_free(owner)

    # Settings

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor.

        Returns
        -------
        dict
            The arguments by name; the map as a configuration.
        """
        return {
            "optimizer_map": plain(self.optimizer_map),
            "loss_scale_factor": None,
            "name": self.name,
        }

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> Any:
        """Create an optimizer from its settings.

        Parameters
        ----------
        config : mapping
            The settings, as `get_config` returns them.
        custom_objects : dict, optional
            Your own optimizers, schedules and functions by name.

        Returns
        -------
        MultiOptimizer
            The optimizer, without state.
        """
        chosen = deserialize_keras_object(config["optimizer_map"], custom_objects)
        return cls(chosen, name=config.get("name"))

    def _settings(self) -> dict[str, Any]:
        return {"optimizer_map": self.optimizer_map}

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes of a copy, which has no model and no state."""
        return super().__getstate__() | {
            "_iterations": Counter(),
            "_chosen": {},
            "_paths": {},
        }
