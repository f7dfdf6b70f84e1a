"""vDNN without barriers: bytes that are free in time, and who waits for what."""

from __future__ import annotations

import pytest
from layer_chains import (
    Copies,
    Row,
    layer_chain,
)

from memcfg.plan import (
    validate,
    vdnn_all,
    vdnn_pp,
)


def test_cheap_and_dear_layers_in_turns_hide_copies_of_two():
    """A copy takes 4 s. Barriers stall 3 s in each cheap layer, forward and back.

    Without, the first copies back are waited for only.
    """
    layers = [Row(640, [1.0, 7.0][n % 2], [1.0, 7.0][n % 2]) for n in range(8)]
    graph = layer_chain(layers, 160.0, input_bytes=640)
    with_barriers, without = vdnn_all()(graph), vdnn_pp()(graph)
    busy = sum(op.seconds for op in graph.ops)
    # The input of the last layer stays; so 4 cheap layers forward, 3 backward.
    assert with_barriers.elapsed_seconds == pytest.approx(busy + 7 * 3.0)
    assert without.predicted.stall_seconds < with_barriers.predicted.stall_seconds / 2


def test_bytes_are_free_when_the_copy_has_ended():
    """A copy takes 2.5 layers forward, 1.25 backward, and copies queue."""
    graph = layer_chain([Row(640)] * 12, 256.0, input_bytes=640)
    plan = vdnn_pp()(graph)
    found = Copies.of(plan)
    # That of tensor n ends 2.5 (n + 1) s after the start.
    left = [
        sum(place < found.waits[found.out[n]] for (place,) in found.ops.values())
        for n in range(4)
    ]
    assert left == [3, 5, 8, 10]
    # What has not left by then stays; a layer waits for the rest of its own copy.
    assert plan.predicted.moved_bytes == 2 * 640 * len(found.out)
    assert plan.predicted.stall_seconds == pytest.approx(0.5 * len(found.out))


def test_what_has_not_left_in_time_stays():
    graph = layer_chain([Row(640)] * 12, 1.0, input_bytes=640)
    plan = vdnn_pp()(graph)
    validate(graph, plan)
    assert not plan.predicted.moved_bytes
    assert plan.predicted.stall_seconds == 0
    assert vdnn_all()(graph).predicted.stall_seconds > 0


def test_values():
    assert vdnn_pp() == vdnn_pp("all") != vdnn_pp("conv")
    with pytest.raises(ValueError, match="'all' or 'conv', not 'none'"):
        vdnn_pp("none")
