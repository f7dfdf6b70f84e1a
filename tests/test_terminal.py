"""What is printed fits 80 columns, and the encoding of standard output."""

from __future__ import annotations

import io
from contextlib import contextmanager, redirect_stdout

import numpy as np
import pytest
from long_names import LONG, a_plan, a_report
from terminal_columns import columns

import memcfg as mc
from memcfg import nn
from memcfg.data import PipelineReport, StageReport


def widest(text: str) -> int:
    return max(columns(line) for line in text.splitlines())


ENCODINGS = pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])


@contextmanager
def narrow_output(encoding):
    """Make standard output one that lacks most letters; yield what is written."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    with redirect_stdout(stream):
        yield lambda: stream.buffer.getvalue().decode(encoding)


def model(name="net", layers=LONG):
    return nn.Sequential(
        [
            nn.Input((640, 480, 3)),
            nn.Conv2D(64, 3, padding="same", name=f"{layers}0"),
            nn.BatchNormalization(name=f"{layers}_1_batch_normalization"),
            nn.GlobalAveragePooling2D(name="short"),
            nn.Dense(1_000_000, name=f"{layers}2"),
        ],
        name=name,
    )


def a_summary(name, capsys):
    model(name, name).summary()
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "name", [LONG, "短い" * 40, "x"], ids=["long", "wide", "short"]
)
class TestEightyColumns:
    def test_of_a_models_summary(self, name, capsys):
        text = a_summary(name, capsys)
        assert widest(text) <= 80
        assert "(None, 640, 480, 64)" in text
        assert "(BatchNormalization)" in text.replace("\n", "")
        assert "65,000,000" in text
        assert "3.81 MiB" in text

    def test_of_a_plan(self, name):
        assert widest(str(a_plan(name))) <= 80

    def test_of_a_memory_report(self, name):
        assert widest(str(a_report(name))) <= 80

    def test_of_workspaces(self, name):
        with mc.workspace(name):
            np.ones(2**20)
        try:
            assert widest(mc.workspaces.summary()) <= 80
        finally:
            mc.destroy_all_workspaces()

    def test_of_pools_and_pipelines(self, name):
        pool = mc.memory.Pool(limit="64MiB", name=name)
        with pool.allocate(2**20, tag=name):
            assert widest(mc.memory.summary(pool)) <= 80
            assert widest(mc.memory.occupancy(pool)) <= 80
            assert widest(str(mc.memory.list_live(pool)[0])) <= 80
        stage = StageReport(
            name=name,
            autotuned=True,
            parallelism=1024,
            buffer_size=10**6,
            items=10**9,
            waited_seconds=12_345.6,
            nbytes=2**40 - 1,
        )
        assert widest(str(PipelineReport((stage,)))) <= 80


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("room", [60, 72])
@pytest.mark.parametrize("name", [LONG, "短い" * 40, "x"])
def test_what_is_printed_fits_a_narrower_terminal(name, room, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(room))
    with redirect_stdout(Terminal()) as stream:
        nn.Sequential(
            [
                nn.Input((64, 48)),
                nn.Sequential([nn.Dense(4)], name=f"{name}_inner"),
                nn.LSTM(3, return_sequences=True, name=name),
            ]
        ).summary()
        print(a_plan(name))
        print(a_report(name))
    text = stream.getvalue()
    assert widest(text) <= room
    assert "…" in text or name == "x"
    assert "Nested" not in text


def test_all_results_of_a_layer_are_in_a_summary(capsys):
    x = nn.Input((5, 2))
    y, h, c = nn.LSTM(3, return_sequences=True, return_state=True)(x)
    nn.Model(x, [y, h, c]).summary()
    lines = capsys.readouterr().out.splitlines()
    row = next(i for i, line in enumerate(lines) if "(LSTM)" in line)
    assert "(None, 5, 3)" in lines[row]
    assert "84 B" in lines[row]
    assert [line.split("(")[1] for line in lines[row + 1 : row + 3]] == ["None, 3)"] * 2


def test_a_long_name_of_a_layer_is_told_in_full(capsys):
    name = "encoder_stage_0_residual_branch_1_convolution_"
    lines = a_summary(name, capsys).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f" {name[:30]}"))
    told = "".join(line[1:31].strip() for line in lines[start : start + 2])
    assert told == f"{name}0 (Conv2D)"


@ENCODINGS
class TestNarrowOutput:
    """Nothing that is printed is more than the stream can write."""

    def test_tables_are_drawn_in_what_there_is(self, encoding):
        name = "gewöhnlich_短い" * 8
        pool = mc.memory.Pool(limit="64MiB", name=name)
        stage = StageReport(name=name, autotuned=False, items=9, waited_seconds=3e-5)
        with narrow_output(encoding) as written:
            model(layers=name).summary()
            print(a_plan(name))
            print(a_report(name))
            with mc.workspace(name), pool.allocate(2**20, tag=name):
                print(mc.workspaces.summary())
                print(mc.memory.summary(pool))
                print(mc.memory.occupancy(pool))
                print(mc.memory.list_live(pool)[0])
            print(PipelineReport((stage,)))
        mc.destroy_all_workspaces()
        text = written()
        assert widest(text) <= 80
        assert "-----" in text
        assert "#####" in text
        assert "3.33 us" in text or encoding != "ascii"

    def test_letters_that_are_missing_are_written_as_their_code(self, encoding):
        with narrow_output(encoding) as written:
            model(layers="短い").summary()
        assert "\\u77ed\\u3044_1" in written()
