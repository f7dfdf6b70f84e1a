"""Recurrent layers of oneDNN in a traced step: a forward op and a backward op.

PyTorch traces `nn.LSTM` as the ops of its steps, since a traced graph has no gradient
of oneDNN's layer. In eager mode on a CPU it runs that layer. These functions trace the
layer, in the order of ops of eager mode (ATen's ``native/mkldnn/RNN.cpp``).
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from threading import local
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._python_dispatch import _disable_current_modes

from memcfg.torch.trace._costs import made_up_arguments
from memcfg.torch.trace._traced import RUNS_AS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_LAYER = torch.ops.aten.mkldnn_rnn_layer.default
_BACKWARD = torch.ops.aten.mkldnn_rnn_layer_backward.default
_WORKSPACE, _SECOND_BIAS = 3, 4  # positions in the results
_BAGS = (
    torch.ops.aten._embedding_bag.default,
    torch.ops.aten._embedding_bag_forward_only.default,
)
_BAG_OF_OFFSET = 1  # likewise
_LSTM = 2  # oneDNN's number for an LSTM
# dtypes for which eager mode uses these layers
_DTYPES = (torch.float32, torch.bfloat16)
_NAMES = (  # the number of arguments of `torch.lstm` for sequences that are not packed
    *("input", "hx", "params", "has_biases", "num_layers", "dropout", "train"),
    *("bidirectional", "batch_first"),
)
Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class _Layer:
    """The options of a layer, apart from its tensors.

    Parameters
    ----------
    reverse : bool
        Whether it runs from the end of the sequence.
    hidden_size, num_layers : int
        As in the module.
    has_biases, bidirectional, batch_first, train : bool
        As in the module.
    """

    reverse: bool
    hidden_size: int
    num_layers: int
    has_biases: bool
    bidirectional: bool
    batch_first: bool
    train: bool

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments of the op that follow its tensors."""
        settings = self.has_biases, self.bidirectional, self.batch_first, self.train
        return self.reverse, [], _LSTM, self.hidden_size, self.num_layers, *settings


class _Run(torch.autograd.Function):  # type: ignore[misc]
    """One direction of one layer."""

    @staticmethod
    def forward(ctx: Any, how: _Layer, *tensors: torch.Tensor) -> Any:
        out, hy, cy, workspace = _LAYER(*tensors, *how.arguments)
        ctx.how = how
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, out, hy, cy, workspace)
        return out, hy, cy

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        how = ctx.how
        *tensors, workspace = ctx.saved_tensors
        x, w_ih, w_hh, b_ih, b_hh, hx, cx = _BACKWARD(
            *tensors,
            *gradients,
            how.reverse,
            _LSTM,
            how.hidden_size,
            how.num_layers,
            how.has_biases,
            how.train,
            how.bidirectional,
            [],
            how.batch_first,
            workspace,
        )
        return None, x, w_ih, w_hh, b_ih, b_hh, hx, cx


def _lstm(
    x: torch.Tensor,
    state: Pair,
    weights: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute the same as `torch.lstm` does with oneDNN."""
    x = (x.transpose(0, 1) if batch_first else x).contiguous()
    hx, cx = (each.contiguous() for each in state)
    hidden = hx.shape[-1]
    directions, count = 1 + bidirectional, 4 if has_biases else 2
    last_h: list[torch.Tensor] = []
    last_c: list[torch.Tensor] = []
    for layer in range(num_layers):
        made = []
        for reverse in (False, True)[:directions]:
            at = len(last_h)
            own = list(weights[at * count : (at + 1) * count])
            if not has_biases:
                own += [torch.zeros_like(each) for each in own]
            how = _Layer(
                reverse,
                hidden,
                num_layers,
                has_biases,
                bidirectional,
                batch_first,
                train,
            )
            run = _Run.apply if torch.is_grad_enabled() else _run_inference
            out, h, c = run(how, x, *own, hx[at], cx[at])
            made.append(out)
            last_h.append(h)
            last_c.append(c)
        x = made[0] if directions == 1 else torch.cat(made, -1)
        if dropout and train and layer < num_layers - 1:
            x = torch.dropout(x, dropout, True)
    x = x.transpose(0, 1) if batch_first else x
    return x, torch.stack(last_h), torch.stack(last_c)


def _is_onednns(x: Any, state: Any, weights: Any) -> bool:
    """Return whether eager mode runs a layer by oneDNN."""
    if not isinstance(weights, (list, tuple)) or not torch._C._get_mkldnn_enabled():
        return False  # of packed sequences
    tensors = (x, *state, *weights)
    return (
        x.dim() == 3
        and all(t.device.type == "cpu" and t.dtype in _DTYPES for t in tensors)
        and state[0].shape[-1] == state[1].shape[-1]  # no projection
        and all(tensor.numel() for tensor in tensors)
    )


def _in_order(arguments: Any, named: Any) -> Any:
    """Return all arguments of `torch.lstm`; None if they are for packed sequences."""
    rest = _NAMES[len(arguments) :]
    if set(named) != set(rest):
        return None
    return (*arguments, *(named[each] for each in rest))


def lstm_as_layers(*arguments: Any, **named: Any) -> Any:
    """Run `torch.lstm` with an op for each layer, where eager mode uses oneDNN's."""
    all_arguments = _in_order(arguments, named)
    if all_arguments is not None and _is_onednns(*all_arguments[:3]):
        x, state, weights = all_arguments[:3]
        dtypes = {each.dtype for each in (x, *state, *weights)}
        if dtypes == {torch.float32} and not torch.is_autocast_enabled("cpu"):
            return _lstm(*all_arguments)
    return lstm_as_steps(*arguments, **named)


class Stepped(local):
    """The number of LSTMs that this thread traced as steps where eager has layers."""

    count = 0


stepped = Stepped()


def lstm_as_steps(*arguments: Any, **named: Any) -> Any:
    """Run `torch.lstm` as the ops of its steps."""
    all_arguments = _in_order(arguments, named)
    if all_arguments is not None and _is_onednns(*all_arguments[:3]):
        stepped.count += 1
    with _without_onednn():
        return torch.lstm(*arguments, **named)


@contextmanager
def _without_onednn() -> Iterator[None]:
    """Make PyTorch report that it may not use oneDNN, while it selects kernels."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def set_lstm(module: fx.GraphModule, lstm: Callable[..., Any]) -> None:
    """Make a Dynamo graph call a function instead of `torch.lstm`."""
    for graph, node in _lstms(module):
        node.target = lstm
        graph.recompile()


def has_lstm(module: fx.GraphModule) -> bool:
    """Return whether a graph calls PyTorch's LSTM, also inside checkpoints."""
    return any(True for _ in _lstms(module))


def _lstms(module: fx.GraphModule) -> Iterator[tuple[fx.GraphModule, fx.Node]]:
    for each in module.modules():
        if isinstance(each, fx.GraphModule):
            for node in each.graph.nodes:
                if node.target in _LSTMS:
                    yield each, node


_LSTMS = torch.lstm, lstm_as_layers, lstm_as_steps


def has_layers(graph: fx.Graph) -> bool:
    """Return whether a traced step has ops that are layers."""
    inference = torch.ops.memcfg.lstm_inference.default
    return any(node.target in (_LAYER, inference) for node in graph.nodes)


def add_workspaces(graph: fx.Graph) -> None:
    """Make layers run with their workspaces, and set the bytes of these.

    PyTorch traces workspaces of zero bytes, and one gradient for two biases. A layer is
    run once to find the size of its workspace, and raises OutOfMemoryError if there is
    no room. Bags of embeddings keep one number more than is traced.
    """
    known: dict[str, int] = {}
    for node in graph.nodes:
        if node.target is _LAYER:
            node.meta[RUNS_AS] = run_for_backward
            key = repr([_like(each) for each in node.args])
            if key not in known:
                known[key] = _workspace_bytes(node)
            _set_value(node, _WORKSPACE, known[key])
        elif node.target is _BACKWARD:
            _set_value(node, _SECOND_BIAS)
        elif node.target is torch.ops.memcfg.lstm_inference.default:
            node.meta[RUNS_AS] = run_inference
        elif node.target in _BAGS:
            _lengthen(node, _BAG_OF_OFFSET)


def _lengthen(node: fx.Node, at: int) -> None:
    """Let the storage of a vector that a node makes have one element more, if any."""
    values = list(node.meta["val"])
    count = values[at].numel()
    if not count:
        return
    values[at] = values[at].new_empty(count + 1)[:count]
    node.meta["val"] = tuple(values)
    for user in node.users:
        if user.args[1] == at:
            user.meta["val"] = values[at]


def _set_value(node: fx.Node, at: int, nbytes: int | None = None) -> None:
    """Give one result of a node a storage of its own, of the given bytes if any."""
    values = list(node.meta["val"])
    shape = values[at].shape if nbytes is None else (nbytes,)
    values[at] = values[at].new_empty(shape)
    node.meta["val"] = tuple(values)
    for user in node.users:
        if user.args[1] == at:
            user.meta["val"] = values[at]


def _like(argument: Any) -> Any:
    value = argument.meta["val"] if isinstance(argument, fx.Node) else argument
    return tuple(value.shape) if isinstance(value, torch.Tensor) else value


def _workspace_bytes(node: fx.Node) -> int:
    with unset_fake_temporarily(), _disable_current_modes():
        arguments, _ = made_up_arguments(node)
        return int(run_for_backward(*arguments)[_WORKSPACE].nbytes)


def run_for_backward(*arguments: Any) -> Any:
    """Run a layer as with gradients enabled, which makes a workspace."""
    with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():
        return _LAYER(*arguments)


def run_inference(*arguments: Any) -> Any:
    """Run a layer as without gradients, by other kernels and without a workspace."""
    with torch.no_grad():
        return _LAYER(*arguments)[:_WORKSPACE]


_SCHEMA = (
    "(Tensor x, Tensor w_ih, Tensor w_hh, Tensor b_ih, Tensor b_hh, Tensor hx, "
    "Tensor cx, bool reverse, int[] batch_sizes, int mode, int hidden_size, "
    "int num_layers, bool has_biases, bool bidirectional, bool batch_first, "
    "bool train) -> (Tensor, Tensor, Tensor)"
)
# A separate op, so that a graph distinguishes runs with gradients from runs without.
torch.library.custom_op(
    "memcfg::lstm_inference", run_inference, mutates_args=(), schema=_SCHEMA
)


torch.library.register_fake(
    "memcfg::lstm_inference", lambda *arguments: _LAYER(*arguments)[:_WORKSPACE]
)


def _run_inference(how: _Layer, *tensors: torch.Tensor) -> Any:
    return torch.ops.memcfg.lstm_inference(*tensors, *how.arguments)
