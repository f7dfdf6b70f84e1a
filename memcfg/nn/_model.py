"""Models: layers connected from inputs to outputs, trained within a memory limit."""

from __future__ import annotations

import copy
import inspect
import json
import os
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from difflib import get_close_matches
from functools import partial, wraps
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    NamedTuple,
    NoReturn,
    ParamSpec,
    TypeAlias,
    TypeVar,
    overload,
)
from weakref import WeakMethod, WeakValueDictionary, ref

import numpy as np
import numpy.typing as npt

from memcfg import config
from memcfg._caller import outside
from memcfg._checks import name_of, unknown
from memcfg._core import Counter, Lock
from memcfg.config._dtype_policy import as_policy, dtype_policy
from memcfg.data import TensorSpec
from memcfg.errors import InfeasiblePlanError, MemcfgError, WeightsError
from memcfg.graph import TIMES
from memcfg.memory.crash._crash_hooks import on_error
from memcfg.memory.crash._crash_setting import Asked
from memcfg.nn import optimizers
from memcfg.nn._argument_checks import integer
from memcfg.nn._attributes import (
    FixedAttributes,
    automatic_name,
    check_name,
    snake_case,
)
from memcfg.nn._batch_parts import unpack_x_y_sample_weight
from memcfg.nn._keras_arguments import takes_arguments
from memcfg.nn._nested import Nested, Symbolic, symbolic
from memcfg.nn._nesting import Structure, holds_numbers, is_array, is_part, taken_apart
from memcfg.nn._network import Network, from_inner, summary_text, weights_of
from memcfg.nn._random import SeedMark, seeds_of_refused
from memcfg.nn._saving import save
from memcfg.nn._weight_files import (
    check_file_name,
    check_list,
    read_file,
    read_matching,
    write_file,
)
from memcfg.nn.callbacks import CallbackList, History, check_callbacks
from memcfg.nn.exchange._architecture import functional_config, joined
from memcfg.nn.exchange._configs import (
    Configured,
    own_arguments,
    revived,
    serialize_keras_object,
)
from memcfg.nn.exchange._custom_objects import CustomObjectScope
from memcfg.nn.exchange._keras_files import (
    is_of_keras,
    read_weights_of_keras,
    save_model_for_keras,
    save_weights_for_keras,
    warn_of_missing,
)
from memcfg.nn.exchange._state_trees import flattened, nested
from memcfg.nn.inputs._batches import Batch
from memcfg.nn.inputs._element_source import element_source, element_sources
from memcfg.nn.inputs._feed import Feed
from memcfg.nn.inputs._reading import (
    Source,
    check_class_weight,
    fit_sources,
    is_arrays,
    is_stream,
    source_of,
    with_first_targets,
)
from memcfg.nn.inputs._run_limits import limited, max_epochs
from memcfg.nn.inputs._samples import SampleShapes, Wanted, columns, samples
from memcfg.nn.layers._layer import (
    Input,
    Layer,
    OpenShape,
    SymbolicTensor,
    Variable,
    add_loss,
    call_mode,
    calling,
    change_policy,
    check_ends,
    current_call,
    members,
    pattern,
    sample_shape,
    show_shape,
)
from memcfg.nn.layers._operators import Parameter, constant_tensor
from memcfg.nn.metrics import Metric
from memcfg.nn.training._compile_config import (
    PLANNED,
    CompileConfig,
    get_modes,
    get_policy,
    get_times,
)
from memcfg.nn.training._crash_facts import describe_call
from memcfg.nn.training._evaluations import Evaluations
from memcfg.nn.training._objectives import (
    check_goals,
    no_loss,
    resolve,
    unreached,
    warn_of_outputs,
)
from memcfg.nn.training._predictions import Predictions, check_workspace
from memcfg.nn.training._session import Session, device_of
from memcfg.nn.training._tracing import ProgramKey, TraceSpec
from memcfg.nn.training._trainer import Trainer, check_on_nan, non_finite
from memcfg.nn.training.alternatives._fallbacks import Fallback, get_on_oom
from memcfg.nn.training.alternatives._largest_batches import (
    LargestBatch,
    LargestBatches,
)
from memcfg.nn.training.alternatives._smaller_images import (
    EIGHTHS,
    ImagesError,
    largest,
    of_smaller_images,
    size_of,
)
from memcfg.nn.training.progress._progress import check_verbose
from memcfg.units import parse_bytes
from memcfg.workspaces import gc, is_attached, scope_out

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from typing import Self

    from memcfg.config import DTypePolicy
    from memcfg.data import Dataset
    from memcfg.graph import Graph
    from memcfg.memory import Pool
    from memcfg.nn._network import Weight
    from memcfg.nn.callbacks import Callback
    from memcfg.nn.layers._parametrization import Parametrization
    from memcfg.nn.losses import Loss
    from memcfg.nn.optimizers import Optimizer
    from memcfg.nn.optimizers._optimizer import Slot
    from memcfg.nn.training.alternatives._fallbacks import OnOom
    from memcfg.nn.training.alternatives._memory_estimate import Estimate
    from memcfg.plan import Plan, Policy
    from memcfg.runtime import MemoryReport
    from memcfg.timeline import MemoryTimeline
    from memcfg.workspaces import LayerWorkspaceMgr, Workspace, WorkspaceMode

    _Step: TypeAlias = str | Policy | Callable[["Model"], "Model"]

__all__ = ["Model", "Parts"]

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
P = ParamSpec("P")
R = TypeVar("R")


def outside_workspaces(method: Callable[P, R]) -> Callable[P, R]:
    """Make a method run outside of all workspaces, so the model owns its arrays."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with scope_out():
            return method(*args, **kwargs)

    return call


class _Refused(Exception):  # noqa: N818  `or_another_model` raises the error itself
    """What `fit` refuses before its first step."""

    def __init__(self, error: InfeasiblePlanError, *, iterator: bool) -> None:
        self.error = error
        self.iterator = iterator  # whether batches that were read are lost


def _is_iterator(data: Any) -> bool:
    return isinstance(data, Iterator) and not hasattr(data, "reset")


@contextmanager
def _undone(model: Model, seeds: SeedMark, *, was_built: bool) -> Iterator[None]:
    """Have a model unbuilt again, and no seeds drawn, if the block raises."""
    try:
        yield
    except BaseException:
        with model._lock.turn():
            session = model._session
            if not (was_built or session is None or session.known_values()):
                model._unbuild()
        seeds.restore()
        raise


def or_another_model(method: Callable[P, History]) -> Callable[P, History]:
    """Make `fit` train another model that ``on_oom`` names or makes, as a last way.

    The model itself and its data are as they were.
    """

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> History:
        model: Any = args[0]
        seeds, was_built = SeedMark(), model.built
        try:
            return method(*args, **kwargs)
        except _Refused as refused:
            refusal, iterator = refused.error, refused.iterator
        with _undone(model, seeds, was_built=was_built):
            other, step = model._trained_instead(refusal, iterator=iterator)
        step.warn(model.name)
        history: History = getattr(other, method.__name__)(*args[1:], **kwargs)
        session = other._parts.session
        if isinstance(session, Session):
            session.instead = step  # for its reports
        history.fallbacks.insert(0, step)
        return history

    return call


def runs(method: Callable[Concatenate[Model, P], R]) -> Callable[..., R]:
    """Do the same, and report a lack of memory that the caller is to hear of."""

    @wraps(method)
    def call(self: Model, *args: P.args, **options: P.kwargs) -> R:
        with scope_out():
            try:
                return method(self, *args, **options)
            except MemoryError as error:
                on_error(error, lambda: self._asked(method.__name__, args, options))
                raise

    return call


_ALL = 1 << 62  # samples of an array in one batch
_SHOWN = 12  # layers listed in a message about an unknown name
_joining = threading.Lock()  # held while models begin to share a lock
_NEVER_CALLED = ("make_train_function", "make_test_function", "make_predict_function")
# Methods whose overrides make the steps of a model functions of one's own.
_STEPS = ("train_step", "test_step", "predict_step", "compute_loss", "compute_metrics")
# What needs a loss, unless the model has steps of its own.
_MINIMISE = frozenset(
    {
        *("fit", "evaluate", "train_on_batch", "test_on_batch", "plan", "graph"),
        *("largest_batch", "estimate", "training"),
    }
)
# Live owners of the values of layers: models and functions.
_owners: WeakValueDictionary[str, Any] = WeakValueDictionary()


def name_owner(owner: Any, name: str) -> str:
    """Return a unique name for an owner's memory; repeated names are numbered."""
    label, number = name, 1
    while _owners.setdefault(label, owner) is not owner:
        number += 1
        label = f"{name} ({number})"
    return label


class Parts(NamedTuple):
    """The parts of a model, as one value so that an interrupt cannot split them."""

    network: Network | None  # None while shapes are not known
    config: CompileConfig | None
    session: Session | None  # the network's values and loaded programs


class Model(FixedAttributes, Configured):
    """A model between symbolic tensors.

    Parameters
    ----------
    inputs : SymbolicTensor, or list, tuple or dict of SymbolicTensor
        Results of `Input`. With several, data is a list of as many, or a dict by name.
    outputs : SymbolicTensor, or list, tuple or dict of SymbolicTensor
        Results of layers. With several, `predict` returns as many arrays, in a list,
        tuple or dict like this argument.
    name : str, optional
        The name. By default ``"functional"``, ``"functional_1"``, ...
    trainable : bool, default True
        Whether training changes the weights.
    dtype : {"float32", "mixed_bfloat16"} or DTypePolicy, optional
        The policy of the layers without a `dtype` of their own. By default the one set
        by `memcfg.config.set_dtype_policy` when they were made.

    Raises
    ------
    TypeError
        If `inputs` or `outputs` are not symbolic tensors.
    ValueError
        If an output does not depend on the inputs alone, two layers have the same name,
        or `dtype` is not supported.
    RuntimeError
        From methods that need a compiled model, known shapes or a loaded program, if
        there is none.

    Examples
    --------
    >>> import memcfg as mc
    >>> x = mc.nn.Input((8,))
    >>> y = mc.nn.Dense(8, activation="relu")(x)
    >>> model = mc.nn.Model(x, mc.nn.Dense(3)(mc.nn.Add()([x, y])))
    >>> model.count_params()
    99
    """

    __slots__ = (
        "_calls_whole",
        "_from_data",
        "_kind",
        "_lock",
        "_nested",
        "_own",
        "_owner",
        "_parts",
        "_policy",
        "_reference",
        "_trainer",
        "name",
    )

    _has_own_steps: ClassVar[bool] = False  # whether a subclass overrides a step
    _calls_itself: ClassVar[bool] = False  # whether a subclass says what is computed
    _saved_as = "Model"
    _advice = "say it to the constructor, compile or fit; stop_training ends a fit"

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse overrides of Keras methods that are never called here."""
        super().__init_subclass__(**options)
        for name in vars(cls).keys() & {*_NEVER_CALLED}:
            raise TypeError(
                f"{cls.__name__}.{name} would not be called: override train_step, "
                "test_step or predict_step, which are traced to planned programs"
            )
        cls._has_own_steps = any(
            getattr(cls, name) is not getattr(Model, name) for name in _STEPS
        )
        cls._calls_itself = cls.call is not Model.call

    def __init__(
        self,
        inputs: Symbolic | None = None,
        outputs: Symbolic | None = None,
        name: str | None = None,
        *,
        trainable: bool = True,
        dtype: str | DTypePolicy | None = None,
    ) -> None:
        own = "_saved_as" not in vars(type(self))  # a user's class
        if inputs is None and outputs is None and own:
            self._begin(name, snake_case(type(self).__name__), dtype)
            if not trainable:
                self.trainable = False
            return
        self._begin(name, "functional", dtype)
        if inputs is None or outputs is None:
            raise TypeError(
                "Model takes inputs and outputs, or is a subclass that says in `call` "
                "what it computes"
            )
        starts, takes = symbolic(inputs, "inputs")
        ends, gives = symbolic(outputs, "outputs")
        check_ends(ends, starts, "Model")
        self._adopt(Network(*from_inner(starts, ends), takes, gives))
        if not trainable:
            self.trainable = False

    def _begin(self, name: str | None, kind: str | None, dtype: Any) -> None:
        """Initialise an empty model; its lock serialises the steps of threads."""
        self._kind = kind if name is None else None  # kind of an automatic name
        self.name = automatic_name(kind or "") if name is None else check_name(name)
        self._reference = ref(self)  # the one that layers have, also when dead
        self._parts = Parts(None, None, None)
        self._policy = None if dtype is None else as_policy(dtype)
        self._trainer = Trainer()
        self._from_data = False  # whether a batch gave the shapes of the inputs
        # Whether steps of one's own run `call` on whole batches, and not its trace.
        self._calls_whole = False
        self._own: Any = None  # the programs of steps of one's own
        self._nested: Nested | None = None  # the model as a layer
        self._lock = Lock(self.name)  # shared with models that share layers
        self._owner = name_owner(self, self.name)  # others see the model from now on

    @property
    def built(self) -> bool:
        """Whether the shapes of the weights are known.

        A model without a `call` may set it to True, as in Keras, with no effect.
        """
        return self._is_built()

    @built.setter
    def built(self, value: bool) -> None:
        if self._is_built() and not value:
            raise AttributeError(f"{self.name!r} has its weights already")

    def _is_built(self) -> bool:
        return self._network is not None

    @property
    def layers(self) -> list[Layer]:
        """The layers and nested models, in the order of their weights.

        What operators and functions of `nn.ops` call is left out, as in Keras, unless
        it has weights. Layers that outlive the model keep the values that lie on the
        host, as all do after `close`. Reading one that lay on the device raises
        RuntimeError.
        """
        listed = self._stacked()
        if type(self).call is not Model.call:  # without the ops of `call`
            own = set(members(list(getattr(self, "__dict__", {}).values())))
            listed = [
                each
                for each in listed
                if (each in own or each.weights) and not isinstance(each, Parameter)
            ]
        elif self._network is not None and "_stack" not in type(self).__slots__:
            nodes = self._network.nodes
            called = {node.layer for node in nodes if not node.in_operation}
            listed = [each for each in listed if each in called or each.weights]
        return [getattr(each, "model", each) for each in listed]

    def _stacked(self) -> Sequence[Layer]:
        """Return the layers, with nested models as layers."""
        return self._as_layer()._sublayers()

    def call(self, inputs: Any) -> Any:
        """Compute the model's result from its layers; overridden by subclasses.

        Parameters
        ----------
        inputs : SymbolicTensor, or list or dict of them
            The inputs of the model. A subclass may also take ``training``.

        Returns
        -------
        SymbolicTensor, or list, tuple or dict of them
            The outputs.
        """
        if self._network is None:
            raise NotImplementedError(
                f"{type(self).__name__} does not define what it computes: override "
                "`call`"
            )
        return self(inputs)

    def __call__(
        self, inputs: Any, training: bool | None = None, mask: None = None
    ) -> Any:
        """Connect the model to symbolic tensors, or predict on arrays."""
        several, form = taken_apart(inputs, is_part)
        if several and all(isinstance(each, SymbolicTensor) for each in several):
            return self._as_layer()(inputs, training=training, mask=mask)
        self._as_layer()._check_call(mask=mask)
        if Variable.functions.is_tracing():  # arrays are constants there
            constants = [constant_tensor(each) for each in several]
            given = Structure.of(form, [""] * len(several)).pack(constants)
            return self._as_layer()(given, training=training)
        if training or Variable.functions.is_taped():
            # with dropout, and moving averages that move
            mode = {"training": True} if training else {}
            return Variable.functions.at_once(self._as_layer(), (inputs,), mode)
        return self.predict_on_batch(inputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shape of the result of inputs of given shapes.

        Parameters
        ----------
        input_shape : tuple of (int or None), or list of them
            The shapes of the model's inputs, with the batch first.

        Returns
        -------
        tuple of (int or None), or list of them
            The shape of the result, or of each result.
        """
        return self._as_layer().compute_output_shape(input_shape)

    def _as_layer(self) -> Nested:
        """Return the model as a layer for other models."""
        if self._nested is None:
            self._nested = Nested(self)
        return self._nested

    @property
    def dtype_policy(self) -> DTypePolicy:
        """The dtype policy of the model, by default that of its layers.

        If the layers differ or there are none, it is the policy of new layers. Setting
        it sets it on all layers, unless the model is compiled or has run.
        """
        if self._policy is not None:
            return self._policy
        result = {layer.dtype_policy for layer in self._stacked()}
        return result.pop() if len(result) == 1 else dtype_policy()

    @dtype_policy.setter
    def dtype_policy(self, value: str | DTypePolicy) -> None:
        policy = as_policy(value)
        change_policy(self._stacked(), policy, said=True)()
        self._policy = policy

    def _policy_for(self, layers: Iterable[Layer]) -> Callable[[], None]:
        """Return a function that sets the model's policy on layers without one."""
        known = () if self._policy is None else layers
        return change_policy(known, self._policy or dtype_policy(), said=False)

    @property
    def trainable(self) -> bool:
        """Whether training changes the weights, as read by `compile`.

        Setting it also sets it on all layers.
        """
        return self._as_layer().trainable

    @trainable.setter
    def trainable(self, value: bool) -> None:
        self._as_layer().trainable = value

    @property
    def weights(self) -> list[Variable]:
        """All weights, in Keras's order."""
        return _distinct(each for layer in self._stacked() for each in layer.weights)

    @property
    def trainable_weights(self) -> list[Variable]:
        """The weights that training changes."""
        layers = self._stacked() if self.trainable else ()
        return _distinct(each for layer in layers for each in layer.trainable_weights)

    @property
    def non_trainable_weights(self) -> list[Variable]:
        """The weights that training does not change."""
        if not self.trainable:
            return self.weights
        layers = self._stacked()
        return _distinct(
            each for layer in layers for each in layer.non_trainable_weights
        )

    variables = weights
    trainable_variables = trainable_weights
    non_trainable_variables = non_trainable_weights

    @property
    def inputs(self) -> list[SymbolicTensor]:
        """The input tensors, as a list."""
        return list(self._built_network().inputs)

    @property
    def outputs(self) -> list[SymbolicTensor]:
        """The output tensors, as a list."""
        return list(self._built_network().outputs)

    @property
    def input(self) -> Any:
        """The inputs as given to the constructor."""
        network = self._built_network()
        return network.takes.pack(network.inputs)

    @property
    def output(self) -> Any:
        """The outputs as given to the constructor."""
        network = self._built_network()
        return network.gives.pack(network.outputs)

    @property
    def input_shape(self) -> Any:
        """The shapes of the inputs, with None for the batch."""
        network = self._built_network()
        return network.takes.pack([each.shape for each in network.inputs])

    @property
    def output_shape(self) -> Any:
        """The shapes of the outputs, with None for the batch."""
        network = self._built_network()
        return network.gives.pack([each.shape for each in network.outputs])

    stateless_call = Layer.stateless_call

    def count_params(self) -> int:
        """Return the number of parameters.

        Returns
        -------
        int
            The number of elements of all weights.
        """
        return sum(weight.size for weight in self._exchanged())

    def get_config(self) -> dict[str, Any]:
        """Return what `from_config` needs to build such a model, as Keras writes it.

        Returns
        -------
        dict
            The layers with their settings and calls. Of a class of your own, the
            arguments of its constructor that are attributes; override it for others.

        Raises
        ------
        TypeError
            If a part cannot be described, such as a lambda.
        RuntimeError
            If the model's shapes are not known.
        """
        if type(self) is Model:
            return functional_config(self)
        own = {"name": self.name, "trainable": bool(self.trainable)}
        return own | own_arguments(self)

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None
    ) -> Any:
        """Build a model, with new weights, from the result of `get_config`.

        Parameters
        ----------
        config : mapping of str to object
            The configuration, of memcfg or of Keras.
        custom_objects : mapping of str to type or callable, optional
            Your own classes and functions by name.

        Returns
        -------
        Model
            The model, which is not compiled.

        Raises
        ------
        FormatError
            If the configuration is malformed, or names what is not known.
        TypeError, ValueError
            If a constructor or a layer rejects an argument.
        """
        with CustomObjectScope(custom_objects):
            if cls is not Model and "output_layers" not in config:
                given = {name: revived(name, each) for name, each in config.items()}
                accepted = inspect.signature(cls).parameters.values()
                if not any(each.kind is each.VAR_KEYWORD for each in accepted):
                    names = {each.name for each in accepted} | config.keys()
                    names -= {"name", "trainable"} - {each.name for each in accepted}
                    given = {name: given[name] for name in names & given.keys()}
                made = cls(**given)
                if made._kind is not None and "name" in config:
                    object.__setattr__(made, "name", check_name(config["name"]))
            else:
                inputs, outputs = joined(config)
                made = cls(inputs, outputs, name=config.get("name"))
        if config.get("trainable") is False:
            object.__setattr__(made._as_layer(), "_trainable", False)
        return made

    def to_json(self, **options: Any) -> str:
        """Return the architecture as text, without weights, as Keras writes it.

        Parameters
        ----------
        **options
            Arguments of `json.dumps`.

        Returns
        -------
        str
            JSON, which `models.model_from_json` reads.

        Raises
        ------
        TypeError, RuntimeError
            As of `get_config`.
        """
        return json.dumps(serialize_keras_object(self), **options)

    def get_layer(self, name: str | None = None, index: int | None = None) -> Layer:
        """Return a layer by its name or its index.

        Parameters
        ----------
        name : str, optional
            The layer's name.
        index : int, optional
            Its index in `layers`.

        Returns
        -------
        Layer
            The layer.

        Raises
        ------
        ValueError
            If there is no such layer, or not exactly one argument is given.
        """
        layers = self.layers
        if (name is None) == (index is None):
            raise ValueError("get_layer takes a name or an index")
        if index is not None:
            if not -len(layers) <= index < len(layers):
                raise ValueError(
                    f"{self.name!r} has {len(layers)} layers, none at {index}"
                )
            return layers[index]
        for layer in layers:
            if layer.name == name:
                return layer
        names = [layer.name for layer in layers]
        near = get_close_matches(str(name), names)
        advice = f"did you mean {' or '.join(map(repr, near))}?"
        if not near:
            more = f" and {len(names) - _SHOWN} more" * (len(names) > _SHOWN)
            advice = f"there are {', '.join(names[:_SHOWN])}{more}"
        raise ValueError(f"no layer {name!r} in {self.name!r}: {advice}")

    @takes_arguments
    def summary(
        self,
        *,
        print_fn: Callable[[str], object] | None = None,
        expand_nested: bool = False,
        show_trainable: bool = False,
        layer_range: Sequence[str] | None = None,
    ) -> None:
        """Print each layer's output shape, parameters and activation bytes.

        Parameters
        ----------
        print_fn : callable, optional
            A function to call with the text instead of printing it.
        expand_nested : bool, default False
            Whether to list the layers of nested models as well.
        show_trainable : bool, default False
            Whether to say which layers have weights that are trained.
        layer_range : sequence of str, optional
            Regular expressions of the names of the first and the last layer to list:
            from the first that matches the first to the last that matches the second.

        Raises
        ------
        ValueError
            If `layer_range` is not two regular expressions, or no layer matches one.
        """
        layers = self._stacked()
        if layer_range is not None:
            layers = _between(layers, layer_range)
        text = summary_text(
            self.name,
            self.dtype_policy,
            layers,
            self._network,
            expand_nested=expand_nested,
            show_trainable=show_trainable,
        )
        if print_fn is None:
            print(text, end="")
        else:
            print_fn(text.removesuffix("\n"))

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer; its ``learning_rate`` may be set between steps.

        AttributeError before `compile`, as in Keras, so that `hasattr` tells.
        """
        try:
            return self._compiled("the optimizer").optimizer
        except RuntimeError as error:
            raise AttributeError(str(error), name="optimizer", obj=self) from None

    @property
    def training_workspace_mode(self) -> WorkspaceMode:
        """Where the tensors of a training step are stored, as set by `compile`."""
        return self._compiled("training_workspace_mode").modes.training

    @property
    def inference_workspace_mode(self) -> WorkspaceMode:
        """Where the tensors of evaluation and prediction are stored."""
        return self._compiled("inference_workspace_mode").modes.inference

    @property
    def history(self) -> History | None:
        """The history of the last `fit`, or None."""
        return self._trainer.history

    @property
    def stop_training(self) -> bool:
        """Whether to end `fit` early; `fit` starts with False, as in Keras.

        When another thread or the data sets it to True during `fit`, the epoch ends
        after the current step. The epoch's validation still runs, and its numbers are
        recorded.
        """
        return self._trainer.stop_training

    @stop_training.setter
    def stop_training(self, value: bool) -> None:
        self._trainer.stop_training = bool(value)

    @takes_arguments
    @outside_workspaces
    def compile(
        self,
        optimizer: Optimizer | str = "rmsprop",
        loss: Loss | str | Sequence[Any] | Mapping[str, Any] | None = None,
        loss_weights: float | Sequence[float] | Mapping[str, float] | None = None,
        metrics: Sequence[Any] | Mapping[str, Any] | None = None,
        weighted_metrics: Sequence[Any] | Mapping[str, Any] | None = None,
        *,
        memory: Policy | str | None = None,
        times: str = "nominal",
        on_oom: _Step | Sequence[_Step] = "micro_batch",
        batch_statistics: str | None = None,
        training_workspace_mode: WorkspaceMode | str = "enabled",
        inference_workspace_mode: WorkspaceMode | str = "enabled",
        layer_workspaces: LayerWorkspaceMgr
        | Mapping[str, LayerWorkspaceMgr]
        | None = None,
    ) -> None:
        """Configure the model for training.

        The model is placed on the device of the innermost ``with
        memcfg.device(...)`` block, or on the first one, and remembers its name.
        Compiling again keeps the weights, and with the same optimizer its state.

        Parameters
        ----------
        optimizer : Optimizer or str, default "rmsprop"
            One of `memcfg.nn.optimizers`, or its name such as ``"adam"``, with all
            defaults.
        loss : Loss, str, sequence or dict
            The loss to minimise, which training needs. For several outputs, one for
            all, a list of one for each, or a dict by the outputs' names; None leaves an
            output out.
        loss_weights : float, sequence or dict, optional
            The factors of the losses in the minimised sum.
        metrics : sequence or dict of Metric or str, optional
            Metrics such as ``["accuracy"]``. For several outputs, a metric or a list of
            them for each, in a list or a dict by name.
        weighted_metrics : sequence or dict of Metric or str, optional
            Metrics that are weighted by sample and class weights.
        memory : Policy or str, optional
            A policy of `memcfg.plan` or its name, by default ``memcfg.plan.auto()``. It
            plans the programs whose workspace mode is ``"enabled"``.
        times : {"nominal", "measured"}, default "nominal"
            The source of the op times that the policy uses. ``"nominal"`` times are
            those of one reference machine, so that the same model and limit have the
            same plan everywhere. ``"measured"`` times are those of this device: each op
            is run a few times when programs are planned, and on a CPU the times are
            cached on disk. After the first three steps of a program, its plan is
            assessed again by their times. Other plans of ``auto()`` within the limit
            that may be faster are used for three training steps each, and the plan with
            the fastest steps is kept; ``memory_plan.summary.recosted`` reports it.
            ``capuchin()`` measures its first step, plans by it, and then refines its
            plans by what each of them shows. Results are bit-identical.
        on_oom : str, Policy or function, or sequence of them, default "micro_batch"
            What is done with a program that does not fit the limit; several steps are
            tried in their order. Each fallback causes one `FallbackWarning` and is
            listed in the history of `fit`. Only ``"mixed_bfloat16"``, ``"resize"``,
            functions, and policies that are lossy change results.

            - ``"micro_batch"``: a batch runs in equal parts that fit. `fit`,
              `train_on_batch`, evaluation and prediction have the results of the whole
              batch, to rounding. Gradients are accumulated and the weights change once;
              masks, weights and regularizers count as in the whole batch, and dropout
              draws the same numbers. The batch runs as a whole again where there is
              room.
            - ``"replan"``: ``auto()`` plans what the method in `memory` cannot.
            - a Policy, such as ``memcfg.plan.gist(dpr="fp8")``, or its name, here
              ``"gist_fp8"``: it plans it instead.
            - ``"mixed_bfloat16"``, or ``"bfloat16"``: layers of float32 compute in
              bfloat16 from then on.
            - ``"resize"``: if the first step of `fit` does not fit, `fit` trains a copy
              of this model that makes images smaller first: to the most eighths of each
              side that fit, from seven to two. It is ``history.model``, which takes
              the same data; ``model.set_weights(history.model.get_weights())`` gives
              its weights to this one. Steps behind it are tried for it.
            - a function that takes this model and returns another, such as a narrower
              one: if the first step of `fit` does not fit, `fit` trains that, and the
              history has it as ``history.model``.
            - ``"raise"``: an error that names what would fit.
        batch_statistics : {"micro"}, optional
            Allows micro-batches in training with batch normalization, whose statistics
            are then those of each micro-batch. By default such a batch is refused.
        training_workspace_mode : WorkspaceMode or str, default "enabled"
            Where the tensors of a training step are stored. With ``"enabled"``, each
            has an offset in the plan of ``memory``. The other modes run the same loop.
            With ``"none"``, each tensor is a separate allocation, freed after its last
            reader. ``"single"`` uses one workspace for the whole iteration,
            ``"separate"`` one per kind of array. Losses, weights and predictions are
            bit-identical in all modes.
        inference_workspace_mode : WorkspaceMode or str, default "enabled"
            The same for evaluation, validation during `fit`, and prediction.
        layer_workspaces : LayerWorkspaceMgr or dict of them, optional
            Named workspaces by kind of array, instead of a mode: a manager for all
            steps, or a dict with the keys ``"training"`` and ``"inference"``. Each
            workspace is a separate arena with the limit or mapped file of its
            configuration, and is kept for the next step; its size is known before the
            step. Kinds with "no workspace" get a buffer per array. Kinds that are not
            configured, and always weights and optimizer state, are in the model's
            arena. Results are bit-identical.

        Raises
        ------
        TypeError, ValueError
            If an argument cannot be honoured, such as a policy when nothing is planned,
            a mode together with named workspaces, or ``on_oom=[]``; the model is
            unchanged.
        WorkspaceConfigError
            If the configurations of `layer_workspaces` contradict each other, or one
            has a setting that planned workspaces do not support; the model is
            unchanged.
        RuntimeError
            If another thread is in `fit`, or this one is inside a step; the model is
            unchanged.
        """
        modes = get_modes(
            training_workspace_mode, inference_workspace_mode, layer_workspaces, memory
        )
        compiled = CompileConfig(
            optimizers.get(optimizer),
            check_goals(
                loss,
                loss_weights,
                metrics,
                weighted_metrics,
                required=not self._has_own_steps,
            ),
            get_policy(memory),
            modes,
            config.logical_device().name,
            times=get_times(times, modes),
            on_oom=get_on_oom(on_oom, batch_statistics),
        )
        own = self._is_stepped(compiled)
        if own and modes != PLANNED:
            raise ValueError(
                f"{type(self).__name__} has steps of its own, which are planned: leave "
                "workspace modes and layer_workspaces out"
            )
        if own and compiled.on_oom not in (
            get_on_oom("micro_batch", None),
            get_on_oom("raise", None),
        ):
            raise ValueError(
                f"{type(self).__name__} has steps of its own, which run as they are or "
                'not at all: leave on_oom and batch_statistics out, or pass "raise"'
            )
        with self._lock.step():
            self._lock.require_no_session(self._trained_elsewhere())
            before = self._own
            if before is not None:  # its arena is freed, its values are kept
                before.close()
                self._gather()
                self._own = None
            compiled.optimizer._check_free(self)
            if self._network is not None and not compiled.goals.are_none:
                resolve(compiled.goals, self._network)
            self._configure(compiled)
            if before is not None:
                self._own = Variable.functions.own_steps(
                    self, self._compiled("a step"), before
                )

    @takes_arguments
    @runs
    @or_another_model
    def fit(
        self,
        x: Array | Dataset | Iterable[Any],
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: str | int = "auto",
        *,
        callbacks: Callback | Sequence[Callback] | None = None,
        validation_split: float = 0.0,
        validation_data: tuple[Any, ...] | Dataset | Iterable[Any] | None = None,
        shuffle: bool | None = None,
        seed: int | None = None,
        class_weight: Mapping[int, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: int | Collection[int] = 1,
        on_nan: str = "raise",
    ) -> History:
        """Train the model.

        Programs of all known batch sizes are planned and loaded together before the
        first step; a program of another size is loaded before its step. The last batch
        of an epoch may be smaller. Other threads may use the model meanwhile, except
        for `fit` and `compile`; their steps run between two steps of this call.

        Parameters
        ----------
        x : numpy.ndarray, list or dict of them, Dataset or iterable
            Samples of shape ``(n, ...)``, never modified. A memory-mapped array is read
            from its file without touching the map. Lists, data frames and tensors are
            accepted. For several inputs, a list, or a dict by name. Alternatively
            batches: a `memcfg.data.Dataset` of ``(x, y)`` or ``(x, y, sample_weight)``,
            a `memcfg.data.DataSetIterator`, or any iterable of such tuples,
            `memcfg.data.DataSet` or `memcfg.data.MultiDataSet`.
        y : numpy.ndarray, or list or dict of them, optional
            The targets: integer labels of shape ``(n,)`` or ``(n, 1)``, or numbers of
            the output's shape. Not allowed with batches, which contain them.
        batch_size : int, optional
            Samples a step; None: 32. Not with batches.
        epochs : int, default 1
            The number of the last epoch.
        verbose : {"auto", 0, 1, 2}, default "auto"
            0 prints nothing, 1 a progress bar per epoch, 2 a line per epoch; ``"auto"``
            is 1 on a terminal and in a notebook, and 2 elsewhere. Below the bar is how
            much of the device's memory is in use, its limit and its owners, until the
            epoch ends; in a notebook also the loss as a curve.
        callbacks : Callback or sequence of Callback, optional
            Callbacks to call during training, in this order; the returned history is
            last.
        validation_split : float, default 0.0
            The fraction of the samples, taken from the end, to evaluate instead of
            training on them. Not allowed with batches.
        validation_data : tuple of numpy.ndarray, Dataset or iterable, optional
            Data to evaluate after each epoch: ``(x, y)``, ``(x, y, sample_weight)``, or
            batches.
        shuffle : bool, optional
            Whether to shuffle arrays for each pass, by default True. Batches keep their
            own order.
        seed : int, optional
            The seed of the orders, by default drawn from the sequence of
            `set_random_seed`. Not allowed with batches.
        class_weight : dict of int to float, optional
            The weights of samples in the loss by class, by default 1. Only for models
            with one output.
        sample_weight : numpy.ndarray, or list or dict of them, optional
            The weight of each sample in the loss, of shape ``(n,)``, or of each step of
            each sample, ``(n, steps)``; in a list or a dict for several outputs. Not
            allowed with batches, which contain them.
        initial_epoch : int, default 0
            The first epoch to run. Arrays are read as if the earlier epochs had been
            run, batches from their beginning.
        steps_per_epoch : int, optional
            Batches per epoch. A pass over the data then continues across epochs, and a
            new one starts with the epoch after its end. By default, an epoch is one
            pass.
        validation_steps : int, optional
            Batches per validation, by default all. Each validation restarts the data if
            that is possible.
        validation_batch_size : int, optional
            Samples per step of validation on arrays, by default as in training, or 32.
        validation_freq : int or collection of int, default 1
            The number of epochs between validations, or the epochs with one, counted
            from 1.
        on_nan : {"raise", "ignore"}, default "raise"
            What a loss that is NaN or infinite does.

        Returns
        -------
        History
            The numbers of each epoch, as means over its samples. Its `pipeline` reports
            what AUTOTUNE chose, and how long steps waited for a Dataset.

        Raises
        ------
        RuntimeError
            If the model is not compiled, its device is not configured any more, or
            another thread is training it; the model is unchanged.
        TypeError, ValueError
            If the data or an argument is invalid; the model is unchanged. If a later
            batch is invalid; weights and optimizer are as before its step.
        InfeasiblePlanError
            If no plan fits the device's limit next to the batches read ahead. No memory
            is taken then, unless a later batch needs the plan.
        ResourceExhaustedError
            If batches do not fit next to the model; the error states what would fit.
        NonFiniteLossError
            If a loss is NaN or infinite; weights and optimizer are as before that step.
            Gradients are not checked: if only they are not finite, the weights and the
            next loss become so.
        BaseException
            Any error that the data raises, after the steps of the batches before it.

        Warns
        -----
        RuntimeWarning
            If the data ends before `steps_per_epoch` batches of each epoch, which ends
            training, or before `validation_steps`.
        UserWarning
            If `trainable` was set on a layer since `compile`, which reads it.

        Notes
        -----
        A thread prepares batches in reused blocks of the device's memory, and steps
        read them in place. A dataset that ends in `prefetch` has its own buffer; any
        other dataset, and any iterable whose ``async_supported`` is not False, gets a
        buffer of two batches. However this call ends, its threads end and their blocks
        are freed. A given iterator is not closed; elements read ahead from it are lost.

        The plan for known batch sizes leaves room for these blocks. If no size is
        known, as after a `map` of batches, the first batches are read before planning.
        """
        self._lock.require_no_session(self._trained_elsewhere())
        self._compiled("fit")
        given = check_callbacks(callbacks)
        first = integer(initial_epoch, "initial_epoch", 0)
        last = limited(integer(epochs, "epochs"), max_epochs(), "epochs")
        shown, guard = check_verbose(verbose), check_on_nan(on_nan)
        steps = _count(steps_per_epoch, "steps_per_epoch")
        held_steps = _count(validation_steps, "validation_steps")
        _validated(validation_freq, range(first, last))

        sources = partial(
            self._fit_sources,
            y=y,
            batch_size=batch_size,
            validation_split=validation_split,
            validation_data=validation_data,
            validation_batch_size=validation_batch_size,
            shuffle=shuffle,
            seed=seed,
            class_weight=class_weight,
            sample_weight=sample_weight,
            resources=self._pool,
            steps=steps,
            held_steps=held_steps,
        )
        with ExitStack() as stack:
            keep_seeds = stack.enter_context(seeds_of_refused(_Refused))
            stack.enter_context(self._lock.session(self._trained_elsewhere()))
            x = self._adapt_to(x, y, partial(sources, x, None, epochs_before=first))
            self._trainer.stop_training = False
            self._compiled("fit")
            resumed = [each.resumed_epoch() for each in given]
            numbers = range(max([first, *resumed]), last)
            validated = _validated(validation_freq, numbers)
            own = self._own_steps()
            to_read = self._wanted("fit") if own is None else None
            train, held = sources(x, to_read, epochs_before=numbers.start)
            held_feed = None
            with Feed(
                train, steps, "steps_per_epoch", epochs=max(1, len(numbers))
            ) as feed:
                wanted = [("train", train)]
                if held is not None:
                    held_feed = Feed(
                        held,
                        held_steps,
                        "validation_steps",
                        epochs=max(1, len(validated)),
                        anew=True,
                    )
                    wanted.append(("evaluate", held))
                # Without a number of steps, training and validation passes do not
                # overlap.
                try:
                    session = own or self._load(
                        wanted, add=max if steps is None else sum
                    )
                except InfeasiblePlanError as error:
                    iterator = any(map(_is_iterator, (x, validation_data)))
                    raise _Refused(error, iterator=iterator) from None
                self._warn_of_frozen()
                compiled = self._compiled("fit")
                history = History()
                listeners = CallbackList(
                    [*given, history],
                    self,
                    {"verbose": shown, "epochs": numbers.stop, "steps": feed.steps},
                )
                keep_seeds()
                with gc.while_fitting():
                    return self._trainer.fit(
                        session,
                        compiled,
                        feed,
                        held_feed,
                        numbers,
                        validated,
                        listeners.shown(shown),
                        guard,
                        listeners,
                        history,
                    )

    @takes_arguments
    @runs
    def evaluate(
        self,
        x: Array | Dataset | Iterable[Any],
        y: Any = None,
        batch_size: int | None = None,
        verbose: str | int = "auto",
        *,
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Callback | Sequence[Callback] | None = None,
        return_dict: bool = False,
        evaluations: Sequence[Any] | None = None,
    ) -> float | list[float] | dict[str, float]:
        """Return loss and metrics on data, as means over the samples.

        Parameters
        ----------
        x : numpy.ndarray, Dataset or iterable
            Samples, or batches, as in `fit`.
        y : numpy.ndarray, optional
            Integer labels. Not with batches, which have theirs.
        batch_size : int, optional
            Samples a step; None: 32. Not with batches.
        verbose : {"auto", 0, 1, 2}, default "auto"
            As in `fit`.
        sample_weight : numpy.ndarray, or list or dict of them, optional
            As in `fit`.
        steps : int, optional
            How many batches are read. None: all.
        callbacks : Callback or sequence of Callback, optional
            Callbacks to call during the evaluation.
        return_dict : bool, default False
            Whether to return the numbers by name.
        evaluations : sequence of Evaluator or dict, optional
            Evaluators that see the outputs of the same pass, as in `do_evaluation`.

        Returns
        -------
        float, list of float or dict
            The loss, or ``[loss, *metrics]`` if there are metrics, or a dict by name.

        Raises
        ------
        RuntimeError, TypeError, ValueError, InfeasiblePlanError, ResourceExhaustedError
            As for `fit`, or if another thread compiled the model meanwhile, or
            evaluators are of an output without a loss.
        BaseException
            What the data or an evaluator raises.

        Warns
        -----
        RuntimeWarning
            If the data ends before `steps` batches.
        """
        shown, given = check_verbose(verbose), check_callbacks(callbacks)
        self._compiled("evaluate")
        of = None if evaluations is None else Evaluations(evaluations)
        count = _count(steps, "steps")

        def source_for(x: Any, wanted: Wanted | None) -> Any:
            if self._own_steps() is None:
                made = source_of(
                    wanted, x, y, sample_weight, batch_size, self._pool, labelled=True
                )
                made.keeps_targets = of is not None
                return made
            if of is not None:
                raise ValueError(
                    f"{type(self).__name__} has steps of its own, and test_step "
                    "returns no outputs: use do_evaluation, which calls predict_step"
                )
            return element_source(x, y, sample_weight, batch_size, self._pool)

        x = self._adapt_to(x, y, partial(source_for, x, None))
        own = self._own_steps()
        source = source_for(x, self._wanted("evaluate", of) if own is None else None)
        with Feed(source, count, "steps") as feed:
            session = own or self._load([("evaluate", source)], of=of)
            params = {"verbose": shown, "steps": feed.steps}
            listeners = CallbackList(given, self, params)
            seen = listeners.shown(shown)
            logs = self._trainer.evaluate(session, feed, seen, listeners, of)
        return _returned(logs, return_dict)

    @runs
    def do_evaluation(
        self,
        x: Any,
        *evaluations: Any,
        batch_size: int | None = None,
        verbose: str | int = 0,
        steps: int | None = None,
        callbacks: Callback | Sequence[Callback] | None = None,
    ) -> Any:
        """Pass data through the model once, for any number of evaluators.

        The model need not be compiled. Evaluators get the labels, outputs and weights
        of a batch, and the masks that layers give to outputs; no array holds more than
        a batch.

        Parameters
        ----------
        x : tuple, Dataset or iterable
            Arrays ``(x, y)`` or ``(x, y, sample_weight)``, or batches of that form, as
            in `evaluate`. Labels may be in any form that the evaluators read. Batches
            may be `memcfg.data.DataSet` with masks of labels, which evaluators get.
        *evaluations : Evaluator or dict
            Evaluators such as those of `memcfg.evaluation`: objects with a method
            ``eval(labels, predictions)``, which also takes ``mask`` and
            ``sample_weight`` where there are some. For a model of several outputs,
            dicts with an evaluator, or a list of them, by name or index of the output.
        batch_size : int, optional
            Samples a step; None: 32. Not with batches.
        verbose : {"auto", 0, 1, 2}, default 0
            As in `fit`.
        steps : int, optional
            How many batches are read. None: all.
        callbacks : Callback or sequence of Callback, optional
            Callbacks to call as in `evaluate`, without logs.

        Returns
        -------
        Evaluator, dict or tuple of them
            `evaluations`, or the only one.

        Raises
        ------
        RuntimeError, TypeError, ValueError, InfeasiblePlanError, ResourceExhaustedError
            As for `predict`, if there is no y, or if evaluators name no output. If a
            batch fails, evaluators keep those before it.
        BaseException
            What the data or an evaluator raises.

        Warns
        -----
        RuntimeWarning
            If the data ends before `steps` batches.

        Examples
        --------
        >>> import numpy as np
        >>> import memcfg as mc
        >>> model = mc.nn.Sequential([mc.nn.Input((4,)), mc.nn.Dense(3)])
        >>> x, y = np.ones((50, 4), np.float32), np.arange(50) % 3
        >>> found = model.do_evaluation((x, y), mc.evaluation.Evaluation(3))
        >>> found.count, found.class_count(0)
        (50, 17.0)
        """
        shown, given = check_verbose(verbose), check_callbacks(callbacks)
        of = Evaluations(evaluations)
        own = self._own_steps()
        x, y, weight = (*(x if is_arrays(x) else (x,)), None, None)[:3]
        self._open_for(x)
        if y is None and not is_stream(None, x):
            raise TypeError(
                "do_evaluation takes arrays (x, y), or batches of samples and labels, "
                f"not {type(x).__name__}"
            )
        source: Any
        if own is None:
            source = source_of(
                self._wanted("predict", of),
                x,
                y,
                weight,
                batch_size,
                self._pool,
                labelled=True,
            )
            source.keeps_targets = source.keeps_masks = True
        else:
            source = element_source(x, y, weight, batch_size, self._pool)
        with Feed(source, _count(steps, "steps"), "steps") as feed:
            add: Callable[[Any], object]
            if own is None:
                session = self._load([("predict", source)], of=of)
                add = partial(of.step, session, "predict")
            else:
                add = partial(self._evaluate_own, own, of)
            params = {"verbose": shown, "steps": feed.steps}
            listeners = CallbackList(given, self, params)
            self._trainer.do_evaluation(add, feed, listeners.shown(shown), listeners)
        return evaluations[0] if len(evaluations) == 1 else evaluations

    def _evaluate_own(self, own: Any, of: Evaluations, batch: Any) -> None:
        """Have the outputs of a user's `predict_step` evaluated."""
        results: list[Any] = []
        own.step("predict", batch, results=results)
        _, y, weight = unpack_x_y_sample_weight(batch.data)
        of.add(self._built_network().gives, y, results[0], weight)

    @takes_arguments
    @runs
    def predict(
        self,
        x: Array | Dataset | Iterable[Any],
        batch_size: int | None = None,
        verbose: str | int = "auto",
        *,
        steps: int | None = None,
        callbacks: Callback | Sequence[Callback] | None = None,
        workspace: Workspace | None = None,
    ) -> Any:
        """Return the model's outputs.

        Parameters
        ----------
        x : numpy.ndarray, Dataset or iterable
            Samples of shape ``(n, ...)``, or batches as in `fit`, whose labels are
            ignored: ``x``, ``(x,)`` or ``(x, y)``.
        batch_size : int, optional
            Samples a step; None: 32. Not with batches.
        verbose : {"auto", 0, 1, 2}, default "auto"
            As in `fit`.
        steps : int, optional
            How many batches are read. None: all.
        callbacks : Callback or sequence of Callback, optional
            Callbacks to call during the prediction.
        workspace : Workspace, optional
            The workspace of the result, which must be open. By default the result is
            outside of all workspaces, even inside of an open one.

        Returns
        -------
        numpy.ndarray, or list or tuple of numpy.ndarray
            float32 outputs of shape ``(n, ...)``, logits if the model ends in them; one
            array for each output if there are several.

        Raises
        ------
        RuntimeError, TypeError, ValueError, InfeasiblePlanError, ResourceExhaustedError
            As for `evaluate`, except that the model need not be compiled; or if the
            result does not fit its workspace.
        WorkspaceError
            If the workspace is not open.
        WorkspaceConfigError
            If a workspace is given and the model's `inference_workspace_mode` is
            ``"none"``, which permits no workspaces.
        BaseException
            What the data raises.

        Warns
        -----
        RuntimeWarning
            If the data ends before `steps` batches.
        """
        shown, given = check_verbose(verbose), check_callbacks(callbacks)
        self._open_for(x)
        own = self._own_steps()
        if own is not None:
            if workspace is not None:
                raise ValueError(
                    f"{type(self).__name__} has steps of its own, whose results are "
                    "outside of workspaces: leave workspace out"
                )
            elements: Any = element_source(x, None, None, batch_size, self._pool)
            with Feed(elements, _count(steps, "steps"), "steps") as feed:
                results = own.predictions()
                params = {"verbose": shown, "steps": feed.steps}
                listeners = CallbackList(given, self, params)
                seen = listeners.shown(shown)
                self._trainer.predict(
                    own, feed, results, seen, listeners, lambda rows: rows[0]
                )
            return results.joined()
        wanted = self._wanted("predict")
        source = source_of(
            wanted, x, None, None, batch_size, self._pool, labelled=False
        )
        modes = PLANNED if self._config is None else self._config.modes
        check_workspace(workspace, modes)
        with Feed(source, _count(steps, "steps"), "steps") as feed:
            session = self._load([("predict", source)])
            network = self._built_network()
            samples = source.count(feed.steps)
            ends = network.at(source.lengths).outputs if source.lengths else ()
            result = Predictions(samples, ends or network.outputs, workspace)
            params = {"verbose": shown, "steps": feed.steps}
            listeners = CallbackList(given, self, params)

            def pack(rows: Any) -> Any:
                return network.gives.pack(rows.arrays())

            seen = listeners.shown(shown)
            self._trainer.predict(session, feed, result, seen, listeners, pack)
        return network.gives.pack(result.arrays())

    @takes_arguments
    @runs
    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Mapping[int, float] | None = None,
        return_dict: bool = False,
        *,
        on_nan: str = "raise",
    ) -> float | list[float] | dict[str, float]:
        """Run one training step on a batch.

        Parameters
        ----------
        x : numpy.ndarray, or list or dict of them
            Samples.
        y : numpy.ndarray, or list or dict of them, optional
            What the loss reads.
        sample_weight : numpy.ndarray, or list or dict of them, optional
            As in `fit`.
        class_weight : dict of int to float, optional
            As in `fit`.
        return_dict : bool, default False
            Whether to return the numbers by name.
        on_nan : {"raise", "ignore"}, default "raise"
            What a loss that is NaN or infinite does.

        Returns
        -------
        float, list of float or dict
            The loss before the update, or ``[loss, *metrics]`` if there are metrics, or
            a dict by name.

        Raises
        ------
        TypeError, ValueError
            If the data is wrong.
        InfeasiblePlanError
            If no plan fits the device's limit.
        NonFiniteLossError
            If the loss is NaN or infinite; weights and optimizer are as before.
        """
        with self._lock.turn():
            compiled = self._parts.config
            if compiled is None or compiled.goals.loss is None:
                compiled = self._compiled("train_on_batch")
            guard = on_nan == "raise" or check_on_nan(on_nan)
            session, batch = self._batch("train", x, y, sample_weight, class_weight)
            optimizer, totals = compiled.optimizer, session.totals()
            finished, values = session.step("train", batch, optimizer, guard=guard)
        if not finished:
            where = f"step {optimizer._iterations.value + 1}"
            raise non_finite(session, values[0], where)
        totals.add(batch.size, values)
        return _returned(totals.logs(), return_dict)

    @runs
    def test_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        return_dict: bool = False,
    ) -> float | list[float] | dict[str, float]:
        """Return loss and metrics of one batch.

        Parameters
        ----------
        x : numpy.ndarray, or list or dict of them
            Samples.
        y : numpy.ndarray, or list or dict of them, optional
            What the loss reads.
        sample_weight : numpy.ndarray, or list or dict of them, optional
            As in `fit`.
        return_dict : bool, default False
            Whether to return the numbers by name.

        Returns
        -------
        float, list of float or dict
            The loss; with metrics ``[loss, *metrics]``; or by name.

        Raises
        ------
        TypeError, ValueError
            If the data is wrong.
        InfeasiblePlanError
            If no plan fits the device's limit.
        """
        with self._lock.turn():
            self._compiled("test_on_batch")
            session, batch = self._batch("evaluate", x, y, sample_weight, None)
            totals = session.totals()
            totals.add(batch.size, session.step("evaluate", batch)[1])
        return _returned(totals.logs(), return_dict)

    def reset_metrics(self) -> None:
        """Do nothing, since the numbers of a batch are of that batch alone.

        In Keras they are means over all batches since the last call of this method.
        """

    @runs
    def predict_on_batch(self, x: Any) -> Any:
        """Return the model's outputs for one batch.

        Parameters
        ----------
        x : numpy.ndarray, or list or dict of them
            Samples.

        Returns
        -------
        numpy.ndarray, or list or tuple of numpy.ndarray
            float32, one row a sample; one for each output if there are several.

        Raises
        ------
        TypeError, ValueError
            If the data is wrong.
        InfeasiblePlanError
            If no plan fits the device's limit.
        """
        session, batch = self._batch("predict", x)
        own = self._own_steps()
        if own is not None:
            results = own.predictions()
            own.step("predict", batch, results=results.next_rows(batch.size))
            return results.joined()
        network = self._built_network()
        result = Predictions(batch.size, network.at(batch.lengths).outputs, None)
        session.step("predict", batch, results=result.next_rows(batch.size))
        return network.gives.pack(result.arrays())

    @takes_arguments
    @outside_workspaces
    def plan(
        self,
        batch_size: int = 32,
        limit: int | str | None = None,
        *,
        policy: Policy | str | None = None,
        program: str = "train",
        lengths: int | Sequence[int] | None = None,
    ) -> Plan:
        """Plan a step without taking memory.

        Parameters
        ----------
        batch_size : int, default 32
            Samples a step, which the plan computes at once.
        limit, policy, program, lengths : optional
            As of `largest_batch`.

        Returns
        -------
        Plan
            The plan that `fit` would run if the batch fits.

        Raises
        ------
        InfeasiblePlanError
            If no plan fits the device's limit; the error states what would fit.
        TypeError, ValueError, RuntimeError
            As of `largest_batch`.
        """
        kind, size = _program(program), integer(batch_size, "batch_size")
        if kind != "predict":
            self._compiled("plan")
        nbytes = None if limit is None else parse_bytes(limit)
        chosen = None if policy is None else get_policy(policy)
        own = self._own_steps()
        if own is not None:
            if chosen is not None:
                raise ValueError(
                    "policy cannot be chosen here: steps of a model's own are planned "
                    "by the policy of compile"
                )
            result: Plan = own.plan(kind, size, nbytes)
            return result
        session = self._built_session()
        key = ProgramKey(kind, size, lengths=session.lengths(lengths))
        return session.plan(key, nbytes, chosen)

    @overload
    def largest_batch(
        self,
        limit: int | str | None = None,
        *,
        policy: Policy | str | None = None,
        program: str = "train",
        lengths: int | Sequence[int] | None = None,
    ) -> int: ...

    @overload
    def largest_batch(
        self,
        limit: int | str | None = None,
        *,
        policy: list[Policy | str] | list[Policy] | list[str],
        program: str = "train",
        lengths: int | Sequence[int] | None = None,
    ) -> LargestBatches: ...

    @takes_arguments
    @outside_workspaces
    def largest_batch(
        self,
        limit: int | str | None = None,
        *,
        policy: Any = None,
        program: str = "train",
        lengths: int | Sequence[int] | None = None,
    ) -> int | LargestBatches:
        """Return the largest batch that fits a limit, without running anything.

        A plan is made for it, and there is none for one sample more, so no batch is
        tried in memory. `fit` on arrays runs it within the limit; a dataset needs room
        for the batches that it reads ahead as well.

        Parameters
        ----------
        limit : int or str, optional
            A limit in bytes, or such as ``"64MiB"``, of the model's device with nothing
            else on it. None: the device's limit, less what else is in use now.
        policy : Policy or str, or a list of them, optional
            As ``memory`` of `compile`; None: the model's.
        program : {"train", "evaluate", "predict"}, default "train"
            What is run.
        lengths : int or sequence of int, optional
            The length of the inputs' axes of None, or one for each in their order;
            needed if there are such axes.

        Returns
        -------
        int or LargestBatches
            The number of samples; 0 if one does not fit. For a list of policies, a
            table of these numbers, with the peak and the predicted time of a sample,
            as ``rows`` and as ``str()``.

        Raises
        ------
        TypeError, ValueError
            If an argument is invalid, the device has no limit, or the batch size is
            fixed.
        RuntimeError
            If the model is not compiled (to train or evaluate), its shapes are not
            known, or the program is not planned.

        Examples
        --------
        >>> import memcfg as mc
        >>> model = mc.nn.Sequential([mc.nn.Input((64,)), mc.nn.Dense(10)])
        >>> model.compile("sgd", "mse")
        >>> n = model.largest_batch("64KiB")
        >>> model.plan(n).peak_bytes <= 64 * 1024
        True
        >>> by_policy = model.largest_batch("64KiB", policy=["auto", "share"])
        >>> by_policy["auto"].batch_size == n
        True
        >>> by_policy.best.sample_seconds > 0
        True
        """
        kind = _program(program)
        self._require_built_in_steps("largest_batch")
        if kind != "predict":
            self._compiled("largest_batch")
        nbytes = None if limit is None else parse_bytes(limit)
        session = self._built_session()
        known = session.lengths(lengths)
        if not isinstance(policy, list):
            one = None if policy is None else get_policy(policy)
            return session.largest_batch(kind, nbytes, one, known)
        if not policy:
            raise ValueError("policy is an empty list: name some, or leave it out")
        rows = []
        for each in policy:
            name = each if isinstance(each, str) else name_of(each)
            chosen = get_policy(each)
            try:
                plan = session.plan_largest(kind, nbytes, chosen, known)
            except InfeasiblePlanError as error:
                rows.append(LargestBatch.too_small(name, error.smallest_limit_bytes))
            except MemcfgError as error:
                why = " ".join(str(error).split())
                rows.append(LargestBatch(name, why_not=why))
            else:
                rows.append(LargestBatch.of(name, *plan))
        return LargestBatches(tuple(rows))

    @takes_arguments
    @outside_workspaces
    def estimate(
        self,
        batch_size: int = 32,
        limit: int | str | None = None,
        *,
        program: str = "train",
        lengths: int | Sequence[int] | None = None,
    ) -> Estimate:
        """Predict the memory and time of a step, and what each lever would change.

        Nothing runs and no memory is taken. ``str()`` of the result is a table.

        Parameters
        ----------
        batch_size : int, default 32
            Samples a step.
        limit : int or str, optional
            As of `largest_batch`; it decides which levers fit.
        program : {"train", "evaluate", "predict"}, default "train"
            What is run.
        lengths : int or sequence of int, optional
            As of `largest_batch`.

        Returns
        -------
        Estimate
            The peak in bytes, the smallest limit and the seconds with each lever.

        Raises
        ------
        TypeError, ValueError, RuntimeError
            As of `largest_batch`.
        """
        kind, size = _program(program), integer(batch_size, "batch_size")
        self._require_built_in_steps("estimate")
        if kind != "predict":
            self._compiled("estimate")
        nbytes = None if limit is None else parse_bytes(limit)
        session = self._built_session()
        key = ProgramKey(kind, size, lengths=session.lengths(lengths))
        return session.estimate(key, nbytes)

    @takes_arguments
    @outside_workspaces
    def graph(
        self, batch_size: int = 32, *, lengths: int | Sequence[int] | None = None
    ) -> Graph:
        """Return the training step as a graph for `memcfg.plan`.

        Parameters
        ----------
        batch_size : int, default 32
            Samples a step.
        lengths : int or sequence of int, optional
            As of `largest_batch`.

        Returns
        -------
        Graph
            The graph with the scratch bytes of the device's kernels. ``to_json()``
            writes it for ``memcfg plan``.
        """
        size = integer(batch_size, "batch_size")
        self._compiled("graph")
        own = self._own_steps()
        if own is not None:
            return own.graph("train", size)  # type: ignore[no-any-return]
        session = self._built_session()
        return session.graph(
            ProgramKey("train", size, lengths=session.lengths(lengths))
        )

    @property
    def memory_plan(self) -> Plan:
        """The plan of the training step or, before one, of the last program loaded."""
        own = self._own_steps()
        if own is not None:
            return own.latest_plan()  # type: ignore[no-any-return]
        with self._lock.turn():
            session, key = self._lead()
            return session.loaded_plan(key)

    @takes_arguments
    @outside_workspaces
    def memory_report(self, *, verify: bool = False) -> MemoryReport:
        """Measure the memory of the program that `memory_plan` describes.

        Parameters
        ----------
        verify : bool, default False
            Whether to run a step over a canary pattern to find the highest byte
            touched. Weights are unchanged.

        Returns
        -------
        MemoryReport
            The peak, bytes by role and timeline; ``str`` formats it.

        Raises
        ------
        RuntimeError
            If nothing is loaded yet, or this thread is inside a step of the model.
        """
        own = self._own_steps()
        if own is not None:
            return own.latest_report(verify=verify)  # type: ignore[no-any-return]
        with self._lock.step():
            session, key = self._lead()
            return session.memory_report(key, verify=verify)

    @takes_arguments
    @outside_workspaces
    def memory_timeline(self, *, verify: bool = False) -> MemoryTimeline:
        """Return which tensor has which bytes when, in the step of `memory_plan`.

        Parameters
        ----------
        verify : bool, default False
            Whether to measure the peak as of `memory_report`, and the times of ops and
            copies in one more step. Weights are unchanged.

        Returns
        -------
        MemoryTimeline
            Its `save` writes a page to zoom and search, a picture or a file for
            Perfetto; ``print`` shows it as text, and a notebook as a picture.

        Raises
        ------
        RuntimeError
            As of `memory_report`; and with `verify` if the step runs on several ranks.

        Notes
        -----
        Nothing is recorded in training: boxes are those of the plan, and times are
        measured in steps of their own, on made-up data.
        """
        own = self._own_steps()
        if own is not None:
            return own.latest_timeline(verify=verify)  # type: ignore[no-any-return]
        with self._lock.step():
            session, key = self._lead()
            return session.memory_timeline(key, verify=verify)

    @outside_workspaces
    def reset_states(self) -> None:
        """Reset the states of all stateful layers to zeros.

        Raises
        ------
        RuntimeError
            If the model's shapes are not known.
        """
        self._reset_state(None)

    reset_state = reset_states

    @outside_workspaces
    def get_weights(self) -> list[Floats]:
        """Return copies of all weights.

        Returns
        -------
        list of numpy.ndarray
            The weights layer by layer, in Keras's order and layouts: kernel ``(KH, KW,
            C / groups, O)`` or ``(inputs, units)``, bias; gamma, beta, moving mean and
            variance.
        """
        weights = self._exchanged()
        with self._lock.turn():
            self._gather()
            return [self._value_of(weight) for weight in weights]

    @outside_workspaces
    def set_weights(self, weights: Sequence[npt.ArrayLike]) -> None:
        """Replace all weights.

        Parameters
        ----------
        weights : sequence of array_like
            Values as returned by `get_weights`; converted to the weights' dtypes.

        Raises
        ------
        WeightsError
            If the number or shapes differ; no weight is changed.
        """
        own = self._exchanged()
        self._write(zip(own, check_list(own, weights), strict=True))

    def _exchanged(self) -> Sequence[Weight]:
        """Return the weights of lists and files, also of layers outside of `call`."""
        network = self._network
        stepped = self._own is not None or self._calls_whole or not self._calls_itself
        if network is None and not (stepped and self.weights):
            self._built_network()  # says that it is not
        if network is None or self._others():
            listed = weights_of(self._stacked())[3]
            return tuple(each for each in listed if not each.hidden)
        return network.exchanged

    def _others(self) -> list[Layer]:
        """Return the layers that own steps have built since `call` was traced."""
        if not self._calls_itself:
            return []
        known = self._built_network().names
        return [
            layer
            for layer in self._stacked()
            if any(
                (leaf, spec.name) not in known
                for _, leaf in layer._leaves()
                for spec in leaf.weight_specs or ()
            )
        ]

    def _value_of(self, weight: Weight) -> Floats:
        network, session = self._network, self._session
        key = weight.layer, weight.spec_name
        if network is not None and key in network.names:  # by another name, if shared
            assert session is not None
            return session.read(network.names[key])
        return weight.layer._read(weight.index)

    def _completed(self) -> Network:
        """Return the network, with the layers that own steps have built since then."""
        if self._others():
            self._renew()
        return self._built_network()

    def get_state_tree(self, value_format: str = "backend_tensor") -> dict[str, Any]:
        """Return copies of weights and of the optimizer's state, by nested names.

        Parameters
        ----------
        value_format : {"backend_tensor", "numpy_array"}, default "backend_tensor"
            Both are arrays.

        Returns
        -------
        dict
            ``"trainable_variables"`` and ``"non_trainable_variables"`` by the names of
            layers, ``"optimizer_variables"`` by that of the optimizer, and
            ``"metrics_variables"``, which are none, since metrics begin anew with each
            epoch.

        Raises
        ------
        ValueError
            If `value_format` is unknown.
        RuntimeError
            If the shapes of the weights are not known.
        """
        formats = ("backend_tensor", "numpy_array")
        if value_format not in formats:
            raise unknown("value_format", str(value_format), formats)
        self._exchanged()
        compiled = self._config
        state: dict[str, Any] = {}
        if compiled is not None:
            own, name = compiled.optimizer.get_state(), compiled.optimizer.name
            state = {f"{name}/{key}": each for key, each in own.items()}
        groups = {
            "trainable_variables": {w.path: w.numpy() for w in self.trainable_weights},
            "non_trainable_variables": {
                w.path: w.numpy() for w in self.non_trainable_weights
            },
            "optimizer_variables": state,
            "metrics_variables": {},
        }
        return {name: nested(each) for name, each in groups.items()}

    def set_state_tree(self, state_tree: Mapping[str, Any]) -> None:
        """Replace weights and the optimizer's state.

        Parameters
        ----------
        state_tree : mapping
            What `get_state_tree` returns, or some of it.

        Raises
        ------
        WeightsError
            If names or shapes differ; nothing is changed then.
        """
        given = {name: flattened(each) for name, each in state_tree.items()}
        found: dict[Variable, Any] = {}
        for name in ("trainable_variables", "non_trainable_variables"):
            own = {weight.path: weight for weight in self.weights}
            for path, value in given.pop(name, {}).items():
                if path not in own or np.shape(value) != tuple(own[path].shape):
                    raise WeightsError(
                        f"{self.name!r} has no weight {path!r} of shape "
                        f"{np.shape(value)}"
                    )
                found[own[path]] = value
        state = given.pop("optimizer_variables", {})
        unused = [name for name, each in given.items() if each]
        if unused:
            raise WeightsError(f"{self.name!r} has no {unused[0]}")
        if state:
            optimizer = self._compiled("the state of an optimizer").optimizer
            prefix = f"{optimizer.name}/"
            optimizer.set_state({k.removeprefix(prefix): v for k, v in state.items()})
        for weight, value in found.items():
            weight.assign(value)

    @takes_arguments
    @outside_workspaces
    def save(self, filepath: str | os.PathLike[str], overwrite: bool = True) -> None:
        """Write the architecture, weights, optimizer and policy to a file.

        After `memcfg.nn.models.load_model`, training continues as it would have here,
        bit for bit.

        Parameters
        ----------
        filepath : str or path-like
            The file, such as ``"x.memcfg"``; it is replaced atomically. With the suffix
            ``.keras`` it is written as Keras does, without the policy, the seeds and
            the state that layers keep; this needs h5py.
        overwrite : bool, default True
            Whether to replace an existing file.

        Raises
        ------
        ValueError
            If the name ends in neither ``.memcfg`` nor ``.keras``.
        FileExistsError
            If the file exists and `overwrite` is False.
        TypeError
            If a part cannot be described by a class and its constructor's arguments.
        RuntimeError
            If the model's shapes are not known.
        OSError
            If the file cannot be written.
        ImportError
            If the name ends in ``.keras`` and h5py is not installed.

        Warns
        -----
        RuntimeWarning
            If the memory policy is not one of `memcfg.plan`; it is loaded as ``auto``.
            If the name ends in ``.keras`` and Keras has no such layers.

        Notes
        -----
        User-defined classes are written as their names and the arguments of their
        constructors: attributes of the same names, or the result of ``get_config``.

        The file contains the state that layers keep between batches, such as that of a
        stateful LSTM, and the seeds and step that dropout draws from. It does not
        contain `history`, callbacks, how nested models were compiled, the device, or
        the sequence of `set_random_seed`, from which `fit` without a ``seed`` draws its
        orders.
        """
        if os.fspath(filepath).endswith(".keras"):
            save_model_for_keras(self, filepath, overwrite=overwrite)
        else:
            save(self, filepath, overwrite)

    @outside_workspaces
    def export(
        self,
        filepath: str | os.PathLike[str],
        format: str = "onnx",  # noqa: A002  (Keras's name)
        verbose: bool | None = None,
        input_signature: None = None,
        *,
        batch_size: int | None = None,
        lengths: int | Sequence[int] | None = None,
        external_data: bool | None = None,
        quantize: str | None = None,
        calibration_data: Any = None,
        reduce_range: bool = False,
    ) -> None:
        """Write what `predict` computes to an ONNX file, for other runtimes.

        Parameters
        ----------
        filepath : str or path-like
            The file, whose name ends in ``.onnx``; it is replaced atomically.
        format : str, default "onnx"
            ``"onnx"``: there is no other.
        verbose : bool, optional
            Accepted for Keras's programs; nothing is printed.
        input_signature : None
            Accepted for Keras's programs; inputs are those of the model, and any other
            value is refused.
        batch_size : int, optional
            The size of a batch. None: any, unless that of the inputs is fixed.
        lengths : int or sequence of int, optional
            The length of each axis of None, or one for all. None: any.
        external_data : bool, optional
            Whether weights go to a second file, of the same name with ``.data``
            appended, one at a time. None: if they do not fit a file of 2 GiB.
        quantize : {None, "int8"}, default None
            ``"int8"`` has dense layers and convolutions read int8 in ONNX's QDQ form:
            weights with a scale for each channel, inputs with one scale.
        calibration_data : array_like or sequence of them, optional
            Samples as `predict` takes them, from which the scales of inputs follow.
        reduce_range : bool, default False
            Whether the weights of ``quantize="int8"`` are integers from -64 to 64, of
            which runtimes add two products in 16 bits without saturation.

        Raises
        ------
        GraphError
            If an op has no counterpart in ONNX, draws random numbers or keeps a state
            between batches, or depends on the batch or on a length in a way that ONNX
            cannot be told. The message names the op and its layer.
        MissingDependencyError
            If onnx is not installed.
        NotImplementedError
            If the format is not ``"onnx"``.
        ValueError, TypeError
            If an argument is invalid, or weights do not fit the file.
        RuntimeError
            If the model's shapes are not known.
        ResourceExhaustedError
            If the calibration does not fit the device's limit.
        OSError
            If the file cannot be written.

        Warns
        -----
        RuntimeWarning
            If the model computes in bfloat16: its export computes in float32.

        Notes
        -----
        Inputs and outputs have the layout and names that they have here: images are
        channels-last, and are transposed once where the convolutions begin. An index
        that is out of range is an error of the runtime, and not NaN.

        Examples
        --------
        >>> import memcfg as mc
        >>> model = mc.nn.Sequential([mc.nn.Input((4,)), mc.nn.Dense(3)])
        >>> model.export("model.onnx")  # doctest: +SKIP
        """
        from memcfg.nn.exchange._onnx_export import export_onnx  # at its first use

        if format != "onnx":
            raise NotImplementedError(
                f"a model is exported in the format 'onnx', not {format!r}"
            )
        if input_signature is not None:
            raise ValueError(
                "input_signature must be None: sizes are given by batch_size and "
                "lengths"
            )
        with self._lock.turn():
            self._gather()
            export_onnx(
                self,
                filepath,
                batch_size=batch_size,
                lengths=lengths,
                external_data=external_data,
                quantized=quantize,
                calibration_data=calibration_data,
                reduce_range=reduce_range,
            )

    @takes_arguments
    @outside_workspaces
    def save_weights(
        self, filepath: str | os.PathLike[str], overwrite: bool = True
    ) -> None:
        """Write all weights to a safetensors file, or as Keras does.

        Automatic layer names are numbered within the model, so the file does not
        depend on other models in the process. The optimizer's state is not saved.

        Parameters
        ----------
        filepath : str or path-like
            The file, such as ``"x.weights.safetensors"``; it is replaced atomically.
            With the suffix ``.weights.h5`` it is written as Keras does, with h5py.
        overwrite : bool, default True
            Whether to replace an existing file.

        Raises
        ------
        OSError
            If the file cannot be written.
        FileExistsError
            If the file exists and `overwrite` is False.
        ImportError
            If the name ends in ``.weights.h5`` and h5py is not installed.
        ValueError
            If the name ends in the suffix of another format, such as ``.npz``.

        Notes
        -----
        Weights are copied to the host one at a time. Other threads wait until the file
        is written, so that all weights are from the same step.
        """
        if os.fspath(filepath).endswith(".weights.h5"):
            save_weights_for_keras(self, filepath, overwrite=overwrite)
            return
        check_file_name(filepath)
        weights = self._exchanged()
        with self._lock.turn():
            self._gather()
            known = {weight.name: weight for weight in weights}
            write_file(
                filepath,
                weights,
                lambda name: self._value_of(known[name]),
                overwrite=overwrite,
            )

    @takes_arguments
    @outside_workspaces
    def load_weights(
        self, filepath: str | os.PathLike[str], skip_mismatch: bool = False
    ) -> None:
        """Read all weights from a safetensors file, or from a file of Keras.

        Parameters
        ----------
        filepath : str or path-like
            A file written by `save_weights` for a model of this architecture and any
            name; or one that Keras wrote, ``.weights.h5``, ``.h5`` or ``.keras``, whose
            weights are taken in the order of layers.
        skip_mismatch : bool, default False
            Whether weights that the file does not have, or not in their shapes, are
            left as they are, with a warning.

        Raises
        ------
        OSError
            If the file cannot be read.
        WeightsError
            If the file is truncated, or names, shapes or dtypes differ; no weight is
            changed.
        FormatError
            If a file of Keras is damaged; no weight is changed.
        ImportError
            If it is a file of Keras and h5py is not installed.
        """
        weights = self._exchanged()
        if is_of_keras(filepath):
            found = read_weights_of_keras(self, filepath, skip_mismatch=skip_mismatch)
        elif skip_mismatch:
            found = read_matching(filepath, weights)
            warn_of_missing(os.fspath(filepath), weights, found)
        else:
            found = list(zip(weights, read_file(filepath, weights), strict=True))
        self._write(found)

    @outside_workspaces
    def close(self) -> None:
        """Free the device's memory.

        Weights and optimizer state move to the host. The model stays usable and takes
        memory again with the next step, including a step of another thread's `fit`.

        Raises
        ------
        RuntimeError
            If this thread is inside a step of the model.
        """
        with self._lock.step():
            if self._own is not None:
                self._own.close()
            if self._session is not None:
                self._session.retire()

    def __del__(self) -> None:
        parts = getattr(self, "_parts", None)
        if parts is not None and parts.session is not None:
            self._give_back(parts.network, parts.session)
            with suppress(BufferError):  # a pending copy frees it when done
                parts.session.close()

    def _give_back(self, network: Network | None, session: Session) -> None:
        """Leave the values to the layers, which may outlive the model.

        Only for layers that other models have used, values on the device are copied:
        the others know that they have lost them.
        """
        if network is None:
            return
        on_device = session.changed_on_device()
        for weight in network.weights:
            layer = weight.layer
            if layer._owner is not self._reference:
                continue
            if weight.name not in on_device:
                value = session.value_on_host(weight.name)
                if value is not None:  # otherwise the layer draws the same one
                    layer._values[weight.spec_name] = value
            elif layer._users > 1:
                layer._values[weight.spec_name] = session.read(weight.name)
            else:
                layer._values[weight.spec_name] = None
        for computed in network.computed.values():
            weight = computed.weight
            if weight.layer._owner is self._reference:
                weight.layer._values[weight.spec_name] = None

    def __copy__(self) -> NoReturn:
        raise TypeError(
            f"a shallow copy of {self.name!r} would share its layers and its memory: "
            "copy.deepcopy(model) makes another model"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return an independent copy, which takes memory on first use."""
        memo[id(self)] = made = type(self).__new__(type(self))
        state = self.__getstate__()
        values = state.pop("_values")  # already copied
        made.__setstate__(copy.deepcopy(state, memo) | {"_values": values})
        return made

    def _replica(self, device: str | None) -> Self:
        """Return an independent copy, without the optimizer's state.

        It is placed on a device; None: on that of this model.
        """
        state = self.__getstate__()
        weights = {weight.name for weight in self._built_network().weights}
        values = {k: v for k, v in state.pop("_values").items() if k in weights}
        compiled = self._config
        if compiled is not None and device is not None:
            placed = replace(compiled, device=device)
            state["_parts"] = state["_parts"]._replace(config=placed)
        made = type(self).__new__(type(self))
        made.__setstate__(copy.deepcopy(state, {id(self): made}) | {"_values": values})
        return made

    @outside_workspaces
    def __getstate__(self) -> dict[str, Any]:
        """Return architecture, settings and values, taken between two steps."""
        with self._lock.turn():
            self._gather()
            values = self._built_session().values() if self.built else {}
            steps = (
                0 if self._config is None else self._config.optimizer._iterations.value
            )
            state = super().__getstate__()
            state["_parts"] = self._parts._replace(session=None)
        for name in ("_lock", "_owner", "_nested", "_own", "_reference"):
            state.pop(name, None)  # a copy makes its own
        return state | {"_values": values, "_steps": steps}

    @outside_workspaces
    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the model from a state."""
        values, steps = state.pop("_values"), state.pop("_steps")
        self._begin(state.pop("name"), None, None)
        super().__setstate__(state)
        if self._parts.network is not None:
            self._adopt(
                self._parts.network,
                {name: _owned(values[name]) for name in values},
                restored=True,
            )
        if self._config is not None:
            self._config.optimizer._claim(self)
            self._config.optimizer._iterations = Counter(steps)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} name={self.name!r} built={self.built}>"

    # Parts

    @property
    def _network(self) -> Network | None:
        """The architecture; None while shapes are not known."""
        return self._parts.network

    @property
    def _config(self) -> CompileConfig | None:
        return self._parts.config

    @property
    def _session(self) -> Session | None:
        return self._parts.session

    def _adopt(
        self,
        network: Network,
        values: dict[str, Floats] | None = None,
        *,
        restored: bool = False,  # whether `values` take precedence over layers'
    ) -> None:
        """Adopt an architecture and become the owner of its layers' values."""
        require_values(network.weights)
        if self._session is not None:
            values = self._values_for(network)
        self._policy_for(network.layers)()
        self._join(network)
        with self._lock.turn():
            elsewhere = values_elsewhere(network.weights, self)
        values = (
            elsewhere | values if restored and values else (values or {}) | elsewhere
        )
        compiled = self._config
        if compiled is not None and not restored:
            compiled = replace(compiled, frozen=network.frozen())
        session = self._make_session(network, compiled, values)
        for layer in network.leaves:
            layer._claim(self)
        self._replace(Parts(network, compiled, session))

    def _values_for(self, network: Network) -> dict[str, Floats]:
        """Return all values by the names that they have in a network."""
        before, session = self._parts.network, self._session
        assert before is not None
        assert session is not None
        values = session.known_values()
        moved = moved_names(before.names, network.names, session.slots)
        return {moved.get(name, name): value for name, value in values.items()}

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "name" and getattr(self, "_owner", None) is not None:
            self._rename(check_name(value))
            return
        super().__setattr__(name, value)

    def _rename(self, name: str) -> None:
        """Change the name, and the name under which reports list the memory."""
        with self._lock.turn():
            self._lock.require_no_step()
            self._lock.require_no_session(self._trained_elsewhere())
            self._require_no_own_steps("renamed")
            if self._nested is not None:
                self._nested.name = name
            object.__setattr__(self, "name", name)
            self._kind = None
            del _owners[self._owner]
            self._owner = name_owner(self, name)
            if self._parts.network is not None:
                self._renew()

    def _require_no_own_steps(self, what: str) -> None:
        if self._own is not None:
            raise RuntimeError(
                f"{self.name!r} has run steps of its own, whose optimizers know the "
                f"weights by their names: layers and models are {what} before"
            )

    def _renew(self) -> None:
        """Take over what a layer has: new weights, frozen ones, settings, a name."""
        with self._lock.step():
            self._lock.require_no_session(self._trained_elsewhere())
            self._adopt(self._built_network().renewed(self._stacked()))
            if self._own is not None:
                self._own.forget_traces()

    def _around(self, layer: Layer) -> list[Layer]:
        """Return the layers of which a layer is one, or an inner one."""
        network = self._parts.network
        every = () if network is None else network.layers
        return [
            leaf
            for each in every
            for _, leaf in each._leaves()
            if any(inner is layer for _, inner in leaf._leaves())
        ]

    def _gather(self) -> None:
        """Take back the values of shared layers that another model has used since.

        The caller holds the lock, which the other model shares.
        """
        network, _, session = self._parts
        if network is None or session is None or not session.lent:
            return
        for name, value in values_elsewhere(network.weights, self).items():
            session.write(name, value)
        for layer in network.leaves:
            layer._claim(self)
        compiled = self._config
        if compiled is not None and compiled.optimizer._holder() is not self:
            weights = {weight.name: weight for weight in network.weights}
            slots = session.slots_of(compiled.optimizer)
            for name, value in state_elsewhere(compiled.optimizer, slots, weights):
                session.write(name, value)
            compiled.optimizer._claim(self)
        session.lent = False

    def _join(self, network: Network) -> None:
        """Share one lock with all models that hold layers of a network."""
        join_locks(self, {weight.layer._model for weight in network.weights})

    def _read_weight(self, layer: Layer, name: str) -> Floats:
        """Return the value of a layer's weight that this model holds."""
        network = self._built_network()
        return self._built_session().read(network.names[layer, name])

    def _write_weight(self, layer: Layer, name: str, value: Floats) -> None:
        network = self._built_network()
        self._built_session().write(network.names[layer, name], value)

    def _configure(self, compiled: CompileConfig) -> None:
        """Apply a configuration, keeping values and the state of the same optimizer."""
        network, before, session = self._parts
        compiled.optimizer._claim(self)
        if network is not None:
            values = {} if session is None else session.known_values(moves=True)
            if before is None or before.optimizer is not compiled.optimizer:
                known = {weight.name for weight in network.weights}
                values = {name: v for name, v in values.items() if name in known}
            compiled = replace(compiled, frozen=network.frozen())
            lent = session is not None and session.lent
            session = self._make_session(network, compiled, values)
            session.lent = lent
        self._replace(Parts(network, compiled, session))
        for layer in () if network is None else network.leaves:
            layer._policy_used = True  # even if another model holds its values

    def _trained_instead(
        self, refusal: InfeasiblePlanError, *, iterator: bool
    ) -> tuple[Model, Fallback]:
        """Return the model that ``on_oom`` names or makes, or raise the refusal."""
        session, (make, rest) = self._session, self._compiled("fit").on_oom.behind()
        if make is None or session is None:
            raise refusal
        if iterator:
            raise refusal.with_hint(
                "No other model is trained, since batches of the iterator were read. "
                "Pass data that can be read again, such as a memcfg.data.Dataset."
            )
        missing = refusal.smallest_limit_bytes - (refusal.limit_bytes or 0)
        try:
            with session.as_refused():
                if make == "resize":
                    other, name = self._of_smaller_images(rest)
                else:
                    assert callable(make)
                    other = self._other_model(make, rest)
                    name = other.name
        except ImagesError as error:
            reason = f"Smaller images cannot be used: {error}."
            raise refusal.with_hint(reason) from None
        kind = "resize" if make == "resize" else "model"
        return other, Fallback(kind, refusal.program, missing, 0, name=name)

    def _other_model(self, make: Callable[[Model], Model], on_oom: OnOom) -> Model:
        """Return the model that a function makes of this one, compiled as this one."""
        other = make(self)
        if not isinstance(other, Model) or other is self:
            raise TypeError(
                f"a function in on_oom must return another Model, got {other!r}"
            )
        return self._compile_alike(other, on_oom)

    def _of_smaller_images(self, on_oom: OnOom) -> tuple[Model, str]:
        """Return this model of the largest images that fit, and their size.

        If none fits, but there are more steps, it is that of the smallest.
        """
        made: dict[int, Model] = {}
        why: ImagesError | None = None
        for eighths in EIGHTHS:
            try:
                made[eighths] = of_smaller_images(self, Model, eighths)
            except ImagesError as error:
                why = error
        if not made:
            assert why is not None
            raise why
        key = self._built_session().refused
        assert key is not None

        def fits(eighths: int) -> bool:
            other = self._compile_alike(made[eighths], on_oom)
            return other._built_session().fits(key)

        part = largest([*made], fits)
        if part is None and on_oom.steps:
            part = min(made)
        if part is None:
            raise ImagesError(f"those of {size_of(self, min(made))} do not fit, either")
        made[part].set_weights(self.get_weights())
        return made[part], size_of(self, part)

    def _compile_alike(self, other: Model, on_oom: OnOom) -> Model:
        """Compile another model as this one, with a new optimizer."""
        own = self._compiled("fit")
        optimizer = type(own.optimizer).from_config(own.optimizer.get_config())
        compiled = replace(own, optimizer=optimizer, frozen=frozenset(), on_oom=on_oom)
        with other._lock.step():
            other._configure(compiled)
        return other

    def _with_parts(
        self, chosen: Mapping[str, tuple[Parametrization | None, Sequence[Floats]]]
    ) -> Self:
        """Return a copy that holds parts of the weights of these names.

        Each is given with the values of its parts, or with None and its own value,
        which is then held whole. The copy is compiled as this model, with a new
        optimizer.
        """
        made = self._replica(None)
        network, compiled, session = made._parts
        assert network is not None
        assert session is not None
        weights = {w.name: w for w in network.exchanged}
        values = session.known_values()
        for name, (by, parts) in chosen.items():
            weight = weights[name]
            old = network.computed.get(name)
            for part in (name,) if old is None else old.parts:
                values.pop(part, None)
            known = weight.layer._parametrized
            if by is None:
                known.pop(weight.spec_name, None)
                values[name] = parts[0]
            else:
                known[weight.spec_name] = by
                names = [f"{name}_{part.name}" for part in by.parts]
                values |= zip(names, parts, strict=True)
        network = network.renewed()
        if compiled is not None:
            own = compiled.optimizer
            optimizer = type(own).from_config(own.get_config())
            optimizer._excluded = own._excluded
            frozen = network.frozen()
            compiled = replace(compiled, optimizer=optimizer, frozen=frozen)
            optimizer._claim(made)
        session = made._make_session(network, compiled, values)
        made._replace(Parts(network, compiled, session))
        for layer in network.leaves:
            layer._claim(made)
        for inner in _inner_models(network.layers):
            inner._lend()
        return made

    def _lend(self) -> None:
        """Leave the values of all weights to another model, whose layers these are."""
        network, compiled, _ = self._parts
        assert network is not None
        network = network.renewed()
        session = self._make_session(network, compiled, {})
        session.lent = True
        self._replace(Parts(network, compiled, session))

    def _freeze(self, keys: Sequence[str]) -> None:
        """Freeze the weights with these names in files; see `CompileConfig`."""
        network, compiled = self._built_network(), self._compiled("freezing")
        frozen = frozenset(w.name for w in network.weights if w.key in keys)
        if frozen != compiled.frozen:
            compiled = replace(compiled, frozen=frozen)
            session = self._make_session(network, compiled, None)
            self._replace(Parts(network, compiled, session))

    def _replace(self, parts: Parts) -> None:
        """Replace all parts at once, then free the memory of the old ones."""
        before, self._parts = self._parts.session, parts
        if before is not None and before is not parts.session:
            before.supersede()

    def _make_session(
        self,
        network: Network,
        compiled: CompileConfig | None,
        values: dict[str, Floats] | None,
    ) -> Session:
        held = self._lock, self._owner, values, WeakMethod(self._gather)
        spec = TraceSpec(self.name, network)
        if compiled is None:
            on_oom = get_on_oom("micro_batch", None)
            return Session(
                spec, get_policy(None), TIMES[0], PLANNED, None, on_oom, *held
            )
        if compiled.goals.loss is not None:
            objectives = resolve(compiled.goals, network)
            warn_of_outputs(objectives, network)
            frozen = compiled.frozen
            spec = TraceSpec(
                self.name,
                network,
                compiled.optimizer,
                objectives,
                frozen,
                unreached(objectives, network, frozen),
            )
            if network.open_axes:
                spec = replace(spec, resolves=partial(resolve, compiled.goals))
        return Session(
            spec,
            compiled.policy,
            compiled.times,
            compiled.modes,
            compiled.device,
            compiled.on_oom,
            *held,
        )

    # Steps of one's own

    def add_loss(self, loss: Any) -> None:
        """Add a loss that `call` computes to the loss of the model.

        A model between symbolic tensors takes a loss that is computed from them, before
        `compile`, as in Keras 2. Copies and files of memcfg have it; Keras 3 has no
        such losses, and its files do not.

        Parameters
        ----------
        loss : SymbolicTensor
            As of `Layer.add_loss`.

        Raises
        ------
        RuntimeError
            Outside of `call`, if the model is not one between symbolic tensors, or is
            compiled.
        TypeError
            If the loss is no symbolic tensor.
        ValueError
            If the loss depends on other inputs than the model's.
        """
        if current_call() is None and self._calls_whole:
            Variable.functions.keep_loss(self._as_layer(), loss)
            return
        kind = type(self).__dict__.get("_saved_as")
        if current_call() is not None or kind != "Model" or not self.built:
            add_loss(loss, repr(self.name))
            return
        if not isinstance(loss, SymbolicTensor):
            raise TypeError(f"{self.name!r}.add_loss takes a tensor, got {loss!r}")
        if self._config is not None:
            raise RuntimeError(f"{self.name!r} is compiled: call add_loss before")
        self._adopt(self._built_network().with_loss(loss))

    @property
    def loss(self) -> Any:
        """The loss of `compile`, with names resolved; None without one."""
        config = self._parts.config
        return None if config is None else config.goals.loss

    @property
    def losses(self) -> list[Any]:
        """The losses of regularizers and of `add_loss` in the model's last call.

        What a call adds is one sum. In a function or a step they are tensors, else
        numbers, of calls on arrays with ``training=True``.
        """
        return Variable.functions.losses_of(self)  # type: ignore[no-any-return]

    @property
    def metrics_names(self) -> list[str]:
        """The names of what `evaluate` returns, in order; empty without a loss.

        In Keras 3, "compile_metrics" stands for the metrics.
        """
        network, compiled = self._network, self._parts.config
        if network is None or compiled is None or compiled.goals.are_none:
            return []
        return resolve(compiled.goals, network).names

    @property
    def metrics(self) -> list[Any]:
        """The metrics that steps of one's own update, which begin anew each epoch.

        They are the mean loss, named ``"loss"``, and the metrics of `compile`, if it
        has a loss, and metrics that are attributes of the model and of its layers. A
        subclass may override it.
        """
        own = self._own_steps()
        given = [] if own is None else own.compiled_metrics()
        inner = (metric for layer in self._stacked() for metric in layer.metrics)
        return [*given, *self._held_metrics(), *inner]

    def _held_metrics(self) -> list[Any]:
        """Return the metrics that are attributes, also in lists, tuples and dicts."""
        result: list[Any] = []
        pattern(list(getattr(self, "__dict__", {}).values()), result, Metric)
        return result

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        """Return the loss of a batch, in a step of one's own.

        Parameters
        ----------
        x, y : SymbolicTensor, or list or dict of them
            The samples of a batch and their targets.
        y_pred : SymbolicTensor, or list or dict of them
            What the model returns for the samples.
        sample_weight : SymbolicTensor, or list or dict of them, optional
            Weights of samples.
        training : bool, default True
            Whether the batch is one of training.

        Returns
        -------
        SymbolicTensor
            The sum of the losses of `compile` and of `losses`, a scalar.

        Raises
        ------
        ValueError
            If there is no loss.
        """
        del x, training
        return self._default_steps().loss(y, y_pred, sample_weight)

    def compute_metrics(
        self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None
    ) -> dict[str, Any]:
        """Update the metrics of `compile`, and return the results of all metrics.

        Parameters
        ----------
        x, y, y_pred, sample_weight : SymbolicTensor, or list or dict of them
            As of `compute_loss`.

        Returns
        -------
        dict of str to object
            The results by name.
        """
        del x
        self._default_steps().measure(y, y_pred, sample_weight)
        return self.get_metrics_result()

    def get_metrics_result(self) -> dict[str, Any]:
        """Return the results of all `metrics` by name.

        Returns
        -------
        dict of str to object
            Floats; in a step, what stands for them until it has run. With the built-in
            step they are those of the last epoch, validation or `evaluate`.
        """
        own, totals = self._own_steps(), self._trainer.totals
        if own is None and not self.metrics:
            return {} if totals is None else totals.logs()
        names = {} if own is None else own.metric_names()
        return {names.get(id(m), m.name): m.result() for m in self.metrics}

    def train_step(self, data: Any) -> dict[str, Any]:
        """Train on a batch; a subclass overrides this for a step of its own.

        `fit` traces it once for each shape of batches, like a function that
        `memcfg.function` decorates, and runs it as one planned program.

        Parameters
        ----------
        data : SymbolicTensor, or list, tuple or dict of them
            A batch: ``x``, ``(x, y)`` or ``(x, y, sample_weight)`` of arrays, or an
            element of a dataset.

        Returns
        -------
        dict of str to object
            Scalars, or results of metrics, for the logs.
        """
        x, y, sample_weight = unpack_x_y_sample_weight(data)
        y_pred = self(x, training=True)
        loss = self._loss_of(x, y, y_pred, sample_weight, training=True)
        own = self._default_steps()
        own.track(loss, x)
        own.descend(loss)
        return self.compute_metrics(x, y, y_pred, sample_weight)

    def test_step(self, data: Any) -> dict[str, Any]:
        """Evaluate a batch; a subclass overrides this for a step of its own.

        Parameters
        ----------
        data : SymbolicTensor, or list, tuple or dict of them
            As of `train_step`.

        Returns
        -------
        dict of str to object
            Scalars, or results of metrics, for the logs.
        """
        x, y, sample_weight = unpack_x_y_sample_weight(data)
        y_pred = self(x, training=False)
        loss = self._loss_of(x, y, y_pred, sample_weight, training=False)
        self._default_steps().track(loss, x)
        return self.compute_metrics(x, y, y_pred, sample_weight)

    def _loss_of(
        self, x: Any, y: Any, y_pred: Any, sample_weight: Any, *, training: bool
    ) -> Any:
        """Call `compute_loss`, whose overrides need not take `training`."""
        given = {"x": x, "y": y, "y_pred": y_pred, "sample_weight": sample_weight}
        takes = inspect.signature(self.compute_loss).parameters
        kinds = {each.kind for each in takes.values()}
        if "training" in takes or inspect.Parameter.VAR_KEYWORD in kinds:
            given["training"] = training
        return self.compute_loss(**given)

    def predict_step(self, data: Any) -> Any:
        """Predict a batch; a subclass overrides this for a step of its own.

        Parameters
        ----------
        data : SymbolicTensor, or list, tuple or dict of them
            As of `train_step`.

        Returns
        -------
        SymbolicTensor, or list, tuple or dict of them
            The predictions, with one row a sample.
        """
        return self(unpack_x_y_sample_weight(data)[0], training=False)

    def _own_steps(self) -> Any:
        """Return the programs of steps of one's own; None for the built-in steps.

        Without `compile` a model predicts by the built-in step unless it has its own.
        """
        compiled = self._parts.config
        if compiled is not None:
            goals = compiled.goals  # a call of Python less in each step
            runs = self._has_own_steps or goals.updates_itself
            runs = runs or self._measures
            runs = runs or (goals.loss is None and self._is_stepped(compiled))
        else:
            predicts = type(self).predict_step is Model.predict_step
            runs = self._has_own_steps and not predicts
        return self._default_steps() if runs else None

    def _default_steps(self) -> Any:
        """Return what the default steps call, with the losses of `compile`."""
        if self._own is None:
            self._own = Variable.functions.own_steps(self, self._compiled("a step"))
        return self._own

    def _require_built_in_steps(self, what: str) -> None:
        compiled = self._config
        if compiled is not None and self._is_stepped(compiled):
            raise NotImplementedError(
                f"{what} is for the built-in steps: {type(self).__name__} has steps of "
                "its own, and plan(batch_size, limit) says what they take"
            )

    def _compiled(self, what: str) -> CompileConfig:
        result = self._parts.config  # a call of Python less in each step
        if result is None:
            raise RuntimeError(
                f"{what} needs a compiled model: call compile(optimizer, loss) first"
            )
        unknown = result.goals.loss is None and not self._is_stepped(result)
        if what in _MINIMISE and unknown:
            raise no_loss()
        return result

    def _is_stepped(self, compiled: CompileConfig) -> bool:
        """Return whether steps are functions, and not those of a `Session`.

        So are those of a subclass or with a metric of the user's, those of a model
        whose `call`, or whose layers, hold metrics, which they may update, and those of
        a model whose only losses are of `add_loss`.
        """
        if self._has_own_steps or compiled.goals.updates_itself or self._measures:
            return True
        if compiled.goals.loss is not None or self._network is None:
            return False
        adds: bool = Variable.functions.adds_losses(self)
        return adds

    def _built_network(self) -> Network:
        result = self._network
        if result is None:
            raise RuntimeError(
                f"the shapes of {self.name!r} are not known yet: start it with "
                "Input(shape), call build(input_shape), or fit or predict first"
            )
        return result

    def _built_session(self) -> Session:
        self._built_network()
        assert self._session is not None  # created with the network
        return self._session

    def _require_calls(self, what: str) -> None:
        """Raise NotImplementedError for layers that would not be built when loaded."""
        network = self._completed()
        called = {
            *(node.layer for node in (*network.nodes, *network.of(False).nodes)),
            *(each.layer for each in network.reads),
        }
        others = [
            each.name
            for each in self._stacked()
            if each not in called and not isinstance(each, Nested | Parameter)
        ]
        if others:
            raise NotImplementedError(
                f"{what}: a loaded {type(self).__name__} would not know the shapes of "
                f"{', '.join(map(repr, others))}, since only steps of its own call "
                "them, and not `call`: use save_weights"
            )

    def _reset_state(self, layer: Layer | None) -> None:
        """Reset the state of a layer, or of all if None, kept between batches."""
        with self._lock.turn():
            self._gather()
            session = self._built_session()
            for weight in self._built_network().weights:
                if weight.hidden and layer in (None, weight.layer):
                    session.write(weight.name, weight.first_value())

    def _write(self, values: Iterable[tuple[Weight, Floats]]) -> None:
        with self._lock.turn():
            self._gather()
            network, session = self._network, self._session
            for weight, value in values:
                key = weight.layer, weight.spec_name
                if session is not None and network and key in network.names:
                    session.write(network.names[key], value)
                else:
                    weight.layer._write(weight.index, value)

    def _lead(self) -> tuple[Session, ProgramKey]:
        session = None if self._network is None else self._session
        if session is None or session.lead is None:
            raise RuntimeError(
                f"{self.name!r} has no memory plan yet: call fit, evaluate or predict "
                "first, or plan(batch_size) to plan without taking memory"
            )
        return session, session.lead

    def _trained_elsewhere(self) -> str:
        return (
            f"{self.name!r}: the model, or one that shares layers with it, is being "
            "trained in another thread"
        )

    def _asked(
        self, method: str, args: tuple[Any, ...], options: dict[str, Any]
    ) -> Asked:
        """Return what a crash report says of a call that failed."""
        return Asked(describe_call(method, args, options), self._owner)

    def _pool(self) -> Pool:
        """Return the pool for batches on the model's current or future device."""
        if self._session is not None:
            return self._session.executor.device.host_pool
        return device_of(
            self.name, None if self._config is None else self._config.device
        ).host_pool

    # Data

    def _load(
        self,
        wanted: Sequence[tuple[str, Source]],
        *,
        add: Callable[[list[int]], int] = sum,
        of: Evaluations | None = None,
    ) -> Session:
        """Build the model if necessary, check data against it, and load programs."""
        first = wanted[0][1]
        network = self._network
        unknown = network is not None and network.open_axes  # lengths of its axes
        unbuilt = network is None and first.sample_shapes is None
        if not first.sizes or unbuilt or unknown:
            first.peek()
        kind = wanted[0][0]

        def load() -> Session:
            session = self._built_session()
            target = self._wanted(kind, of)
            assert target is not None  # not None once the model is built
            for _, source in wanted:
                source.expect(target)
            known = [
                ProgramKey(
                    kind,
                    size,
                    () if kind == "predict" else each.weights,
                    lengths=each.lengths,
                    with_outputs=of is not None
                    and (kind != "predict" or bool(session.masks(each.lengths).shapes)),
                )
                for kind, each in wanted
                for size in each.sizes
                if each.lengths or not session.is_open
            ]
            device, promised = session.executor.device, 0
            # Batches use the same limit. Those of any length are read already.
            if device.host_pool is device.pool and not session.is_open:
                promised = add([source.promised(target) for _, source in wanted])
            try:
                session.require(known, promised)
            except InfeasiblePlanError as error:
                advised = _advised(error, first, target) if promised else None
                if advised is None:
                    raise
                raise advised from None
            return session

        # Another model, which `fit` may train instead, is made of the built one.
        config = self._config
        another = config is not None and config.on_oom.behind()[0] is not None
        passing = [InfeasiblePlanError] * (kind == "train" and another)
        return self._built_for(first.sample_shapes, load, *passing)

    def _checked(self, x: Any) -> list[Array]:
        """Return an array for each input, with the checks of `predict_on_batch`."""
        wanted = self._built_session().wanted(labelled=False)
        found = samples(wanted, x, labelled=False)
        columns(found, wanted.of(found))
        return [np.asarray(each) for each in found.xs]

    def _wanted(self, kind: str, of: Evaluations | None = None) -> Wanted | None:
        """Return what a batch must contain; None while shapes are not known."""
        network, session = self._network, self._session
        if network is None or session is None:
            return None
        if of is not None:
            return of.wanted(session, labelled=kind != "predict")
        return session.wanted(labelled=kind != "predict")

    def _batch(
        self, kind: str, x: Any, y: Any = None, weights: Any = None, classes: Any = None
    ) -> tuple[Session, Batch]:
        """Check a batch and load its program."""
        if self._from_data:
            self._open_for(x)
        compiled, session = self._parts.config, self._parts.session
        if compiled is not None and compiled.goals.reads_any:
            self._take_targets(y)
            compiled, session = self._parts.config, self._parts.session
        own = self._own_steps()
        if own is not None:
            if classes is not None:
                raise ValueError("class_weight is for the built-in step")
            source: Any = element_source(x, y, weights, _ALL, self._pool)
            return own, next(source.begin())
        labelled = kind != "predict"
        table = None if classes is None else check_class_weight(classes)
        wanted = None
        if session is not None and (compiled is not None or not labelled):
            wanted = session.wanted(labelled=labelled)
        given = samples(wanted, x, y, weights, labelled=labelled)
        weighing = given.weighing or ((),) * (table is not None)
        if session is not None and wanted is not None:
            fitting = wanted if wanted.fitting is None else wanted.of(given)
            lengths = fitting.lengths
            if session.is_ready(kind, len(given.xs[0]), weighing, lengths):
                own_columns = columns(given, fitting, table)
                return session, Batch(own_columns, weighing, lengths)

        def load() -> tuple[Session, Batch]:
            session = self._built_session()
            if labelled:
                self._compiled("a loss")
            wanted = session.wanted(labelled=labelled)
            arranged = given.arranged(wanted)
            wanted = wanted.of(arranged)
            made = columns(arranged, wanted, table)
            batch = Batch(made, weighing, wanted.lengths)
            key = ProgramKey(kind, batch.size, weighing, lengths=batch.lengths)
            session.require([key])
            return session, batch

        return self._built_for(given.sample_shapes, load)

    def _built_for(
        self,
        given: SampleShapes | None,
        use: Callable[[], R],
        *passing: type[BaseException],
    ) -> R:
        """Call `use` on the built model; undo a new build if `use` raises.

        The model stays built after errors that are `passing`.
        """
        with self._lock.turn(), seeds_of_refused(*passing):
            fresh = not self.built and given is not None
            if fresh and given is not None:
                self._build(*given)
                self._from_data = True
            try:
                return use()
            except BaseException as error:
                if fresh and not isinstance(error, passing):
                    self._unbuild()
                raise

    def _open_for(self, x: Any) -> None:
        """Build a model again that a batch has built, for samples of other lengths.

        Axes that differ are then of any length; weights and optimizer stay. If a layer
        cannot take them, the model is as it was, and the checks of `x` say so.
        """
        network = self._network
        if not self._from_data or network is None or is_stream(None, x):
            return
        with suppress(TypeError, ValueError):  # of what the checks refuse
            shapes, structure = samples(None, x, labelled=False).sample_shapes
            self._open(shapes, structure)

    def _open(self, shapes: Sequence[OpenShape], structure: Structure | None) -> None:
        """Build a model again for samples of other lengths; see `_open_for`."""
        known = [each.open_shape for each in self._built_network().inputs]
        opened = [
            tuple(a if a == b else None for a, b in zip(old, new, strict=True))
            for old, new in zip(known, shapes, strict=True)
        ]
        if opened != known:
            with self._lock.step():
                self._lock.require_no_session(self._trained_elsewhere())
                self._build(opened, structure)

    def _warn_of_frozen(self) -> None:
        """Warn if `trainable` was set since `compile`."""
        network = self._network  # None for steps of a model without `call`
        frozen = self._compiled("fit").frozen
        if network is not None and frozen != network.frozen():
            warnings.warn(
                f"trainable was set since {self.name!r} was compiled, and is looked at "
                "by compile: compile it again",
                stacklevel=outside(),
            )

    def _fit_sources(
        self,
        x: Any,
        wanted: Wanted | None,
        *,
        y: Any,
        held_steps: int | None,
        **options: Any,
    ) -> tuple[Any, Any]:
        """Return the sources for training and for validation, the latter or None."""
        built_in = self._own_steps() is None
        make: Any = partial(fit_sources, wanted) if built_in else element_sources
        train, held = make(x, y, **options)
        if held is None and held_steps is not None:
            raise ValueError("validation_steps is for validation_data: there is none")
        return train, held

    def _adapt_to(self, x: Any, y: Any, check: Callable[[], object]) -> Any:
        """Take samples of other lengths and targets of other shapes, if it can.

        Returns the samples, or what begins with a batch that was taken from them, after
        a check of what else is given.
        """
        self._open_for(x)
        compiled = self._config
        if compiled is not None and compiled.goals.reads_any and is_stream(None, x, y):
            x, y = with_first_targets(x, check)
        self._take_targets(y)
        return x

    def _take_targets(self, y: Any) -> None:
        """Have losses of the user's read targets of the shapes that are given."""
        compiled = self._config
        if compiled is None or y is None or not compiled.goals.reads_any:
            return
        parts: Any = {None: y}
        if isinstance(y, dict):
            parts = y
        elif isinstance(y, list | tuple) and not is_part(y):
            parts = dict(enumerate(y))
        shapes = {
            key: tuple(getattr(each, "shape", None) or np.shape(each))[1:]
            for key, each in parts.items()
            if is_array(each) or holds_numbers(each) or isinstance(each, TensorSpec)
        }
        known = all(None not in shape for shape in shapes.values())
        if shapes == compiled.goals.shapes or not known:
            return
        goals, network = compiled.goals._replace(shapes=shapes), self._network
        same = network is not None and (
            resolve(goals, network).targets == resolve(compiled.goals, network).targets
        )
        compiled = replace(compiled, goals=goals)
        with self._lock.step():
            self._lock.require_no_session(self._trained_elsewhere())
            if same:
                self._replace(self._parts._replace(config=compiled))
            else:
                self._configure(compiled)

    def _build(
        self, shapes: Sequence[OpenShape], given: Structure | None = None
    ) -> None:
        """Build the model for samples of these shapes by calling `call`."""
        starts = [Input(shape) for shape in shapes]
        inputs: Any = starts[0] if len(starts) == 1 else starts
        if given is not None:
            inputs = given.pack(starts)
        starts, takes = symbolic(inputs, "inputs")
        order = self._as_layer()._sublayers()

        def network(training: Any = None, predicts: Network | None = None) -> Network:
            ends, gives, losses = self._call_in(inputs, training, starts)
            check_ends(ends, starts, type(self).__name__)
            return Network(starts, ends, takes, gives, order, predicts, losses)

        if "training" not in inspect.signature(self.call).parameters:
            traced = network()
        else:
            try:
                traced = network(_Training())
            except _Branches:
                traced = network(True, predicts=network(False))
        self._adopt(traced)

    def _call_in(
        self, inputs: Any, training: Any, starts: Sequence[SymbolicTensor]
    ) -> tuple[list[SymbolicTensor], Structure, Sequence[SymbolicTensor]]:
        """Return outputs of `call` and added losses; None for `training`: no mode."""
        options = {} if training is None else {"training": training}
        refused = "in the `call` of a model: assign it in that of a layer"
        with calling(
            training, starts, refused, measures=self._measures_itself
        ) as added:
            outputs = self.call(inputs, **options)
        if added.measured:
            self._calls_whole = True
        ends, gives = symbolic(outputs, f"what {type(self).__name__}.call returns")
        gives = Structure(None, ("output",)) if gives.kind is None else gives
        return ends, gives, added.losses

    @property
    def _measures(self) -> bool:
        """Whether `call` of the model, if it is a user's, or of a layer has metrics."""
        network = self._parts.network  # a call of Python less in each step
        if network is None:
            return any(x.metrics for x in self._stacked()) or self._measures_itself
        return network.measures or (self._calls_itself and self._measures_itself)

    @property
    def _measures_itself(self) -> bool:
        """Whether a user's class says what the model computes, and holds metrics."""
        return self._calls_itself and bool(self._held_metrics())

    def _called(self, inputs: Any, mode: Mapping[str, Any]) -> Any:
        """Run `call` in a step of one's own, on whole batches."""
        training = mode.get("training", call_mode.get())
        takes = "training" in inspect.signature(self.call).parameters
        token = call_mode.set(training)
        try:
            return self.call(inputs, **({"training": training} if takes else {}))
        finally:
            call_mode.reset(token)

    def _unbuild(self) -> None:
        """Undo `_build`."""
        self._replace(Parts(None, self._config, None))
        for layer in self._as_layer()._sublayers():
            layer._release()

    def build(self, input_shape: Any = None) -> None:
        """Determine all shapes without data.

        Parameters
        ----------
        input_shape : sequence of int or None, or list of them, optional
            The shape with the batch first, as in Keras: ``(None, 28, 28, 1)``. It may
            be left out if the model is built.

        Raises
        ------
        RuntimeError
            If the model is built for another shape.
        TypeError, ValueError
            If the shape is invalid or a layer cannot read it; the model is unchanged.
        """
        if input_shape is None and self._network is not None:
            return
        several, form = taken_apart(input_shape, is_shape)
        for each in several:
            if not isinstance(each, list | tuple) or len(each) < 2:
                raise ValueError(
                    "input_shape counts the batch, as (None, 28, 28, 1); not "
                    f"{input_shape}"
                )
        shapes = [sample_shape(tuple(each[1:])) for each in several]
        with self._lock.turn():
            if self._network is not None:
                known = [each.open_shape for each in self._network.inputs]
                if known == shapes:
                    return
                raise RuntimeError(
                    f"{self.name!r} is built for inputs of shape "
                    f"{', '.join(map(show_shape, known))}, and not of "
                    f"{', '.join(map(show_shape, shapes))}"
                )
            try:
                self._build(shapes, Structure.of(form, [""] * len(shapes)))
            except BaseException:
                self._unbuild()
                raise


def is_shape(given: Any) -> bool:
    """Return whether a list or tuple is one shape, and not several."""
    return not isinstance(given, dict) and not any(
        isinstance(each, list | tuple | dict) for each in given
    )


def _advised(
    error: InfeasiblePlanError, source: Source, target: Wanted
) -> InfeasiblePlanError | None:
    """Return the error with the number of batches to prefetch that fit, or None."""
    missing = error.smallest_limit_bytes - (error.limit_bytes or 0)
    fits = source.buffer_that_fits(target, missing)
    if fits is None:
        return None
    fields = {name: getattr(error, name) for name in error._fields}
    fields["hint"] = f"prefetch({fits}) fits. {error.hint}"
    return InfeasiblePlanError(error.message, **fields)


def _program(program: Any) -> str:
    """Check the name of a program."""
    if program not in ("train", "evaluate", "predict"):
        raise unknown("program", program, ("train", "evaluate", "predict"))
    return str(program)


def _returned(
    logs: dict[str, float], return_dict: bool
) -> float | list[float] | dict[str, float]:
    """Return the logs as Keras does: a dict, a list, or a single loss."""
    if return_dict:
        return logs
    values = list(logs.values())
    return values[0] if len(values) == 1 else values


class _Branches(BaseException):  # not caught by a user's `except Exception`
    """Raised when a model's `call` branches on ``training``."""


class _Training:
    """Placeholder for ``training`` while `call` is traced once for both modes."""

    def __bool__(self) -> bool:
        raise _Branches


def join_locks(owner: Any, others: Iterable[Any]) -> None:
    """Share one lock with all owners of layers that `others` hold."""
    models = {*others} - {None, owner}
    with _joining:
        locks = {each._lock for each in models}
        if models and locks != {owner._lock}:
            shared = next(iter(locks))
            locks.add(owner._lock)
            for each in {owner, *_owners.values()}:
                if each._lock in locks:
                    each._lock = shared
                    if each._session is not None:
                        each._session.use_lock(shared)


def moved_names(
    before: Mapping[Any, str], after: Mapping[Any, str], slots: Iterable[Slot]
) -> dict[str, str]:
    """Return the new names of weights that were renamed, and of their state, by old.

    The names of weights are by layer and name within the layer.
    """
    weights = {
        old: after[key] for key, old in before.items() if after.get(key, old) != old
    }
    state = {
        slot.name: slot.name.replace(f"/{slot.weight}/", f"/{weights[slot.weight]}/", 1)
        for slot in (slots if weights else ())
        if slot.weight in weights
    }
    return weights | state


def values_elsewhere(weights: Iterable[Weight], owner: Any) -> dict[str, Floats]:
    """Return the values of weights held by layers or other owners, by name."""
    result: dict[str, Floats] = {}
    for weight in weights:
        layer, other = weight.layer, weight.layer._model
        if other is not None and other is not owner:
            result[weight.name] = other._read_weight(layer, weight.spec_name)
            other._session.lent = True
        elif other is None and weight.spec_name in layer._values:
            result[weight.name] = layer._held_value(weight.spec_name)
    return result


def require_values(weights: Iterable[Weight]) -> None:
    """Raise RuntimeError if a layer's value was lost with its model."""
    for weight in weights:
        layer = weight.layer
        if layer._model is None and weight.spec_name in layer._values:
            layer._held_value(weight.spec_name)


def state_elsewhere(
    optimizer: Optimizer, slots: Iterable[Slot], weights: Mapping[str, Weight]
) -> Iterator[tuple[str, Floats]]:
    """Yield the state of an optimizer that another owner has, by names of slots."""
    owner = optimizer._holder()
    session = None if owner is None else owner._session
    if session is None or not optimizer._iterations.value:
        return
    there = {weight.name: weight for weight in session.held_weights}

    def key(slot: Slot, by_name: Mapping[str, Weight]) -> Any:
        weight = by_name.get(slot.weight)
        of = None if weight is None else (weight.layer, weight.spec_name)
        return of, slot.key.rpartition("/")[2]

    known = {key(slot, there): slot.name for slot in session.slots_of(optimizer)}
    for slot in slots:
        name = known.get(key(slot, weights))
        if name is not None:
            yield slot.name, session.read(name)


def _holding(layer: Layer) -> list[Model]:
    """Return the models that hold a layer."""
    every = {*_owners.values()}
    return [x for x in every if isinstance(x, Model) and x._around(layer)]


def _change_layer(layer: Layer, change: Callable[[], None]) -> None:
    """Change a layer, and have the models that hold it plan anew."""
    models = _holding(layer)
    with ExitStack() as stack:
        for lock in {each._lock for each in models}:
            stack.enter_context(lock.turn())
        for each in models:
            each._lock.require_no_session(each._trained_elsewhere())
        change()
        for each in models:
            each._as_layer().forget_traces()
            for outer in each._around(layer):
                outer.forget_traces()
            each._renew()


def _rename_layer(layer: Layer, name: str) -> None:
    """Rename a layer, and its weights in the models that hold it."""
    models, before = _holding(layer), layer.name

    def change() -> None:
        for each in models:
            each._require_no_own_steps("renamed")
        object.__setattr__(layer, "name", name)
        try:
            for each in models:
                each._built_network().renewed()  # checks the names
        except ValueError:
            object.__setattr__(layer, "name", before)
            raise
        layer._named = True

    _change_layer(layer, change)


Layer.change_in_models = staticmethod(_change_layer)
Layer.rename_in_models = staticmethod(_rename_layer)


def _inner_models(layers: Iterable[Layer]) -> Iterator[Model]:
    """Yield the models among layers and their inner layers."""
    for layer in layers:
        if isinstance(layer, Nested):
            yield layer.model
        yield from _inner_models(layer._sublayers())


def _distinct(weights: Iterable[Variable]) -> list[Variable]:
    """Return weights without duplicates from shared layers."""
    return list({(each._layer, each._index): each for each in weights}.values())


def _validated(given: Any, epochs: range) -> set[int]:
    """Return the epochs, from 0, that end with a validation."""
    if isinstance(given, list | tuple | set | frozenset | range):
        chosen = {integer(each, "an epoch of validation_freq") - 1 for each in given}
        return chosen & set(epochs)
    every = integer(given, "validation_freq")
    return {epoch for epoch in epochs if (epoch + 1) % every == 0}


def _count(given: Any, what: str) -> int | None:
    return None if given is None else integer(given, what)


def _owned(value: Floats) -> Floats:
    """Return an array that owns its memory, copied if necessary."""
    if value.flags.owndata and not is_attached(value):
        return value
    return np.array(value)


def _between(layers: Sequence[Layer], names: Sequence[str]) -> Sequence[Layer]:
    """Return the layers from one name to another; names are regular expressions."""
    if isinstance(names, str) or len(names) != 2:
        raise ValueError(f"layer_range is the first and the last name, got {names!r}")
    places = []
    for name in names:
        try:
            matches = re.compile(name).search
        except re.error as error:
            raise ValueError(f"layer_range: {name!r}: {error}") from error
        found = [i for i, each in enumerate(layers) if matches(each.name)]
        if not found:
            raise ValueError(f"layer_range: no layer's name matches {name!r}")
        places.append(found)
    return layers[places[0][0] : places[1][-1] + 1]
