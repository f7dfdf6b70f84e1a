"""Bytes and time of inference beside those of an older checkout, and PyTorch's bytes.

The bytes of a model's arena are those of its plan; the model is loaded and not run.
With ``--run`` the networks named there run as well, in a process a turn and a checkout,
taking turns: the most memory that the process had above what it had after its imports
and with its kernels loaded (PyTorch's are by its import), and the seconds of the
fastest step, for ratios within one run. PyTorch's bytes are those of a file of ``bench
zoo``: of the whole process above its imports, in the memory format that is faster.
``--before`` names the other checkout, with its extensions compiled. Asserts nothing.

``python bench inference_memory --before ../older --run resnet18,alexnet``
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
MIB = 1 << 20
ZOO = HERE / "results" / "zoo_inference.json"


def list_arenas(options) -> None:
    """Print the bytes of each network's arena and weights, a line a batch."""
    from zoo_peers import NETWORKS

    from memcfg.nn.training._tracing import ProgramKey

    for name in options.networks.split(","):
        for batch in map(int, options.batches.split(",")):
            model = NETWORKS[name].build()
            model._built_session().require([ProgramKey("predict", batch)])
            arena = model._built_session().executor.nbytes
            row = {"arena": arena, "weights": 4 * model.count_params()}
            print(json.dumps([name, batch, row]), flush=True)
            model.close()
            del model


def work(options) -> None:
    """Be one process of one checkout: print what was measured."""
    from bench_zoo import batch_of, resident
    from zoo_peers import NETWORKS

    from memcfg import config
    from memcfg._core import set_num_threads

    set_num_threads(options.threads)
    network, batch = NETWORKS[options.networks], int(options.batches)
    assert config.logical_device().kernels.name == "onednn"  # loads the library
    before = resident("VmRSS")
    model = network.build()
    xs, _ = batch_of(network, batch)
    x = xs[0] if len(xs) == 1 else xs
    model.predict_on_batch(x)
    seconds = []
    end = time.perf_counter() + options.seconds
    while time.perf_counter() < end or len(seconds) < 2:
        began = time.perf_counter()
        model.predict_on_batch(x)
        seconds.append(time.perf_counter() - began)
    print(json.dumps([resident("VmHWM") - before, min(seconds)]))


def run(root: Path, kind: str, names: str, batches: str, options) -> list:
    """Return what a process of a checkout prints."""
    command = [sys.executable, __file__, "--worker", kind, "--networks", names]
    command += ["--batches", batches, "--threads", str(options.threads)]
    command += ["--seconds", str(options.seconds)]
    place = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=place
    )
    if done.returncode:
        raise SystemExit(f"{names}, {root}:\n{done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def theirs(name: str, batch: int) -> int | None:
    """Return the bytes of PyTorch's process."""
    for row in json.loads(ZOO.read_text())["results"]:
        if (row["network"], row["batch"]) == (name, batch):
            return row["memory"][row["memory_peer"]]
    return None


def measure_process(result: dict, roots: dict, options) -> None:
    """Add the bytes of processes and the ratio of the seconds to a result."""
    turns = {side: [] for side in roots}
    for _ in range(options.turns):
        for side, root in roots.items():
            name, batch = result["network"], str(result["batch"])
            turns[side] += run(root, "step", name, batch, options)
    for side, found in turns.items():
        nbytes = statistics.median(each for each, _ in found)
        result[side]["process"] = int(nbytes)
    if "before" in turns:
        least = {s: min(seconds for _, seconds in turns[s]) for s in turns}
        result["speed"] = least["before"] / least["after"]


def row(result: dict) -> str:
    def mib(nbytes: int | None) -> str:
        return f"{'-':>8}" if nbytes is None else f"{nbytes / MIB:8.1f}"

    sides = [result[side] for side in ("before", "after") if side in result]
    return (
        f"{result['network']:18} {result['batch']:3} weights {mib(result['weights'])}"
        + f", arena {' '.join(mib(side['arena']) for side in sides)}"
        + f", process {' '.join(mib(side.get('process')) for side in sides)}"
        + f", PyTorch {mib(result['torch'])}"
        + (f", speed {result['speed']:.2f}" if "speed" in result else "")
    )


def write(results: list, options) -> None:
    from bench_training import environment

    if options.output is not None:
        document = {"environment": environment(options.threads), "results": results}
        options.output.write_text(json.dumps(document, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", help="names, with commas; all if left out")
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--run", default="", help="networks to run, with commas")
    parser.add_argument("--before", type=Path, help="an older checkout")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1, help="of each process")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--worker", choices=("arenas", "step"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        (list_arenas if options.worker == "arenas" else work)(options)
        return
    names = options.networks
    if names is None:
        rows = json.loads(ZOO.read_text())["results"]
        names = ",".join(dict.fromkeys(row["network"] for row in rows))
    roots = {"after": HERE.parent}
    if options.before:
        roots["before"] = options.before.resolve()
    found: dict[tuple[str, int], dict] = {}
    for side, root in roots.items():
        for name, batch, each in run(root, "arenas", names, options.batches, options):
            own = {"network": name, "batch": batch, "torch": theirs(name, batch)}
            result = found.setdefault((name, batch), own)
            result["weights"] = each["weights"]
            result[side] = {"arena": each["arena"]}
    results = list(found.values())
    write(results, options)
    for result in results:
        if result["network"] in options.run.split(","):
            measure_process(result, roots, options)
            write(results, options)
        print(row(result), flush=True)


if __name__ == "__main__":
    main()
