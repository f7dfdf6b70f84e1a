"""PyTorch's own tools open our snapshots: `torch.cuda._memory_viz`, all its commands.

Its web page is a script from the network, which only a reader with one can run; what it
demands of a file stands in `tests/support/snapshots.py`.
"""

from __future__ import annotations

import base64
import copy
import json
import os
import pickle
import re
import subprocess
import sys
from collections import Counter

import pytest
from snapshots import load, of_device

from memcfg import memory
from memcfg.memory import Trace

viz = pytest.importorskip(
    "torch.cuda._memory_viz", reason="needs PyTorch: tox run -e parity"
)

MIB = 2**20
TAGS = {"weights": 30 * MIB, "activations": 1000, "batch_start": 70_001, "a;b\nc": 64}


class Program:
    """A pool of which everything is known, and a snapshot of it."""

    def __init__(self, folder) -> None:
        self.pool = memory.Pool(limit="256MiB", name="scratch")
        self.tracked = memory.tracking(self.pool, stacks=True)
        self.blocks = {tag: self.take(size, tag) for tag, size in TAGS.items()}
        gone = self.take(25 * MIB, "gone")
        place = range(gone.address, gone.address + 25 * MIB)
        gone.free()
        with pytest.raises(MemoryError):
            self.take(300 * MIB, "too much")
        self.arena = self.pool.arena(MIB, tag="arena")
        self.arena.grow(5000)
        self.untracked = self.pool.allocate(12_345, tag="behind its back")
        # One that lies where another one was has come after the history.
        self.late = [self.untracked] if self.untracked.address in place else []
        self.held = TAGS | {"arena": 5000, "behind its back": 12_345}
        self.path = folder / "memory.pickle"
        memory.snapshot(self.path, self.pool)
        self.data = load(self.path)

    def take(self, size, tag):
        return self.tracked.allocate(size, tag=tag)


@pytest.fixture
def program(tmp_path):
    return Program(tmp_path)


def command_line(folder, *arguments) -> str:
    """Run the command line, with a stand-in for the script that it would download."""
    script = folder / ".cache" / "flamegraph.pl"
    script.parent.mkdir(exist_ok=True)
    script.write_text("#!/bin/sh\nexec cat\n")
    script.chmod(0o755)
    done = subprocess.run(
        [sys.executable, viz.__file__, *map(str, arguments)],
        cwd=folder,
        env=os.environ | {"HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def folded(text: str) -> dict[str, int]:
    """Read lines of a flame graph: frames divided by semicolons, a space, bytes."""
    sums: Counter[str] = Counter()
    for line in text.splitlines():
        stack, _, nbytes = line.rpartition(" ")
        sums[stack] += int(nbytes)
    return dict(sums)


def shown(tag: str) -> str:
    """Write a tag's frame as the tools show it."""
    if tag == "batch_start":  # functions of such names are dropped
        return "batch_start:0:tag"
    return f"tag:0:{tag}".replace(";", r"\x3b").replace("\n", r"\n")


def test_stats_has_our_sums(program, tmp_path):
    text = viz.segsum(program.data)
    requested = program.pool.stats().requested_bytes
    total = sum(each["total_size"] for each in program.data["segments"])
    assert requested == sum(program.held.values())
    assert f"total_allocated: {viz.Bytes(requested)}\n" in text
    assert f"total_reserved: {viz.Bytes(total)}\n" in text
    assert f"segments: {len(program.data['segments'])}\n" in text
    assert command_line(tmp_path, "stats", program.path) == text + "\n"


@pytest.mark.parametrize("command", ["segments", "memory"])
def test_flame_graphs_have_each_tags_bytes(program, tmp_path, command):
    text = getattr(viz, command)(program.data, format_flamegraph=str)
    sums = folded(text)
    depth = {"segments": 3, "memory": 2}[command]  # frames before the tag
    by_tag: Counter[str] = Counter()
    for stack, nbytes in sums.items():
        frames = stack.split(";")
        assert frames[0] == "stream_0"
        if frames[depth - 1] == "active_allocated" and frames[depth] != "<gaps>":
            by_tag[frames[depth]] += nbytes
    assert by_tag == {shown(tag): nbytes for tag, nbytes in program.held.items()}
    total = sum(each["total_size"] for each in program.data["segments"])
    assert sum(sums.values()) == total
    # The calls that took a block follow its tag, the innermost last.
    calls = next(stack for stack in sums if "weights" in stack).split(";")[depth + 1 :]
    assert re.fullmatch(r"test_memory_viz\.py:\d+:Program\.take", calls[-1])
    assert calls[-2].startswith("test_memory_viz.py:")
    assert command_line(tmp_path, command, program.path, "-o", "out.svg") == ""
    assert (tmp_path / "out.svg").read_text() == text


def test_trace_tells_the_history(program, tmp_path):
    text = viz.trace(program.data)
    lines = text.splitlines()
    known = [*TAGS.values(), 25 * MIB]
    late = [block.requested for block in program.late]
    sizes = [viz.Bytes(nbytes) for nbytes in known + late]
    taken = [line for line in lines if re.match(r"\w+ = \S+\[\d+:", line)]
    assert [line.rpartition(":")[2] for line in taken] == [f"{size}]" for size in sizes]
    freed = [line for line in lines if line.startswith("del ")]
    assert [line.rpartition(" # ")[2] for line in freed] == [repr(viz.Bytes(25 * MIB))]
    refused = [line for line in lines if line.startswith("raise OutOfMemoryError")]
    assert [line.split(" # ")[1].split(" requested")[0] for line in refused] == [
        repr(viz.Bytes(300 * MIB))
    ]
    assert command_line(tmp_path, "trace", program.path) == text + "\n"


def test_compare_finds_what_came(program, tmp_path, capsys):
    system = memory.system()
    paths = [tmp_path / f"{name}.pickle" for name in ("before", "after")]
    kept = system.allocate(1000, tag="kept")
    memory.snapshot(paths[0], system)
    came = system.allocate(5000, tag="came")
    memory.snapshot(paths[1], system)
    before, after = (load(path)["segments"] for path in paths)
    text = viz.compare(before, after, format_flamegraph=str)
    where = f"only_after;stream_0;seg_{came.address};active_allocated"
    assert folded(text) == {
        f"{where};tag:0:came": 5000,
        f"{where};<gaps>": -(-5000 // 64) * 64 - 5000,
    }
    printed = capsys.readouterr().out
    assert printed == f"only_before = []\nonly_after = [{came.address}]\n"
    kept.free()


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("trace_plot", "Active Memory Timeline"),
        ("segment_plot", "Allocator State History"),
    ],
)
def test_plots_carry_the_whole_snapshot(program, tmp_path, command, kind):
    assert command_line(tmp_path, command, program.path, "-o", "out.html") == ""
    page = (tmp_path / "out.html").read_text()
    assert page == getattr(viz, command)(program.data)
    assert f"add_local_files(local_files, '{kind}')" in page
    (line,) = re.findall(r"const local_files = (.*)", page)
    (file,) = json.loads(line)
    assert pickle.loads(base64.b64decode(file["base64"])) == program.data


def test_a_plot_of_what_was_never_freed(program, tmp_path):
    data = viz.filter_alloc_free_pairs(copy.deepcopy(program.data))
    actions = Counter(each["action"] for each in data["device_traces"][0])
    assert actions == {"alloc": len(TAGS) + len(program.late), "oom": 1, "snapshot": 1}
    assert (
        command_line(tmp_path, "trace_plot", program.path, "-f", "-o", "out.html") == ""
    )


def test_a_snapshot_of_everything_opens_too(program, tmp_path):
    resources = [
        memory.system("heap"),
        memory.Pool(memory.simulated("4TiB", name="GPU:0")),
        memory.Pool(),
        memory.Pool(memory.system()),
    ]
    blocks = [each.allocate(10**6 + i) for i, each in enumerate(resources)]
    path = tmp_path / "all.pickle"
    memory.snapshot(path)
    data = load(path)
    for command in ("stats", "trace"):
        assert command_line(tmp_path, command, path)
    for command in ("segments", "memory", "trace_plot", "segment_plot"):
        command_line(tmp_path, command, path, "-o", "out")
    text = viz.memory(data, format_flamegraph=str)
    for nbytes in range(10**6, 10**6 + len(blocks)):
        assert f"tag:0:unnamed {nbytes}\n" in text


def test_our_own_reader_has_the_history_back(program):
    """Block for block; what it is silent of lies before it, or where it freed one."""
    there = program.tracked.trace()
    back = Trace.from_snapshot(program.path, device=0)
    late = [(0, block.address, block.requested) for block in program.late]
    assert columns(back)[-len(there) - len(late) :] == columns(there) + late
    before = columns(back)[: -len(there) - len(late)]
    untold = [(0, program.arena.address, 5000)]
    if not late:
        untold.append((0, program.untracked.address, 12_345))
    assert before == sorted(untold, key=lambda row: row[1])
    names = [back.tags[tag] for tag in back.tag.tolist()]
    assert names[len(before) :] == [
        *(there.tags[tag] for tag in there.tag.tolist()),
        *(block.tag for block in program.late),
    ]
    (run,) = memory.replay(back, memory.Pool(limit="256MiB")).runs
    assert (run.left, run.left_bytes) == (len(program.held), sum(program.held.values()))


def columns(trace) -> list[tuple[int, int, int]]:
    return [
        *zip(
            trace.action.tolist(),
            trace.address.tolist(),
            trace.nbytes.tolist(),
            strict=True,
        )
    ]


def test_segments_have_the_documented_keys(program):
    """Those of the classes in the documentation of `torch.cuda.memory._snapshot`."""
    import torch

    text = torch.cuda.memory._snapshot.__doc__ or ""
    names = re.findall(r"^\s+(\w+): (?:int|List|Literal|Tuple)", text, re.MULTILINE)
    assert {"segments", "total_size", "active_size"} <= set(names)
    segment = of_device(program.data, 0)[0]
    event = program.data["device_traces"][0][0]
    block = segment["blocks"][0]
    ours = {*program.data, *segment, *block, *block["frames"][0], *event}
    assert set(names) - ours <= {"pool_id", "device_free"}
