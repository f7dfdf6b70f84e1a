"""Time `memcfg plan NETWORK --ranks`, and measure the memory of its process.

Each case is a process of its own, from the start of Python to the printed table. Times
are processor times, the least of several runs, as the wall clock shows other programs;
memory is the most that was resident. Asserts nothing.

``python bench on_paper --output bench/results/on_paper.json``
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

GPT3 = {"layers": 96, "hidden": 12_288, "heads": 96, "sequence_length": 2048}
GPT2 = {"layers": 48, "hidden": 1600, "heads": 25}
LINK, PROFILE = "25GB", "h100"
CASES = [  # name, network, arguments, ranks, what is divided (None: each way), memory
    ("GPT-3", "gpt", GPT3, 64, "parameters", "80GiB"),
    ("GPT-3", "gpt", GPT3, 256, "parameters", "80GiB"),
    ("GPT-3", "gpt", GPT3, 1024, "parameters", "80GiB"),
    ("GPT-3", "gpt", GPT3, 64, None, "80GiB"),
    ("GPT-2 XL", "gpt", GPT2, 8, None, "24GiB"),
    ("resnet152", "resnet152", {}, 64, None, "2GiB"),
]


def run(words: list[str]) -> tuple[dict, float, int]:
    """Return what a command prints as JSON, its processor seconds and its bytes."""
    command = [sys.executable, "-m", "memcfg", "plan", *words, "--output", "-"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        text = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(words)}: status {process.returncode}")
    return json.loads(text), used.ru_utime + used.ru_stime, used.ru_maxrss << 10


def measure(
    network: str, arguments: dict, ranks: int, shard: str | None, memory: str, runs: int
) -> dict:
    """Return the numbers of a case."""
    words = [network, "--ranks", str(ranks), "--device-memory", memory]
    words += ["--optimizer", "adam", "--link", LINK, "--profile", PROFILE]
    for name, value in arguments.items():
        words += ["--set", f"{name}={value}"]
    words += [] if shard is None else ["--shard", shard]
    found = [run(words) for _ in range(runs)]
    table = found[0][0]
    return {
        "command": "memcfg plan " + " ".join(words),
        "ranks": ranks,
        "shard": shard,
        "processor_seconds": min(seconds for _, seconds, _ in found),
        "resident_bytes": max(nbytes for *_, nbytes in found),
        "estimate": table,
    }


def main() -> None:
    """Measure all cases and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    from machine import facts

    cases = []
    for name, network, arguments, ranks, shard, memory in CASES:
        case = measure(network, arguments, ranks, shard, memory, args.runs)
        cases.append({"network": name} | case)
        seconds, nbytes = case["processor_seconds"], case["resident_bytes"]
        print(f"{name}, {ranks} ranks: {seconds:.1f} s, {nbytes / 1e6:.0f} MB")
    settings = {"runs": args.runs, "link": LINK, "profile": PROFILE}
    document = {"environment": facts() | settings, "cases": cases}
    if args.output is not None:
        text = json.dumps(document, indent=1, ensure_ascii=False)
        args.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
