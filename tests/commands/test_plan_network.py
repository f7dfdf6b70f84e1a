"""``memcfg plan NETWORK``: methods side by side, run, and a method's ladder."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from xml.etree import ElementTree

import pytest
from internals import (
    leave_unproven,
    set_methods,
    set_methods_of_ladders,
    set_width,
)
from networks import zoo_step
from tier_rules import bytes_by_tier

import memcfg as mc
from memcfg import config
from memcfg.cli import main
from memcfg.errors import InfeasiblePlanError
from memcfg.plan import NAMED_POLICIES, POLICIES, Plan, share, validate
from memcfg.units import format_bytes

LADDER = ["plan", "resnet", "--set", "depth=8", "--batch", "4", "--ladder"]
LADDER += ["--method", "sqrt_checkpoint"]  # auto takes seconds
README = Path(__file__).resolve().parents[2] / "README.md"


def test_all_methods_stand_side_by_side(capsys):
    assert main(["plan", "lenet_300_100", "--batch", "8"]) == 0
    text = capsys.readouterr().out
    for name in POLICIES:
        assert re.search(rf"^ *(bptt.*, )?{name}[ ,:]", text, re.MULTILINE), name
    assert max(map(len, text.splitlines())) <= 80
    (head,) = (line for line in text.splitlines() if line.startswith(" Method "))
    assert head.split(maxsplit=5) == [
        "Method",
        "Peak",
        "Extra",
        "Time",
        "Gap",
        "Planned in",
    ]
    assert re.search(r"^ share .* [mμ]?s$", text, re.MULTILINE)
    assert "  op times         nominal\n" in text
    recurrent = "bptt_hidden, bptt_internal, bptt_mixed"
    reason = f"{recurrent}: graph 'lenet_300_100, train, batch 8' has no repeated cells"
    assert reason in " ".join(text.split())
    assert text.count("repeated cells") == 1
    assert text.endswith("each behind the last\n")


def test_what_is_refused_fits_a_narrow_terminal(capsys, monkeypatch):
    set_width(monkeypatch, 60)
    assert main(["plan", "lenet5", "--method", "bptt_mixed", "--run"]) == 1
    *_, start, more, end = capsys.readouterr().out.splitlines()
    assert start.startswith("  bptt_mixed: graph 'lenet5, train, batch 32' has no")
    assert max(map(len, (start, more, end))) <= 60
    assert end.endswith("behind the last")


def test_what_a_search_has_not_proven_is_told(capsys, monkeypatch):
    told = "The search ended before it proved that this is the method's best plan:"
    methods = {name: POLICIES[name] for name in ("checkmate", "retention_intervals")}
    set_methods(monkeypatch, {"share": share, **methods})
    command = ["plan", "lenet_300_100", "--batch", "8"]
    assert main(command) == 0
    assert told not in capsys.readouterr().out
    leave_unproven(monkeypatch)
    assert main(command) == 0
    text = capsys.readouterr().out
    assert f"{told}\n  checkmate\n  retention_intervals\n" in text


def test_what_does_not_fit_is_told_with_its_smallest_limit(capsys, monkeypatch):
    methods = {name: POLICIES[name] for name in ("share", "keep_all", "auto")}
    set_methods(monkeypatch, methods)
    graph = zoo_step("lenet5", 64)
    limit = share()(graph).peak_bytes
    assert main(["plan", "lenet5", "--batch", "64", "--limit", str(limit)]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^ *share .* 0\.0% ", text, re.MULTILINE)
    assert re.search(r"^ *keep_all +needs +[\d.]+ MiB$", text, re.MULTILINE)
    assert main(["plan", "lenet5", "--limit", "64KiB"]) == 1
    out = capsys.readouterr().out
    assert "No plan within 64.00 KiB" in out
    assert "auto" in out


def test_a_limit_may_be_a_share_of_the_default_peak(tmp_path, capsys):
    graph = zoo_step("resnet", 4, depth=8)
    limit = share()(graph).peak_bytes * 3 // 4
    path, source = tmp_path / "plan.json", tmp_path / "graph.json"
    source.write_text(graph.to_json())
    network = ["resnet", "--set", "depth=8", "--batch", "4"]
    for what in (network, ["--graph", str(source)]):
        words = ["plan", *what, "--limit", "75%", "--output", str(path)]
        assert main([*words, "--method", "auto"]) == 0
        plan = Plan.from_json(path.read_text())
        assert plan.limit_bytes == limit >= plan.peak_bytes
    capsys.readouterr()
    words = ["plan", *network, "--run", "--steps", "1", "--method", "auto"]
    assert main([*words, "--limit", "75%"]) == 0
    assert f"limit           {limit / 2**20:.2f} MiB" in capsys.readouterr().out


def test_a_run_measures_what_was_planned(capsys):
    words = ["plan", "lenet_300_100", "--batch", "4", "--run", "--steps", "1"]
    assert main([*words, "--method", "share"]) == 0
    row = capsys.readouterr().out.splitlines()[-1].split()
    assert row[0] == "share"
    assert row[1:3] == row[-4:-2]  # planned and measured, with their unit
    assert config.get_memory_info("CPU:0")["current"] == 0


def test_one_method_of_a_network_prints_and_writes_its_plan(tmp_path, capsys):
    path = tmp_path / "plan.json"
    words = ["plan", "lenet5", "--batch", "2", "--method", "share"]
    assert main([*words, "--output", str(path)]) == 0
    assert capsys.readouterr().out.startswith("Plan of 'lenet5, train, batch 2'")
    validate(zoo_step("lenet5", 2), Plan.from_json(path.read_text()))


def test_a_ladder_goes_down_to_the_floor(tmp_path, capsys):
    words = ["plan", "resnet", "--set", "depth=8", "--batch", "4", "--ladder"]
    path = tmp_path / "ladder.json"
    assert main([*words, "--output", str(path)]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    ladder = json.loads(path.read_text())
    limits = [rung["limit_bytes"] for rung in ladder["rungs"]]
    assert limits == sorted(limits, reverse=True)
    assert limits[0] == ladder["share_peak_bytes"]
    assert f"\nThe smallest limit is {limits[-1]} B (" in text
    assert f"): {limits[-1] - 1} B is refused." in text
    for rung in ladder["rungs"]:
        assert rung["peak_bytes"] <= rung["limit_bytes"]
        assert rung["measured"] is None
    assert ladder["refusal"]["limit_bytes"] == limits[-1] - 1
    told = text.rstrip().splitlines()[-1].removeprefix("What sets it: ")
    first, _, last = told.partition("…")  # if long
    assert first
    assert ladder["refusal"]["peak_op"].startswith(first)
    assert ladder["refusal"]["peak_op"].endswith(last or first)
    assert ladder["arguments"] == {"depth": 8}
    assert "environment" not in ladder


def test_a_ladder_is_drawn_with_a_circle_for_each_rung(tmp_path, capsys):
    svg = tmp_path / "ladder.svg"
    assert main([*LADDER, "--output", str(svg)]) == 0
    rungs = re.findall(r"^ *[\d.]+ .iB +\d+%", capsys.readouterr().out, re.MULTILINE)
    found = ElementTree.parse(svg).getroot().iter("{http://www.w3.org/2000/svg}circle")
    assert len(list(found)) == len(rungs) > 2


class Stubborn:
    """Plans what `share` plans, but refuses what lies in a range, and below a floor."""

    name = "stubborn"

    def __init__(self, floor, refused=range(0), told=None):
        self.floor, self.refused, self.told = floor, refused, told
        self.asked = []

    def __call__(self, graph, limit_bytes=None):
        self.asked.append(limit_bytes)
        if limit_bytes < self.floor or limit_bytes in self.refused:
            raise InfeasiblePlanError(
                "no",
                smallest_limit_bytes=self.told or self.floor,
                lower_bound_bytes=1,
                limit_bytes=limit_bytes,
            )
        plan = share()(graph)
        peak = min(plan.peak_bytes, limit_bytes // 64 * 64)
        return replace(plan, predicted=replace(plan.predicted, peak_bytes=peak))


def ladder_of(monkeypatch, tmp_path, capsys, policy, spill=()):
    """What a ladder of a policy shows and writes."""
    config.reset()
    set_methods_of_ladders(monkeypatch, {"share": lambda: policy})
    path = tmp_path / "ladder.json"
    words = ["plan", "resnet", "--set", "depth=8", "--batch", "4", "--ladder"]
    words += ["--method", "share", "--output", str(path), *spill]
    assert main(words) == 0
    return capsys.readouterr().out, json.loads(path.read_text())


SHORT = "--spill-to", "host", "--spill-limit", "1KiB"


@pytest.mark.parametrize("told", [0.45, 0.95])
def test_a_refused_rung_does_not_end_a_ladder(monkeypatch, tmp_path, capsys, told):
    whole = share()(zoo_step("resnet", 4, depth=8)).peak_bytes
    steps = [whole * part // 100 for part in range(100, 0, -10)]
    refused = range(steps[4] - 9, steps[3] + 10)  # 70 and 60 %
    floor = whole // 2 // 64 * 64
    policy = Stubborn(floor, refused, int(told * whole))
    text, found = ladder_of(monkeypatch, tmp_path, capsys, policy, SHORT)
    limits = [rung["limit_bytes"] for rung in found["rungs"]]
    assert limits[:3] == steps[:3]
    assert found["refused_bytes"] == steps[3:5]
    rows = [line.split() for line in text.splitlines() if "%" in line and "iB" in line]
    parts = [row[2] for row in rows]
    assert parts[:5] == ["100%", "90%", "80%", "70%", "60%"]
    assert [row[3] for row in rows].count("refused") == 2
    assert limits[-1] >= floor  # the smallest that is shown has a plan
    assert found["refusal"]["limit_bytes"] < floor
    assert "The smallest limit" in text


def test_a_refusal_that_names_too_much_is_not_believed(monkeypatch, tmp_path, capsys):
    whole = share()(zoo_step("resnet", 4, depth=8)).peak_bytes
    policy = Stubborn(whole * 3 // 4, told=whole)
    text, found = ladder_of(monkeypatch, tmp_path, capsys, policy)
    floor, refused = (
        found["rungs"][-1]["limit_bytes"],
        found["refusal"]["limit_bytes"],
    )
    assert refused < whole * 3 // 4 <= floor < whole
    assert floor - refused < whole // 64  # by halves
    assert len(policy.asked) < 30
    end = f"The smallest limit found is {floor} B ("
    assert end in text
    assert f"; {refused} B is refused." in text


def test_a_refusal_that_names_too_little_is_not_believed(monkeypatch, tmp_path, capsys):
    whole = share()(zoo_step("resnet", 4, depth=8)).peak_bytes
    floor = whole * 3 // 4 // 64 * 64
    policy = Stubborn(floor, told=whole // 2)
    text, found = ladder_of(monkeypatch, tmp_path, capsys, policy)
    limits = [rung["limit_bytes"] for rung in found["rungs"]]
    assert limits[0] == whole
    assert min(limits) >= floor
    assert not found["refused_bytes"]
    assert "The smallest limit" in text


def test_a_ladder_without_a_plan_says_why(monkeypatch, capsys):
    policy = Stubborn(64, range(2**62))
    set_methods_of_ladders(monkeypatch, {"share": lambda: policy})
    words = ["plan", "lenet5", "--ladder", "--method", "share"]
    assert main([*words, *SHORT]) == 1
    assert capsys.readouterr().err.startswith("memcfg: error: no ")


def test_a_ladder_plans_what_a_limit_plans(tmp_path, capsys):
    words = ["plan", "unet", "--batch", "1", "--method", "share"]
    words += ["--set", "input_shape=[32,32,1]", "--set", "padding=same"]
    path = tmp_path / "ladder.json"
    assert main([*words, "--ladder", "--output", str(path)]) == 0
    rungs = json.loads(path.read_text())["rungs"]
    smallest = rungs[-1]["limit_bytes"]
    assert main([*words, "--limit", f"{smallest}B"]) == 0
    assert main([*words, "--limit", f"{smallest - 1}B"]) == 1


def test_a_bar_is_of_time_with_waits(tmp_path, capsys):
    words = ["plan", "lenet5", "--batch", "256", "--method", "vdnn_all", "--ladder"]
    path = tmp_path / "ladder.json"
    more = ["--lane-bandwidth", "50MB", "--output", str(path)]
    assert main([*words, *more]) == 0
    lines = capsys.readouterr().out.splitlines()
    (head,) = (line for line in lines if line.split()[:1] == ["Limit"])
    assert head.split() == ["Limit", "Peak", "Extra", "work", "Waits", "Time"]
    found = json.loads(path.read_text())
    slowest = max(found["rungs"], key=lambda rung: rung["seconds"])
    assert slowest["recompute_seconds"] == 0 < slowest["stall_seconds"]
    rows = [line for line in lines if "%" in line and "iB" in line]
    bars = [line.count("█") for line in rows]
    delays = [rung["seconds"] / found["share_seconds"] - 1 for rung in found["rungs"]]
    assert bars == [round(20 * max(0, each) / max(delays)) for each in delays]
    waits = f"{slowest['stall_seconds'] / slowest['seconds']:.1%}"
    assert waits in rows[found["rungs"].index(slowest)].split()


def test_a_ladder_is_run(tmp_path, capsys):
    path = tmp_path / "ladder.json"
    assert main([*LADDER, "--run", "--steps", "1", "--output", str(path)]) == 0
    rows = capsys.readouterr().out.splitlines()
    head = [
        each for each in README.read_text().splitlines() if each.startswith("| Limit")
    ]
    assert [rows[3].split()] == [each.replace("|", "").split() for each in head]
    ladder = json.loads(path.read_text())
    assert ladder["environment"]["kernels"] == config.logical_device().kernels.name
    for rung in ladder["rungs"]:
        assert rung["measured"]["peak_bytes"] == rung["peak_bytes"]
        assert rung["measured"]["seconds"] > 0


@pytest.mark.parametrize("shape", ["[32,32,1]", "(32, 32, 1)", "32,32,1"])
def test_tuples_and_words_are_set(capsys, shape):
    words = ["plan", "unet", "--batch", "1", "--method", "share"]
    words += ["--set", f"input_shape={shape}", "--set", "padding=same"]
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("Plan of 'unet, train, batch 1'")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--batch", "2"], "give either a network or --graph"),
        (["lenet5", "--graph", "g.json"], "give either a network or --graph"),
        (["--graph", "g.json", "--run"], "need a network"),
        (["lenet5", "--steps", "2"], "--steps needs --run"),
        (["lenet5", "--time-limit", "2"], "--time-limit needs --method auto"),
        (["lenet5", "--ladder", "--limit", "1MiB"], "leave out --limit"),
        (["lenet5", "--output", "x.json"], "--output needs --ladder"),
        (["lenet5", "--ladder", "--output", "x.png"], "to a .svg or .json"),
        (["lenet5", "--batch", "0"], "--batch"),
        (["lenet5", "--set", "depth"], "NAME=VALUE"),
        (["lenet5", "--set", "depth=2"], "depth"),
        (["resnet"], "resnet needs an argument: --set depth=20"),
        (["resnet", "--set", "dept=20"], "did you mean 'depth'"),
        (["unet", "--set", "padding=some"], "padding"),
        (["unet", "--set", "input_shape=wide"], "a shape must be a tuple"),
        (["resnet", "--set", "depth=7"], "depth"),
        (["lenet5", "--limit", "120%"], "at most 100%"),
        (["lenet5", "--limit", "0%"], "'0%' is not a positive size"),
        (["lenet6"], "did you mean 'lenet5'?"),
        (["nothing"], "known: alexnet, bert_encoder, "),
        (["lenet5", "--method", "shere"], "did you mean 'share'?"),
        (["lenet5", "--metod", "share"], "did you mean '--method'?"),
        (["lenet5", "--metod=share"], "unknown option '--metod'"),
        (["lenet5", "--times", "measure"], "did you mean 'measured'?"),
        (["lenet5", "--set", "name={1,2}"], "name={1,2}: a value is a number, a word"),
        (["lenet5", "--set", "name=(1, b'2')"], "a value is a number, a word"),
    ],
)
def test_wrong_words_are_one_line(capsys, words, told):
    with pytest.raises(SystemExit, match="2"):
        main(["plan", *words])
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("memcfg: error: ")
    assert err.count("\n") == 1
    assert told in err


def test_where_methods_swap_to_and_how_fast(tmp_path, capsys):
    words = ["plan", "lenet5", "--batch", "32", "--method", "vdnn_all"]
    path = str(tmp_path / "plan.json")

    def stall(*more):
        config.reset()
        assert main([*words, *more]) == 0
        (line,) = (
            line for line in capsys.readouterr().out.splitlines() if "stall" in line
        )
        number, unit = line.split()[1:3]
        return float(number) * {"ms": 1e-3, "s": 1}[unit]

    assert stall("--lane-bandwidth", "1MB") > 100 * stall() >= 0
    config.reset()
    assert main([*words, "--spill-to", str(tmp_path), "--output", path]) == 0
    tiers = {
        row[2]
        for row in json.loads(Path(path).read_text())["actions"]
        if row[0] == "swap_out"
    }
    assert tiers == {"file"}
    config.reset()
    graph = str(tmp_path / "graph.json")
    Path(graph).write_text(zoo_step("lenet5", 32).to_json())
    config.reset()
    more = ["--graph", graph, "--method", "vdnn_all", "--spill-limit", "1KiB"]
    assert main(["plan", *more]) == 2
    assert "on 'host', whose limit is 1024 B" in capsys.readouterr().err


def test_methods_swap_to_one_place_after_the_other(tmp_path, capsys):
    words = ["plan", "lenet5", "--batch", "256", "--method", "vdnn_all"]
    places = ["--spill-to", "host", "--spill-to", str(tmp_path)]
    limits = ["--spill-limit", "1MiB", "--spill-limit", "none"]
    rates = ["--lane-bandwidth", "none", "--lane-bandwidth", "100MB/s"]
    path = tmp_path / "plan.json"
    more = [*places, *limits, *rates]
    assert main([*words, *more, "--output", str(path)]) == 0
    told = capsys.readouterr().out
    plan = Plan.from_json(path.read_text())
    graph = zoo_step("lenet5", 256)
    assert [(tier.name, tier.limit_bytes) for tier in graph.tiers] == [
        ("host", 2**20),
        ("file", None),
    ]
    assert [tier.bytes_per_second for tier in graph.tiers] == [5e9, 1e8]
    there = bytes_by_tier(graph, plan)
    assert 0 < there["host"] <= 2**20 < there["file"]
    for tier, nbytes in there.items():
        assert f"({nbytes} B)" in next(
            line for line in told.splitlines() if f"on {tier}" in line
        )
    config.reset()
    with pytest.raises(SystemExit):
        main([*words, *places, "--spill-limit", "1MiB"])
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.endswith(
        "--spill-limit has 1 value, but --spill-to has 2: give one for each place, "
        "even if it is none"
    )


def test_a_table_has_bytes_by_tier(tmp_path, capsys, monkeypatch):
    methods = {name: POLICIES[name] for name in ("share", "layrub_migration")}
    set_methods(monkeypatch, methods)
    words = ["plan", "lenet5", "--batch", "256", "--limit", "90%"]
    words += ["--spill-to", "host", "--spill-limit", "1MiB"]
    folders = [tmp_path / name for name in ("near", "far")]

    def asked():
        graph = zoo_step("lenet5", 256)
        return graph, int(Fraction(9, 10) * share()(graph).peak_bytes)

    def table(*more):
        config.reset()
        assert main([*words, *more]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= 80
        (at,) = (n for n, line in enumerate(lines) if line.split()[:1] == ["Method"])
        return lines[at].split(), lines[at + 2].split()

    for folder in folders:
        folder.mkdir()
    head, row = table("--spill-to", str(folders[0]), "--spill-limit", "none")
    assert head == ["Method", "Peak", "Time", "On", "host", "On", "file"]
    assert row[0] == "layrub_migration"
    policy = methods["layrub_migration"]()
    there = policy(*asked()).summary.by_tier
    assert [*there] == ["host", "file"]
    assert row[-4:] == [
        word for n in there.values() for word in format_bytes(n).split()
    ]
    several = [word for folder in folders for word in ("--spill-to", str(folder))]
    limits = ["--spill-limit", "1MiB", "--spill-limit", "none"]
    head, other = table(*several, *limits)
    assert head == ["Method", "Peak", "Time", "On", "host", "On", "others"]
    assert other[-4:] == row[-4:]


def test_a_place_to_swap_to_must_be_there(capsys):
    with pytest.raises(SystemExit):
        main(["plan", "lenet5", "--spill-to", "/no/such/folder"])
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.endswith(
        "--spill-to: there is no folder '/no/such/folder'; for the host's "
        "memory, write 'host'"
    )


def test_a_bandwidth_is_of_a_second(capsys):
    rows = []
    for rate in ("500MB", "500MB/s"):
        config.reset()
        more = ["--method", "vdnn_all", "--output", "-"]
        assert main(["plan", "lenet5", *more, "--lane-bandwidth", rate]) == 0
        told = capsys.readouterr().out
        rows.append(Plan.from_json(told).elapsed_seconds)
    assert rows[0] == rows[1]
    with pytest.raises(SystemExit):
        main(["plan", "lenet5", "--lane-bandwidth", "500MBps"])
    assert "error: --lane-bandwidth: cannot read" in capsys.readouterr().err


def test_a_limit_without_a_unit_is_told_where_it_is_small(capsys):
    assert main(["plan", "lenet5", "--method", "share", "--limit", "60"]) == 1
    told = capsys.readouterr().err.splitlines()
    assert told[0] == (
        "memcfg: --limit 60 is 60 bytes: write '60MiB' if MiB are meant, or '60B'"
    )
    assert len(told) == 2
    for limit in ("60B", str(2**20), "60%"):
        main(["plan", "lenet5", "--method", "share", "--limit", limit])
        assert "MiB are meant" not in capsys.readouterr().err


def test_a_number_is_bytes_of_every_size(tmp_path, capsys):
    words = ["plan", "lenet5", "--batch", "256", "--method", "vdnn_all"]
    places = ["--spill-to", "host", "--spill-to", str(tmp_path)]

    def found(*more):
        config.reset()
        assert main([*words, *places, "--output", "-", *more]) == 0
        out, err = capsys.readouterr()
        return Plan.from_json(out), err

    def spilled(host, rate):
        limits = ["--spill-limit", host, "--spill-limit", "none"]
        return found(*limits, "--lane-bandwidth", rate, "--lane-bandwidth", "none")

    bare, told = spilled(str(2**20), str(10**8))
    assert told == ""
    exact, _ = spilled("1MiB", "100MB")
    assert bare.actions == exact.actions
    assert bare.elapsed_seconds == exact.elapsed_seconds
    _, told = spilled("64", "1GB")
    hint = "write '64MiB' if MiB are meant, or '64B'\n"
    assert told == f"memcfg: --spill-limit 64 is 64 bytes: {hint}"


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--limit", "-5%", "--limit: cannot read '-5%' as a size"),
        ("--limit", "-5", "--limit: cannot read '-5' as a size"),
        ("--spill-limit", "-1", "--spill-limit: cannot read '-1' as a size"),
        ("--lane-bandwidth", "-2GB", "--lane-bandwidth: cannot read '-2GB' as a size"),
        ("--lane-bandwidth", "0", "--lane-bandwidth must be positive, not '0B'"),
        ("--batch", "-2", "must be a positive integer, not -2"),
        ("--limit", "--batch", "--limit: expected one argument"),
    ],
)
def test_a_value_below_zero_is_told_as_one(capsys, option, value, told):
    with pytest.raises(SystemExit, match="2"):
        main(["plan", "lenet5", option, value])
    assert told in capsys.readouterr().err


def test_a_terminal_gets_lines_that_fit(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["plan", "lenet5", "--method", "share", "--limit", "60B"]) == 1
    told = capsys.readouterr().err.splitlines()
    assert len(told) > 2
    assert max(map(len, told)) <= 80
    assert told[0].startswith("memcfg: error: share cannot plan")


def test_checkmate_does_not_name_what_refuses_too(capsys):
    assert main(["plan", "resnet50", "--batch", "1", "--method", "checkmate"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "Plan with checkmate(granularity='layer') or auto()." in told


@pytest.fixture
def own_file(tmp_path):
    layers = [mc.nn.Input((16,)), *(mc.nn.Dense(64, "relu") for _ in range(6))]
    model = mc.nn.Sequential([*layers, mc.nn.Dense(3)], name="own")
    path = tmp_path / "own.memcfg"
    model.compile("adam", mc.nn.SparseCategoricalCrossentropy(from_logits=True))
    model.save(path)
    graph = model.graph(8)
    model.close()
    return path, graph


def test_a_model_in_a_file_is_planned(own_file, capsys):
    path, graph = own_file
    words = ["plan", str(path), "--batch", "8"]
    assert main([*words, "--method", "share", "--output", "-"]) == 0
    plan = Plan.from_json(capsys.readouterr().out)
    validate(graph, plan)
    assert plan.peak_bytes == share()(graph).peak_bytes
    assert main([*words, "--ladder", "--method", "sqrt_checkpoint"]) == 0
    assert "The smallest limit is" in capsys.readouterr().out
    for wrong in (["--run"], ["--set", "a=1"], ["--times", "nominal"]):
        with pytest.raises(SystemExit):
            main([*words, *wrong])
        assert "cannot be used with a model file" in capsys.readouterr().err


def test_a_file_of_a_model_that_was_not_compiled(tmp_path, capsys):
    model = mc.nn.Sequential([mc.nn.Input((4,)), mc.nn.Dense(2)])
    model.save(tmp_path / "plain.memcfg")
    with pytest.raises(SystemExit):
        main(["plan", str(tmp_path / "plain.memcfg")])
    assert "compile" in capsys.readouterr().err
    assert main(["plan", str(tmp_path / "none.memcfg")]) == 2
    assert "none.memcfg: No such file" in capsys.readouterr().err


@pytest.mark.parametrize("limit", [None, "100%"])
def test_rows_are_sorted_and_the_best_is_marked(own_file, capsys, limit, monkeypatch):
    few = ("keep_all", "sqrt_checkpoint", "share", "auto", "gist_fp8")
    set_methods(monkeypatch, few)
    path, graph = own_file
    words = ["plan", str(path), "--batch", "8"]
    main(words if limit is None else [*words, "--limit", limit])
    out = capsys.readouterr().out
    names = re.findall(r"^ (\w+)( \*)? +[\d.]+ [KM]?i?B ", out, re.MULTILINE)
    size = None if limit is None else share()(graph).peak_bytes
    ranks = {}
    for name in few:
        with suppress(InfeasiblePlanError):
            plan = NAMED_POLICIES[name]()(graph, size)
            numbers = (plan.elapsed_seconds, plan.peak_bytes)
            ranks[name] = (numbers if size else numbers[::-1], bool(plan.lossy))
    assert [ranks[name][0] for name, _ in names] == sorted(r for r, _ in ranks.values())
    best = min(rank for rank, lossy in ranks.values() if not lossy)
    assert {name for name, mark in names if mark} == {
        name for name, (rank, lossy) in ranks.items() if rank == best and not lossy
    }
    assert ("* the least time" if size else "* the smallest peak") in out
