"""What commands know of methods and networks, and what they do on their way."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path

import pytest
from internals import set_cases, set_methods
from networks import zoo_step
from recurrent_graphs import unrolled

from memcfg import models, plan
from memcfg.cli import main
from memcfg.commands import _ladder
from memcfg.commands._measured import Turns, _may_change
from memcfg.commands._tasks import NETWORKS, Task, missing, read_setting
from memcfg.commands.comparison import _compare, _comparison
from memcfg.commands.comparison._method_cells import Case, plan_cell
from memcfg.commands.comparison._method_facts import FACTS, SCOPES, TECHNIQUES, rounding
from memcfg.commands.comparison._method_report import _COLUMNS
from memcfg.errors import MemcfgError
from memcfg.graph import Tier
from memcfg.plan import NAMED_POLICIES, Compute, Encode, auto, share

SLOW = {"checkmate", "checkmate_lp", "retention_intervals", "exact"}
LADDER = ["plan", "resnet", "--set", "depth=8", "--batch", "4", "--ladder"]
LADDER += ["--method", "sqrt_checkpoint"]  # auto takes seconds


@cache
def graph_of(name: str):
    """The graph of a small network, or of one unrolled over eight steps."""
    if name == "unrolled":
        return unrolled(8)
    return zoo_step(name, 4, depth=8) if name == "resnet" else zoo_step(name, 8)


def graphs(name: str):
    """Graphs that a method plans soon, and budgets of each."""
    names = ["lenet_300_100", *(() if name in SLOW else ("resnet", "unrolled"))]
    for graph in map(graph_of, names):
        graph = replace(graph, tiers=(Tier("host", 8e9, is_stated=True),))
        most = share()(graph).peak_bytes
        for limit in (None, most, most * 3 // 4, most // 2):
            yield graph, limit, most


def planned(name: str, graph, limit):
    try:
        return NAMED_POLICIES[name]()(graph, limit)
    except MemcfgError:
        return None


def used(found) -> set[str]:
    """What a plan does to need less memory."""
    computed = [each for each in found.actions if isinstance(each, Compute)]
    signs = {
        "recompute": len(computed) > len({each.op for each in computed}),
        "swap": found.predicted.moved_bytes > 0,
        "compress": any(isinstance(each, Encode) for each in found.actions),
        "algorithms": any(each.algorithm is not None for each in computed),
    }
    return {name for name, is_seen in signs.items() if is_seen}


def test_every_method_has_facts():
    assert set(FACTS) == set(NAMED_POLICIES)
    for facts in FACTS.values():
        assert set(facts.technique) <= set(TECHNIQUES)
        assert facts.scope in SCOPES
        assert facts.source


@pytest.mark.parametrize("name", NAMED_POLICIES)
def test_facts_are_those_of_plans(name):
    seen, lowered, codecs = set(), False, set()
    for graph, limit, most in graphs(name):
        found = planned(name, graph, limit)
        if found is not None:
            seen |= used(found)
            lowered |= found.peak_bytes < most
            codecs |= {*rounding(found.lossy)}
    assert NAMED_POLICIES[name]().lossless == (not codecs)
    assert seen <= set(FACTS[name].technique)
    assert seen or not lowered


@pytest.mark.parametrize(
    "name", [name for name, facts in FACTS.items() if not facts.times]
)
def test_who_needs_no_times_plans_the_same_with_others(name):
    rng = random.Random(0)
    for graph, limit, _ in graphs(name):
        ops = [
            replace(op, seconds=op.seconds * rng.uniform(0.01, 9)) for op in graph.ops
        ]
        other = planned(name, replace(graph, ops=tuple(ops)), limit)
        found = planned(name, graph, limit)
        assert (found and found.actions) == (other and other.actions)


def test_every_method_through_time_and_of_attention_has_cells():
    """By default: of a decoder that runs step by step, with additive scores."""
    tiers = [Tier("host", 5e9, is_stated=True)]
    case = Case.of("S", _compare._CASES["seq2seq_attention"], tiers)
    for method in ("bptt_hidden", "bptt_internal", "bptt_mixed", "meng_attention"):
        cell = plan_cell(method, case, Fraction(4, 5))
        assert cell.plan().by == method
        assert cell.plan().extra_work > 0
    assert len(_compare._letters(_compare._CASES)) == 6


def test_a_peak_that_was_not_planned_is_an_error(monkeypatch, capsys):
    set_cases(monkeypatch, {"resnet": (4, {"depth": 8})})
    monkeypatch.setattr(
        _compare, "measure_in_turns", lambda *_: Turns("share", 128, 64, 1.0, 1.0)
    )
    words = [
        "--methods",
        "rotor",
        "--networks",
        "resnet",
        "--budgets",
        "80%",
        "--run",
        "1",
    ]
    assert main(["compare", *words]) == 1
    told = capsys.readouterr().out
    assert "rotor on resnet at 80%: measured 64 B, NOT as predicted" in told


def test_steps_that_may_still_change_the_plan_are_not_timed():
    """Those of `capuchin` by measured times, too, until they have chosen."""
    graph = replace(graph_of("resnet"), tiers=(Tier("host", 5e9),))
    policy, most = plan.capuchin(), share()(graph).peak_bytes
    evicts = policy(graph, most * 3 // 4)
    assert _may_change(evicts, policy, "measured")
    assert not _may_change(evicts, policy, "nominal")
    assert not _may_change(policy(graph, most), policy, "measured")
    for passive in (plan.capuchin(passive=True), share()):
        assert not _may_change(evicts, passive, "measured")
    assert not _may_change(plan.recosted(graph, evicts), policy, "measured")
    assert not _may_change(replace(evicts, summary=None), policy, "measured")
    chosen = replace(evicts.summary, chosen_by="auto")
    assert _may_change(replace(evicts, summary=chosen), plan.auto(), "measured")


def test_the_columns_of_the_spreadsheet_are_documented_in_their_order():
    page = Path(__file__).resolve().parents[2] / "docs" / "planning.md"
    told = page.read_text().partition("### Columns of the CSV file")[2]
    told = told.partition("\n## ")[0]
    names = re.findall(r"`([a-z_]+)`", told)
    assert [name for name in names if name in _COLUMNS] == [*_COLUMNS]


def test_letters_are_each_networks_own():
    names = ["lenet5", "lstm_lm", "e", "ell"]
    assert _compare._letters(names) == {
        "lenet5": "L",
        "lstm_lm": "S",
        "e": "E",
        "ell": "4",
    }


def test_every_network_of_the_zoo_has_a_task():
    assert set(NETWORKS) == set(models.__all__) - {"load_torchvision_weights"}


def small(name: str) -> Task:
    sizes = {
        "bert_encoder": {"layers": 1, "hidden": 32, "heads": 2, "sequence_length": 8},
        "lstm_lm": {"vocabulary_size": 50, "units": 16},
        "lenet5": {},
    }
    return Task(name, 2, sizes[name])


@pytest.mark.parametrize("name", ["bert_encoder", "lstm_lm", "lenet5"])
def test_a_task_trains(name):
    task = small(name)
    model = task.model(auto())
    x, y = task.data(model)
    first = model.train_on_batch(x, y)
    assert model.train_on_batch(x, y) != first
    model.close()
    assert task.graph().name.endswith("batch 2")


def written_before(monkeypatch, capsys, name) -> list[tuple[str, str]]:
    """What a command has written, on both streams, whenever a function is called."""
    seen = []
    real = getattr(_comparison if hasattr(_comparison, name) else _ladder, name)

    def told(*args):
        seen.append(tuple(capsys.readouterr()))
        return real(*args)

    for module in (_comparison, _ladder):
        monkeypatch.setattr(module, name, told)
    return seen


def test_rows_come_as_methods_are_run(capsys, monkeypatch):
    seen = written_before(monkeypatch, capsys, "measure")
    words = ["plan", "lenet_300_100", "--batch", "4", "--run", "--steps", "1"]
    set_methods(monkeypatch, dict.fromkeys(["share", "keep_all"]))
    assert main(words) == 0
    first, second = seen
    assert first[0].startswith("'lenet_300_100, train, batch 4'")
    assert "share" not in first[0].splitlines()[-1]
    assert second[0].splitlines()[-1].split()[0] == "share"
    assert capsys.readouterr().out.split()[0] == "keep_all"
    assert not any(err for _, err in seen)


def test_rungs_come_as_they_are_run(tmp_path, capsys, monkeypatch):
    words = [*LADDER, "--run"]
    assert main([*words, "--steps", "1"]) == 0
    whole = capsys.readouterr().out.splitlines()
    seen = written_before(monkeypatch, capsys, "measure")
    assert main([*words, "--steps", "1"]) == 0
    last = capsys.readouterr().out
    lines = "".join(out for out, _ in [*seen, (last, "")]).splitlines()
    assert [line[:50] for line in lines] == [line[:50] for line in whole]
    assert len(set(map(len, (each for each in lines if "──" in each)))) == 1
    assert all(out.count("\n") == 1 for out, _ in seen[2:])
    assert seen[0][0].endswith("\nOp times are nominal.\n\n")
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, for `rich`
    seen = written_before(monkeypatch, capsys, "measure")
    assert main([*words, "--steps", "1"]) == 0
    told = "".join(err for _, err in seen)
    assert "planning: the smallest limit" in told
    assert "training: " in told + capsys.readouterr().err
    assert f", {len(seen)} of {len(seen)}" in told


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("depth=110", 110),
        ("rate=0.5", 0.5),
        ("input_shape=[64,64,1]", [64, 64, 1]),
        ("input_shape=(64, 64, 1)", (64, 64, 1)),
        ("input_shape=64,64,1", (64, 64, 1)),
        ("padding=same", "same"),
        ("padding='same'", "same"),
        ('padding="same"', "same"),
        ("pooled=true", True),
        ("pooled=True", True),
        ("pooled=null", None),
        ("name=a b", "a b"),
        ("name=", ""),
        ("name=a=b", "a=b"),
        ("name=" + "(" * 10_000, "(" * 10_000),
    ],
)
def test_a_setting_is_json_or_a_literal_or_a_word(text, value):
    found = read_setting(text)[1]
    assert found == value
    assert type(found) is type(value)


def test_what_a_network_needs_is_told_with_a_value_that_does(capsys):
    needed = {name: missing(name, set()) for name in NETWORKS}
    assert {k: v for k, v in needed.items() if v} == {"resnet": ["--set depth=20"]}
    words = ["plan", "resnet", *needed["resnet"][0].split()]
    assert main([*words, "--batch", "1", "--method", "share"]) == 0
    assert "cifar_resnet20" in capsys.readouterr().out
