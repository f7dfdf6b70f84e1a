"""What is printed while a model works."""

from __future__ import annotations

import re
import sys
import types

import numpy as np
import pytest
from rich.cells import cell_len
from rich.text import Text

import memcfg as mc


def test_nothing_is_printed(dense, rows, capsys):
    model = dense()
    model.fit(*rows, epochs=2, verbose=0)
    model.evaluate(*rows, verbose=0)
    model.predict(rows[0], verbose=0)
    model.train_on_batch(*rows)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


@pytest.mark.parametrize("verbose", [2, "auto"])
def test_a_line_an_epoch(dense, rows, capsys, verbose):
    model = dense(metrics=["accuracy"])
    history = model.fit(*rows, 8, 2, verbose, validation_split=0.2).history
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    for epoch, line in enumerate(lines):
        numbers = " - ".join(f"{k}: {v[epoch]:.4f}" for k, v in history.items())
        pattern = rf"Epoch {epoch + 1}/2 - 3/3 - [\d.]+s - [\d.]+ ms/step - {numbers}"
        assert re.fullmatch(pattern, line)


def test_a_bar_an_epoch(dense, rows, capsys):
    model = dense(metrics=["accuracy"])
    model.fit(*rows, 8, 2, 1)
    out = capsys.readouterr().out
    for words in ("Epoch 1/2", "Epoch 2/2", "4/4", "ms/step", "loss: ", "accuracy: "):
        assert words in out


def test_evaluate_and_predict_tell_a_line(dense, rows, capsys):
    model = dense()
    loss = model.evaluate(*rows, batch_size=8, verbose=2)
    model.predict(rows[0], batch_size=8, verbose=2)
    first, second = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rf"4/4 - [\d.]+s - [\d.]+ ms/step - loss: {loss:.4f}", first)
    assert re.fullmatch(r"4/4 - [\d.]+s - [\d.]+ ms/step", second)


@pytest.mark.parametrize("terminal", [True, False])
def test_auto_is_a_bar_on_a_terminal(dense, rows, capsys, monkeypatch, terminal):
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    dense().fit(*rows, 8)
    out = capsys.readouterr().out
    assert "4/4" in out
    assert ("━" in out) == terminal


class Cell:
    """What IPython shows below a cell: outputs that can be replaced."""

    def __init__(self):
        self.shown = []

    def display(self, data, raw, display_id):
        assert raw
        assert display_id
        self.shown.append([data["text/plain"]])
        return self

    def update(self, data, raw):
        assert raw
        self.shown[-1].append(data["text/plain"])


@pytest.fixture
def cell(monkeypatch):
    """A stand-in for the modules of IPython in a notebook's kernel."""
    shell = type("ZMQInteractiveShell", (), {})()
    cell = Cell()
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: shell
    ipython.display = types.ModuleType("IPython.display")
    ipython.display.display = cell.display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    return cell


def test_a_notebook_has_one_line_an_epoch_that_is_replaced(dense, rows, cell, capsys):
    model = dense()
    losses = model.fit(*rows, 8, 2).history["loss"]
    model.predict((rows[0][i : i + 5] for i in (0, 5)), verbose=1)
    assert capsys.readouterr().out == ""
    assert len(cell.shown) == 3
    for epoch, lines in enumerate(cell.shown[:2]):
        pattern = (
            rf"Epoch {epoch + 1}/2 - 4/4 - [\d.]+ ms/step - loss: {losses[epoch]:.4f}"
        )
        assert re.fullmatch(pattern, lines[-1])
        assert lines[0] == ""
    assert re.fullmatch(r"2 - [\d.]+ ms/step", cell.shown[2][-1])


def test_an_interrupted_bar_is_closed(dense, rows):
    x, y = rows
    x = x.copy()
    x[3] = float("nan")
    model = dense()
    for _ in range(2):  # a second bar can start
        with pytest.raises(mc.errors.NonFiniteLossError):
            model.fit(x, y, verbose=1)


def test_a_bar_of_many_numbers_is_two_lines_high(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    x = mc.nn.Input((4,))
    model = mc.nn.Model(x, [mc.nn.Dense(1, name=f"output_{i}")(x) for i in range(12)])
    model.compile("sgd", "mse")
    model.fit(np.ones((6, 4)), [np.ones((6, 1))] * 12, batch_size=2, verbose=1)
    out = Text.from_ansi(capsys.readouterr().out).plain
    lines = [line for line in out.splitlines() if line.strip()]
    assert "3/3" in lines[-2]
    assert "output_0_loss: " in "".join(lines[-2:])
    assert " more" in lines[-1]
    assert all(cell_len(line) <= 80 for line in lines)


@pytest.mark.parametrize(("columns", "wanted"), [("60", 60), ("20", 50), ("200", 80)])
def test_tables_obey_columns(monkeypatch, columns, wanted):
    monkeypatch.setenv("COLUMNS", columns)
    model = mc.nn.Sequential([mc.nn.Input((4,)), mc.nn.Dense(3, name="d" * 70)])
    lines = []
    model.summary(print_fn=lines.append)
    assert max(map(cell_len, "\n".join(lines).splitlines())) <= wanted
