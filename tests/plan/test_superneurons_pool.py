"""SuperNeurons' unified tensor pool: the ladder's peaks, and what moves when."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_chains import (
    Copies,
    Row,
    layer_chain,
)

import memcfg as mc
from memcfg.errors import InfeasiblePlanError
from memcfg.graph import Tier
from memcfg.plan import (
    Compute,
    simulate,
    superneurons,
    superneurons_cost,
    validate,
)

nn = mc.nn
S = 65536
PAIRS = 6


def pairs(sizes, cheap="softplus", bandwidth=1e9):
    """Convolutions, each with a cheap layer behind it."""
    rows = [
        Row(size, *([2e-7, 2e-7, cheap] if n % 2 else [1e-3, 2e-3, "conv2d"]))
        for n, size in enumerate(sizes)
    ]
    return layer_chain(rows, bandwidth)


def smallest_limit(graph):
    with pytest.raises(InfeasiblePlanError) as refused:
        superneurons()(graph, 64)
    return refused.value.smallest_limit_bytes


def again(graph, plan):
    computed = [a.op for a in plan.actions if isinstance(a, Compute)]
    return len(computed) - len(graph.ops)


def test_the_ladder_has_the_peaks_of_its_formulas():
    """Of N layers of S bytes, half of them cheap; the input is 64 bytes beside.

    All outputs and the last gradient; the cheap outputs and a backward's three
    tensors; a backward's, and its segment's checkpoint, where the next one's comes
    back besides if there is room.
    """
    count = 2 * PAIRS
    graph = pairs([S] * count)
    peaks = [count + 1, PAIRS + 2, 5, 4]
    moved = [0, PAIRS - 1, PAIRS - 1, PAIRS - 1]  # the last one has not left in time
    assert superneurons()(graph).peak_bytes == peaks[0] * S + 64
    for rung, peak in enumerate(peaks):
        limit = peak * S + 64
        plan = superneurons()(graph, limit)
        validate(graph, plan)
        assert plan.peak_bytes == limit
        assert (again(graph, plan) > 0) == (rung > 1)
        assert plan.predicted.moved_bytes == 2 * moved[rung] * S
    assert smallest_limit(graph) == peaks[-1] * S + 64


@given(sizes=st.lists(st.integers(1, 9).map(lambda n: n * 64), min_size=4, max_size=16))
@settings(max_examples=50, deadline=None)
def test_the_last_rung_is_what_the_busiest_layer_needs(sizes):
    """Without convolutions' outputs in the backward phase but to compute from."""
    sizes = sizes[: len(sizes) // 2 * 2]
    graph = pairs(sizes, "relu", 1e6)
    s = [64, *sizes]
    count = len(sizes)
    busiest = 0
    for n in range(1, count + 1):
        cheap = n % 2 == 0
        made = s[n - 1] + s[n]
        backward = s[n if cheap else n - 1] + s[n] + s[n - 1]
        ahead = n < count and not cheap and n > 1  # its input is computed again
        computed = s[n - 2] + s[n - 1] + s[n] if ahead else 0
        held = 64 if n > 1 else 0  # the step's input
        busiest = max(busiest, held + made, held + backward, held + computed)
    assert smallest_limit(graph) == busiest


def test_depth_does_not_matter_to_the_last_rung():
    assert {smallest_limit(pairs([S] * n, "relu")) for n in (8, 20, 60)} == {3 * S + 64}


def test_checkpoints_leave_as_they_are_made_and_come_back_one_ahead():
    graph = pairs([S] * 2 * PAIRS)
    plan = superneurons()(graph, (PAIRS + 2) * S + 64)
    found = Copies.of(plan)
    assert set(found.out) <= {*range(1, 2 * PAIRS, 2)}
    for tensor, out in found.out.items():
        (forward,), (reader,) = found.ops[tensor - 1], found.ops[tensor]
        assert forward < out < reader  # of x[n] by f[n], which is op n - 1
        assert found.waits[out] > reader
    b = {n: found.ops[4 * PAIRS + 1 - n][0] for n in range(1, 2 * PAIRS + 1)}
    for tensor, back in found.back.items():
        if tensor < 2 * PAIRS - 1:  # read by the cheap layer behind it
            assert b[tensor + 3] < back < b[tensor + 2]


def test_copies_that_hide_take_no_time():
    graph = pairs([S] * 2 * PAIRS)
    for peak in (PAIRS + 2, 5):
        plan = superneurons()(graph, peak * S + 64)
        assert plan.predicted.stall_seconds == pytest.approx(0, abs=1e-9)
    tight = superneurons()(graph, 4 * S + 64)
    copy = S / 1e9
    backs = len(Copies.of(tight).back)
    assert copy < tight.predicted.stall_seconds < 2.1 * backs * copy
    alone = sum(op.seconds for op in graph.ops)
    assert tight.predicted.seconds - tight.predicted.recompute_seconds == (
        pytest.approx(alone)
    )


def test_less_memory_than_by_recomputation_alone():
    graph = pairs([S] * 2 * PAIRS)
    assert superneurons_cost()(graph).peak_bytes == (PAIRS + 2) * S + 64
    assert smallest_limit(graph) == 4 * S + 64


def test_a_full_tier_is_refused_with_a_limit_that_moves_nothing():
    graph = pairs([S] * 2 * PAIRS)
    limit = (PAIRS + 2) * S + 64
    needed = simulate(graph, superneurons()(graph, limit)).tier_peak_bytes["host"]
    room = replace(graph, tiers=(Tier("host", 1e9, needed),))
    validate(room, superneurons()(room, limit))
    less = replace(graph, tiers=(Tier("host", 1e9, 64),))
    with pytest.raises(InfeasiblePlanError, match="'host', whose limit is") as refused:
        superneurons()(less, limit)
    enough = refused.value.smallest_limit_bytes
    assert superneurons()(less, enough).predicted.moved_bytes == 0
