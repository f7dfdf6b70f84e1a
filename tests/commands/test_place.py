from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from memcfg.cli import main

DATA = Path(__file__).parents[1] / "fixtures"
SMALL = "id,lower,upper,size\na,0,2,10\nb,1,3,20\nc,2,4,10\n"


@pytest.fixture
def small(tmp_path) -> str:
    path = tmp_path / "small.csv"
    path.write_text(SMALL)
    return str(path)


def test_rows_get_an_offset(small, tmp_path, capsys):
    output = tmp_path / "out.csv"
    assert main(["place", small, "--capacity", "30", "--output", str(output)]) == 0
    rows = [line.split(",") for line in output.read_text().splitlines()]
    assert rows[0] == ["id", "lower", "upper", "size", "offset"]
    assert [",".join(row[:4]) for row in rows] == SMALL.splitlines()
    assert {row[4] for row in rows[1:]} == {"0", "20"}
    out = capsys.readouterr().out
    assert re.search(r"height +30 B", out)
    assert re.search(r"bound +30 B", out)
    assert re.search(r"ratio +1\.0000", out)
    assert re.search(r"order +size, first fit", out)
    assert re.search(r"time +[\d.]+ ms", out)


def test_rows_go_to_standard_output_alone(tmp_path, monkeypatch, capsysbinary):
    monkeypatch.chdir(tmp_path)
    Path("small.csv").write_text(SMALL.replace("a,", "\xe9,"))
    assert main(["place", "small.csv", "--output", "out.csv"]) == 0
    capsysbinary.readouterr()
    assert main(["place", "small.csv", "--output", "-"]) == 0
    assert capsysbinary.readouterr().out == Path("out.csv").read_bytes()
    assert {path.name for path in Path().iterdir()} == {"small.csv", "out.csv"}


def test_a_training_step_is_within_one_percent(tmp_path, capsys):
    path = DATA / "somas" / "resnet50.csv"
    assert main(["place", str(path), "--output", str(tmp_path / "out.csv")]) == 0
    ratio = re.search(r"ratio +([\d.]+)", capsys.readouterr().out)
    assert float(ratio.group(1)) <= 1.01
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 1043


def test_a_capacity_that_is_not_met_ends_with_1(small, tmp_path, capsys):
    output = tmp_path / "out.csv"
    arguments = ["place", small, "--capacity", "29", "--output", str(output)]
    assert main(arguments) == 1
    err = capsys.readouterr().err
    assert err.startswith("memcfg: error: 3 buffers were not placed")
    assert err.count("\n") == 1
    assert not output.exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "line 1: no header"),
        (SMALL + "d,1,2,x\n", "line 5: 'size'"),
        (SMALL.replace("size", "bytes", 1), "unknown column 'bytes'"),
        (SMALL + "".join(f"x{i},0,1,{10**18 - 1}\n" for i in range(9)), "2**62"),
    ],
)
def test_malformed_files_end_with_2(tmp_path, capsys, content, words):
    path = tmp_path / "bad.csv"
    path.write_text(content)
    assert main(["place", str(path), "--output", str(tmp_path / "out.csv")]) == 2
    err = capsys.readouterr().err
    assert err.startswith("memcfg: error: ")
    assert err.count("\n") == 1
    assert words in err
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("seconds", ["0", "-3", "nan", "soon"])
def test_a_time_limit_that_is_not_positive_is_one_line(small, seconds, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["place", small, "--time-limit", seconds])
    assert caught.value.code == 2
    assert capsys.readouterr().err == (
        f"memcfg: error: argument --time-limit: {seconds!r} is not a positive number "
        "of seconds\n"
    )


def test_a_missing_file_is_one_line(capsys):
    assert main(["place", "nowhere.csv"]) == 2
    assert capsys.readouterr().err == (
        "memcfg: error: nowhere.csv: No such file or directory\n"
    )


def test_an_output_in_a_missing_folder_is_named(small, tmp_path, capsys):
    path = tmp_path / "no" / "out.csv"
    assert main(["place", small, "--output", str(path)]) == 2
    error = capsys.readouterr().err
    assert error == f"memcfg: error: {path}: No such file or directory\n"


def test_rows_come_from_standard_input(small, capsys, monkeypatch):
    stdin = io.TextIOWrapper(io.BytesIO(SMALL.encode()))
    monkeypatch.setattr("sys.stdin", stdin)
    assert main(["place", "-", "--output", "-"]) == 0
    piped = capsys.readouterr().out
    assert main(["place", str(small), "--output", "-"]) == 0
    assert capsys.readouterr().out == piped
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"id,lower\n")))
    assert main(["place", "-"]) == 2
    assert "standard input: line 1: column 'upper' is missing" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("offset", ["0", "64", "-1", "x"])
def test_fixed_offsets_are_refused(tmp_path, capsys, offset):
    path = tmp_path / "fixed.csv"
    path.write_text(f"id,lower,upper,size,offset\na,0,2,64,\nb,1,3,64,{offset}\n")
    assert main(["place", str(path), "--output", "-"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert f"line 3: buffer 'b' has the offset {offset}" in told.err
    path.write_text("id,lower,upper,size,offset\na,0,2,64,\n")
    assert main(["place", str(path), "--output", "-"]) == 0
