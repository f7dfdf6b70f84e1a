"""The interchange format of plans, in and out."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training_graphs import random_step

from memcfg.errors import FormatError
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
    sqrt_checkpoint,
)

EXAMPLE = """
{"format": "memcfg.plan/1", "graph": "lenet5, batch 32", "method": "sqrt_checkpoint",
 "limit_bytes": 4194304, "alignment": 64,
 "predicted": {"peak_bytes": 4100032, "host_peak_bytes": 0, "moved_bytes": 0,
               "seconds": 0.013, "recompute_seconds": 0.002,
               "lower_bound_bytes": 2203648, "planning_seconds": 0.01,
               "optimality_gap": null},
 "actions": [["alloc", 2, 0], ["compute", 0, "direct", 65536], ["alias", 3, 2],
             ["compute", 1, null, null], ["free", 2], ["swap_out", 5, "host"],
             ["free", 5], ["alloc", 5, 4096], ["swap_in", 5, "host"],
             ["encode", 6, "mask", 1024, 8192], ["decode", 6, 16384], ["wait", 12]]}
"""

number = st.integers(0, 2**62)
actions = st.one_of(
    st.builds(Alloc, number, number),
    st.builds(Alias, number, number),
    st.builds(Free, number),
    st.builds(Compute, number, st.none() | st.text(), st.none() | number),
    st.builds(SwapOut, number, st.text(), st.none() | number),
    st.builds(SwapOut, number, st.text(), st.none() | number, st.text(), number),
    st.builds(SwapIn, number, st.text(), st.none() | number),
    st.builds(Encode, number, st.text(), number, number),
    st.builds(Encode, number, st.text(), number, number, st.text(), st.none() | number),
    st.builds(Decode, number, number),
    st.builds(Wait, number),
)
seconds = st.floats(0, 1e9)
plans = st.builds(
    Plan,
    graph=st.text(),
    method=st.text(),
    limit_bytes=st.none() | number,
    alignment=st.integers(1, 4096),
    predicted=st.builds(
        Predicted,
        number,
        number,
        number,
        seconds,
        seconds,
        number,
        seconds,
        st.none() | seconds,
    ),
    actions=st.lists(actions).map(tuple),
    lossy=st.lists(st.text()).map(tuple),
)


def test_the_published_example_is_read():
    plan = Plan.from_json(EXAMPLE)
    assert plan.graph == "lenet5, batch 32"
    assert (plan.method, plan.limit_bytes, plan.alignment) == (
        "sqrt_checkpoint",
        4194304,
        64,
    )
    assert plan.predicted == Predicted(4100032, 0, 0, 0.013, 0.002, 2203648, 0.01, None)
    assert plan.actions == (
        Alloc(2, 0),
        Compute(0, "direct", 65536),
        Alias(3, 2),
        Compute(1),
        Free(2),
        SwapOut(5, "host"),
        Free(5),
        Alloc(5, 4096),
        SwapIn(5, "host"),
        Encode(6, "mask", 1024, 8192),
        Decode(6, 16384),
        Wait(12),
    )
    assert json.loads(plan.to_json()) == json.loads(EXAMPLE)


def test_places_on_tiers_are_version_two():
    plan = Plan.from_json(EXAMPLE)
    actions = (SwapOut(5, "host", 64), Wait(0), SwapIn(5, "host", None))
    text = replace(plan, actions=actions).to_json()
    document = json.loads(text)
    assert document["format"] == "memcfg.plan/2"
    assert document["actions"][::2] == [
        ["swap_out", 5, "host", 64],
        ["swap_in", 5, "host", None],
    ]
    assert Plan.from_json(text).actions == actions


def test_operands_that_may_be_left_out_are_version_two():
    plan = Plan.from_json(EXAMPLE)
    actions = (
        SwapOut(5, "host", None, "zvc", 96),
        Encode(6, "csr", 64, 0, "host", 128),
        Encode(6, "csr", 64, 0, "host"),
        Encode(6, "csr", 64, 0),
    )
    text = replace(plan, actions=actions).to_json()
    document = json.loads(text)
    assert document["format"] == "memcfg.plan/2"
    assert document["actions"] == [
        ["swap_out", 5, "host", None, "zvc", 96],
        ["encode", 6, "csr", 64, 0, "host", 128],
        ["encode", 6, "csr", 64, 0, "host", None],
        ["encode", 6, "csr", 64, 0],
    ]
    assert Plan.from_json(text).actions == actions
    for wrong in (actions[0], actions[1]):
        row = json.loads(replace(plan, actions=(wrong,)).to_json())["actions"][0]
        for broken in (row[:-1], [*row, 1], [*row[:-2], None, row[-1]]):
            with pytest.raises(FormatError):
                Plan.from_json(json.dumps(document | {"actions": [broken]}))
    document = json.loads(EXAMPLE)
    document["actions"] = [["encode", 6, "csr", 64, 0, "host", 128]]
    with pytest.raises(FormatError, match="takes 4 operands, not 6"):
        Plan.from_json(json.dumps(document))


def test_started_collectives_are_version_three():
    plan = Plan.from_json(EXAMPLE)
    actions = (Start(3, None, 64), SwapOut(5, "host", 0), Start(4, "ring"), Wait(0))
    text = replace(plan, actions=actions, lossy=("fp8",)).to_json()
    document = json.loads(text)
    assert document["format"] == "memcfg.plan/3"
    assert document["actions"] == [
        ["start", 3, None, 64],
        ["swap_out", 5, "host", 0],
        ["start", 4, "ring", None],
        ["wait", 0],
    ]
    assert Plan.from_json(text).actions == actions
    with pytest.raises(FormatError, match="'start' takes 3 operands, not 2"):
        Plan.from_json(json.dumps(document | {"actions": [["start", 3, None]]}))
    for older in ("memcfg.plan/2", "memcfg.plan/1"):
        old = document | {"format": older, "actions": [["start", 3, None, 64]]}
        del old["lossy"]
        with pytest.raises(
            FormatError, match="unknown action 'start'; there are alloc"
        ):
            Plan.from_json(json.dumps(old))


def test_lossy_codecs_are_listed_in_version_two():
    plan = replace(Plan.from_json(EXAMPLE), lossy=("mask", "fp8"))
    document = json.loads(plan.to_json())
    assert document["format"] == "memcfg.plan/2"
    assert document["lossy"] == ["mask", "fp8"]
    assert Plan.from_json(plan.to_json()) == plan
    document["format"] = "memcfg.plan/1"
    with pytest.raises(FormatError, match="lossy"):
        Plan.from_json(json.dumps(document))


@pytest.mark.parametrize("claim", ["stall_seconds", "codec_seconds"])
def test_claims_that_older_readers_do_not_know_are_left_out_where_0(claim):
    plan = Plan.from_json(EXAMPLE)
    assert claim not in plan.to_json()
    more = replace(plan, predicted=replace(plan.predicted, **{claim: 0.5}))
    assert json.loads(more.to_json())["predicted"][claim] == 0.5
    assert Plan.from_json(more.to_json()).predicted == more.predicted
    assert more.elapsed_seconds == plan.elapsed_seconds + 0.5


def test_older_files_name_a_codec_otherwise():
    old = EXAMPLE.replace('"mask"', '"zero_words"')
    plan = Plan.from_json(old)
    assert [a.codec for a in plan.actions if isinstance(a, Encode)] == ["zvc"]
    assert Plan.from_json(plan.to_json()) == plan


@settings(deadline=None)
@given(plan=plans)
def test_every_plan_survives_the_journey(plan):
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.predicted.planning_seconds == plan.predicted.planning_seconds


def test_the_summary_does_not_travel():
    plan = sqrt_checkpoint()(random_step(3))
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert plan.summary is not None
    assert again.summary is None
    assert str(again).splitlines()[:3] != []


def changed(**fields) -> str:
    return json.dumps({**json.loads(EXAMPLE), **fields})


def without(key: str) -> str:
    return json.dumps({k: v for k, v in json.loads(EXAMPLE).items() if k != key})


def second(actions) -> str:
    return changed(format="memcfg.plan/2", actions=actions)


def predicted(**fields) -> str:
    return changed(predicted={**json.loads(EXAMPLE)["predicted"], **fields})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1 column 1"),
        ('{"format": "memcfg.plan/1",\n "graph": }', "line 2 column 11"),
        ("[]", "no 'format' key"),
        ("{}", "no 'format' key"),
        (changed(format="memcfg.plan/4"), "'memcfg.plan/4'; .* reads 'memcfg.plan/3'"),
        (changed(format="memcfg.plan/3"), "'swap_out' takes 3 operands, not 2"),
        (changed(format="memcfg.plan/2"), "'swap_out' takes 3 operands, not 2"),
        (changed(actions=[["swap_in", 1, "host", 0]]), "takes 2 operands, not 3"),
        (second([["swap_in", 1, "host", -64]]), "action 0: offset should be a whole"),
        (changed(format="memcfg.graph/1"), "'memcfg.graph/1'"),
        (changed(format=1), "format is 1"),
        (changed(colour="red"), "unknown key 'colour'"),
        (predicted(joules=1), "'predicted': unknown key 'joules'"),
        (without("alignment"), "'alignment' is missing"),
        (without("actions"), "'actions' is missing"),
        (changed(graph=3), "'graph' should be a string"),
        (changed(limit_bytes=-1), "'limit_bytes' should be a whole number"),
        (changed(limit_bytes=1.5), "'limit_bytes' should be a whole number"),
        (changed(limit_bytes="4MiB"), "'limit_bytes' should be a whole number"),
        (changed(alignment=0), "'alignment' should be positive"),
        (changed(alignment=True), "'alignment' should be a whole number"),
        (changed(predicted=[]), "'predicted' should be an object"),
        (predicted(seconds=-1), "'seconds' should be a number >= 0"),
        (predicted(seconds=True), "'seconds' should be a number >= 0"),
        (predicted(seconds=float("nan")), "NaN is not a number of JSON"),
        (predicted(seconds=float("inf")), "Infinity is not a number of JSON"),
        (predicted(peak_bytes=None), "'peak_bytes' should be a whole number"),
        (changed(actions={}), "'actions' should be a list"),
        (changed(actions=[[]]), "action 0 should be a list"),
        (changed(actions=["free"]), "action 0 should be a list"),
        (changed(actions=[["free", 1], ["fly", 1]]), "action 1: unknown action 'fly'"),
        (changed(actions=[[["free"], 1]]), "action 0: its name should be a string"),
        (changed(actions=[["free"]]), "'free' takes 1 operands, not 0"),
        (changed(actions=[["alloc", 1, 2, 3]]), "'alloc' takes 2 operands, not 3"),
        (changed(actions=[["alloc", 1, -64]]), "action 0: offset should be a whole"),
        (changed(actions=[["alloc", 1, None]]), "action 0: offset should be a whole"),
        (changed(actions=[["free", 1.0]]), "action 0: tensor should be a whole"),
        (changed(actions=[["compute", 1, 2, None]]), "algorithm should be a string"),
        ('{"format": "memcfg.plan/1", "format": 1}', "duplicate key 'format'"),
        ("[" * 100_000, "nested too deeply"),
        (changed(limit_bytes=2**63), r"'limit_bytes' .* below 2\*\*63"),
        (changed(alignment=10**400), r"'alignment' .* below 2\*\*63"),
        (predicted(seconds=10**400), "'seconds' should be a finite number"),
        (changed().replace("0.013", "1e999"), "'seconds' should be a finite number"),
        (changed().replace("4194304", "9" * 5000), "too many digits"),
        (changed(method="\ud800"), "'method' is not Unicode text"),
    ],
)
def test_departures_are_refused(text, words):
    with pytest.raises(FormatError, match=words):
        Plan.from_json(text)


@settings(max_examples=300, deadline=None)
@given(cut=st.integers(0, len(EXAMPLE) - 3), junk=st.sampled_from(["", "x", "}", "]"]))
def test_a_damaged_text_is_refused_and_nothing_else(cut, junk):
    with pytest.raises(FormatError):
        Plan.from_json(EXAMPLE[:cut] + junk)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_could_not_be_read_is_not_written(number):
    plan = Plan.from_json(EXAMPLE)
    predicted = replace(plan.predicted, optimality_gap=number)
    with pytest.raises(FormatError, match="cannot be written as JSON"):
        replace(plan, predicted=predicted).to_json()
