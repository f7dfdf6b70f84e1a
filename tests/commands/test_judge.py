from __future__ import annotations

import json

import pytest
from training_graphs import chain

from memcfg.cli import main
from memcfg.plan import share, sqrt_checkpoint


@pytest.fixture
def files(tmp_path):
    graph, plan = tmp_path / "g.json", tmp_path / "p.json"
    graph.write_text(chain(20).to_json())
    plan.write_text(sqrt_checkpoint()(chain(20)).to_json())
    return graph, plan


def test_a_right_plan_ends_with_0(files, capsys):
    assert main(["judge", *map(str, files)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("valid: sqrt_checkpoint plans 'chain of 20'\n")
    assert "limit        none" in out
    assert "  peak         512 B\n" in out
    unchecked = [line for line in out.splitlines() if "not checked" in line]
    assert [line.split()[2] for line in unchecked] == [
        "lower_bound_bytes",
        "planning_seconds",
        "optimality_gap",
    ]


def test_an_invalid_plan_ends_with_1_and_every_violation(files, capsys):
    graph, plan = files
    document = json.loads(plan.read_text())
    document["predicted"]["peak_bytes"] -= 1
    document["limit_bytes"] = 64
    plan.write_text(json.dumps(document))
    assert main(["judge", str(graph), str(plan)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "invalid: 2 violations"
    assert "claimed" in lines[1]
    assert "above the limit of 64 B" in lines[2]


def test_a_codec_is_not_checked(files, capsys):
    graph, plan = files
    document = json.loads(plan.read_text())
    end = document["predicted"]["peak_bytes"]
    document["predicted"] |= {"peak_bytes": end + 64, "seconds": 0}
    document["predicted"]["recompute_seconds"] = 0
    document["actions"].append(["encode", json.loads(graph.read_text())["keep"][0]])
    document["actions"][-1] += ["float8", 8, end]
    plan.write_text(json.dumps(document))
    assert main(["judge", str(graph), str(plan)]) == 0
    assert "  not checked  codec 'float8' (unknown: " in capsys.readouterr().out
    document["actions"][-1][3] = 0
    plan.write_text(json.dumps(document))
    assert main(["judge", str(graph), str(plan)]) == 1
    assert "of 64 B is encoded in 0 B" in capsys.readouterr().out


def test_a_plan_of_another_graph_is_invalid(files, capsys):
    graph, plan = files
    plan.write_text(share()(chain(21)).to_json())
    assert main(["judge", str(graph), str(plan)]) == 1
    assert "the plan is for 'chain of 21'" in capsys.readouterr().out


@pytest.mark.parametrize("swap", [False, True])
def test_files_of_the_wrong_kind_end_with_2(files, capsys, swap):
    graph, plan = files
    arguments = [str(plan), str(graph)] if swap else [str(graph), "nowhere.json"]
    assert main(["judge", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("memcfg: error: ")
    assert err.count("\n") == 1
    assert ("memcfg.plan/1" if swap else "nowhere.json: No such file") in err
