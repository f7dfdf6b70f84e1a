"""``memcfg timeline``: pictures of steps within limits."""

from __future__ import annotations

import json
import re

import pytest
from training_graphs import chain

from memcfg import nn
from memcfg.cli import main
from memcfg.plan import share
from memcfg.units import format_bytes


@pytest.fixture
def graph(tmp_path):
    path = tmp_path / "g.json"
    path.write_text(chain(30, reads="both").to_json())
    return str(path)


def data_of(path):
    found = re.search(r'id="data">(.*?)</script>', path.read_text(encoding="utf-8"))
    return json.loads(found[1])


def failure(capsys, *arguments):
    try:
        status = main(["timeline", *arguments])
    except SystemExit as end:
        status = end.code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("memcfg: error: ")
    return status, err


def test_a_network_within_a_limit_becomes_a_page(tmp_path, capsys):
    page = tmp_path / "step.html"
    arguments = ["timeline", "lenet5", "--batch", "8", "--output", str(page)]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    data = data_of(page)
    assert f"peak {format_bytes(data['peak'])}" in out
    assert out.rstrip().endswith(f"written to {page}")
    ends = map(sum, zip(data["boxes"]["offset"], data["boxes"]["bytes"], strict=True))
    assert max(ends) == data["peak"]
    assert any("memcfg/models/" in line for line in data["text"])
    assert data["measuredPeak"] is None


def test_a_step_that_runs_has_a_measured_peak(tmp_path, capsys):
    page = tmp_path / "step.html"
    arguments = ["lenet5", "--batch", "8", "--limit", "2MiB", "--run"]
    assert main(["timeline", *arguments, "--output", str(page)]) == 0
    data = data_of(page)
    assert data["measuredPeak"] == data["peak"] <= data["limit"] == 2 * 2**20
    assert len(data["clocks"]["measured"]) == len(data["clocks"]["planned"])


def test_a_graph_and_its_plan_are_drawn_as_text(graph, tmp_path, capsys):
    plan = tmp_path / "plan.json"
    plan.write_text(share()(chain(30, reads="both")).to_json())
    assert main(["timeline", "--graph", graph, "--plan", str(plan)]) == 0
    given = capsys.readouterr().out
    assert given.startswith("Memory of 'chain of 30'")
    assert main(["timeline", "--graph", graph, "--method", "share"]) == 0
    assert capsys.readouterr().out == given
    assert main(["timeline", "--graph", graph, "--limit", "70%"]) == 0
    assert capsys.readouterr().out != given


def test_a_model_file_is_drawn(tmp_path, capsys):
    model = nn.Sequential([nn.Input((8,)), nn.Dense(16), nn.Dense(4)])
    model.compile("adam", "mse")
    model.save(tmp_path / "own.memcfg")
    output = tmp_path / "step.json"
    own = str(tmp_path / "own.memcfg")
    assert main(["timeline", own, "--output", str(output)]) == 0
    assert json.loads(output.read_text())["traceEvents"]
    capsys.readouterr()
    assert failure(capsys, own, "--run")[0] == 2
    (tmp_path / "own.mcz").write_bytes(b"")
    status, err = failure(capsys, str(tmp_path / "own.mcz"))
    assert status == 2
    assert "own.mcz' is neither a network nor a model file" in " ".join(err.split())
    assert "lenet5" not in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either a network or --graph"),
        (["lenet5", "--output", "step.gif"], "does not end in .html"),
        (["lenet5", "--plan", "p.json"], "--plan needs --graph"),
        (["--graph", "g.json", "--run"], "need a network"),
        (["--graph", "g", "--plan", "p", "--limit", "1MiB"], "leave out --limit"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(capsys, arguments, message):
    status, err = failure(capsys, *arguments)
    assert status == 2
    assert message in err
