"""``memcfg compare``: every method on several networks at several budgets."""

from __future__ import annotations

import csv
import json
import math
import re
from dataclasses import replace
from fractions import Fraction
from functools import cache
from xml.etree import ElementTree

import pytest
from internals import note_cells, set_cases
from networks import zoo_step
from recurrent_graphs import unrolled

from memcfg import config, plan
from memcfg.cli import main
from memcfg.errors import InfeasiblePlanError
from memcfg.graph import Tier
from memcfg.plan import NAMED_POLICIES, POLICIES, share, simulate

SMALL = {
    "resnet": (4, {"depth": 8}),
    "lstm_lm": (8, {"vocabulary_size": 50, "units": 32}),
}
TINY = {name: (8, {}) for name in ("lenet5", "lenet_300_100")}
RATES = {"unlimited": math.inf, "8000000000.0": 8e9, "2000000000.0": 2e9}
SLOW = {"checkmate", "checkmate_lp", "retention_intervals", "exact"}


@cache
def graph_of(name: str):
    """The graph of a network above, or of one unrolled over eight steps."""
    if name == "unrolled":
        return unrolled(8)
    batch, arguments = (SMALL | TINY)[name]
    return zoo_step(name, batch, **arguments)


@pytest.fixture
def small(monkeypatch):
    set_cases(monkeypatch, SMALL)


def compared(tmp_path, *words: str) -> dict:
    path = tmp_path / "found.json"
    assert main(["compare", *words, "--output", str(path)]) == 0
    return json.loads(path.read_text(encoding="utf-8"))


# -- cells ----------------------------------------------------------------------


def by_hand(method: str, network: str, budget: Fraction, rate: float):
    """Plan a cell with the library; return numbers of the simulator, or bytes."""
    graph = graph_of(network)
    base = simulate(graph, share()(graph))
    graph = replace(graph, tiers=(Tier("host", rate, is_stated=True),))
    try:
        found = getattr(plan, method)()(graph, int(budget * base.peak_bytes))
    except InfeasiblePlanError as error:
        return error.smallest_limit_bytes
    told = simulate(graph, found, {"host": rate})
    return (
        told.peak_bytes,
        told.peak_bytes / base.peak_bytes,
        told.elapsed_seconds / base.elapsed_seconds,
        told.moved_bytes,
    )


def test_cells_are_what_the_library_plans(small, tmp_path):
    words = ["--methods", "sqrt_checkpoint,meng_swap,vdnn_all", "--budgets", "75%,40%"]
    found = compared(tmp_path, *words)
    assert [each["letter"] for each in found["networks"]] == ["R", "L"]
    assert len(found["cells"]) == 3 * 2 * 2
    kinds = set()
    for cell in found["cells"]:
        planned_once = cell["method"] == "sqrt_checkpoint"
        rates = [str(at["bandwidth"]) for at in cell["at"]]
        assert rates == (["any"] if planned_once else list(RATES))
        for at in cell["at"]:
            rate = RATES.get(str(at["bandwidth"]), 5e9)
            budget = Fraction(int(cell["budget"].rstrip("%")), 100)
            wanted = by_hand(cell["method"], cell["network"], budget, rate)
            if at["reason"] is not None:
                assert at["needs_bytes"] == wanted
                kinds.add("refused")
            else:
                peak, part, slowdown, moved = wanted
                assert (at["peak_bytes"], at["moved_bytes"]) == (peak, moved)
                assert at["peak"] == part
                assert at["slowdown"] == pytest.approx(slowdown, rel=1e-9)
                kinds.add("moved" if moved else "computed again")
    assert kinds == {"refused", "moved", "computed again"}


def test_methods_swap_to_one_place_after_the_other(small, tmp_path, capsys):
    words = ["--methods", "vdnn_all,meng_swap", "--budgets", "75%"]
    places = ["--spill-to", "host", "--spill-to", str(tmp_path)]
    limits = ["--spill-limit", "100KiB", "--spill-limit", "none"]
    rates = ["--lane-bandwidth", "none", "--lane-bandwidth", "500MB"]
    found = compared(tmp_path, *words, *places, *limits, *rates)
    assert found["tiers"] == [
        {"tier": "host", "limit_bytes": 102400, "bandwidth": None},
        {"tier": "file", "limit_bytes": None, "bandwidth": 5e8},
    ]
    told = " ".join(capsys.readouterr().out.split())
    assert "swapped to host (100.00 KiB), then file (no limit, 0.5 GB/s)." in told
    several = 0
    for cell in found["cells"]:
        graph = graph_of(cell["network"])
        for at in cell["at"]:
            rate = RATES.get(str(at["bandwidth"]))
            tiers = (
                Tier("host", rate, 102400, is_stated=True),
                Tier("file", 5e8, None, is_stated=True),
            )
            tiered = replace(graph, tiers=tiers)
            policy = NAMED_POLICIES[cell["method"]]()
            if at["reason"] is not None:
                with pytest.raises(InfeasiblePlanError):
                    policy(tiered, cell["limit_bytes"])
                continue
            made = policy(tiered, cell["limit_bytes"])
            assert at["seconds"] == pytest.approx(made.elapsed_seconds, rel=1e-9)
            assert at["host_peak_bytes"] == made.predicted.host_peak_bytes
            several += all(made.summary.by_tier.values()) and bool(made.summary.by_tier)
    assert several
    config.reset()
    wrong = ["--lane-bandwidth", "1GB"]
    with pytest.raises(SystemExit):
        main(["compare", *words, *wrong])
    told = "gives the first place each of unlimited, 8GB and 2GB: say --lane-bandwidth"
    assert f"{told} none of it" in capsys.readouterr().err
    few = ["--methods", "share", "--networks", "lenet_300_100"]
    assert main(["compare", *few, "--lane-bandwidth", "none"]) == 0
    with pytest.raises(SystemExit, match="0"):
        main(["compare", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert (
        "the first place has each of unlimited, 8GB and 2GB and takes only none" in told
    )


def test_rows_are_geometric_means_of_planned_cells(small, tmp_path):
    words = ["--methods", "share,rotor,meng_swap", "--budgets", "100%,70%,20%"]
    found = compared(tmp_path, *words)
    for row in found["methods"]:
        own = [cell for cell in found["cells"] if cell["method"] == row["method"]]
        middle = [cell["at"][len(cell["at"]) // 2] for cell in own]
        have = [at for at in middle if at["reason"] is None]
        assert (row["plans"], row["cells"]) == (len(have), 6)
        assert 0 < len(have) < 6

        def mean(key, have=have):
            return math.prod(at[key] for at in have) ** (1 / len(have))

        assert row["peak"] == pytest.approx(mean("peak"))
        assert row["slowdowns"][1] == pytest.approx(mean("slowdown"))
        assert row["planning_seconds"] == pytest.approx(mean("planning_seconds"))
        work = math.prod(1 + at["extra_work"] for at in have) ** (1 / len(have))
        assert row["extra_work"] == pytest.approx(work - 1)
        away = sum(at["host_peak"] for at in have) / len(have)
        assert row["host_peak"] == pytest.approx(away)
        assert (away > 0) == (row["method"] == "meng_swap")
    least = {row["method"]: row["least"] for row in found["methods"]}
    assert least["share"] == 1.0 > least["rotor"]
    assert [row["technique"] for row in found["methods"]] == [
        ["share"],
        ["recompute"],
        ["swap"],
    ]


def test_what_is_trained_touches_what_was_planned(small, tmp_path, capsys):
    words = ["--methods", "meng_swap,chen_sqrt", "--budgets", "75%,10%", "--run", "1"]
    found = compared(tmp_path, *words)
    trained = [cell for cell in found["cells"] if cell["trained"]]
    assert {cell["method"] for cell in trained} == {"meng_swap", "chen_sqrt"}
    for cell in found["cells"]:
        at = cell["at"][len(cell["at"]) // 2]
        assert (cell["trained"] is None) == (at["reason"] is not None)
        if cell["trained"]:
            assert cell["trained"]["peak_bytes"] == at["peak_bytes"]
            assert cell["trained"]["is_as_planned"]
    assert "Trained" in capsys.readouterr().out


def test_what_rounds_is_told(small, tmp_path, capsys):
    methods = ["gist", "gist_fp16", "gist_fp10", "gist_fp8", "actnn"]
    words = ["--methods", ",".join(methods), "--networks", "resnet"]
    words += ["--budgets", "95%", "--output", str(tmp_path / "found.md")]
    found = compared(tmp_path, *words, "--run", "1")
    rows = {row["method"]: row for row in found["methods"]}
    assert [row["lossless"] for row in rows.values()] == [True, *[False] * 4]
    codecs = {cell["method"]: {*cell["at"][0]["lossy"]} for cell in found["cells"]}
    assert codecs["gist"] <= {"mask"}
    for method, codec in zip(
        methods[1:], ("fp16", "fp10", "fp8", "group2"), strict=True
    ):
        assert codec in codecs[method]
    assert all(cell["trained"]["is_as_planned"] for cell in found["cells"])
    told = " ".join(capsys.readouterr().out.split())
    assert told.endswith(
        "Not lossless (weights differ from those of share): gist_fp16 (fp16), "
        "gist_fp10 (fp10), gist_fp8 (fp8), actnn (group2)"
    )
    text = (tmp_path / "found.md").read_text()
    lossless = [line.split(" | ")[4] for line in text.splitlines() if "| `" in line]
    assert lossless == ["yes", "no", "no", "no", "no"]
    assert "differ from those of `share`: `gist_fp16`," in " ".join(text.split())


# -- reports --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tasks", "letters"),
    [(TINY, "LE"), pytest.param(SMALL, "RL", marks=pytest.mark.slow)],
    ids=["tiny", "small"],
)
def test_all_methods_stand_in_80_columns(tasks, letters, capsys, monkeypatch):
    set_cases(monkeypatch, tasks)
    skipped = SLOW if tasks is TINY else SLOW - {"exact"}
    names = [name for name in POLICIES if name not in skipped]
    words = ["compare", "--methods", ",".join(names), "--budgets", "60%"]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)
    for name in names:
        assert any(re.match(rf" {name} ", line) for line in lines), name
    told = " ".join(" ".join(lines).split())
    assert f"bptt_hidden, bptt_internal, bptt_mixed: not {letters}: graph" in told


def test_rows_come_as_methods_are_planned(small, capsys, monkeypatch):
    seen = []
    note_cells(monkeypatch, lambda: seen.append(capsys.readouterr().out))
    words = ["--methods", "share,rotor", "--networks", "resnet", "--budgets", "60%"]
    assert main(["compare", *words]) == 0
    first, second = seen
    assert "share  " not in first.splitlines()[-1]
    assert second.splitlines()[-1].split()[:2] == ["share", "100%"]


def test_four_files_tell_the_same(small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    methods = ["keep_all", "rotor", "meng_swap", "bptt_mixed"]
    words = ["--methods", ",".join(methods), "--budgets", "90%,60%,1%"]
    for kind in ("md", "csv", "svg"):
        words += ["--output", f"found.{kind}"]
    found = compared(tmp_path, *words)

    text = (tmp_path / "found.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert [line.split("`")[1] for line in rows] == methods
    assert len({line.count("|") for line in rows}) == 1
    assert found["environment"]["processor"] in text

    with (tmp_path / "found.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    flat = [(cell, at) for cell in found["cells"] for at in cell["at"]]
    assert len(table) == len(flat)
    for line, (cell, at) in zip(table, flat, strict=True):
        assert (line["method"], line["budget"]) == (cell["method"], cell["budget"])
        assert line["bandwidth"] == str(at["bandwidth"])
        assert line["slowdown"] == str(at.get("slowdown", ""))
        assert line["reason"] == (at["reason"] or "")

    root = ElementTree.parse(tmp_path / "found.svg").getroot()
    space = "{http://www.w3.org/2000/svg}"
    drawn = root.findall(f"{space}g")
    assert len(drawn) == len(found["cells"])
    for each, cell in zip(drawn, found["cells"], strict=True):
        at = cell["at"][len(cell["at"]) // 2]
        title = each.findtext(f"{space}title")
        assert title.startswith(f"{cell['method']}, {cell['network']} at ")
        shown = each.findtext(f"{space}text", "")
        if at["reason"] is None:
            assert shown == f"{at['slowdown']:.2f}"
            continue
        fill = each.find(f"{space}rect").get("fill")
        assert (fill == "url(#none)") == (cell["budget"] == "1%")
        cross = cell["method"] == "bptt_mixed" and cell["budget"] != "1%"
        assert shown == ("×" if cross else "")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--methods shar", "did you mean 'share'"),
        ("--networks resnet,vgg61", "did you mean"),
        ("--budgets 60", "'60' is not a budget such as 60%"),
        ("--budgets 0%", "'0%' is not a budget such as 60%"),
        ("--budgets 120%", "a share is at most 100%"),
        ("--output found.txt", "does not end in one of .md, .csv, .svg, .json"),
        ("--output nowhere/found.md", "there is no folder 'nowhere'"),
        ("--run 0", "must be a positive integer"),
    ],
)
def test_what_cannot_be_asked_is_said(words, told, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["compare", *words.split()])
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def test_a_network_that_needs_an_argument_is_refused(monkeypatch, capsys):
    set_cases(monkeypatch, {})
    with pytest.raises(SystemExit):
        main(["compare", "--networks", "resnet"])
    assert "resnet needs an argument, depth" in capsys.readouterr().err


def test_times_may_be_measured(small, tmp_path):
    words = ("--methods", "share,look_ahead", "--networks", "resnet")
    found = compared(tmp_path, *words, "--times", "measured")
    assert {each["times"] for each in found["networks"]} == {"measured"}
    nominal = compared(tmp_path, *words)
    assert {each["times"] for each in nominal["networks"]} == {"nominal"}
    taken, stated = (each["networks"][0]["share_seconds"] for each in (found, nominal))
    assert taken != stated


def test_a_row_of_dashes_has_its_reason(capsys):
    methods = ("keep_all", "share", "auto", "bptt_mixed")
    words = ["compare", "--networks", "lenet5", "--budgets", "60%,90%"]
    assert main([*words, "--methods", ",".join(methods)]) == 0
    head, _, reasons = capsys.readouterr().out.partition("keep_all: no plan fits")
    dashed = [line.split()[0] for line in head.splitlines() if "–" in line]
    assert dashed == [*methods]
    for method in methods[1:]:
        assert f"\n{method}: " in reasons
    assert "share: no plan fits; L needs 100.0% of the peak of share" in reasons


def test_drawbacks_follow_from_the_cells(small, tmp_path):
    words = ["--methods", "share,rotor,meng_swap,gist_fp8,exact"]
    words += ["--budgets", "100%,70%", "--output", str(tmp_path / "found.md")]
    found = compared(tmp_path, *words)
    lines = (tmp_path / "found.md").read_text().splitlines()
    told = {
        line.split("|")[1].strip(" `"): line.split("|")[-2].strip()
        for line in lines
        if line.startswith("| `")
    }
    middle = {
        (cell["method"], cell["network"], cell["budget"]): cell["at"][
            len(cell["at"]) // 2
        ]
        for cell in found["cells"]
    }
    networks = {each["network"] for each in found["networks"]}
    rows = {row["method"]: row for row in found["methods"]}
    exact = [name for name, row in rows.items() if row["lossless"]]
    for method, row in rows.items():
        own = {key[1:]: at for key, at in middle.items() if key[0] == method}
        alien = [
            name
            for name in networks
            if all(
                at["reason"] and at["needs_bytes"] is None
                for (network, _), at in own.items()
                if network == name
            )
        ]
        assert ("does not take" in told[method]) == bool(alien)
        fits = [
            cell
            for cell in own
            if cell[0] not in alien
            and any(middle[(each, *cell)]["reason"] is None for each in exact)
        ]
        refused = [cell for cell in fits if own[cell]["reason"]]
        if row["least"] and row["least"] < 1 and refused:
            assert f"refuses {len(refused)} of {len(fits)} that" in told[method]
        assert ("not lossless" in told[method]) == (method == "gist_fp8")
    assert told["share"] == "saves nothing beyond `share`"
    assert "on the host" in told["meng_swap"]
