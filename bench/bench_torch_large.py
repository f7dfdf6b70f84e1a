"""Large PyTorch models in less memory than their weights: time, traffic and memory.

Runs `examples/80` (LoRA of a Llama of 1.1 B parameters, whose weights stay in their
files) and `examples/81` (a GPT-2 of 124 M parameters trained in full) at full size,
each in a process whose limit the system enforces, and each again as PyTorch runs it by
itself: weights read into memory, no budget, a limit of 16 GiB. Memory is the most that
the process had resident above what it had after its imports. Seconds are the median of
the last nine of ten steps. Weights are random, and written by the example. Asserts that
losses and trained weights have the bits of PyTorch by itself, and no time.

``python bench torch_large --output bench/results/torch_large.json``
"""

from __future__ import annotations

import argparse
import json
import os
import re
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from hashlib import sha256
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from unittest import mock

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
PROGRAMS = {"LoRA": "80_torch_lora.py", "full training": "81_torch_full_training.py"}
PLAIN_LIMIT = "16GiB"


def run(name: str, *, plain: bool) -> dict:
    """Run an example in this process, and return what it took."""
    import torch
    from safetensors.torch import load_file

    import memcfg.torch as mt

    ends: list[float] = []
    step = torch.optim.AdamW.step
    limit_process = mt.limit_process
    made: dict = {}

    def timed(optimizer, *args, **options):
        result = step(optimizer, *args, **options)
        ends.append(time.perf_counter())
        return result

    def limited(limit, **options):
        made["process"] = limit_process(PLAIN_LIMIT if plain else limit, **options)
        return made["process"]

    def read(model, paths):  # instead of map_weights
        weights = {}
        for path in paths:
            weights.update(load_file(path))
        model.load_state_dict(weights, strict=False, assign=True)
        for name in weights:
            model.get_parameter(name).requires_grad_(False)

    unplanned = mock.Mock(**{"memory_report.return_value": ""})
    patches = [
        mock.patch.object(torch.optim.AdamW, "step", timed),
        mock.patch.object(mt, "limit_process", limited),
    ]
    if plain:
        patches += [
            mock.patch.object(mt, "map_weights", read),
            mock.patch.object(mt, "budget", lambda model, *_, **__: model),
            mock.patch.object(mt, "get_budget", return_value=unplanned),
        ]
    for each in patches:
        each.start()
    sys.argv = ["example", "full"]
    torch.manual_seed(0)
    found = runpy.run_path(str(EXAMPLES / PROGRAMS[name]))
    process = made["process"]
    trained = found.get("weights")  # the example's own digests of offloaded weights
    if trained is None:
        kept = [p for p in found["model"].parameters() if p.requires_grad]
        trained = b"".join(p.detach().numpy().tobytes() for p in kept)
    calls = len(ends) // len(found["losses"])  # a step's: offloaded state has pieces
    report = str(mt.get_budget(found["model"]).memory_report())
    copied = re.search(r"(\S+ \S+) read, (\S+ \S+) written; waits: (\S+) s", report)
    return {
        "program": name,
        "plain": plain,
        "parameters": sum(each.numel() for each in found["model"].parameters()),
        "limit_bytes": process.limit_bytes - process.baseline_bytes,
        "enforced_by": process.enforced_by,
        "peak_bytes": process.peak_bytes - process.baseline_bytes,
        "step_seconds": statistics.median(
            after - before for before, after in pairwise(ends[calls - 1 :: calls])
        ),
        "read_a_step": copied[1] if copied else "0 B",
        "written_a_step": copied[2] if copied else "0 B",
        "waited_seconds": float(copied[3]) if copied else 0.0,
        "losses": found["losses"],
        "trained": sha256(trained).hexdigest(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", nargs="*", choices=PROGRAMS, default=[*PROGRAMS])
    parser.add_argument("--output", type=Path, help="write the result as JSON")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        name, plain = options.worker
        print(json.dumps(run(name, plain=plain == "plain")))
        return
    from machine import facts

    results = []
    for name in options.programs:
        for plain in ("plain", "budget"):
            with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
                done = subprocess.run(
                    [sys.executable, __file__, "--worker", name, plain],
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                    cwd=folder,
                    env={**os.environ, "PYTHONPATH": str(EXAMPLES.parent)},
                )
            results.append(json.loads(done.stdout.splitlines()[-1]))
            shown = {k: v for k, v in results[-1].items() if k != "losses"}
            print(json.dumps(shown), flush=True)
    for before, after in zip(results[::2], results[1::2], strict=True):
        assert before["trained"] == after["trained"]
        assert before["losses"] == after["losses"]
    if options.output:
        environment = facts() | {"torch": version("torch")}
        document = {"environment": environment, "results": results}
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
