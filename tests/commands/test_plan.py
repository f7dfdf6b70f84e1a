from __future__ import annotations

from pathlib import Path

import pytest
from training_graphs import chain, random_step

from memcfg import config, nn
from memcfg.cli import main
from memcfg.graph import Graph
from memcfg.plan import (
    POLICIES,
    Plan,
    auto,
    look_ahead,
    share,
    validate,
)


@pytest.fixture
def graph(tmp_path) -> str:
    path = tmp_path / "g.json"
    path.write_text(chain(30, reads="both").to_json())
    return str(path)


def failure(capsys, *arguments: str) -> tuple[int, str]:
    """Run a command that fails: its status and its one line."""
    try:
        status = main(arguments)
    except SystemExit as end:
        status = end.code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("memcfg: error: ")
    assert err.count("\n") == 1
    return status, err


THROUGH_TIME = [name for name in POLICIES if name.startswith("bptt")]
SMALL = {"checkmate", "retention_intervals"}  # refuse a graph of so many ops


@pytest.mark.parametrize("method", sorted(POLICIES.keys() - THROUGH_TIME - SMALL))
def test_a_graph_from_a_file_is_planned(graph, tmp_path, capsys, method):
    output = tmp_path / "plan.json"
    assert (
        main(["plan", "--graph", graph, "--method", method, "--output", str(output)])
        == 0
    )
    plan = Plan.from_json(output.read_text())
    validate(chain(30, reads="both"), plan)
    assert plan.method == ("share" if method.startswith("auto") else method)
    text = capsys.readouterr().out
    assert f"{plan.peak_bytes} B" in text
    assert text.startswith("Plan of 'chain of 30'")


def test_the_search_of_all_schedules_is_a_method(tmp_path, capsys):
    path = tmp_path / "small.json"
    path.write_text(random_step(3, 3).to_json())
    assert main(["plan", "--graph", str(path), "--method", "exact"]) == 0
    assert " by exact\n" in capsys.readouterr().out


def test_a_time_limit_ends_the_search(graph, capsys):
    limit = share()(chain(30, reads="both")).peak_bytes - 64
    words = ["plan", "--graph", graph, "--limit", str(limit)]
    assert main([*words, "--time-limit", "3600"]) == 0
    assert ", chosen by auto" in capsys.readouterr().out.splitlines()[0]
    # what cheap methods have is found in any time
    assert main([*words, "--time-limit", "1e-9"]) == 0
    assert ", chosen by auto" in capsys.readouterr().out.splitlines()[0]
    words[-1] = str(look_ahead()(chain(30, reads="both")).peak_bytes)
    assert main(words) == 0
    capsys.readouterr()
    status, told = failure(capsys, *words, "--time-limit", "1e-9")
    assert status == 1
    assert "ended before a plan within" in told


def test_a_terminal_shows_which_method_is_at_work(graph, capsys, monkeypatch):
    assert main(["plan", "--graph", graph]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, for `rich`
    assert main(["plan", "--graph", graph]) == 0
    again = capsys.readouterr()
    assert again.out == out
    assert "planning" in again.err


@pytest.mark.parametrize("method", THROUGH_TIME)
def test_a_method_for_unrolled_nets_refuses_a_chain(graph, capsys, method):
    status, error = failure(capsys, "plan", "--graph", graph, "--method", method)
    assert status == 2
    assert "no repeated cells" in error


def test_a_plan_goes_to_standard_output_alone(graph, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "--graph", graph, "--output", "-"]) == 0
    assert Plan.from_json(capsys.readouterr().out) == auto()(chain(30, reads="both"))
    assert not Path("-").exists()


def test_without_an_output_the_plan_is_printed(graph, capsys):
    assert main(["plan", "--graph", graph]) == 0
    assert "share, chosen by auto" in capsys.readouterr().out


@pytest.mark.parametrize("limit", ["1280", "1280B", "1.25KiB"])
def test_limits_are_bytes_or_carry_a_unit(graph, tmp_path, limit):
    output = tmp_path / "plan.json"
    arguments = ["plan", "--graph", graph, "--limit", limit, "--output", str(output)]
    assert main(arguments) == 0
    plan = Plan.from_json(output.read_text())
    assert plan.limit_bytes == 1280
    assert plan == auto()(chain(30, reads="both"), 1280)


def test_a_limit_that_cannot_be_met_ends_with_1(graph, tmp_path, capsys):
    output = tmp_path / "plan.json"
    least = look_ahead()(chain(30, reads="both")).peak_bytes
    status, line = failure(
        capsys,
        "plan",
        "--graph",
        graph,
        "--limit",
        str(least - 1),
        "--output",
        str(output),
    )
    assert status == 1
    assert f"The smallest limit that would do is {least} B" in line
    assert not output.exists()


def test_foreign_graphs_are_planned(tmp_path, capsys):
    for seed in range(5):
        path = tmp_path / f"{seed}.json"
        path.write_text(random_step(seed).to_json())
        assert main(["plan", "--graph", str(path)]) == 0
        again = Graph.from_json(path.read_text())
        assert share()(again) == share()(random_step(seed))
    assert "Plan of 'random 4'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not JSON"),
        (b"{", "line 1 column 2"),
        (b"\xff\xfe", "not UTF-8 text"),
        (b'{"format": "memcfg.graph/2"}', "memcfg.graph/2"),
        (b'{"format": "memcfg.plan/1"}', "memcfg.plan/1"),
        (b"[" * 100_000, "nested too deeply"),
        (chain(2).to_json().replace("64", "9" * 5000, 1).encode(), "too many digits"),
        (chain(2).to_json().replace("1.0", "1e308").encode(), "overflows"),
        (chain(2).to_json().replace("chain", "\\ud800").encode(), "not Unicode text"),
        (chain(2).to_json().replace('"keep": [', '"keep": [99, ').encode(), "99"),
    ],
)
def test_files_that_are_no_graph_end_with_2(tmp_path, capsys, content, words):
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    status, line = failure(capsys, "plan", "--graph", str(path))
    assert status == 2
    assert words in line
    assert str(path) in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan"], "--graph"),
        (["plan", "--graph", "g", "--limit", "4"], "No such file"),
        (["plan", "--graph", "g", "--limit", "0"], "positive"),
        (["plan", "--graph", "g", "--limit", "\N{ARABIC-INDIC DIGIT FOUR}"], "size"),
        (["plan", "--graph", "g", "--limit", "9" * 19], "below 2**63"),
        (["plan", "--graph", "g", "--limit", "many"], "cannot read 'many' as a size"),
        (["plan", "--graph", "g", "--limit", "0.5B"], "whole number"),
        (
            ["plan", "--graph", "g", "--method", "magic"],
            "unknown method 'magic'",
        ),
        (["plan", "--graph", "."], "Is a directory"),
        (["fly"], "unknown command 'fly'; known: plan, "),
        (["plam"], "unknown command 'plam': did you mean 'plan'?"),
        (["judge", "g", "p", "--graf"], "unknown option '--graf'; known: --help"),
    ],
)
def test_wrong_arguments_are_one_line(capsys, monkeypatch, tmp_path, arguments, words):
    monkeypatch.chdir(tmp_path)
    status, line = failure(capsys, *arguments)
    assert status == 2
    assert words in line


def test_an_output_that_cannot_be_written_leaves_nothing(graph, tmp_path, capsys):
    path = tmp_path / "no" / "p.json"
    status, line = failure(capsys, "plan", "--graph", graph, "--output", str(path))
    assert (status, line) == (2, f"memcfg: error: {path}: No such file or directory\n")


def test_an_output_is_replaced_whole(graph, tmp_path, monkeypatch, capsys):
    output = tmp_path / "plan.json"
    output.write_text("before")
    output.chmod(0o640)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        status, line = failure(
            capsys, "plan", "--graph", graph, "--output", str(output)
        )
    assert f"{output}: No space left on device" in line
    assert status == 2
    assert output.read_text() == "before"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["g.json", "plan.json"]
    assert main(["plan", "--graph", graph, "--output", str(output)]) == 0
    assert Plan.from_json(output.read_text()).method == "share"
    assert output.stat().st_mode & 0o777 == 0o640


def test_the_policies_are_named_in_one_table():
    assert [*POLICIES][:3] == ["auto", "keep_all", "share"]
    assert {"replay_elementwise", "sqrt_checkpoint"} < {*POLICIES}
    assert {name: make().name for name, make in POLICIES.items()} == {
        name: name for name in POLICIES
    }


def a_model(**options) -> nn.Model:
    layers = [nn.Input((20,)), nn.Dense(30, activation="relu"), nn.Dense(3)]
    model = nn.Sequential(layers)
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(0.1), loss, **options)
    return model


@pytest.mark.parametrize("limit", [None, "64KiB", 1024])
def test_the_graph_of_a_model_is_planned_as_the_model_plans_it(
    tmp_path, capsys, cpu, limit
):
    if limit is not None:
        config.set_memory_limit(cpu, f"{limit}B" if limit == 1024 else limit)
    model = a_model()
    graph = model.graph(64)
    assert graph == model.graph(64)
    path, output = tmp_path / "g.json", tmp_path / "p.json"
    path.write_text(graph.to_json())
    assert main(["plan", "--graph", str(path), "--output", str(output)]) == 0
    config.set_memory_limit(cpu, None)
    assert Plan.from_json(output.read_text()).peak_bytes == model.plan(64).peak_bytes
    assert main(["judge", str(path), str(output)]) == 0
    assert config.get_memory_usage(cpu) == 0


def test_a_graph_is_there_in_every_workspace_mode():
    model = a_model(training_workspace_mode="none")
    assert {op.phase for op in model.graph(8).ops} == {"forward", "backward", "update"}


def test_a_graph_needs_a_compiled_model():
    with pytest.raises(RuntimeError, match="graph needs a compiled model"):
        nn.Sequential([nn.Input((2,)), nn.Dense(1)]).graph()
