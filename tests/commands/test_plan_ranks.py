"""``memcfg plan NETWORK --ranks``."""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys

import pytest

from memcfg import models, nn
from memcfg.cli import main
from memcfg.parallel import estimate

GPT3 = {"layers": 96, "hidden": 12_288, "heads": 96, "sequence_length": 2048}
SETTINGS = [word for k, v in GPT3.items() for word in ("--set", f"{k}={v}")]


def run(capsys, *arguments):
    code = main(["plan", *arguments])
    return code, capsys.readouterr().out


def lenet():
    model = models.lenet5()
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    return model


def test_each_way_to_divide_has_a_row_within_eighty_columns(capsys):
    options = ["--ranks", "8", "--optimizer", "adam", "--profile", "h100"]
    options += ["--link", "25GB", "--latency", "5us", "--device-memory", "600KiB"]
    code, out = run(capsys, "lenet5", *options)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    found = estimate(
        lenet(), 8, 32, "600KiB", link="25GB/s", latency=5e-6, profile="h100"
    )
    assert out == f"{found}\n"
    assert "on 8 ranks, 600.00 KiB each" in out
    assert "none: weights and optimizer state alone take 741120 B" in out
    assert [line for line in out.splitlines() if " *" in line]


def test_one_way_as_json(capsys, tmp_path):
    arguments = ["lenet5", "--ranks", "4", "--shard", "parameters", "--batch", "40"]
    arguments += ["--optimizer", "adam", "--method", "share"]
    code, out = run(capsys, *arguments, "--output", "-")
    assert code == 0
    table = json.loads(out)
    found = estimate(lenet(), 4, 40, shard="parameters", policy="share")
    assert table == json.loads(json.dumps(found.to_dict()))
    assert [row["method"] for row in table["rows"]] == ["share"]
    code, out = run(capsys, *arguments, "--output", str(tmp_path / "found.json"))
    assert json.loads((tmp_path / "found.json").read_text()) == table
    assert "parameters" in out


def test_each_way_is_planned_by_default_and_as_auto(capsys):
    words = ["lenet5", "--ranks", "2", "--batch", "2", "--device-memory", "1KiB"]
    _, wanted = run(capsys, *words)
    _, found = run(capsys, *words, "--shard", "auto")
    assert found == wanted
    assert "parameters" in found


def test_a_batch_has_a_sample_for_each_rank(capsys):
    code, out = run(capsys, "lenet5", "--ranks", "100", "--shard", "none")
    assert code == 0
    assert "Samples: 100, up to 1 a rank" in out


def test_a_network_with_batch_normalization_and_one_that_never_fits(capsys):
    code, _ = run(capsys, "resnet", "--set", "depth=20", "--ranks", "2", "--batch", "4")
    assert code == 0
    code, out = run(capsys, "lenet5", "--ranks", "2", "--limit", "64KiB")
    assert code == 1
    assert out.count("alone take") == 4


@pytest.mark.parametrize(
    "arguments",
    [
        ["lenet5", "--shard", "parameters"],
        ["lenet5", "--link", "25GB"],
        ["lenet5", "--ranks", "1"],
        ["lenet5", "--ranks", "2", "--shard", "weights"],
        ["lenet5", "--ranks", "2", "--link", "fast"],
        ["lenet5", "--ranks", "2", "--latency", "-5us"],
        ["lenet5", "--ranks", "2", "--limit", "50%"],
        ["lenet5", "--ranks", "2", "--ladder"],
        ["lenet5", "--ranks", "2", "--run"],
        ["lenet5", "--ranks", "2", "--largest-batch", "--limit", "1MiB"],
        ["--graph", "g.json", "--ranks", "2"],
    ],
)
def test_options_that_do_not_go_together_are_refused(capsys, arguments):
    with pytest.raises(SystemExit) as stopped:
        main(["plan", *arguments])
    assert stopped.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.slow
def test_a_network_of_175_billion_weights_takes_500_megabytes():
    """GPT-3 with Adam, whose state is 1.9 TiB, on 64 devices of 80 GiB."""
    arguments = ["gpt", *SETTINGS, "--optimizer", "adam", "--ranks", "64"]
    arguments += ["--link", "25GB", "--device-memory", "80GiB", "--output", "-"]
    done = subprocess.run(
        [sys.executable, "-m", "memcfg", "plan", *arguments],
        capture_output=True,
        check=True,
        text=True,
    )
    rows = {row["shard"]: row for row in json.loads(done.stdout)["rows"]}
    sizes = [math.prod(each.shape) for each in models.gpt(**GPT3).weights]
    weights = 4 * sum(sizes)
    assert weights == 698_417_037_312
    assert rows[None]["state_bytes"] == 3 * weights
    assert rows["parameters"]["state_bytes"] == pytest.approx(3 * weights / 64, 1e-6)
    assert rows["parameters"]["peak_bytes"] <= 80 << 30
    assert [shard for shard, row in rows.items() if row["peak_bytes"]] == ["parameters"]
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
    assert most < 500_000_000
