"""Dropout with a rate that changes from step to step, as an op of a traced graph.

PyTorch's own op takes a number that a graph must know. This one takes any, and computes
the bits of eager mode.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.utils import proxy_args_kwargs
from torch._dynamo.variables import builder
from torch._dynamo.variables.tensor import SymNodeVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable
from torch.nn import functional

from memcfg.torch.trace._kept_functions import keeping

if TYPE_CHECKING:
    from collections.abc import Callable

_aten = torch.ops.aten
_library = torch.library.Library("memcfg", "FRAGMENT")
_library.define(
    "dropout(Tensor input, Scalar p) -> (Tensor, Tensor)",
    tags=(torch.Tag.nondeterministic_seeded,),
)
_library.define("dropout_backward(Tensor gradient, Tensor mask, Scalar p) -> Tensor")


def _forward(tensor: torch.Tensor, p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Drop elements, and return the result and which elements stay."""
    if tensor.device.type != "cpu":  # whose op it is in eager mode
        made: tuple[torch.Tensor, torch.Tensor]
        made = _aten.native_dropout(tensor, float(p), True)
        return made
    noise = torch.empty_like(tensor).bernoulli_(1 - p)
    mask = noise.bool()
    return tensor * noise.div_(1 - p), mask


def _backward(gradient: torch.Tensor, mask: torch.Tensor, p: float) -> torch.Tensor:
    """Return the gradient of the input."""
    if gradient.device.type != "cpu":
        scale = 0.0 if p == 1 else 1.0 / (1.0 - p)
        made: torch.Tensor = _aten.native_dropout_backward(gradient, mask, scale)
        return made
    return gradient * mask.to(gradient.dtype).div_(1 - p)


_library.impl("dropout", _forward, "CompositeExplicitAutograd")
_library.impl("dropout_backward", _backward, "CompositeExplicitAutograd")


@torch.library.register_fake("memcfg::dropout")  # type: ignore[untyped-decorator]
def _fake_forward(tensor: torch.Tensor, _: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(tensor), torch.empty_like(tensor, dtype=torch.bool)


@torch.library.register_fake("memcfg::dropout_backward")  # type: ignore[untyped-decorator]
def _fake_backward(gradient: torch.Tensor, _mask: torch.Tensor, _: Any) -> torch.Tensor:
    return torch.empty_like(gradient)


class _Dropout(torch.autograd.Function):  # type: ignore[misc]
    """The two ops, joined as a function of autograd."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, p: float) -> torch.Tensor:
        made, mask = torch.ops.memcfg.dropout(tensor, p)
        ctx.save_for_backward(mask)
        ctx.p = p
        result: torch.Tensor = made
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (mask,) = ctx.saved_tensors
        return torch.ops.memcfg.dropout_backward(gradient, mask, ctx.p), None


def dropout(
    tensor: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> torch.Tensor:
    """Drop elements as `torch.nn.functional.dropout` does, in a new tensor."""
    if not training or p == 0:
        return tensor
    made: torch.Tensor = _Dropout.apply(tensor, p)
    return made


_lock = Lock()
_originals: list[Callable[..., Any]] = []


def look_into_dropout() -> None:
    """Replace the method by which PyTorch's compiler traces functions."""
    with _lock:
        if not _originals:
            _originals.append(TorchInGraphFunctionVariable.call_function)
            TorchInGraphFunctionVariable.call_function = _call


def _call(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    """Trace a call of a function: dropout as another op if its rate is a symbol."""
    if keeping.is_tracing and self.value is functional.dropout:
        rate = kwargs.get("p", args[1] if len(args) > 1 else None)
        rate = rate.realize() if hasattr(rate, "realize") else rate
        if isinstance(rate, SymNodeVariable):
            given = proxy_args_kwargs(args, kwargs)
            proxy = tx.output.create_proxy("call_function", dropout, *given)
            return builder.wrap_fx_proxy(tx=tx, proxy=proxy)
    return _originals[0](self, tx, args, kwargs)
