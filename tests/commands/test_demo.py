from __future__ import annotations

import re
import sys
from functools import cache
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from memcfg import config, nn
from memcfg.cli import main


def rows(text):
    """Read the table: cells are two spaces apart."""
    cells = [re.split(r" {2,}", line.strip()) for line in text.splitlines()]
    return [row for row in cells if re.match(r"none$|[\d,]+$", row[0])]


def number(cell):
    return int(cell.split(" ")[0].replace(",", ""))


@pytest.mark.parametrize(
    ("epochs", "accuracy"), [(1, 0.5), pytest.param(10, 0.97, marks=pytest.mark.slow)]
)
@pytest.mark.always
def test_three_limits_one_result_and_a_refusal(capsys, epochs, accuracy):
    assert main(["demo", "--epochs", str(epochs)]) == 0
    out = capsys.readouterr().out
    free, shared, recomputed = rows(out)
    peaks = [number(row[2]) for row in (free, shared, recomputed)]
    assert [number(row[3]) for row in (free, shared, recomputed)] == peaks
    assert [free[0], number(shared[0])] == ["none", peaks[1]]
    assert peaks[2] <= number(recomputed[0]) < peaks[1]
    assert number(recomputed[0]) <= 0.35 * peaks[0]
    assert [row[1] for row in (free, shared)] == ["keep_all", "share"]
    assert recomputed[1] == "look_ahead"
    assert min(float(row[5]) for row in (free, shared, recomputed)) >= accuracy
    assert "are bit-identical" in out
    words = " ".join(out.split())  # the refusal is wrapped to the terminal
    assert "In use before: 0 B; after: 0 B; max in between: 0 B" in words
    smallest = re.search(r"The smallest limit that would do is (\d+) B \(", words)
    bound = re.search(r"Lower bound for any policy: (\d+) B \(", words)
    refused = re.search(r"Limit: (\d+) B \S+ \S+, one byte below the lower", words)
    assert int(refused[1]) == int(bound[1]) - 1 < int(smallest[1])
    assert max(len(line) for line in out.splitlines()) <= 80
    devices = config.list_logical_devices()
    assert [config.get_memory_info(device)["current"] for device in devices] == [0] * 4


def test_a_batch_larger_than_the_data_is_refused(capsys):
    assert main(["demo", "--batch-size", "5000"]) == 2
    assert "5000, and there are 1437 images" in capsys.readouterr().err


def test_without_scikit_learn_there_is_one_clear_sentence(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert main(["demo"]) != 0
    message = capsys.readouterr().err.strip()
    assert "pip install scikit-learn" in message
    assert "\n" not in message
    assert "Traceback" not in message


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *product(["--epochs", "--batch-size"], ["0", "-1", "many"]),
        *product(["--seed"], ["-1", "many", "1.5"]),
    ],
)
def test_a_number_that_does_not_count_is_refused(option, value, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["demo", option, value])
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"memcfg: error: argument {option}: must be ")
    assert error.endswith(f", not {value}\n")


class TestOutcomes:
    """What is promised is compared, with models that only plan."""

    @pytest.fixture(autouse=True)
    def _no_training(self, monkeypatch):
        plan_of = cache(lambda model: model.plan(64))

        def report(model, **_):
            return SimpleNamespace(measured_peak_bytes=plan_of(model).peak_bytes)

        for name, act in {
            "fit": lambda *_, **__: None,
            "evaluate": self.evaluate,
            "train_on_batch": lambda model, x, y: plan_of(model),
            "memory_plan": property(plan_of),
            "memory_report": report,
        }.items():
            monkeypatch.setattr(nn.Model, name, act)

    @staticmethod
    def evaluate(model, x, y, **_):
        assert (len(x), len(y)) == (360, 360)
        assert x.dtype == np.float32
        assert x.shape[1:] == (8, 8, 1)
        assert 0 == x.min() < x.max() == 1
        assert set(y) == set(range(10))
        return {"accuracy": 1.0}

    def test_as_promised_it_ends_with_0(self, capsys):
        assert main(["demo"]) == 0
        out = capsys.readouterr().out
        assert "1437 handwritten digits, 360 more held out" in out
        assert "are bit-identical" in out

    def test_weights_that_differ_in_one_bit_are_told_apart(self, monkeypatch, capsys):
        weights_of, asked = nn.Model.get_weights, []

        def get_weights(model):
            weights = weights_of(model)
            asked.append(model)
            if len(asked) == 4:  # the first ones, then those of three runs
                bias = next(array for array in weights if not array.any())
                bias[0] = -0.0
            return weights

        monkeypatch.setattr(nn.Model, "get_weights", get_weights)
        assert main(["demo"]) == 1
        assert len(asked) == 4
        assert "are NOT identical" in capsys.readouterr().out

    def test_a_peak_that_was_not_predicted_ends_with_1(self, monkeypatch, capsys):
        report = SimpleNamespace(measured_peak_bytes=64)
        monkeypatch.setattr(nn.Model, "memory_report", lambda *_, **__: report)
        assert main(["demo"]) == 1
        assert "A measured peak is NOT the predicted one" in capsys.readouterr().out

    def test_a_limit_that_is_not_refused_ends_with_1(self, monkeypatch, capsys):
        monkeypatch.setattr(nn.Model, "train_on_batch", lambda *_: None)
        assert main(["demo"]) == 1
        assert "was NOT refused" in capsys.readouterr().out


def test_memory_in_use_is_left_alone():
    with config.logical_device().pool.allocate(64, tag="mine"):
        with pytest.raises(RuntimeError, match="mine"):
            main(["demo"])
        assert config.get_memory_info("CPU:0")["current"] == 64
