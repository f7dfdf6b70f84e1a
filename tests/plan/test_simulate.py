from __future__ import annotations

import pytest
from machine import codec_bounds

from memcfg.errors import PlanError
from memcfg.graph import NOMINAL_CODECS, Algorithm, Graph, Op, Tensor
from memcfg.plan import (
    Alias,
    Alloc,
    Compute,
    Decode,
    Encode,
    Free,
    Plan,
    Predicted,
    SwapIn,
    SwapOut,
    Wait,
    simulate,
    with_copies_placed,
)

X, Y, Z = range(3)


def graph() -> Graph:
    tensors = (
        Tensor("x", 100, "input"),
        Tensor("y", 64, "activation"),
        Tensor("z", 300, "output"),
    )
    slow = Algorithm("slow", 5.0, 0)
    ops = (
        Op("f", "f", "forward", (X,), (Y,), seconds=1.0, in_place=((X, Y),)),
        Op(
            "g",
            "g",
            "forward",
            (Y,),
            (Z,),
            seconds=2.0,
            scratch_bytes=65,
            algorithms=(slow,),
        ),
    )
    return Graph("g", tensors, ops, (Z,))


def simulated(*actions, alignment=64, bandwidth=None):
    plan = Plan("g", "hand", None, alignment, Predicted(0), tuple(actions))
    return simulate(graph(), plan, bandwidth)


def test_rooms_are_counted_while_they_live():
    result = simulated(
        Alloc(X, 0),
        Alloc(Y, 128),
        Compute(0),
        Free(X),
        Alloc(Z, 192),
        Compute(1, None, 512),
        Free(Y),
    )
    assert result.peak_bytes == 640
    assert result.timeline == ((0, 192), (1, 64 + 320 + 128))
    assert result.by_role_at_peak == {
        "input": 0,
        "activation": 64,
        "output": 320,
        "scratch": 128,
    }
    assert result.peak_op == 1
    assert (result.seconds, result.recompute_seconds) == (3.0, 0.0)


def test_a_room_taken_over_counts_once_and_shrinks():
    result = simulated(
        Alloc(X, 0), Alias(Y, X), Compute(0), Free(X), Alloc(Z, 64), Compute(1, "slow")
    )
    assert result.peak_bytes == 384
    assert result.timeline == ((0, 128), (1, 384))
    assert result.seconds == 6.0


def test_replays_cost_time_again():
    again = (Alloc(Y, 128), Compute(0), Free(Y))
    result = simulated(Alloc(X, 0), *again, *again, *again)
    assert (result.seconds, result.recompute_seconds) == (3.0, 2.0)
    assert result.peak_bytes == 192


def test_alignment_rounds_sizes():
    actions = (Alloc(X, 0), Alloc(Y, 100))
    assert simulated(*actions, alignment=1).peak_bytes == 164
    assert simulated(*actions, alignment=50).peak_bytes == 200


def test_encodings_are_rooms_until_decoded():
    result = simulated(Alloc(X, 0), Encode(X, "mask", 10, 128), Free(X), Decode(X, 0))
    assert result.peak_bytes == 192
    assert sum(result.by_role_at_peak.values()) == 192


def test_all_codecs_have_nominal_speeds():
    assert set(NOMINAL_CODECS) == set(codec_bounds(64))


@pytest.mark.parametrize("codec", [*NOMINAL_CODECS, "unknown"])
def test_codecs_take_time_between_ops(codec):
    speed = NOMINAL_CODECS.get(codec)
    there, back = (100 / speed.encode, 100 / speed.decode) if speed else (0, 0)
    result = simulated(
        *(Alloc(X, 0), Encode(X, codec, 164, 384), Free(X), Decode(X, 0)),
        *(Alloc(Y, 128), Compute(0), SwapOut(Y, "host"), Encode(X, codec, 164, 384)),
        bandwidth={"host": 64.0},
    )
    begins = [0.0, there, there + back, *[there + back + 1.0] * 2]
    took = [there, back, 1.0, 1.0, there]  # the last beside the copy
    assert [each.begin for each in result.schedule] == pytest.approx(begins)
    assert [each.end - each.begin for each in result.schedule] == pytest.approx(took)
    assert result.codec_seconds == pytest.approx(2 * there + back)
    assert result.seconds == 1.0


def test_copies_are_held_until_the_last_return():
    out, back = SwapOut(X, "host"), SwapIn(X, "host")
    result = simulated(
        Alloc(X, 0),
        Alloc(Y, 128),
        out,
        Wait(2),
        SwapOut(Y, "host"),
        Wait(4),
        Free(X),
        Alloc(X, 0),
        back,
        Wait(8),
        SwapOut(Y, "disk"),
        Wait(10),
    )
    assert result.moved_bytes == 128 + 64 + 128 + 64
    assert result.host_peak_bytes == 192


@pytest.mark.parametrize("action", [Free(X), Alloc(9, 0), Compute(7), Free(9)])
def test_a_plan_of_something_else_is_an_error(action):
    with pytest.raises(PlanError, match="action 0"):
        simulated(action)


def test_an_unknown_algorithm_is_an_error():
    with pytest.raises(PlanError, match="action 1"):
        simulated(Alloc(X, 0), Compute(0, "fft"))


def test_the_clock_overlaps_copies_with_ops():
    plan = Plan(
        "g",
        "hand",
        None,
        64,
        Predicted(0),
        (
            *(Alloc(X, 0), Alloc(Y, 128), Compute(0)),
            *(SwapOut(X, "host", 0), SwapOut(Y, "file", 64), Alloc(Z, 192)),
            *(Compute(1, None, 512), Wait(3), Free(X), Wait(4)),
            *(Alloc(X, 0), SwapIn(X, "host", 0), Wait(11)),
        ),
    )
    result = simulate(graph(), plan, {"host": 50.0, "file": 16.0})
    found = [(each.queue, each.begin, each.end) for each in result.schedule]
    assert found == [
        ("compute", 0.0, 1.0),
        ("host out", 1.0, 3.0),  # 100 bytes, 50 a second
        ("file out", 1.0, 5.0),
        ("compute", 1.0, 3.0),
        ("compute", 3.0, 3.0),
        ("compute", 3.0, 5.0),
        ("host in", 5.0, 7.0),
        ("compute", 5.0, 7.0),
    ]
    assert result.elapsed_seconds == 7.0
    assert result.tier_peak_bytes == {"host": 128, "file": 128}
    assert simulate(graph(), plan).elapsed_seconds == result.seconds == 3.0
    assert simulate(graph(), plan).schedule == simulate(graph(), plan).schedule


def test_copies_without_a_place_get_one(monkeypatch):
    monkeypatch.setattr("time.perf_counter", None)  # no clock decides where

    def away(tensor, number):
        out = (SwapOut(tensor, "host"), Wait(number), Free(tensor))
        back = (Alloc(tensor, 0), SwapIn(tensor, "host"), Wait(number + 4))
        return (*out, *back)

    start = (Alloc(X, 0), Alloc(Y, 128), Alloc(Z, 192))
    one_by_one = Plan(
        "g", "hand", None, 64, Predicted(0), (*start, *away(X, 3), *away(Z, 9))
    )
    placed = with_copies_placed(graph(), one_by_one)
    assert simulate(graph(), placed).tier_peak_bytes == {"host": 320}
    assert [a for a in placed.actions if isinstance(a, SwapOut)] == [
        SwapOut(X, "host", 0),
        SwapOut(Z, "host", 0),
    ]
    assert with_copies_placed(graph(), placed) == placed
