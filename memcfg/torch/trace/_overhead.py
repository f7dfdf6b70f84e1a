"""Bytes of a step outside its graph: gradients, cuBLAS, the loss, the optimizer."""

from __future__ import annotations

import copy
import warnings
from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.optim import optimizer as optimizers
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from memcfg._caller import outside
from memcfg._first_line import first_line
from memcfg.torch.trace._fakes import (
    LiveStorages,
    faked,
    faked_module,
    in_place_of,
    same_numbers,
)
from memcfg.torch.trace._kept_functions import kept_in_eager
from memcfg.torch.trace._traced import nbytes_of, rounded

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from torch import fx, nn


_aten = torch.ops.aten
_TAKES = "It takes the outputs alone: loss=lambda out: cross_entropy(out, targets)"
_PRODUCTS = {_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm}
_workspaces: dict[torch.device, int] = {}


def gradient_bytes(module: torch.nn.Module, without: Collection[int] = ()) -> int:
    """Return the bytes of the gradients that parameters have, each storage once.

    Parameters whose ids are in `without` do not count.
    """
    gradients = [
        each.grad
        for each in module.parameters()
        if each.grad is not None and id(each) not in without
    ]
    storages = {each.untyped_storage()._cdata: each for each in gradients}
    return sum(map(nbytes_of, storages.values()))


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor that this rank has, or the tensor if it has all."""
    part = getattr(tensor, "_local_tensor", None)
    if part is None:
        return tensor
    own: torch.Tensor = part.detach().requires_grad_(tensor.requires_grad)
    return own


def workspace_bytes(nodes: Iterable[fx.Node]) -> int:
    """Return the bytes of PyTorch's allocator that cuBLAS keeps for a graph's products.

    cuBLAS and cuBLASLt have workspaces for each of the two threads that multiply: the
    one that runs forward, and autograd's.
    """
    result = {
        value.device
        for node in nodes
        if getattr(node.target, "overloadpacket", None) in _PRODUCTS
        for value in [node.meta["val"]]
        if value.device.type == "cuda"
    }
    for device in result - _workspaces.keys():
        _workspaces[device] = _measured_workspace(device)
    return 2 * sum(_workspaces[device] for device in result)


def _measured_workspace(device: torch.device) -> int:
    """Return the bytes that the products of one thread leave in use."""
    with (
        unset_fake_temporarily(),
        _disable_current_modes(),
        torch.no_grad(),
        torch._C._DisableAutocast(),
    ):
        torch._C._cuda_clearCublasWorkspaces()
        before = torch.cuda.memory_allocated(device)
        x = torch.ones(64, 64, device=device)
        x @ torch.nn.functional.linear(x, x, x[0])
        del x
        torch.cuda.synchronize(device)
        left = torch.cuda.memory_allocated(device) - before
        torch._C._cuda_clearCublasWorkspaces()
    return int(left)


class LossRefusedError(ValueError):
    """A loss is no function of the outputs that gives a scalar."""


class UntracedLossError(ValueError):
    """The bytes of a loss are unknown, since it or the model needs real tensors."""

    @classmethod
    def of(cls, error: Exception, shapes: Iterable[Any] = ()) -> UntracedLossError:
        """Return the error for what code of the user has raised."""
        told = ", ".join(map(str, shapes))
        where = f" with outputs of shape {told}" if told else ""
        return cls(
            f"the loss cannot be traced{where} ({first_line(error)}): three times the "
            "bytes of the outputs are reserved for it"
        )


def loss_bytes(
    module: nn.Module,
    loss: Callable[[Any], torch.Tensor],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    shape_of: Callable[[torch.Tensor], tuple[int, ...]] | None = None,
) -> int:
    """Return the bytes of a loss beyond a module's outputs and their gradients.

    Nothing is computed: the module and the loss run on fake tensors, which live as long
    as real ones would. Tensors that the loss makes are counted; those that it closes
    over and scratch are not. `shape_of` gives the inputs other shapes.

    Raises LossRefusedError if the loss gives no scalar, or takes more than the outputs,
    and UntracedLossError if it or the module does not run this way.
    """
    # A plan of the traced loss would be too low: for a mean of squares it has 4 times
    # the outputs, but eager mode holds 5, since gradients in C++ keep what a graph
    # frees.
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        twin = faked_module(mode, module)
    except ValueError as error:
        raise UntracedLossError.of(error) from error
    with same_numbers(), kept_in_eager(), mode, torch.enable_grad():
        inputs, by_name = faked(mode, (tuple(args), dict(kwargs)), shape_of)
        try:
            with in_place_of(module, twin):
                leaves, spec = tree_flatten(twin(*inputs, **by_name))
        except Exception as error:  # the user's code may raise anything
            raise UntracedLossError.of(error) from error
        given, storages = [], {}
        for at, each in enumerate(leaves):
            if isinstance(each, torch.Tensor):
                if each.requires_grad:  # views of one storage have one gradient
                    storages[each.untyped_storage()._cdata] = nbytes_of(each)
                leaves[at] = torch.empty_like(each).requires_grad_(each.requires_grad)
                given.append(leaves[at])
        try:
            with LiveStorages(given) as live:
                made = _gradients(loss, tree_unflatten(leaves, spec), given)
        except LossRefusedError:
            raise
        except Exception as error:  # the user's code may raise anything
            if isinstance(error, TypeError) and "required positional" in str(error):
                raise LossRefusedError(f"{first_line(error)}. {_TAKES}") from error
            raise UntracedLossError.of(
                error, (tuple(e.shape) for e in given)
            ) from error
    own = {each.untyped_storage()._cdata: nbytes_of(each) for each in made}
    planned: int = min(sum(own.values()), sum(storages.values()))
    peak: int = live.peak_bytes
    return max(0, peak - planned)


def _gradients(
    loss: Callable[[Any], torch.Tensor], outputs: Any, leaves: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Return the gradients that the graph behind the loss takes, in own memory."""
    value = loss(outputs)
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise LossRefusedError("the loss gives no scalar")
    read = [each for each in leaves if each.requires_grad]
    gradients = torch.autograd.grad(value, read, allow_unused=True)
    made = []
    for gradient, output in zip(gradients, read, strict=True):
        if gradient is None:
            made.append(torch.zeros_like(output))
        elif 0 in gradient.stride():  # an expanded gradient
            made.append(torch.empty_like(output).copy_(gradient))
        else:
            made.append(gradient)
    return made


_WRAPPED = 128  # bytes of numbers that ops wrap as tensors, which no mode observes
_STEPS = 100  # the value of a step counter: not one of the first few steps
_ELEMENTS = 7  # the shape of a trial parameter: unlike that of anything else
_SWITCHES = (  # options that decide which tensors exist; None, or off if false
    "amsgrad",
    "centered",
    "differentiable",
    "foreach",
    "fused",
    "momentum",
    "nesterov",
    "weight_decay",
)


class _Counters(TorchDispatchMode):  # type: ignore[misc]
    """Returns numbers where optimizers read values of tensors, which are fake."""

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            dtype = args[0].dtype
            if dtype is torch.bool:
                return False
            return float(_STEPS) if dtype.is_floating_point else _STEPS
        return func(*args, **(kwargs or {}))


def optimizer_bytes(optimizer: torch.optim.Optimizer | None) -> int:
    """Return the bytes of the state of an optimizer after a step.

    Raises
    ------
    TypeError
        If it is not an optimizer.
    ValueError
        If it has not stepped, and its step cannot be tried.
    """
    if optimizer is None:
        return 0
    if not isinstance(optimizer, torch.optim.Optimizer):
        kind = type(optimizer).__name__
        raise TypeError(f"optimizer is a torch.optim.Optimizer, not {kind}")
    if isinstance(optimizer, torch.optim.LBFGS):
        return _lbfgs_bytes(optimizer)
    # Include parameters that are frozen or were replaced since.
    total = sum(map(nbytes_of, tensors_in(optimizer.state)))
    for group in optimizer.param_groups:
        own = [each for each in group["params"] if each.requires_grad]
        # keyed by all that the state depends on
        fresh: dict[Any, list[torch.Tensor]] = {}
        for each in own:
            if not optimizer.state.get(each):
                own_part = local(each)
                like = own_part.shape, own_part.stride(), each.dtype, each.device
                fresh.setdefault(like, []).append(own_part)
        alike = list(fresh.values())
        made = _tried(optimizer, group, [each[0] for each in alike]) if alike else []
        total += sum(
            len(each) * nbytes for each, nbytes in zip(alike, made, strict=True)
        )
    return total


def _lbfgs_bytes(optimizer: torch.optim.LBFGS) -> int:
    """Return the bytes that LBFGS holds while a closure runs.

    These are two vectors of all parameters for each step that it remembers, and six for
    the direction, the gradients of now and before, and differences. A line search has
    six more: the parameters at its start, and the gradients of points between.
    """
    (group,) = optimizer.param_groups
    own = [each for each in group["params"] if each.requires_grad]
    whole = sum(rounded(each.nbytes, each.device) for each in own)
    vectors = 2 * int(group["history_size"]) + 6 + 6 * bool(group["line_search_fn"])
    numbers = 2 * int(group["history_size"]) + 2  # of one element each
    device = own[0].device if own else torch.device("cpu")
    return vectors * whole + numbers * rounded(1, device)


def _tried(
    optimizer: torch.optim.Optimizer,
    group: dict[str, Any],
    parameters: Sequence[torch.Tensor],
) -> list[int]:
    """Return the bytes of state that a step makes for each of some parameters.

    A twin of the optimizer steps with fake parameters. If that fails, it steps with
    real ones of a few elements, and state of the shape of these scales with the
    parameter.
    """
    group = {**group, "params": list(parameters)}
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with mode, _Counters():
            faked = _faked_group(mode, group)
            twin = twin_of(optimizer, [faked])
            twin.step()
        return [
            sum(map(nbytes_of, tensors_in(twin.state[each])))
            for each in faked["params"]
        ]
    except Exception:  # a user's own step may raise anything
        return [_tried_small(optimizer, group, each) for each in parameters]


def _tried_small(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], like: torch.Tensor
) -> int:
    with torch.enable_grad():
        small = torch.zeros(_ELEMENTS, dtype=like.dtype, device=like.device)
        small.requires_grad_().grad = torch.zeros_like(small)
    name = type(optimizer).__name__
    fused = {"fused": None} if "fused" in group else {}
    try:
        twin = twin_of(optimizer, [{**group, "params": [small], **fused}])
        twin.step()
    except Exception as error:
        raise ValueError(
            f"what {name} keeps cannot be tried ({first_line(error)}): let it step "
            "once before"
        ) from error
    return sum(
        nbytes_of(each)
        if each.numel() != _ELEMENTS
        else rounded(like.numel() * each.itemsize, like.device)
        for each in tensors_in(twin.state[small])
    )


def twin_of(
    optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]
) -> torch.optim.Optimizer:
    """Return an optimizer without state, over other parameters, that may step.

    Raises ValueError if its step would run another optimizer's.
    """
    held = vars(optimizer)
    if any(isinstance(each, torch.optim.Optimizer) for each in held.values()):
        name = type(optimizer).__name__
        raise ValueError(f"{name} holds another optimizer")
    twin = object.__new__(type(optimizer))
    twin.__dict__.update((key, copy.copy(each)) for key, each in held.items())
    # a scheduler's wrapper, which steps the optimizer itself
    twin.__dict__.pop("step", None)
    twin.__dict__.update((key, OrderedDict()) for key in held if key.endswith("_hooks"))
    twin.state = defaultdict(dict)
    twin.param_groups = groups
    return twin


def tensors_in(state: Mapping[Any, Any]) -> list[torch.Tensor]:
    """List the tensors of a state."""
    leaves = tree_leaves(list(state.values()))
    return [local(each) for each in leaves if isinstance(each, torch.Tensor)]


def stepped_by(optimizer: torch.optim.Optimizer) -> list[tuple[Any, ...]]:
    """Return a key of what the bytes of a step depend on: the groups and their options.

    Equal keys mean equal bytes.
    """
    return [
        (
            *((key, _switch(group[key])) for key in _SWITCHES if key in group),
            *map(_key_of, group["params"]),
        )
        for group in optimizer.param_groups
    ]


def _switch(value: Any) -> bool | None:
    return None if value is None else bool(value)


def _key_of(each: torch.Tensor) -> tuple[Any, ...]:
    return id(each), each.requires_grad, each.dtype, each.shape, each.device


def update_bytes(optimizer: torch.optim.Optimizer | None) -> int | None:
    """Return the bytes of a step beyond parameters, gradients and state.

    Nothing is computed. Tensors that the optimizer makes are counted, but not the
    scratch of ops. Returns None if there is no optimizer, or, with a warning, if the
    bytes are unknown.
    """
    if optimizer is None or isinstance(optimizer, torch.optim.LBFGS):
        return None
    try:
        return _traced(optimizer) + _WRAPPED
    except Exception as error:  # a user's own step may raise anything
        warnings.warn(
            f"what a step of {type(optimizer).__name__} has in use for a while is not "
            f"known, and not counted: {first_line(error)}",
            RuntimeWarning,
            stacklevel=outside("torch"),
        )
        return None


def _traced(optimizer: torch.optim.Optimizer) -> int:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode, _Counters():
        groups = [_faked_group(mode, group) for group in optimizer.param_groups]
        twin = twin_of(optimizer, groups)
        twin.step()  # this step makes the state
        parameters = [each for group in groups for each in group["params"]]
        gradients = [each.grad for each in parameters if each.grad is not None]
        state = [each for held in twin.state.values() for each in tensors_in(held)]
        with LiveStorages([*parameters, *gradients, *state]) as live:
            twin.step()
    peak: int = live.peak_bytes
    return peak


def _faked_group(mode: FakeTensorMode, group: dict[str, Any]) -> dict[str, Any]:
    """Return a group of fake parameters, each with a gradient."""
    own, made = [local(each) for each in group["params"]], []
    for each in own:
        fake = mode.from_tensor(each).detach().requires_grad_(each.requires_grad)
        if each.requires_grad:
            fake.grad = torch.empty_like(fake)
        made.append(fake)
    faked = {**group, "params": made}
    if group.get("foreach", False) is None and group.get("fused") is None:
        # Options that it would choose by the types of its parameters, which differ
        # here.
        faked["foreach"] = optimizers._default_to_fused_or_foreach(
            [each for each in own if each.requires_grad],
            group.get("differentiable", False),
            use_fused=False,
        )[1]
    return faked
