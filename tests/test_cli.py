"""How a command ends: interrupts, readers that have gone, streams of few letters."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from training_graphs import chain

from memcfg.cli import main
from memcfg.graph import Graph
from memcfg.plan import share

# Who starts in the background of a shell inherits a SIGINT that is ignored.
START = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from memcfg.cli import main; sys.exit(main(sys.argv[1:]))"
)
SLOW = 60  # seconds until a process is given up
BUFFERED = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
UNBUFFERED = BUFFERED | {"PYTHONUNBUFFERED": "1"}


def start(*arguments: str, **options) -> subprocess.Popen[bytes]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    options = pipes | {"env": BUFFERED} | options
    return subprocess.Popen([sys.executable, "-c", START, *arguments], **options)


@pytest.fixture
def files(tmp_path):
    """Write a graph whose names are no ASCII, a right plan, a wrong one, buffers."""
    graph, plan, wrong, buffers = (
        tmp_path / name for name in ("g.json", "p.json", "w.json", "b.csv")
    )
    text = chain(9).to_json().replace("chain of 9", "Kétté √ 鎖")
    graph.write_text(text, encoding="utf-8")
    planned = share()(Graph.from_json(text))
    plan.write_text(planned.to_json(), encoding="utf-8")
    claimed = f'"peak_bytes": {planned.peak_bytes}'
    wrong.write_text(
        planned.to_json().replace(claimed, '"peak_bytes": 64', 1), encoding="utf-8"
    )
    buffers.write_text("id,lower,upper,size\n" + "a,0,2,10\n")
    return {"graph": graph, "plan": plan, "wrong": wrong, "buffers": buffers}


def commands(files) -> dict[str, list[str]]:
    judge = ["judge", str(files["graph"])]
    return {
        "plan": ["plan", "--graph", str(files["graph"])],
        "judge": [*judge, str(files["plan"])],
        "refute": [*judge, str(files["wrong"])],
        "place": ["place", str(files["buffers"])],
        "devices": ["devices"],
        "help": ["--help"],
    }


@pytest.mark.parametrize("name", ["plan", "judge", "refute", "devices"])
def test_a_stream_of_ascii_is_written_in_ascii(files, name):
    process = start(
        *commands(files)[name],
        env=BUFFERED | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
    )
    out, err = process.communicate(timeout=SLOW)
    assert err == b""
    assert process.returncode == (1 if name == "refute" else 0)
    assert max(map(len, out.decode("ascii").splitlines())) <= 200
    if name in ("plan", "judge"):
        assert rb"K\xe9tt\xe9 \u221a \u9396" in out


@pytest.mark.parametrize("name", ["place", "devices", "help"])
def test_a_reader_that_has_gone_ends_it_quietly(files, name):
    reads, writes = os.pipe()
    os.close(reads)
    process = start(*commands(files)[name], stdout=writes)
    os.close(writes)
    _, err = process.communicate(timeout=SLOW)
    assert (process.returncode, err) == (141, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_an_output_that_is_full_is_one_line(files):
    with open("/dev/full", "wb") as full:
        process = start(*commands(files)["plan"], stdout=full)
        _, err = process.communicate(timeout=SLOW)
    assert process.returncode == 2
    assert err == b"memcfg: error: standard output: No space left on device\n"


def test_an_interrupt_ends_the_demo_without_a_traceback():
    with start("demo", env=UNBUFFERED) as process:
        for line in process.stdout:
            if line.startswith(b"Limit: none"):
                break
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=SLOW)
    assert (process.returncode, err) == (130, b"memcfg: interrupted\n")


def test_a_demo_that_nobody_reads_ends_quietly():
    with start("demo", env=UNBUFFERED) as process:
        process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read()
    assert (process.returncode, err) == (141, b"")


@pytest.mark.parametrize(
    ("name", "asks"),
    [
        *(("plan", "os.open"), ("judge", "os.open"), ("place", "os.open")),
        *(("devices", "memcfg.config.list_logical_devices"),),
        *(("demo", "memcfg.nn.set_random_seed"),),
    ],
)
def test_an_interrupt_ends_any_command_with_130(files, name, asks, monkeypatch, capsys):
    arguments = commands(files).get(name, [name])

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(asks, interrupted)
    assert main(arguments) == 130
    assert capsys.readouterr() == ("", "memcfg: interrupted\n")


def test_without_a_command_the_help_is_an_error(capsys):
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("usage: memcfg ")
    for command in ("plan", "judge", "place", "devices", "demo"):
        assert f"    {command} " in err
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    assert capsys.readouterr().out == err


def test_help_is_a_command_too(capsys):
    for words, wanted in (
        (["help"], ["--help"]),
        (["help", "plan"], ["plan", "--help"]),
    ):
        told = []
        for each in (words, wanted):
            with pytest.raises(SystemExit) as ended:
                main(each)
            assert ended.value.code == 0
            told.append(capsys.readouterr().out)
        assert told[0] == told[1]


@pytest.mark.parametrize(
    "name", ["plan", "compare", "judge", "place", "timeline", "torch", "top", "demo"]
)
def test_the_help_of_a_command_begins_with_a_sentence(name, capsys):
    with pytest.raises(SystemExit):
        main([name, "--help"])
    usage, text, *_ = capsys.readouterr().out.split("\n\n")
    assert usage.startswith(f"usage: memcfg {name} ")
    assert text[0].isupper()
    assert text.endswith(".")


def test_an_unknown_option_is_named(capsys):
    with pytest.raises(SystemExit):
        main(["--versoin"])
    assert "unknown option '--versoin': did you mean '--version'" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "words", [["plan", "--limt", "3"], ["plan", "unet", "--limt=3"]]
)
def test_an_unknown_option_is_named_before_its_value_is_read(words, capsys):
    with pytest.raises(SystemExit):
        main(words)
    assert "unknown option '--limt': did you mean '--limit'?" in capsys.readouterr().err


def test_networks_to_compare_are_told_to_be_an_option(capsys):
    with pytest.raises(SystemExit):
        main(["compare", "lenet5", "unet"])
    assert "'lenet5,unet': try --networks lenet5,unet" in capsys.readouterr().err
