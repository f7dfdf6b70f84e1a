"""Codes that may not fit, and copies that lanes encode: how plans say and count it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memcfg.graph import Graph, Op, Tensor
from memcfg.plan import (
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
    unchecked_claims,
    violations,
    with_copies_placed,
)

X, Y, Z = range(3)
TOP = (Alloc(X, 0), Alloc(Y, 64), Compute(0))
END = (Alloc(Z, 1088), Compute(1))


def graph() -> Graph:
    tensors = (
        Tensor("x", 64, "input"),
        Tensor("y", 1000, "activation"),
        Tensor("z", 64, "output"),
    )
    ops = (
        Op("f", "f", "forward", (X,), (Y,)),
        Op("g", "g", "forward", (Y, X), (Z,)),
    )
    return Graph("g", tensors, ops, (Z,))


def plan(*actions, peak=1728, **claims) -> Plan:
    return Plan("g", "hand", None, 64, Predicted(peak, **claims), (*TOP, *actions))


def packed(nbytes, tier="host", place=0, codec="zvc"):
    code = Encode(Y, codec, nbytes, 1152, tier, place)
    return (code, Free(Y), Decode(Y, 64), *END)


@pytest.mark.parametrize(
    ("nbytes", "left"), [(64, 960), (500, 512), (576, 448), (1000, 0), (1064, 0)]
)
def test_what_may_be_left_over_is_held_on_the_tier(nbytes, left):
    end = 1152 + -(-nbytes // 64) * 64
    right = plan(*packed(nbytes), peak=end, host_peak_bytes=left)
    assert violations(graph(), right) == []
    found = simulate(graph(), right)
    assert (found.host_peak_bytes, found.moved_bytes) == (left, 0)
    assert found.tier_peak_bytes == {"host": left}
    if left:
        wrong = replace(right, predicted=Predicted(end, host_peak_bytes=left + 64))
        (text,) = violations(graph(), wrong)
        assert f"host_peak_bytes is {left} B" in text


def test_a_code_that_is_freed_leaves_the_tier():
    first = Encode(Y, "zvc", 64, 1152, "host", 0)
    again = (first, Free(Y), Free(Y), Alloc(Y, 64), Compute(0))
    right = plan(*again, *packed(576), host_peak_bytes=960)
    assert violations(graph(), right) == []
    assert simulate(graph(), right).host_peak_bytes == 960


@pytest.mark.parametrize(
    ("actions", "words"),
    [
        (packed(63), "is encoded in 63 B; 'zvc' may need 64 B"),
        (packed(64, tier=None, place=None), "'zvc' may need 1064 B"),
        (packed(500, place=32), "lies at 32, which is not a nonnegative multiple"),
        (packed(125, codec="fp8"), "'fp8', which has a fixed size and cannot"),
        (packed(500, codec="jpeg"), "'jpeg', which has a fixed size and cannot"),
        (
            (SwapOut(Y, "host", 448), *packed(500)),
            "on 'host' at [0, 512) overlaps the copy of tensor 1",
        ),
    ],
)
def test_wrong_overflows_are_named(actions, words):
    told = "\n".join(violations(graph(), replace(plan(*actions), lossy=("fp8",))))
    assert words in told


def test_overflows_and_copies_are_placed_together():
    free = packed(500, place=None)
    out = (SwapOut(X, "host"), *free)
    placed = with_copies_placed(graph(), plan(*out))
    (code,) = (a for a in placed.actions if isinstance(a, Encode))
    (copy,) = (a for a in placed.actions if isinstance(a, SwapOut))
    assert {code.overflow, copy.offset} in ({0, 64}, {0, 512})
    assert [t for t in violations(graph(), placed) if "peak" not in t] == []
    assert with_copies_placed(graph(), placed) == placed


def swapped(codec="zvc", nbytes=400, place=0):
    return (
        *(SwapOut(Y, "host", place, codec, nbytes), Wait(3), Free(Y)),
        *(Alloc(Y, 64), SwapIn(Y, "host", place), Wait(7), *END),
    )


def test_copies_that_lanes_encode_have_room_and_move_less():
    claims = {"host_peak_bytes": 1088, "moved_bytes": 2 * 448}
    right = plan(*swapped(), peak=1152, **claims)
    assert violations(graph(), right) == []
    assert unchecked_claims(graph(), right) == []
    found = simulate(graph(), right, {"host": 100.0})
    assert found.host_peak_bytes == 1088
    assert found.moved_bytes == 896
    assert [each.end - each.begin for each in found.schedule[1:5]] == [4.0, 4.0] * 2
    assert found.codec_seconds == 0.0  # the lanes' own, beside the link's
    fast = simulate(graph(), right, {"host": 1e12}).schedule
    encoding, decoding = 1000 / 6e9, 1000 / 6e9
    assert fast[1].end - fast[1].begin == pytest.approx(encoding)
    assert fast[3].end - fast[3].begin == pytest.approx(decoding)


@pytest.mark.parametrize(
    ("actions", "words"),
    [
        (swapped("fp8"), "is encoded by 'fp8', which is not lossless"),
        (swapped(None), "is encoded by None, which is not lossless"),
        (swapped(nbytes=0), "is encoded in 0 B, not in 1 to 1064 B"),
        (swapped(nbytes=1065), "is encoded in 1065 B, not in 1 to 1064 B"),
        (swapped(nbytes=None), "is encoded in None B, not in 1 to 1064 B"),
        (
            (SwapOut(X, "host", 1024), *swapped()),
            "on 'host' at [0, 1088) overlaps the copy of tensor 0",
        ),
    ],
)
def test_wrong_coded_copies_are_named(actions, words):
    told = "\n".join(violations(graph(), plan(*actions, peak=1152)))
    assert words in told


def test_a_copy_without_a_codec_after_one_with_it_moves_all():
    again = (
        *swapped()[:6],
        *(SwapOut(Y, "host", 0), Wait(9), Free(Y)),
        *(Alloc(Y, 64), SwapIn(Y, "host", 0), Wait(13), *END),
    )
    claims = {"host_peak_bytes": 1088, "moved_bytes": 2 * 448 + 2 * 1024}
    right = plan(*again, peak=1152, **claims)
    assert violations(graph(), right) == []
    assert simulate(graph(), right).moved_bytes == claims["moved_bytes"]
