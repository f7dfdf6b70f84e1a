from __future__ import annotations

import re
import sys
from unittest.mock import MagicMock

import numpy as np
import pytest

from memcfg import config
from memcfg.cli import main
from memcfg.commands import demo
from memcfg.commands._digits import load_digits


def rows(text):
    """Read the table: cells are two spaces apart."""
    cells = [re.split(r" {2,}", line.strip()) for line in text.splitlines()]
    return [row for row in cells if re.match(r"none$|[\d,]+$", row[0])]


def number(cell):
    return int(cell.split(" ")[0].replace(",", ""))


def test_three_limits_one_result_and_a_refusal(capsys):
    native = config.logical_device().kernels.name == "onednn"
    assert main(["demo", *([] if native else ["--epochs", "1"])]) == 0
    out = capsys.readouterr().out
    free, shared, recomputed = rows(out)
    peaks = [number(row[2]) for row in (free, shared, recomputed)]
    assert [number(row[3]) for row in (free, shared, recomputed)] == peaks
    assert [free[0], number(shared[0])] == ["none", peaks[1]]
    assert peaks[2] <= number(recomputed[0]) < peaks[1]
    assert number(recomputed[0]) <= 0.35 * peaks[0]
    assert [row[1] for row in (free, shared)] == ["keep_all", "share"]
    assert recomputed[1] == "sqrt_checkpoint"
    if native:  # the NumPy kernels are given one epoch only
        assert min(float(row[5]) for row in (free, shared, recomputed)) >= 0.97
    assert "are bit-identical" in out
    words = " ".join(out.split())  # the refusal is wrapped to the terminal
    assert "In use before: 0 B; after: 0 B; most in between: 0 B" in words
    smallest = re.search(r"Smallest limit for this method: (\d+) B \(", words)
    bound = re.search(r"Lower bound for any method: (\d+) B \(", words)
    refused = re.search(r"Limit: (\d+) B \S+ \S+, one byte below the lower", words)
    assert int(refused[1]) == int(bound[1]) - 1 < int(smallest[1])
    assert max(len(line) for line in out.splitlines()) <= 80
    devices = config.list_logical_devices()
    assert [config.get_memory_info(device)["current"] for device in devices] == [0] * 4


def test_a_batch_larger_than_the_data_is_refused(capsys):
    assert main(["demo", "--batch-size", "5000"]) == 2
    assert "5000, and there are 1437 images" in capsys.readouterr().err


def test_weights_that_differ_in_one_bit_are_told_apart():
    one = [np.zeros(3, np.float32), np.ones(2, np.float32)]
    same = [array.copy() for array in one]
    assert demo._same_bits(one, same)
    same[0][1] = -0.0
    assert not demo._same_bits(one, same)


def test_the_data_is_that_of_scikit_learn_split_once():
    digits = load_digits()
    assert len(digits.x) + len(digits.held_out_x) == 1797
    assert digits.x.dtype == np.float32
    assert digits.x.shape[1:] == (8, 8, 1)
    assert 0 == digits.x.min() < digits.x.max() == 1
    assert set(digits.y) == set(digits.held_out_y) == set(range(10))
    assert all(map(np.array_equal, digits, load_digits()))


def test_without_scikit_learn_there_is_one_clear_sentence(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert main(["demo"]) != 0
    message = capsys.readouterr().err.strip()
    assert "pip install 'memcfg[demo]'" in message
    assert "\n" not in message
    assert "Traceback" not in message


@pytest.mark.parametrize("option", ["--epochs", "--batch-size"])
@pytest.mark.parametrize("value", ["0", "-1", "many"])
def test_a_number_that_is_not_positive_is_refused(option, value, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["demo", option, value])
    assert caught.value.code == 2
    assert option in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kept", "refused", "status"),
    [(True, True, 0), (False, True, 1), (True, False, 1)],
)
def test_an_outcome_that_is_not_as_promised_ends_with_1(
    monkeypatch, kept, refused, status
):
    monkeypatch.setattr(demo, "_compare", lambda *_: kept)
    monkeypatch.setattr(demo, "_refused", lambda *_: refused)
    monkeypatch.setattr(demo, "_train", lambda *_: MagicMock())
    monkeypatch.setattr(demo, "_step_seconds", lambda *_: [])
    monkeypatch.setattr(demo, "_table", lambda *_: "")
    assert main(["demo"]) == status


def test_memory_in_use_is_left_alone():
    with config.logical_device().pool.allocate(64, tag="mine"):
        with pytest.raises(RuntimeError, match="mine"):
            main(["demo"])
        assert config.get_memory_info("CPU:0")["current"] == 64
