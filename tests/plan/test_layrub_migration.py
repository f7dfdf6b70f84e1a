"""Layrub's migration: what leaves behind which layer, and comes back to which slot."""

from __future__ import annotations

import pytest
from layer_chains import (
    Copies,
    Row,
    layer_chain,
)

from memcfg.graph import Graph, Op, Tensor, Tier
from memcfg.plan import (
    layrub_migration,
    share,
    validate,
    vdnn_all,
)


def test_a_dear_layer_hides_the_copies_of_cheap_ones():
    """A copy takes 4 s, as long as a layer on average.

    At vDNN's barriers each cheap layer waits 3 s. Here copies out hide all, and copies
    back but for the last layer's.
    """
    layers = [Row(640, *[[1.0] * 2, [7.0] * 2][n % 2], "tanh") for n in range(12)]
    graph = layer_chain(layers, 160.0, input_bytes=640)
    barriers, slots = vdnn_all()(graph), layrub_migration()(graph)
    assert barriers.predicted.stall_seconds == pytest.approx(11 * 3.0)
    assert slots.predicted.stall_seconds < 0.2 * barriers.predicted.stall_seconds
    one = layrub_migration(1)(graph)
    assert slots.predicted.stall_seconds <= one.predicted.stall_seconds


def branch():
    """A tensor that the next layer reads, and one three layers on."""
    names = ("x", "a", "b", "c", "d", "gd", "gc", "gb", "ga")
    tensors = tuple(
        Tensor(name, 640, "activation_gradient" if name[0] == "g" else "activation")
        for name in names
    )
    reads = [(0,), (1,), (2,), (3, 1)]  # d is of c and a
    ops = [
        Op(f"f{n}", "f", "forward", inputs, (n + 1,), seconds=1.0)
        for n, inputs in enumerate(reads)
    ]
    backward = [((4,), 5), ((5, 3), 6), ((6, 2), 7), ((7, 1), 8)]
    ops += [
        Op(f"b{n}", "b", "backward", inputs, (made,), seconds=1.0)
        for n, (inputs, made) in enumerate(backward)
    ]
    return Graph("branch", tensors, tuple(ops), (8,), tiers=(Tier("host", 640.0),))


def test_what_two_layers_read_leaves_behind_the_second():
    found = Copies.of(layrub_migration()(branch()))
    assert found.out[1] > found.ops[3][0]
    assert found.ops[2][0] < found.out[2] < found.ops[3][0]


@pytest.mark.parametrize("look_ahead", [1, 2, 4])
def test_so_many_are_on_their_way_and_no_more(look_ahead):
    graph = layer_chain([Row(640)] * 12, 6400.0, input_bytes=640)
    plan = layrub_migration(look_ahead)(graph)
    found = Copies.of(plan)
    b = {n: found.ops[25 - n][0] for n in range(1, 13)}  # the backward of layer n
    # It reads tensor n - 1. Those before it, from when so many layers are left to it.
    for n in range(1, 12 - look_ahead):
        assert b[n + look_ahead + 1] < found.back[n - 1] < b[n + look_ahead]
    order = sorted(found.back, key=found.back.__getitem__)
    assert order == sorted(found.back, reverse=True)
    # What the backward reads, both gradients, and what is on its way.
    assert plan.peak_bytes == (3 + look_ahead) * 640


@pytest.mark.parametrize("bandwidth", [640.0, 100.0])
def test_many_cheap_layers_in_a_twentieth(bandwidth, tenths):
    """They wait for slots where a copy takes longer than a layer, else for nothing."""
    graph = layer_chain([Row(640, kind="tanh")] * (100 * tenths + 100), bandwidth)
    limit = share()(graph).peak_bytes // 20
    plan = layrub_migration()(graph, limit)
    validate(graph, plan)
    assert plan.peak_bytes <= limit
    assert (plan.predicted.stall_seconds > 0) == (bandwidth < 640)
    assert plan.predicted.stall_seconds <= vdnn_all()(graph).predicted.stall_seconds


def test_the_peak_does_not_grow_with_the_depth():
    peaks = {
        layrub_migration()(layer_chain([Row(640)] * depth, 6400.0)).peak_bytes
        for depth in (20, 50, 200)
    }
    assert len(peaks) == 1


def test_values():
    assert layrub_migration() == layrub_migration(2) != layrub_migration(3)
    with pytest.raises(ValueError, match="at least 1, not 0"):
        layrub_migration(0)
