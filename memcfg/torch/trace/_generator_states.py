"""Random ops that a plan may recompute from the saved state of their generator.

The state is a tensor of the graph, which a step holds until it recomputes the op. The
generator is left as if the op had run once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from memcfg.torch.trace._traced import ONCE, is_random, nbytes_of, values_of

if TYPE_CHECKING:
    from torch import fx

_STATE_BYTES = {
    "cpu": torch.default_generator.get_state().numel(),
    "cuda": 16,  # a seed and an offset, in host memory
}
# Ops that draw only from their device's generator and take none as an argument.
_OWN = {
    "native_dropout",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention",
}


def run_and_save_state(op: Any, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, Any]:
    """Run an op; return the earlier state of its generator, and its results."""
    return _generator(args, kwargs).get_state(), op(*args, **kwargs)


def run_with_state(state: torch.Tensor, op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an op with a state of its generator, and restore the generator."""
    generator = _generator(args, kwargs)
    # Not a tensor, since the allocator would hold one more than the op returns.
    own = generator.get_state().numpy().copy()
    generator.set_state(state)
    try:
        return op(*args, **kwargs)
    finally:
        generator.set_state(torch.from_numpy(own))


def _generator(args: Any, kwargs: Any) -> torch.Generator:
    device = kwargs.get("device")
    if device is None:
        device = next(each.device for each in args if isinstance(each, torch.Tensor))
    if device.type == "cpu":
        return torch.default_generator
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]


def state_before(name: str) -> torch.Tensor:
    """Represent the state before an op, which is saved when the op runs."""
    raise AssertionError(f"the state before {name} is had when that runs")


def add_states(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """Add the states before ops that can be replayed; return them by op.

    Ops whose results are not larger than the state are left out, as keeping the results
    is better.
    """
    states: dict[fx.Node, fx.Node] = {}
    for node in list(graph.nodes):
        if not _can_replay(node):
            continue
        values = values_of(node)
        size = _STATE_BYTES[values[0].device.type]
        if sum(map(nbytes_of, values)) <= size:
            continue
        with graph.inserting_before(node):
            made = graph.call_function(state_before, (node.name,))
        made.meta = {k: v for k, v in node.meta.items() if "module_stack" in k}
        with values[0].fake_mode:
            made.meta["val"] = torch.empty(size, dtype=torch.uint8)
        made.meta[ONCE] = True
        states[node] = made
    return states


def _can_replay(node: fx.Node) -> bool:
    """Return whether an op is known to draw only from the generator of its device."""
    if not is_random(node) or ONCE in node.meta or node.target._schema.is_mutable:
        return False
    given = tree_leaves((node.args, dict(node.kwargs)))
    if any(isinstance(each, torch.Generator) for each in given):
        return False
    devices = {each.device.type for each in values_of(node)}
    return (
        node.target.namespace == "aten"
        and (node.target._schema.name[6:] in _OWN or _takes_generator(node.target))
        and devices == {_device_type(node)}
        and devices <= _STATE_BYTES.keys()
    )


def _takes_generator(op: torch._ops.OpOverload) -> bool:
    """Return whether an overload of an op takes a generator as an argument."""
    packet = op.overloadpacket
    schemas = (getattr(packet, each)._schema for each in packet.overloads())
    return any(a.name == "generator" for each in schemas for a in each.arguments)


def _device_type(node: fx.Node) -> str | None:
    """Return the device whose generator a replay would use, or None if it cannot."""
    device = node.kwargs.get("device")
    read = [
        value.device
        for each in node.args
        if hasattr(each, "meta")
        for value in values_of(each)[:1]
    ]
    result = device or next(iter(read), None)
    return None if result is None else torch.device(result).type
