"""``memcfg plan NETWORK --largest-batch``."""

from __future__ import annotations

import re

import numpy as np
import pytest

from memcfg import config, models, nn
from memcfg.cli import main
from memcfg.errors import InfeasiblePlanError


def run(capsys, *arguments):
    code = main(["plan", *arguments])
    return code, capsys.readouterr().out


def test_each_method_has_a_row_and_the_best_is_first(capsys):
    code, out = run(capsys, "lenet_300_100", "--largest-batch", "--limit", "8MiB")
    assert code == 0
    rows = [line.split() for line in out.splitlines() if "ms" in line]
    batches = [int(next(each for each in row[1:] if each.isdigit())) for row in rows]
    assert batches == sorted(batches, reverse=True)
    assert {"auto", "share", "keep_all"} <= {row[0] for row in rows}
    model = models.lenet_300_100()
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(1e-4, momentum=0.9), loss)
    assert model.largest_batch("8MiB") == batches[0]


@pytest.mark.parametrize("program", ["evaluate", "predict"])
def test_a_model_of_a_file_and_inference(capsys, tmp_path, program):
    model = nn.Sequential([nn.Input((64,)), nn.Dense(64), nn.Dense(3)])
    model.compile("sgd", "mse")
    model.save(tmp_path / "own.memcfg")
    arguments = ("--largest-batch", "--limit", "64KiB", "--program", program)
    code, out = run(capsys, str(tmp_path / "own.memcfg"), *arguments)
    assert code == 0
    assert f" {model.largest_batch('64KiB', program=program)} " in out


@pytest.mark.parametrize("program", ["train", "predict"])
def test_where_no_sample_fits_the_smallest_limit_is_named(capsys, tmp_path, program):
    model = nn.Sequential([nn.Input((64,)), nn.Dense(64), nn.Dense(64)])
    model.compile("sgd", "mse", on_oom="raise")
    model.save(tmp_path / "own.memcfg")
    arguments = ("--largest-batch", "--limit", "1KiB", "--program", program)
    arguments += ("--method", "auto")
    code, out = run(capsys, str(tmp_path / "own.memcfg"), *arguments)
    assert code == 1
    (needed,) = re.findall(r"auto: one sample does not fit; it needs (\d+) B", out)
    least = int(re.search(r"smallest limit that would do is (\d+) B", out)[1])
    assert least == int(needed)
    x, y = np.zeros((1, 64), np.float32), np.zeros((1, 64), np.float32)

    def step():
        if program == "train":
            model.train_on_batch(x, y)
        else:
            model.predict_on_batch(x)

    for nbytes, fits in ((least - 64, False), (least, True)):
        model.close()
        config.set_memory_limit("CPU:0", nbytes)
        try:
            if fits:
                step()
            else:
                with pytest.raises(InfeasiblePlanError):
                    step()
        finally:
            model.close()
            config.set_memory_limit("CPU:0", None)


def test_a_method_that_fits_no_sample_says_so(capsys):
    code, out = run(
        capsys, "lenet5", "--largest-batch", "--limit", "64KiB", "--method", "share"
    )
    assert code == 1
    assert "share: one sample does not fit; it needs" in out
    assert "smallest limit that would do" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["lenet5", "--largest-batch"],
        ["lenet5", "--largest-batch", "--limit", "50%"],
        ["lenet5", "--largest-batch", "--limit", "1MiB", "--batch", "3"],
        ["lenet5", "--program", "predict"],
        ["lenet5", "--profile", "h10"],
        ["lenet5", "--profile", "h100", "--times", "measured"],
        ["own.memcfg", "--dtype", "mixed_bfloat16"],
        ["lenet5", "--optimizer", "adamant"],
        ["lenet5", "--lengths", "50"],
        ["own.memcfg", "--lengths", "5,0"],
    ],
)
def test_what_cannot_be_combined_is_refused(capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        main(["plan", *arguments])
    assert ended.value.code == 2


def test_a_device_that_is_not_here(capsys):
    arguments = ("lenet5", "--batch", "8", "--method", "auto")
    _, here = run(capsys, *arguments)
    given = ("--profile", "h100", "--device-memory", "80GiB")
    code, there = run(capsys, *arguments, *given)
    assert code == 0
    assert "limit          80.00 GiB" in there
    peak = next(line for line in here.splitlines() if "peak" in line)
    assert peak in there
    assert "Train on the CPU" not in there
    given_small = ("--profile", "t4", "--device-memory", "1GiB", "--method", "share")
    for more in (("--batch", "8"), ("--largest-batch",)):
        _, small = run(capsys, "lenet5", *more, *given_small)
        assert "Train on the CPU" in small
        assert max(map(len, small.splitlines())) <= 80
    code, out = run(
        capsys,
        *("lenet5", "--largest-batch", "--method", "share", *given[:2]),
        *("--limit", "64MiB"),
    )
    assert code == 0
    assert "Time of a sample" in out


def test_another_optimizer_and_dtype(capsys):
    arguments = ("lenet_300_100", "--batch", "8", "--method", "share")
    _, usual = run(capsys, *arguments)
    _, adam = run(capsys, *arguments, "--optimizer", "adam")
    assert adam != usual  # two slots for each weight
    code, _ = run(capsys, *arguments, "--dtype", "mixed_bfloat16")
    assert code == 0
    assert nn.Dense(3).dtype_policy.name == "float32"


def test_a_model_file_of_any_length_takes_lengths(capsys, tmp_path):
    steps = nn.Input((None, 4))
    made = nn.GlobalMaxPooling1D()(nn.GRU(8, return_sequences=True)(steps))
    model = nn.Model(steps, nn.Dense(1)(made))
    model.compile("adam", "mse")
    file = str(tmp_path / "own.memcfg")
    model.save(file)
    arguments = (file, "--largest-batch", "--limit", "1MiB", "--method", "share")
    with pytest.raises(SystemExit):
        main(["plan", *arguments])
    told = capsys.readouterr()
    assert "--lengths 50" in told.err
    assert told.out == ""
    batches = []
    for length in (20, 50):
        code, out = run(capsys, *arguments, "--lengths", str(length))
        assert code == 0
        batches.append(model.largest_batch("1MiB", policy="share", lengths=length))
        assert f" {batches[-1]} " in out
    assert batches[0] > batches[1]
    given = (file, "--batch", "4", "--method", "share", "--lengths", "20")
    _, out = run(capsys, *given)
    assert f"({model.plan(4, policy='share', lengths=20).peak_bytes} B)" in out
