"""Models as configurations: their layers and the calls of layers, and back."""

from __future__ import annotations

import inspect
from collections import Counter, defaultdict, deque
from typing import TYPE_CHECKING, Any, NamedTuple

from memcfg.errors import FormatError
from memcfg.nn import ops
from memcfg.nn.exchange._configs import (
    OperationClass,
    deserialize_keras_object,
    serialize_keras_object,
    sharing_objects,
)
from memcfg.nn.layers._layer import (
    InputLayer,
    Layer,
    Node,
    SymbolicTensor,
    operation,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from memcfg.nn._network import Network

__all__ = [
    "again",
    "functional_config",
    "joined",
    "sequential_config",
    "stacked",
    "started",
]

_TENSOR = "__keras_tensor__"
_BY_LETTERS = {name.replace("_", ""): name for name in ops.__all__}
_NOT_ARGUMENTS = ("training", "mask")  # which the model's own calls set


class _Call(NamedTuple):
    """A call of a layer: the layer's name, and how many came before it."""

    layer: str
    place: int


def functional_config(model: Any) -> dict[str, Any]:
    """Return the configuration of a model between symbolic tensors."""
    network = model._built_network()
    if network.losses:
        raise TypeError(
            f"{model.name!r} has losses of add_loss, which Keras's configurations do "
            "not hold: save it as .memcfg, or call add_loss in a layer"
        )
    histories = _histories(network)
    calls: dict[Layer, list[Any]] = defaultdict(list)
    for node in network.nodes:
        if isinstance(node.layer, InputLayer):
            continue
        args, options = node.layer._arguments_of(node)
        call = {
            "args": _with_histories(list(args), histories),
            "kwargs": _with_histories(options, histories),
        }
        calls[node.layer].append(
            call | ({"operation": True} if node.in_operation else {})
        )
    layers = [
        serialize_keras_object(layer)
        | {"name": layer.name, "inbound_nodes": calls[layer]}
        for layer in network.layers
    ]
    ends = (
        structure.pack([list(histories[each]) for each in tensors])
        for structure, tensors in (
            (network.takes, network.inputs),
            (network.gives, network.outputs),
        )
    )
    result = {"name": model.name, "trainable": bool(model.trainable), "layers": layers}
    return result | dict(zip(("input_layers", "output_layers"), ends, strict=True))


def _histories(network: Network) -> dict[SymbolicTensor, tuple[str, int, int]]:
    """Return the layer, call and place of each tensor."""
    counts: Counter[Layer] = Counter()
    result = {}
    for node in network.nodes:
        for place, tensor in enumerate(node.outputs):
            result[tensor] = (node.layer.name, counts[node.layer], place)
        counts[node.layer] += 1
    return result


def _with_histories(value: Any, histories: Mapping[Any, tuple[str, int, int]]) -> Any:
    """Return arguments of a call with tensors as their places in the model."""
    if isinstance(value, SymbolicTensor):
        if value not in histories:
            raise TypeError(
                f"{value!r} cannot be described: it is a weight, or of another model"
            )
        history = list(histories[value])
        config = {"shape": value.shape, "dtype": value.dtype, "keras_history": history}
        return {"class_name": _TENSOR, "config": config}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)([_with_histories(each, histories) for each in value])
    if isinstance(value, dict):
        return {key: _with_histories(each, histories) for key, each in value.items()}
    return serialize_keras_object(value)


def sequential_config(model: Any) -> dict[str, Any]:
    """Return the configuration of a chain of layers."""
    layers = [serialize_keras_object(layer) for layer in model._stacked()]
    result = {
        "name": model.name,
        "trainable": bool(model.trainable),
        "dtype": serialize_keras_object(model.dtype_policy),
        "layers": layers,
    }
    if model.built:
        network = model._built_network()
        if len(network.inputs) == 1:
            layers.insert(0, serialize_keras_object(network.inputs[0].node.layer))
        shapes = [each.shape for each in network.inputs]
        result["build_input_shape"] = network.takes.pack(shapes)
    return result


def stacked(config: Mapping[str, Any]) -> list[Any]:
    """Return the layers of a chain's configuration, an `Input` for its shape first."""
    with sharing_objects():
        layers = [
            _layer(each) for each in _list(config.get("layers"), "layers of a model")
        ]
    if layers and isinstance(layers[0], InputLayer):
        return layers
    first = _list(config["layers"], "layers")[0]["config"] if layers else {}
    shape = config.get("build_input_shape") or first.get("batch_input_shape")
    if not isinstance(shape, list | tuple) or not shape or None in shape[1:]:
        return layers
    if any(isinstance(each, list | tuple | dict) for each in shape):
        return layers  # of several inputs
    return [InputLayer.from_config({"batch_shape": shape}), *layers]


def _layer(config: Any) -> Any:
    """Create a layer, a model or an operation of a model's configuration."""
    if not isinstance(config, dict) or not isinstance(config.get("config"), dict):
        raise FormatError("a layer's configuration must be a dictionary")
    inner = config["config"]
    if config.get("class_name") != "InputLayer" and "batch_input_shape" in inner:
        given = {k: each for k, each in inner.items() if k != "batch_input_shape"}
        config = config | {"config": given}
    made: Any
    if _is_operation(config):
        made = OperationClass(config["class_name"], inner)
    else:
        made = deserialize_keras_object(config, room="layers")
    if isinstance(made, OperationClass):
        return _operation(made)
    as_layer = getattr(made, "_as_layer", None)
    made = made if as_layer is None else as_layer()
    if not isinstance(made, Layer):
        raise FormatError(f"{config.get('class_name')!r} is not a layer")
    return made


def _is_operation(config: Mapping[str, Any]) -> bool:
    """Return whether an older file, without modules, has a function, not a layer."""
    name = str(config.get("class_name"))
    if "module" in config or "trainable" in config["config"]:
        return False
    return name.lower() in _BY_LETTERS and name != "InputLayer"


def _operation(of: OperationClass) -> Callable[..., Any]:
    """Return the function of `memcfg.nn.ops` that an operation's class stands for."""
    name = _BY_LETTERS.get(of.name.replace("_", "").lower())
    if name is None:
        raise FormatError(f"memcfg has no function for the operation {of.name!r}")
    function = getattr(ops, name)
    accepted = inspect.signature(function).parameters

    def call(*args: Any, **options: Any) -> Any:
        given = {k: each for k, each in of.config.items() if k in accepted}
        left = {k: each for k, each in of.config.items() if k not in given}
        if any(each not in (None, False) for each in left.values()):
            raise FormatError(f"ops.{name} has no arguments {sorted(left)}")
        if name == "get_item" and isinstance(args[-1], list):
            args = (*args[:-1], tuple(args[-1]))  # which JSON does not have
        return function(*args, **(given | options))

    return call


def joined(config: Mapping[str, Any]) -> tuple[Any, Any]:
    """Build what a functional configuration describes; return inputs and outputs."""
    layers, calls = _listed(config)
    made: dict[_Call, list[SymbolicTensor]] = {}
    waiting, users = {}, defaultdict(list)
    for key, (args, options) in calls.items():
        needs = {_Call(*each[:2]) for each in _histories_in([args, options])}
        waiting[key] = needs
        for need in needs:
            users[need].append(key)
    ready = deque(key for key, needs in waiting.items() if not needs)
    while ready:
        key = ready.popleft()
        made[key] = _called(layers[key.layer], *calls[key], made)
        for user in users[key]:
            waiting[user].discard(key)
            if not waiting[user]:
                ready.append(user)
    starts, ends = (config.get(key) for key in ("input_layers", "output_layers"))
    return _ends(starts, made), _ends(ends, made)


def _listed(
    config: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[_Call, tuple[Any, dict[str, Any]]]]:
    """Return the layers by name, and the arguments of their calls."""
    layers: dict[str, Any] = {}
    calls: dict[_Call, tuple[Any, dict[str, Any]]] = {}
    with sharing_objects():
        for each in _list(config.get("layers"), "layers of a model"):
            layer = _layer(each)
            name = each.get("name") or each["config"].get("name")
            if not isinstance(name, str) or name in layers:
                raise FormatError(f"the layers of a model have the name {name!r} twice")
            layers[name] = layer
            nodes = _list(each.get("inbound_nodes"), "calls of a layer")
            if isinstance(layer, InputLayer):
                calls[_Call(name, 0)] = [], {}
            for place, node in enumerate(nodes):
                calls[_Call(name, place)] = _arguments(node)
                if isinstance(node, dict) and node.get("operation") is True:
                    layers[name] = operation(layer)
    return layers, calls


def _arguments(node: Any) -> tuple[Any, dict[str, Any]]:
    """Return the arguments of a call, of Keras 3 or of Keras 2."""
    if isinstance(node, dict):
        args, options = node.get("args", []), node.get("kwargs", {})
        if not isinstance(args, list | tuple) or not isinstance(options, dict):
            raise FormatError("the arguments of a call are malformed")
        return list(args), {
            key: each
            for key, each in options.items()
            if key not in _NOT_ARGUMENTS or not (each is None or isinstance(each, bool))
        }
    tensors, options = [], {}
    for each in _list(node, "inputs of a call"):
        name, place, index, *more = _list(each, "an input of a call")
        tensors.append(_history_config([name, place, index]))
        options |= more[0] if more and isinstance(more[0], dict) else {}
    given: Any = tensors[0] if len(tensors) == 1 else tensors
    return [given], {k: each for k, each in options.items() if k not in _NOT_ARGUMENTS}


def _history_config(history: list[Any]) -> dict[str, Any]:
    return {"class_name": _TENSOR, "config": {"keras_history": history}}


def _history(value: Mapping[str, Any]) -> list[Any]:
    """Return the layer, call and place of a tensor in a configuration."""
    config = value.get("config")
    history = config.get("keras_history") if isinstance(config, dict) else None
    kinds = (str, int, int)
    if not isinstance(history, list | tuple) or len(history) != 3:
        raise FormatError(f"a tensor of a model has no place: {history!r}")
    for each, kind in zip(history, kinds, strict=True):
        if not isinstance(each, kind):
            raise FormatError(f"a tensor of a model has no place: {history!r}")
    return list(history)


def _histories_in(value: Any) -> Iterator[list[Any]]:
    if isinstance(value, dict):
        if value.get("class_name") == _TENSOR:
            yield _history(value)
            return
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            yield from _histories_in(each)


def _filled(value: Any, made: Mapping[_Call, list[SymbolicTensor]]) -> Any:
    """Return the arguments of a call with tensors in place of their descriptions."""
    if isinstance(value, dict):
        if value.get("class_name") == _TENSOR:
            return _tensor(_history(value), made)
        if "class_name" in value:
            return deserialize_keras_object(value)
        return {key: _filled(each, made) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([_filled(each, made) for each in value])
    return value


def _tensor(
    history: Sequence[Any], made: Mapping[_Call, list[SymbolicTensor]]
) -> SymbolicTensor:
    name, place, index = history
    outputs = made.get(_Call(name, place), [])
    if not 0 <= index < len(outputs):
        raise FormatError(
            f"a model has no tensor {list(history)}: a call is missing, or they are in "
            "a circle"
        )
    result: SymbolicTensor = outputs[index]
    return result


def _called(
    layer: Any,
    args: list[Any],
    options: dict[str, Any],
    made: Mapping[_Call, list[SymbolicTensor]],
) -> list[SymbolicTensor]:
    """Call a layer, or start from an input; return the results in order."""
    if isinstance(layer, InputLayer):
        return [started(layer)]
    given = [_filled(each, made) for each in args]
    result = layer(*given, **_filled(options, made))
    return list(_flat(result))


def started(layer: InputLayer) -> SymbolicTensor:
    """Return the symbolic tensor of an input layer."""
    result: SymbolicTensor = Node(layer, (), [(layer.shape, layer.dtype)]).outputs[0]
    return result


def _flat(value: Any) -> Iterator[SymbolicTensor]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            yield from _flat(each)
    else:
        yield value


def _ends(given: Any, made: Mapping[_Call, list[SymbolicTensor]]) -> Any:
    """Return the inputs or outputs of a model in their structure."""
    if isinstance(given, dict):
        return {key: _ends(each, made) for key, each in given.items()}
    listed = _list(given, "inputs and outputs of a model")
    if len(listed) == 3 and isinstance(listed[0], str):
        return _tensor(_history(_history_config(listed)), made)
    return type(given)([_ends(each, made) for each in listed])


def _list(value: Any, what: str) -> Any:
    if not isinstance(value, list | tuple):
        raise FormatError(f"the {what} must be a list, got {type(value).__name__}")
    return value


def again(
    network: Network,
    copy: Callable[[Layer], Any],
    starts: Sequence[SymbolicTensor] | None,
    call: Callable[..., Any],
) -> tuple[Any, Any, list[Any], dict[Layer, Any]]:
    """Repeat calls with copies of the layers.

    Returns inputs, outputs, the losses of `add_loss`, and the copies.
    """
    copies: dict[Layer, Any] = {}
    made: dict[SymbolicTensor, SymbolicTensor] = {}
    if starts is not None:
        made |= zip(network.inputs, starts, strict=True)
    for node in network.nodes:
        layer = node.layer
        if layer not in copies and not isinstance(layer, InputLayer):
            copies[layer] = copy(layer)
        if isinstance(layer, InputLayer):
            (tensor,) = node.outputs
            if tensor not in made:
                made[tensor] = started(InputLayer.from_config(layer.get_config()))
            continue
        args, options = _replaced(layer._arguments_of(node), made)
        called = operation(call) if node.in_operation else call
        results = _flat(called(copies[layer], *args, **options))
        made |= zip(node.outputs, results, strict=True)
    return (
        network.takes.pack([made[each] for each in network.inputs]),
        network.gives.pack([made[each] for each in network.outputs]),
        [made[each] for each in network.losses],
        copies,
    )


def _replaced(value: Any, made: Mapping[SymbolicTensor, SymbolicTensor]) -> Any:
    if isinstance(value, SymbolicTensor):
        return made[value]
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)([_replaced(each, made) for each in value])
    if isinstance(value, dict):
        return {key: _replaced(each, made) for key, each in value.items()}
    return value
