"""Chains of layers for methods that swap, what plans copy, and steps that train."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

import memcfg as mc
from memcfg.errors import InfeasiblePlanError
from memcfg.graph import Graph, Op, Tensor, Tier
from memcfg.plan import Compute, SwapIn, SwapOut, Wait, share

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memcfg.plan import Plan

nn = mc.nn


@dataclass(frozen=True)
class Row:
    """A layer: bytes that it makes, and its seconds."""

    nbytes: int
    seconds: float = 1.0
    backward_seconds: float = 2.0
    kind: str = "conv2d"


def layer_chain(
    rows: Sequence[Row], bandwidth: float, *, input_bytes: int = 64
) -> Graph:
    """A chain: layer n reads tensor n - 1 and makes tensor n, tensor 0 is its input.

    The backward of a layer reads its input, that of ``relu`` its output. The loss has
    no bytes of its own but a gradient.
    """
    count = len(rows)
    sizes = [input_bytes, *(row.nbytes for row in rows)]
    tensors = [
        Tensor(f"x{n}", size, "activation" if n else "input")
        for n, size in enumerate(sizes)
    ]
    tensors += [
        Tensor(f"g{n}", size, "activation_gradient") for n, size in enumerate(sizes)
    ]
    grad = count + 1  # the tensor g0
    ops = [
        Op(f"f{n}", row.kind, "forward", (n - 1,), (n,), seconds=row.seconds)
        for n, row in enumerate(rows, 1)
    ]
    ops.append(Op("loss", "loss", "backward", (count,), (grad + count,), seconds=1.0))
    for n, row in reversed([*enumerate(rows, 1)]):
        read = n if row.kind == "relu" else n - 1
        ops.append(
            Op(
                f"b{n}",
                f"{row.kind}_gradient",
                "backward",
                (read, grad + n),
                (grad + n - 1,),
                seconds=row.backward_seconds,
            )
        )
    return Graph(
        "layers",
        tuple(tensors),
        tuple(ops),
        keep=(grad,),
        tiers=(Tier("host", bandwidth),),
    )


@dataclass(frozen=True)
class Copies:
    """Where a plan starts and awaits what, by places among its actions."""

    out: dict[int, int]  # by tensor
    back: dict[int, int]
    waits: dict[int, int]  # by place of a copy
    ops: dict[int, list[int]]

    @staticmethod
    def of(plan: Plan) -> Copies:
        found = Copies({}, {}, {}, {})
        for place, action in enumerate(plan.actions):
            match action:
                case SwapOut(tensor):
                    assert tensor not in found.out
                    found.out[tensor] = place
                case SwapIn(tensor):
                    found.back.setdefault(tensor, place)
                case Wait(copy):
                    found.waits[copy] = place
                case Compute(op):
                    found.ops.setdefault(op, []).append(place)
        return found


def network(depth: int = 12) -> nn.Model:
    """Convolutions and activations."""
    nn.set_random_seed(1)
    layers = [nn.Input((32, 32, 3))]
    for _ in range(depth):
        layers += [nn.Conv2D(16, 3, padding="same"), nn.ReLU()]
    return nn.Sequential([*layers, nn.GlobalAveragePooling2D(), nn.Dense(5)])


IMAGES = np.random.default_rng(0).standard_normal((8, 32, 32, 3)).astype(np.float32)


def weights_after(
    make: Callable[[], nn.Model], memory: Callable[..., Plan], *arrays: np.ndarray
) -> list[bytes]:
    """Train five steps on arrays of eight samples, as planned and measured."""
    model = make()
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(0.01, momentum=0.9), loss, memory=memory)
    x = [*arrays] if len(arrays) > 1 else arrays[0]
    for _ in range(5):
        model.train_on_batch(x, np.arange(8) % 3)
    report = model.memory_report(verify=True)
    assert report.measured_peak_bytes == report.predicted_peak_bytes
    weights = [weight.tobytes() for weight in model.get_weights()]
    model.close()
    return weights


def at_a_limit(
    policy: Callable[..., Plan], part: float, plans: list[Plan]
) -> Callable[..., Plan]:
    """Let a policy plan for a part of the peak of `share`, or its least; note plans."""

    def within(graph: Graph, limit_bytes: int | None = None) -> Plan:
        assert limit_bytes is None
        try:
            plan = policy(graph, int(share()(graph).peak_bytes * part))
        except InfeasiblePlanError as refusal:
            plan = policy(graph, refusal.smallest_limit_bytes)
        plans.append(plan)
        return plan

    return within
