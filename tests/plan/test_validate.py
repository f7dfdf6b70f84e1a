"""The judge: every rule, one plan that breaks it; then mutations of good plans."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from machine import codec_bounds, lossless_codecs
from training_graphs import chain, random_step

from memcfg.errors import PlanError
from memcfg.graph import Algorithm, Graph, Op, Tensor
from memcfg.plan import (
    Alias,
    Alloc,
    Compute,
    Decode,
    Encode,
    Free,
    Plan,
    Predicted,
    Start,
    SwapIn,
    SwapOut,
    Wait,
    keep_all,
    share,
    sqrt_checkpoint,
    unchecked_claims,
    validate,
    violations,
)

X, Y, Z, W, NEW = range(5)


def graph() -> Graph:
    """x -> f -> y -> g -> z, h(w) -> new; y may take x's buffer, new takes w's."""
    tensors = (
        Tensor("x", 64, "input"),
        Tensor("y", 64, "activation"),
        Tensor("z", 64, "output"),
        Tensor("w", 64, "parameter"),
        Tensor("new", 64, "parameter"),
    )
    direct = Algorithm("direct", 1.0, 64)
    ops = (
        Op("f", "f", "forward", (X,), (Y,), in_place=((X, Y),)),
        Op("g", "g", "forward", (Y, W), (Z,), scratch_bytes=64, algorithms=(direct,)),
        Op("h", "h", "update", (W,), (NEW,), replayable=False, in_place=((W, NEW),)),
    )
    return Graph("g", tensors, ops, (Z,))


TOP = (Alloc(W, 0), Alloc(X, 64))
UPDATE = (Alias(NEW, W), Compute(2))


def plan(*actions, peak=256, limit=None, alignment=64, name="g") -> Plan:
    return Plan(name, "hand", limit, alignment, Predicted(peak), tuple(actions))


def found(*actions, **fields) -> str:
    return "\n".join(violations(graph(), plan(*actions, **fields)))


GOOD = (
    *TOP,
    Alloc(Y, 128),
    Compute(0),
    Free(X),
    Alloc(Z, 64),
    Compute(1, None, 192),
    Free(Y),
    *UPDATE,
)


def swapped(index: int, *actions) -> tuple:
    """The good plan with the action at an index replaced."""
    return (*GOOD[:index], *actions, *GOOD[index + 1 :])


def test_the_good_plan_is_right():
    assert found(*GOOD) == ""
    assert found(*GOOD, limit=256) == ""
    validate(graph(), plan(*GOOD))


def test_in_place_is_right_when_declared_and_freed():
    actions = (
        *TOP,
        Alias(Y, X),
        Compute(0),
        Free(X),
        Alloc(Z, 128),
        Compute(1, None, 192),
        *UPDATE,
    )
    assert found(*actions) == ""


SWAP = (SwapOut(Y, "host"), Wait(4), Free(Y), Alloc(Y, 128), SwapIn(Y, "host"), Wait(8))


def test_copies_are_right_when_they_are_waited_for():
    assert found(*GOOD[:4], *SWAP, *GOOD[4:]) == ""


def test_a_tensor_may_be_read_on_its_way_out():
    actions = (*GOOD[:4], SwapOut(Y, "host"), *GOOD[4:7], Wait(4), *GOOD[7:])
    assert found(*actions) == ""


def test_encodings_are_right_between_encode_and_decode():
    coded = (Encode(Y, "jpeg", 8, 192), Free(Y), Decode(Y, 128))
    assert found(*GOOD[:4], *coded, *GOOD[4:]) == ""


def test_replays_are_right_from_intact_inputs():
    again = (Free(Y), Alloc(Y, 128), Compute(0))
    assert found(*GOOD[:4], *again, *GOOD[4:]) == ""


@pytest.mark.parametrize(
    ("actions", "words"),
    [
        (GOOD[1:], "input or state not allocated before other"),
        ((GOOD[0], *GOOD[2:]), "'x'"),
        ((), "never allocated"),
        (swapped(3), "op 0 ('f') was never computed"),
        (swapped(2), "writes tensor 1 ('y'), which has no buffer"),
        (swapped(2, Alloc(Y, 64)), "overlaps tensor 0 ('x')"),
        (swapped(2, Alloc(Y, 127)), "nonnegative multiple of 64"),
        (swapped(2, Alloc(Y, 128), Alloc(Y, 128)), "has a buffer already"),
        (swapped(2, Alloc(9, 128)), "no tensor 9"),
        (swapped(4, Free(X), Free(X)), "is freed but has no buffer"),
        (swapped(4, Free(-1)), "no tensor -1"),
        (swapped(4, Free(W)), "is state and must not be freed"),
        (swapped(6, Compute(1)), "needs 64 B of scratch and has none"),
        (swapped(6, Compute(1, "direct", None)), "needs 64 B of scratch"),
        (swapped(6, Compute(1, "fft", 192)), "no algorithm 'fft'"),
        (swapped(6, Compute(1, None, 128)), "its scratch at [128, 192) overlaps"),
        (swapped(6, Compute(7)), "no op 7"),
        (swapped(6, Free(Y), Compute(1, None, 192)), "'y'), which is not resident"),
        ((*GOOD, Compute(2)), "recomputed but is not replayable"),
        ((*GOOD, Free(Z)), "must be kept but is not resident"),
        ((*GOOD[:-2], Alloc(NEW, 192), Compute(2), Free(NEW), *UPDATE), "recomputed"),
        ((*GOOD[:2], *UPDATE, *GOOD[2:-2]), "reads tensor 3 ('w'), which is not"),
    ],
)
def test_each_broken_rule_is_named(actions, words):
    assert words in found(*actions)


@pytest.mark.parametrize(
    ("actions", "words"),
    [
        ((Alias(Y, X), Compute(0), Alloc(Z, 128)), "not freed right after"),
        ((Alias(Y, X), Compute(0)), "was overwritten in place and not freed"),
        ((Alias(Y, X), Free(X), Compute(0)), "freed before its buffer is taken over"),
        ((Alias(Y, X), Alias(Z, X)), "is aliased already"),
        ((Alias(Y, W), Compute(0)), "does not declare as a pair"),
        ((Alias(Y, W), Compute(0)), "overwrites tensor 3 ('w'), which is state"),
        ((Alias(Y, X),), "was aliased but never computed"),
        ((Alloc(Y, 128), Alias(Y, X)), "has a buffer already"),
        ((Alias(9, X),), "no tensor 9"),
        ((Alloc(Y, 128), Compute(0), Compute(0)), "overwrites tensor 1 ('y')"),
        ((SwapOut(Y, "host"),), "reads tensor 1 ('y'), which is not resident"),
        ((SwapOut(X, "host"), Free(X)), "freed while it is being copied"),
        ((SwapOut(X, "host"), Alias(Y, X), Compute(0)), "while it is being copied"),
        ((SwapOut(X, "host"), SwapOut(X, "disk")), "is being copied already"),
        ((SwapOut(9, "host"),), "no tensor 9"),
        ((SwapIn(X, "host"),), "has no copy on 'host'"),
        ((SwapIn(Y, "host"),), "has no buffer to be copied into"),
        ((SwapOut(X, "host"), Wait(2), SwapIn(X, "host")), "overwrites tensor 0"),
        ((SwapOut(X, "host"), Wait(2), SwapIn(X, "disk")), "no copy on 'disk'"),
        ((Wait(0),), "which is not an earlier copy or start"),
        ((Wait(7),), "which is not an earlier copy or start"),
        ((Start(7),), "no op 7"),
        ((Alloc(Y, 128), Start(0)), "is 'f', which is neither a collective"),
        ((Encode(Y, "jpeg", 8, 128),), "reads tensor 1 ('y')"),
        ((Encode(X, "jpeg", 8, 96),), "nonnegative multiple of 64"),
        ((Encode(X, "jpeg", 8, 64),), "overlaps tensor 0 ('x')"),
        ((Encode(X, "m", 8, 128), Encode(X, "m", 8, 192)), "encoded already"),
        ((Encode(X, "m", 8, 128), Alloc(Y, 128)), "the encoding of tensor 0 ('x')"),
        ((Encode(X, "m", 8, 128), Decode(X, 192)), "has a buffer already"),
        ((Encode(X, "m", 8, 128), Free(X), Decode(X, 128)), "overlaps the encoding"),
        ((Decode(X, 128),), "is decoded but is not encoded"),
        ((Decode(9, 128),), "no tensor 9"),
        ((Encode(9, "m", 8, 128),), "no tensor 9"),
    ],
)
def test_each_broken_rule_after_the_top_is_named(actions, words):
    assert words in found(*TOP, *actions)


def test_a_copy_on_its_way_in_is_not_read_or_freed():
    middle = (*GOOD[:4], *SWAP[:-1])
    assert "whose copy was not waited for" in found(*middle, *GOOD[4:])
    assert "freed while it is being copied" in found(*middle, Free(Y))
    unwaited = (*GOOD[:4], SwapOut(Y, "host"), Alloc(Z, 64), SwapIn(Y, "host"))
    assert "no copy on 'host' that was waited for" in found(*unwaited)


def meeting(collectives="fgh", readers=()) -> Graph:
    """The graph, whose ops of these names are collectives, and a reader of y."""
    kinds = dict.fromkeys(collectives, "all_reduce")
    step = graph()
    ops = (replace(op, type=kinds.get(op.name, op.type)) for op in step.ops)
    more = (Op("r", "r", "backward", (tensor,), (5,)) for tensor in readers)
    tensors = (*step.tensors, Tensor("v", 64, "activation"))
    return replace(step, tensors=tensors[: 5 + len(readers)], ops=(*ops, *more))


def amid(*actions, collectives="fgh", readers=(), peak=256) -> str:
    """Violations of actions behind the start of f, at action 3."""
    step = meeting(collectives, readers)
    started = (*TOP, Alloc(Y, 128), Start(0), *actions)
    return "\n".join(violations(step, plan(*started, peak=peak)))


REST = (Alloc(Z, 192), Compute(1, None, 256), *UPDATE)


def test_starts_are_right_when_they_are_waited_for():
    assert amid(Wait(3), *REST, collectives="f", peak=320) == ""
    later = (Alloc(Z, 192), Start(1, None, 256), Wait(3), Free(X), Wait(5), Free(Y))
    assert amid(*later, *UPDATE, peak=320) == ""
    assert amid(*later[:2], Wait(5), Free(Z), Wait(3), collectives="fg", peak=320)
    # an inline collective runs behind those before it, and may read what they write
    assert amid(*REST, Wait(3), collectives="fg", peak=320).startswith("action 7")
    assert amid(*REST[:2], Wait(3), *UPDATE, collectives="fg", peak=320) == ""


def test_collectives_may_take_over_what_those_before_them_use():
    """x -> f -> y in x's bytes -> h in y's: all in flight at once."""
    tensors = (Tensor("x", 64, "input"), *(Tensor(n, 64, "activation") for n in "yz"))
    ops = [
        Op(name, "all_reduce", "forward", (i,), (i + 1,), in_place=((i, i + 1),))
        for i, name in enumerate("fh")
    ]
    step = Graph("g", tensors, tuple(ops), (2,))
    first = (Alloc(0, 0), Alias(1, 0), Start(0), Free(0))
    second = (Alias(2, 1), Start(1), Free(1))
    right = (*first, *second, Wait(2), Wait(5))
    assert violations(step, plan(*right, peak=64)) == []
    backward = (*first, *second, Wait(5), Wait(2))
    assert violations(step, plan(*backward, peak=64)) == []
    text, _ = violations(step, plan(*right[:-1], peak=64))
    assert text == "at the end: the collective 'h' was not waited for"
    plain = replace(step, ops=(ops[0], replace(ops[1], type="h")))
    inline = (*first, Alias(2, 1), Compute(1), Free(1), Wait(2))
    found = violations(plain, plan(*inline, peak=64))
    assert found == [
        "action 5 (compute 'h'): reads tensor 1 ('y'), whose collective was not waited "
        "for",
        "action 5 (compute 'h'): overwrites tensor 1 ('y') while a collective uses it",
    ]


@pytest.mark.parametrize(
    ("actions", "words"),
    [
        (REST, "reads tensor 1 ('y'), whose collective was not waited for"),
        ((Free(X),), "frees tensor 0 ('x') while a collective uses it"),
        ((Free(Y),), "frees tensor 1 ('y') while a collective uses it"),
        ((SwapOut(X, "host"),), "copies tensor 0 ('x') while a collective uses it"),
        ((SwapOut(Y, "host"),), "reads tensor 1 ('y'), whose collective was not"),
        ((SwapIn(Y, "host"),), "copies tensor 1 ('y') while a collective uses it"),
        ((Encode(X, "m", 8, 192),), "encodes tensor 0 ('x') while a collective uses"),
        ((Encode(Y, "m", 8, 192),), "reads tensor 1 ('y'), whose collective was not"),
        ((Start(0),), "overwrites tensor 1 ('y'), which is resident"),
        (UPDATE, "op 0 ('f') was not computed"),
        ((), "at the end: the collective 'f' was not waited for"),
    ],
)
def test_each_broken_rule_of_a_start_is_named(actions, words):
    assert words in amid(*actions, collectives="f")


def test_the_scratch_of_a_start_is_in_use_until_its_wait():
    started = (Wait(3), Alloc(Z, 192), Start(1, None, 256))
    text = "the scratch of 'g' at [256, 320)"
    assert text in amid(*started, Encode(X, "m", 8, 256), Wait(6), peak=320)
    assert text not in amid(*started, Wait(6), Encode(X, "m", 8, 256), peak=320)
    loads = Plan("g", "hand", None, 64, Predicted(384), (), places=False)
    alive = (*TOP, Alloc(Y, 0), Compute(0), Alloc(Z, 0), Start(1, None, 0))
    late = (*alive, Encode(X, "m", 8, 0), Free(X), Wait(5), *UPDATE)
    assert violations(meeting(), replace(loads, actions=late)) == []
    early = (*alive, Wait(5), Encode(X, "m", 8, 0), Free(X), *UPDATE)
    loads = replace(loads, predicted=Predicted(320))
    assert violations(meeting(), replace(loads, actions=early)) == []


def test_what_a_collective_reads_may_be_read_meanwhile():
    read = (Alloc(5, 320), Compute(3), Wait(3), *REST)
    assert amid(*read, collectives="f", readers=(X,), peak=384) == ""
    read = (Alias(5, X), Compute(3), Free(X), Wait(3), *REST)
    found = amid(*read, collectives="f", readers=(X,), peak=384)
    assert "overwrites tensor 0 ('x') while a collective uses it" in found


def test_the_times_of_collectives_are_not_those_of_ops():
    ops = (replace(op, seconds=2.0) for op in meeting("f").ops)
    step = replace(meeting("f"), ops=tuple(ops))
    actions = (*TOP, Alloc(Y, 128), Start(0), Wait(3), *REST)
    made = plan(*actions, peak=320)
    for seconds, right in ((4.0, True), (6.0, False)):
        claims = Predicted(320, seconds=seconds, stall_seconds=1.0)
        assert (violations(step, replace(made, predicted=claims)) == []) is right


def test_the_room_of_a_state_belongs_to_its_update():
    copied = (*TOP, SwapOut(W, "host"), Wait(2), *GOOD[2:])
    assert found(*copied) == ""
    back = (SwapIn(W, "host"), Wait(len(copied)))
    assert "'w') has no buffer to be copied into" in found(*copied, *back)
    encoded = (*TOP, Encode(W, "jpeg", 8, 256), *GOOD[2:])
    assert found(*encoded, peak=320) == ""
    assert "is state that was overwritten" in found(*encoded, Decode(W, 192), peak=320)
    assert "is state that was overwritten" in found(*copied, Alloc(W, 192))
    assert "'new') has a buffer already" in found(*GOOD, Alloc(NEW, 192))
    assert "'new') is state and must not be freed" in found(*GOOD, Free(NEW))
    assert "overlaps tensor 4 ('new')" in found(*GOOD, Alloc(X, 0))
    assert found(*GOOD, SwapOut(NEW, "host"), Wait(len(GOOD))) == ""


def test_a_smaller_update_keeps_the_whole_room_of_the_state():
    tensors = (
        Tensor("w", 128, "parameter"),
        Tensor("new", 64, "parameter"),
        Tensor("y", 64, "output"),
    )
    ops = (
        Op("u", "u", "update", (0,), (1,), in_place=((0, 1),)),
        Op("f", "f", "backward", (1,), (2,)),
    )
    small = Graph("g", tensors, ops, (1, 2))
    start = (Alloc(0, 0), Alias(1, 0), Compute(0))
    right = plan(*start, Alloc(2, 128), Compute(1), peak=192)
    assert violations(small, right) == []
    tail = plan(*start, Alloc(2, 64), Compute(1), peak=128)
    assert "overlaps tensor 1 ('new') at [0, 128)" in violations(small, tail)[0]


def test_a_room_over_many_others_names_the_first_and_counts_the_rest():
    many = Graph("g", tuple(Tensor(f"t{i}", 64, "input") for i in range(5)), ())
    apart = (Alloc(1, 128), Alloc(0, 64), Alloc(2, 256), Alloc(3, 384))
    (text,) = violations(many, plan(*apart, Alloc(4, 128), peak=448))
    assert (
        text == "action 4: tensor 4 ('t4') at [128, 192) overlaps tensor 1 ('t1') "
        "at [128, 192)"
    )
    whole = Graph("g", (*many.tensors[:4], Tensor("t4", 999, "input")), ())
    (text,) = violations(whole, plan(*apart, Alloc(4, 0), peak=1024))
    assert text.endswith("overlaps tensor 0 ('t0') at [64, 128) and 3 more")


def test_a_plan_that_breaks_countless_rules_is_not_followed_to_its_end():
    """One op that reads n tensors, n times without any: n * n violations."""
    count = 300
    tensors = (
        *(Tensor("x", 8, "input") for _ in range(count)),
        Tensor("y", 8, "output"),
    )
    op = Op("f", "f", "forward", tuple(range(count)), (count,))
    found = violations(Graph("g", tensors, (op,)), plan(*[Compute(0)] * count))
    assert len(found) == 1001
    assert found[-1] == (
        "action 3 (compute 'f'): more violations; checking stopped here"
    )
    assert sum(map(len, found)) < 10**6
    buffers = Graph("g", tensors[:-1] * 4, ())
    found = violations(buffers, plan(*(Alloc(i, 0) for i in range(4 * count)), peak=64))
    assert len(found) == 1001
    assert found[-2].endswith("overlaps tensor 0 ('x') at [0, 64) and 999 more")


def test_pairs_and_copies_are_looked_up_and_not_searched_for():
    compared = 0

    class Id(int):
        __hash__ = int.__hash__

        def __eq__(self, other):
            nonlocal compared
            compared += 1
            return int(self) == other

    count = 200
    olds, news = list(map(Id, range(count))), list(map(Id, range(count, 2 * count)))
    pairs = tuple(zip(olds, news, strict=True))
    kinds = ["input"] * count + ["output"] * count
    tensors = tuple(Tensor("t", 64, kind) for kind in kinds)
    op = Op("f", "f", "forward", tuple(olds), tuple(news), in_place=pairs)
    outward = range(count, 2 * count)
    actions = (
        *(Alloc(Id(old), 64 * old) for old in olds),
        *(SwapOut(Id(old), "host") for old in olds),
        *(Wait(index) for index in outward),
        *(Alias(Id(new), Id(old)) for old, new in pairs),
        Compute(0),
        *(Free(Id(old)) for old in olds),
    )
    step = Graph("g", tensors, (op,), ())
    compared = 0
    assert violations(step, plan(*actions, peak=64 * count)) == []
    assert compared <= 50 * count


def test_an_output_has_one_room_only():
    taken = (*TOP, Alias(Y, X), Alloc(Y, 128), Compute(0), Free(X))
    assert "'y') has a buffer already" in found(*taken)
    updated = (*GOOD[:-2], Alias(NEW, W), Alloc(NEW, 192), Compute(2))
    assert "'new') has a buffer already" in found(*updated)


def test_smaller_outputs_fit_and_larger_do_not():
    def pair(before: int, after: int) -> list[str]:
        tensors = (Tensor("a", before, "input"), Tensor("b", after, "output"))
        op = Op("f", "f", "forward", (0,), (1,), in_place=((0, 1),))
        actions = (Alloc(0, 0), Alias(1, 0), Compute(0), Free(0))
        peak = (max(before, after) + 63) // 64 * 64
        return violations(Graph("g", tensors, (op,), (1,)), plan(*actions, peak=peak))

    assert pair(128, 64) == []
    assert pair(65, 128) == []
    assert "does not fit the buffer" in "\n".join(pair(64, 65))


def test_claims_are_checked():
    assert "the peak is 256 B, not 255 B as claimed" in found(*GOOD, peak=255)
    assert "above the limit of 255 B" in found(*GOOD, limit=255)
    assert "the plan is for 'other'" in found(*GOOD, name="other")
    assert "nonnegative multiple of 128" in found(*GOOD, alignment=128)


def claiming(*actions, peak=256, **claims) -> Plan:
    return replace(plan(*actions), predicted=Predicted(peak, **claims))


def test_a_lower_bound_is_not_above_the_peak():
    assert violations(graph(), claiming(*GOOD, lower_bound_bytes=256)) == []
    (text,) = violations(graph(), claiming(*GOOD, lower_bound_bytes=257))
    assert "peak of 256 B is below the claimed lower bound of 257 B" in text


def timed(seconds: float) -> Graph:
    """The graph with times: f takes 1, g 2 (3 by its algorithm), h 4 units."""
    times = (1 * seconds, 2 * seconds, 4 * seconds)
    direct = (Algorithm("direct", 3 * seconds, 64),)
    ops = tuple(
        replace(op, seconds=time, algorithms=direct if op.name == "g" else ())
        for op, time in zip(graph().ops, times, strict=True)
    )
    return replace(graph(), ops=ops)


@pytest.mark.parametrize("unit", [1.0, 1e-6, 0.1])
def test_claimed_times_are_those_of_the_computed_ops(unit):
    direct = swapped(6, Compute(1, "direct", 192))
    # y is computed, dropped and computed again while x is still there
    replayed = (*GOOD[:4], Free(Y), Alloc(Y, 128), *GOOD[3:])

    def words(actions, seconds, again) -> str:
        claims = claiming(*actions, seconds=seconds, recompute_seconds=again)
        return "\n".join(violations(timed(unit), claims))

    assert words(GOOD, 7 * unit, 0) == ""
    assert words(GOOD, 7 * unit * (1 + 1e-10), 0) == ""
    assert "claims: seconds is" in words(GOOD, 7 * unit * (1 + 1e-8), 0)
    assert "claims: seconds is" in words(direct, 7 * unit, 0)
    assert words(direct, 8 * unit, 0) == ""
    assert words(replayed, 8 * unit, unit) == ""
    assert "claims: recompute_seconds is" in words(replayed, 8 * unit, 0)
    assert "claims: seconds is" in words(replayed, 7 * unit, unit)
    assert words(replayed, 0, 0) == ""  # nothing is claimed


def test_times_that_the_format_leaves_open_are_not_judged():
    copied = (*GOOD[:4], *SWAP, *GOOD[4:])
    encoded = (*TOP, Encode(W, "jpeg", 8, 256), *GOOD[2:])
    for actions, peak in ((copied, 256), (encoded, 320)):
        claims = claiming(*actions, peak=peak, seconds=99.0, recompute_seconds=1.0)
        assert violations(timed(1.0), claims) == []
        assert unchecked_claims(timed(1.0), claims)[-2:] == [
            "seconds (the plan copies or encodes)",
            "recompute_seconds (the plan copies or encodes)",
        ]
    untimed = replace(timed(0.0), name="g")
    claims = claiming(*GOOD, seconds=1.0)
    assert violations(untimed, claims) == []
    assert unchecked_claims(untimed, claims) == ["seconds (the graph has no times)"]


def test_bytes_are_moved_by_copies_only():
    moved = {"moved_bytes": 128, "host_peak_bytes": 64}
    assert violations(graph(), claiming(*GOOD, **moved)) == [
        "claims: host_peak_bytes is 0 B, not 64 B as claimed",
        "claims: moved_bytes is 0 B, not 128 B as claimed",
    ]
    copied = claiming(*GOOD[:4], *SWAP, *GOOD[4:], **moved)
    assert violations(graph(), copied) == []
    assert unchecked_claims(graph(), copied) == []
    more = claiming(*GOOD[:4], *SWAP, *GOOD[4:], moved_bytes=192)
    (text,) = violations(graph(), more)
    assert text == "claims: moved_bytes is 128 B, not 192 B as claimed"


def away(tensor, offset, index, tier="host", back=None):
    """A tensor is copied out and back; by action `index` and those behind it."""
    return (
        *(SwapOut(tensor, tier, offset), Wait(index), Free(tensor)),
        *(Alloc(tensor, 64 if tensor == X else 128),),
        *(SwapIn(tensor, tier, offset if back is None else back), Wait(index + 4)),
    )


def test_copies_lie_on_their_tier():
    y = away(Y, 64, 4)
    assert found(*GOOD[:4], *y, *GOOD[4:]) == ""
    both = (*GOOD[:4], SwapOut(X, "host", 0), SwapOut(Y, "host", 64), Wait(4), Wait(5))
    assert found(*both, *GOOD[4:]) == ""
    one = (*GOOD[:4], *away(Y, 0, 4), *away(X, 0, 10), *GOOD[4:])
    assert found(*one) == ""  # one after the other
    apart = (SwapOut(X, "host", 0), *away(Y, 0, 5, "file"), Wait(4))
    assert found(*GOOD[:4], *apart, *GOOD[4:]) == ""  # of several tiers


@pytest.mark.parametrize(
    ("actions", "words"),
    [
        ((SwapOut(Y, "host", 32),), "lies at 32, which is not a nonnegative multiple"),
        (
            (SwapOut(Y, "host", -64),),
            "lies at -64, which is not a nonnegative multiple",
        ),
        (
            (SwapOut(X, "host", 0), SwapOut(Y, "host", 0)),
            "the copy of tensor 1 ('y') on 'host' at [0, 64) overlaps the copy of "
            "tensor 0 ('x') on 'host' at [0, 64)",
        ),
        (away(Y, 0, 4, back=64), "is copied in from 64, but lies at 0"),
        (away(Y, None, 4, back=64), "is copied in from 64, but lies at"),
        (
            (*away(Y, 0, 4)[:5], SwapOut(X, "host", 0)),
            "on 'host' at [0, 64) overlaps the copy of tensor 1",
        ),
        (
            (*away(Y, 0, 4), SwapIn(Y, "host", 0)),
            "overwrites tensor 1",
        ),
        (
            (SwapOut(Y, "host", 0), Wait(4), Free(Y), Alloc(Y, 128), Compute(0)),
            "",
        ),
    ],
)
def test_wrong_places_on_tiers_are_named(actions, words):
    assert words in found(*GOOD[:4], *actions)


def test_a_known_codec_gets_what_it_may_need():
    small = (Encode(Y, "zvc", 64, 256), Free(Y), Decode(Y, 128))
    assert "'zvc' may need 128 B" in found(*GOOD[:4], *small, *GOOD[4:])
    enough = (Encode(Y, "zvc", 128, 256), Free(Y), Decode(Y, 128))
    right = plan(*GOOD[:4], *enough, *GOOD[4:], peak=384)
    assert violations(graph(), right) == []
    assert unchecked_claims(graph(), right) == []
    for codec, nbytes in codec_bounds(64).items():
        right = (Encode(Y, codec, nbytes, 256), Free(Y), Decode(Y, 128))
        assert "may need" not in found(*GOOD[:4], *right, *GOOD[4:])
        less = (Encode(Y, codec, nbytes - 1, 256), Free(Y), Decode(Y, 128))
        assert f"{codec!r} may need {nbytes} B" in found(*GOOD[:4], *less, *GOOD[4:])


@given(nbytes=st.integers(1, 10**7))
def test_the_judge_knows_what_codecs_may_need(nbytes):
    tensors = [*graph().tensors]
    tensors[Y] = replace(tensors[Y], nbytes=nbytes)
    other = replace(graph(), tensors=tuple(tensors))
    for codec, bound in codec_bounds(nbytes).items():
        for given_, less in ((bound, False), (bound - 1, True)):
            coded = (Encode(Y, codec, given_, 2**40), Free(Y), Decode(Y, 128))
            words = "\n".join(violations(other, plan(*GOOD[:4], *coded, *GOOD[4:])))
            assert (f"{codec!r} may need {bound} B" in words) == less
            assert ("which is lossy" in words) == (codec not in lossless_codecs())


@pytest.mark.parametrize("codec", sorted({*codec_bounds(0)} - {*lossless_codecs()}))
def test_lossy_codecs_are_refused_unless_the_plan_lists_them(codec):
    coded = (Encode(Y, codec, 128, 256), Free(Y), Decode(Y, 128))
    silent = plan(*GOOD[:4], *coded, *GOOD[4:], peak=384)
    (words,) = violations(graph(), silent)
    assert f"tensor 1 ('y') is encoded by {codec!r}, which is lossy and not" in words
    said = replace(silent, lossy=("another", codec))
    assert violations(graph(), said) == []
    assert unchecked_claims(graph(), said) == [
        f"codec {codec!r} (lossy: how much it changes values)"
    ]
    assert "lossy" in str(said)
    assert "lossy" not in str(silent)
    integers = replace(graph().tensors[Y], dtype="int32")
    tensors = (graph().tensors[X], integers, *graph().tensors[2:])
    (words,) = violations(replace(graph(), tensors=tensors), said)
    assert f"is int32 of 64 B; {codec!r} encodes float32" in words


def test_what_is_taken_on_trust_is_listed():
    assert unchecked_claims(graph(), plan(*GOOD)) == []
    claims = {"lower_bound_bytes": 64, "planning_seconds": 1.0, "optimality_gap": 0.0}
    names = unchecked_claims(graph(), claiming(*GOOD, **claims))
    assert [name.split()[0] for name in names] == list(claims)


def test_the_claims_of_our_own_plans_hold():
    """Each is checked by `good_plans` too; here none is left unchecked by mistake."""
    names = unchecked_claims(chain(20), sqrt_checkpoint()(chain(20)))
    assert [name.split()[0] for name in names] == [
        "lower_bound_bytes",
        "planning_seconds",
        "optimality_gap",
    ]


def test_other_alignments_round_other_sizes():
    tensors = (Tensor("a", 10, "input"), Tensor("b", 10, "input"))
    two = Graph("g", tensors, (), (0, 1))
    tight = plan(Alloc(0, 0), Alloc(1, 64), peak=128)
    assert violations(two, tight) == []
    assert violations(two, replace(tight, alignment=128)) != []
    wide = plan(Alloc(0, 0), Alloc(1, 128), peak=256, alignment=128)
    assert violations(two, wide) == []


@pytest.mark.parametrize("alignment", [-64, 0, 1, 16, 63, 96, 64.0, "64"])
def test_an_alignment_is_a_multiple_of_64(alignment):
    """Kernels read and write whole lines."""
    assert "not a positive multiple of 64" in found(*GOOD, alignment=alignment)


def test_an_empty_room_lies_in_the_arena():
    tensors = (Tensor("a", 64, "input"), Tensor("b", 0, "input"))
    two = Graph("g", tensors, (), (0, 1))
    assert violations(two, plan(Alloc(0, 0), Alloc(1, 64), peak=64)) == []
    assert violations(two, plan(Alloc(0, 0), Alloc(1, 128), peak=64)) != []
    away = (*GOOD[:3], Compute(0, None, 4096), *GOOD[4:])
    assert "the peak is 4096 B" in found(*away)


def test_state_lies_first_in_the_order_of_the_graph():
    assert "'w') is state at 64 instead of 0: state lies first" in found(
        Alloc(X, 0), Alloc(W, 64), *GOOD[2:]
    )
    tensors = (
        Tensor("x", 64, "input"),
        Tensor("w", 65, "parameter"),
        Tensor("v", 64, "optimizer_state"),
    )
    three = Graph("g", tensors, (), ())
    right = (Alloc(1, 0), Alloc(2, 128), Alloc(0, 192))
    for actions in (right, right[::-1]):
        assert violations(three, plan(*actions)) == []
    swapped = plan(Alloc(2, 0), Alloc(1, 64), Alloc(0, 192))
    assert "'v') is state at 0 instead of 128" in violations(three, swapped)[0]
    apart = plan(Alloc(1, 0), Alloc(2, 192), Alloc(0, 128))
    assert "instead of 128" in "\n".join(violations(three, apart))


def test_a_new_value_takes_over_the_room_of_the_old_one():
    """Elsewhere it would be gone when the next step begins."""
    words = (
        "'new') is the new value of tensor 3 ('w') and does not take over its buffer"
    )
    apart = (*GOOD[:-2], Alloc(NEW, 64 * 5), Compute(2))
    assert words in found(*apart)
    assert words in found(*apart, Free(NEW))
    read_early = (*TOP, Alloc(NEW, 64 * 5), Compute(2), *GOOD[2:-2])
    assert words in found(*read_early)


def test_the_new_value_of_a_new_value_takes_over_too():
    tensors = tuple(Tensor(f"w{i}", 64, "parameter") for i in range(3))
    ops = tuple(
        Op(f"u{i}", "u", "update", (i,), (i + 1,), in_place=((i, i + 1),))
        for i in range(2)
    )
    twice = Graph("g", tensors, ops, (2,))
    first = (Alloc(0, 0), Alias(1, 0), Compute(0))
    assert violations(twice, plan(*first, Alias(2, 1), Compute(1), peak=64)) == []
    (text,) = violations(twice, plan(*first, Alloc(2, 64), Compute(1), peak=128))
    assert "'w2') is the new value of tensor 1 ('w1')" in text
    early = (Alloc(0, 0), Alias(1, 0), Alias(2, 1), Compute(0), Compute(1))
    assert "which has none" in violations(twice, plan(*early, peak=64))[0]


def test_the_first_declared_pair_is_the_update():
    tensors = tuple(
        Tensor(name, 64, "parameter") for name in ("w", "v", "new w", "new v")
    )
    op = Op("u", "u", "update", (0, 1), (2, 3), in_place=((0, 2), (0, 3), (1, 3)))
    two = Graph("g", tensors, (op,), ())
    state = (Alloc(0, 0), Alloc(1, 64))
    right = plan(*state, Alias(2, 0), Alias(3, 1), Compute(0), peak=128)
    assert violations(two, right) == []
    for actions in (
        (Alias(3, 0), Alloc(2, 128)),
        (Alias(2, 0), Alloc(3, 128)),
        (Alias(3, 1), Alloc(2, 128)),
    ):
        wrong = plan(*state, *actions, Compute(0), peak=192)
        assert "does not take over its buffer" in "\n".join(violations(two, wrong))


def test_no_update_runs_before_the_forward_phase_has_ended():
    early = (*GOOD[:4], *UPDATE, *GOOD[4:-2])  # g reads w too
    assert (
        "(compute 'h'): an update before the forward phase has ended: op 1 ('g')"
        in found(*early)
    )
    statistics = Op("m", "m", "update", (W,), (NEW,), in_place=((W, NEW),))
    tensors = graph().tensors
    g = replace(graph().ops[1], inputs=(Y,))
    apart = replace(graph(), tensors=tensors, ops=(graph().ops[0], g, statistics))
    moved = plan(*GOOD[:4], *UPDATE, *GOOD[4:-2])
    (text,) = violations(apart, moved)
    assert "before the forward phase has ended: op 1 ('g') was not computed" in text
    assert violations(apart, plan(*GOOD)) == []


def test_a_room_is_there_before_it_is_promised():
    assert "buffer of tensor 1 ('y'), which has none" in found(*TOP, Alias(Z, Y))
    later = (*TOP, Alias(NEW, W), Alias(Y, X), Compute(0), Free(X))
    assert "which has none" not in found(*later)


@pytest.mark.parametrize(
    "action",
    [
        Alloc(Y, 128.0),
        Alloc("y", 128),
        Alloc(Y, True),
        Free(None),
        Compute(0, 7),
        Compute(0, None, "top"),
        Encode(Y, None, 8, 192),
        ("alloc", Y, 128),
        None,
    ],
)
def test_what_is_no_action_is_refuted(action):
    assert "is not valid: " in found(*GOOD[:2], action, *GOOD[2:])


def test_names_of_any_length_are_told_in_short():
    """Else a thousand sentences would be a thousand times as long as the graph."""
    tensors = tuple(replace(t, name=t.name * 10_000) for t in graph().tensors)
    ops = tuple(replace(op, name=op.name * 10_000) for op in graph().ops)
    wordy = replace(graph(), tensors=tensors, ops=ops)
    wrong = (*TOP, *[Alloc(X, 0), Compute(0), Compute(2)] * 100)
    texts = violations(wordy, plan(*wrong))
    assert len(texts) > 300
    assert max(map(len, texts)) < 500
    assert f"tensor 0 ('{50 * 'x'}…{50 * 'x'}') has a buffer already" in texts[0]


def test_numbers_of_numpy_do_not_wrap_around():
    high = (*TOP, Alloc(Y, np.int64(2**63 - 64)), *GOOD[3:])
    assert f"the peak is {2**63} B" in found(*high)


def test_bytes_are_not_encoded_in_none():
    none = (*GOOD[:4], Encode(Y, "zero", 0, 192), Free(Y), Decode(Y, 128), *GOOD[4:])
    assert "'y') of 64 B is encoded in 0 B" in found(*none)
    less = (*TOP, Encode(X, "less", -64, 128))
    assert "'x') of 64 B is encoded in -64 B" in found(*less)


def test_codecs_are_taken_on_trust():
    one = (Encode(Y, "jpeg", 8, 192), Free(Y), Decode(Y, 128))
    two = (*one, Encode(Y, "jpeg", 8, 192), Encode(X, "float8", 8, 256))
    coded = plan(*GOOD[:4], *two, *GOOD[4:6], Compute(1, None, 320), *GOOD[7:])
    assert unchecked_claims(graph(), coded) == [
        "codec 'jpeg' (unknown: neither its sizes nor its results)",
        "codec 'float8' (unknown: neither its sizes nor its results)",
    ]


def test_the_time_of_codecs_is_taken_on_trust():
    told = "codec_seconds (depends on the speeds of codecs)"
    right = plan(*GOOD)
    assert told not in unchecked_claims(graph(), right)
    claims = replace(right.predicted, codec_seconds=2.0)
    assert told in unchecked_claims(graph(), replace(right, predicted=claims))
    assert violations(graph(), replace(right, predicted=claims)) == []


def test_a_copy_back_is_waited_for_before_the_end():
    """It would land in the next step."""
    late = (*GOOD[:4], *SWAP[:-1], *GOOD[4:])
    assert "the copy back of tensor 1 ('y') was not waited for" in found(*late)
    out = (*GOOD, SwapOut(Z, "host"))
    assert found(*out) == ""


def test_two_copies_out_before_their_waits_leave_one_copy():
    """The second replaces the first, whose wait then says nothing of the bytes."""
    out = SwapOut(Y, "host")
    twice = (*GOOD[:4], out, out, Wait(4), Wait(5), Free(Y), Alloc(Y, 128))
    back = (SwapIn(Y, "host"), Wait(10), *GOOD[4:])
    assert found(*twice, *back) != ""


def test_the_error_names_the_first_and_counts_the_rest():
    with pytest.raises(PlanError, match=r"invalid: action 2 .* \(and \d+ more\)"):
        validate(graph(), plan(*swapped(2)))
    with pytest.raises(PlanError, match=r"not 1 B as claimed$"):
        validate(graph(), plan(*GOOD, peak=1))


def test_it_shares_no_code_with_planners():
    module = inspect.getmodule(violations)
    imported = {
        node.module
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.ImportFrom)
        if [name.name for name in node.names] != ["ALIGNMENT"]
    }
    vocabulary = {
        *("memcfg.errors", "memcfg.graph"),
        *(Compute.__module__, Plan.__module__),  # values alone
    }
    assert {m for m in imported if m and "memcfg" in m} <= vocabulary


places = st.tuples(st.integers(0, 30), st.integers(0, 8))  # in lines of 64 bytes


def share_a_byte(one, other) -> bool:
    return bool(set(range(*one[:2])) & set(range(*other[:2])))


@settings(max_examples=100, deadline=None)
@given(steps=st.lists(st.tuples(places, st.integers(0, 3)), max_size=30))
def test_the_first_overlap_is_found_and_all_are_counted(steps):
    """Buffers come and go; those that overlap come too, as in a plan that is wrong."""
    tensors, actions, expected, held = [], [], [], []
    for number, ((start, size), leave) in enumerate(steps):
        tensors.append(Tensor(f"t{number}", 64 * size, "activation"))
        actions.append(Alloc(number, 64 * start))
        new = (start, start + size, number)
        shared = sorted(
            (other for other in held if share_a_byte(new, other)),
            key=lambda one: (*one[:2], f"tensor {one[2]} ('t{one[2]}')"),
        )
        if shared:
            first, more = shared[0], len(shared) - 1
            expected.append((number, first[2], more))
        held.append(new)
        if leave == 0:
            gone = held.pop(number % len(held))
            actions.append(Free(gone[2]))
    maker = Op("f", "f", "forward", (), tuple(range(len(tensors))))
    wrong = Graph("g", tuple(tensors), (maker,) if tensors else (), ())
    found = [
        re.fullmatch(
            r".*: tensor (\d+) .* overlaps tensor (\d+) \S+ at \S+ \d+\)"
            r"( and (\d+) more)?",
            text,
        )
        for text in violations(wrong, plan(*actions))
        if "overlaps" in text
    ]
    assert [(int(f[1]), int(f[2]), int(f[4] or 0)) for f in found] == expected


# -- mutations ---------------------------------------------------------------------

POLICIES = st.sampled_from([keep_all(), share(), sqrt_checkpoint()])


@st.composite
def good_plans(draw):
    graph = random_step(draw(st.integers(0, 500)), draw(st.integers(2, 8)))
    plan = draw(POLICIES)(graph)
    assert violations(graph, plan) == []
    return graph, plan


def pick(draw, plan: Plan, *kinds):
    places = [k for k, a in enumerate(plan.actions) if isinstance(a, kinds)]
    assume(places)
    return draw(st.sampled_from(places))


def refuted(graph, plan, actions) -> bool:
    return bool(violations(graph, replace(plan, actions=tuple(actions))))


@settings(max_examples=150, deadline=None)
@given(case=good_plans(), data=st.data())
def test_dropping_an_action_is_caught(case, data):
    """Dropping a free is legal where nothing needs its bytes again."""
    graph, plan = case
    k = pick(data.draw, plan, Alloc, Alias, Compute)
    actions = [*plan.actions[:k], *plan.actions[k + 1 :]]
    dropped = plan.actions[k]
    if isinstance(dropped, Compute):
        assume(is_needed(graph, plan, k))
    assert refuted(graph, plan, actions)


def is_needed(graph: Graph, plan: Plan, k: int) -> bool:
    """Whether the compute at k is the only one of its op, or its outputs are read."""
    ops = [a.op for a in plan.actions if isinstance(a, Compute)]
    later = [a.op for a in plan.actions[k + 1 :] if isinstance(a, Compute)]
    reads = {tensor for op in later for tensor in graph.ops[op].inputs}
    once = ops.count(plan.actions[k].op) == 1
    return once or bool(reads & set(graph.ops[plan.actions[k].op].outputs))


@settings(max_examples=150, deadline=None)
@given(case=good_plans(), data=st.data())
def test_computing_before_an_input_is_made_is_caught(case, data):
    graph, plan = case
    k = pick(data.draw, plan, Compute)
    needs = set(graph.ops[plan.actions[k].op].inputs)
    makers = [
        j
        for j in range(k)
        if isinstance(plan.actions[j], Compute)
        and needs & set(graph.ops[plan.actions[j].op].outputs)
    ]
    assume(makers)
    actions = list(plan.actions)
    actions.insert(makers[-1], actions.pop(k))
    assert refuted(graph, plan, actions)


@settings(max_examples=150, deadline=None)
@given(case=good_plans(), data=st.data(), offset=st.integers(0, 4096))
def test_moving_a_room_is_judged_as_brute_force_judges(case, data, offset):
    graph, plan = case
    k = pick(data.draw, plan, Alloc)
    actions = list(plan.actions)
    actions[k] = replace(actions[k], offset=offset)
    legal = offset % 64 == 0 and brute_force(graph, actions) == plan.peak_bytes
    assert refuted(graph, plan, actions) != legal


class Lines:
    """The arena as a map from 64-byte lines to what uses them."""

    def __init__(self) -> None:
        self.used: set[int] = set()
        self.peak = 0
        self.legal = True

    def take(self, offset: int, nbytes: int) -> list[int]:
        mine = range(offset // 64, (offset + nbytes + 63) // 64)
        self.legal = self.legal and self.used.isdisjoint(mine)
        self.used.update(mine)
        self.peak = max(self.peak, *(64 * (line + 1) for line in mine), offset)
        return list(mine)


def brute_force(graph: Graph, actions) -> int | None:
    """The highest byte ever in use, line by line; None: one was used twice."""
    lines = Lines()
    homes: dict[int, list[int]] = {}
    takers: dict[int, int] = {}
    state = set(graph.persistent)
    for action in actions:
        match action:
            case Alloc(tensor, offset):
                homes[tensor] = lines.take(offset, graph.tensors[tensor].nbytes)
            case Alias(output, source) if source in state:
                state.add(output)
            case Alias(output, source):
                takers[source] = output
            case Compute(op, _, int(offset)):
                scratch = lines.take(offset, graph.ops[op].scratch_bytes)
                lines.used.difference_update(scratch)
            case Free(tensor):
                mine = homes.pop(tensor)
                if tensor in takers:
                    output = takers.pop(tensor)
                    size = (graph.tensors[output].nbytes + 63) // 64
                    homes[output], mine = mine[:size], mine[size:]
                lines.used.difference_update(mine)
        if not lines.legal:
            return None
    return lines.peak


@settings(max_examples=100, deadline=None)
@given(case=good_plans(), data=st.data())
def test_freeing_before_the_last_reader_is_caught(case, data):
    graph, plan = case
    k = pick(data.draw, plan, Free)
    tensor = plan.actions[k].tensor
    reads = [
        j
        for j in range(k)
        if isinstance(plan.actions[j], Compute)
        and tensor in graph.ops[plan.actions[j].op].inputs
    ]
    assume(reads)
    actions = list(plan.actions)
    actions.insert(reads[-1], actions.pop(k))
    assert refuted(graph, plan, actions)


@settings(max_examples=100, deadline=None)
@given(case=good_plans(), data=st.data())
def test_moving_scratch_onto_an_operand_is_caught(case, data):
    graph, plan = case
    k = pick(data.draw, plan, Compute)
    action = plan.actions[k]
    assume(graph.ops[action.op].scratch_bytes)
    homes = {a.tensor: a.offset for a in plan.actions[:k] if isinstance(a, Alloc)}
    operands = [
        t
        for t in graph.ops[action.op].outputs
        if t in homes
        and graph.tensors[t].nbytes
        and not any(isinstance(a, Alias) and a.output == t for a in plan.actions[:k])
    ]
    assume(operands)
    actions = list(plan.actions)
    actions[k] = replace(action, scratch_offset=homes[operands[0]])
    assert refuted(graph, plan, actions)


@settings(max_examples=100, deadline=None)
@given(case=good_plans(), data=st.data())
def test_aliasing_what_is_not_declared_is_caught(case, data):
    graph, plan = case
    k = pick(data.draw, plan, Alias)
    alias = plan.actions[k]
    ops = tuple(
        replace(op, in_place=tuple(p for p in op.in_place if p[1] != alias.output))
        for op in graph.ops
    )
    changed = Graph(graph.name, graph.tensors, ops, graph.keep)
    assert violations(changed, plan)


@settings(max_examples=50, deadline=None)
@given(n=st.integers(9, 40), data=st.data())
def test_replaying_what_is_not_replayable_is_caught(n, data):
    graph = chain(n)
    plan = sqrt_checkpoint()(graph)
    computed = [a.op for a in plan.actions if isinstance(a, Compute)]
    again = sorted({op for op in computed if computed.count(op) > 1})
    chosen = data.draw(st.sampled_from(again))
    ops = tuple(
        replace(op, replayable=index != chosen) for index, op in enumerate(graph.ops)
    )
    assert violations(Graph(graph.name, graph.tensors, ops, graph.keep), plan)


@settings(max_examples=100, deadline=None)
@given(case=good_plans(), data=st.data())
def test_any_garbage_gets_a_verdict(case, data):
    """Whatever the actions are, the judge answers and does not fall over."""
    graph, plan = case
    number = st.integers(-2, len(graph.tensors) + 2)
    garbage = st.one_of(
        st.builds(Alloc, number, number),
        st.builds(Alias, number, number),
        st.builds(Free, number),
        st.builds(Compute, number, st.none() | st.text(), st.none() | number),
        st.builds(SwapOut, number, st.just("host")),
        st.builds(SwapIn, number, st.just("host")),
        st.builds(Encode, number, st.just("jpeg"), st.integers(0, 99), number),
        st.builds(Decode, number, number),
        st.builds(Wait, number),
    )
    actions = list(plan.actions)
    for _ in range(data.draw(st.integers(1, 5))):
        actions.insert(data.draw(st.integers(0, len(actions))), data.draw(garbage))
    result = violations(graph, replace(plan, actions=tuple(actions)))
    assert all(isinstance(text, str) and text for text in result)


def test_a_plan_for_another_graph_is_refuted():
    plan = share()(chain(5))
    assert violations(chain(6), replace(plan, graph="chain of 6"))
