"""What is printed while a model works."""

from __future__ import annotations

import re
import sys
import time
import types

import numpy as np
import pytest
from rich.cells import cell_len
from rich.text import Text

import memcfg as mc
from memcfg.units import format_bytes


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


def in_use(model):
    """The bytes in use as text, and the part of them that is a model's."""
    pool = mc.config.logical_device("CPU:0").pool
    owners, name = pool.owners(), f"model {model.name}"
    part = owners[name] / sum(owners.values())
    return format_bytes(pool.stats().current_bytes), f"{name} {part:.0%}"


class Slow(mc.nn.Callback):
    """A step that takes longer than a bar waits; notes the memory in use."""

    def on_train_batch_end(self, batch, logs):
        if batch == 1:
            time.sleep(0.11)
            self.in_use, self.owner = in_use(self.model)


@pytest.fixture
def watched(dense, rows, capsys, monkeypatch):
    """Return a function that fits on a terminal, or not, and returns its output."""

    def run(columns, terminal=True):
        monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
        monkeypatch.setenv("COLUMNS", str(columns))
        mc.config.set_memory_limit("CPU:0", "1MiB")
        slow = Slow()
        try:
            dense().fit(*rows, 8, verbose=1, callbacks=[slow])
        finally:
            mc.config.set_memory_limit("CPU:0", None)
        out = re.sub(r"\x1b\[[?\d;]*[a-zA-Z]", "", capsys.readouterr().out)
        use = f"{slow.in_use} of 1.00 MiB"
        return re.split("[\r\n]+", out), use, slow.owner

    return run


def test_a_terminal_has_a_line_of_memory_until_an_epoch_ends(watched):
    lines, use, owner = watched(80)
    (line,) = {line for line in lines if line.startswith("Memory")}
    assert "Memory" not in "".join(lines[-2:])
    assert re.fullmatch(rf"Memory {{8}}[━ ]{{12}} {use} - {owner}.*", line)


@pytest.mark.parametrize("columns", [48, 30])
def test_the_line_of_memory_fits_a_narrow_terminal(watched, columns):
    lines, use, _ = watched(columns)
    (line,) = {line for line in lines if line.startswith("Memory")}
    assert line.startswith("Memory")
    assert line.endswith(use)
    assert all(cell_len(each) <= columns for each in lines)


def test_without_a_terminal_there_is_no_line_of_memory(watched):
    lines, *_ = watched(80, terminal=False)
    assert any("4/4" in line for line in lines)
    assert not any("Memory" in line for line in lines)


class Cell:
    """What IPython shows below a cell: outputs that can be replaced."""

    def __init__(self):
        self.shown, self.pages = [], []

    def display(self, data, raw, display_id):
        assert raw
        assert display_id
        self.shown.append([data["text/plain"]])
        self.pages.append(data["text/html"])
        return self

    def update(self, data, raw):
        assert raw
        self.shown[-1].append(data["text/plain"])
        self.pages[-1] = data["text/html"]


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


def test_a_notebook_has_one_output_a_call_that_is_replaced(dense, rows, cell, capsys):
    model = dense()
    losses = model.fit(*rows, 8, 2).history["loss"]
    model.predict((rows[0][i : i + 5] for i in (0, 5)), verbose=1)
    assert capsys.readouterr().out == ""
    assert len(cell.shown) == 2
    lines = cell.shown[0][-1].splitlines()
    assert cell.shown[0][0] == ""
    assert len(lines) == 2
    for epoch, line in enumerate(lines):
        pattern = (
            rf"Epoch {epoch + 1}/2 - 4/4 - [\d.]+ ms/step - loss: {losses[epoch]:.4f}"
        )
        assert re.fullmatch(pattern, line)
    assert re.fullmatch(r"2 - [\d.]+ ms/step", cell.shown[1][-1])


def test_a_notebook_shows_the_memory_and_the_loss(dense, rows, cell):
    model = dense()
    history = model.fit(*rows, 8, 30, validation_split=0.2, verbose=1).history
    use, owner = in_use(model)
    (page,) = cell.pages
    assert f"{use} without a limit" in page
    assert owner in page
    curves = re.findall(r'points="([^"]*)"', page)
    assert [len(points.split()) for points in curves] == [30, 30]
    values = history["loss"] + history["val_loss"]
    assert f"lowest {min(values):.4g}, highest {max(values):.4g}" in page
    text = cell.shown[0][-1].splitlines()
    assert text[0] == "10 before"
    assert len(text) == 1 + 20


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
