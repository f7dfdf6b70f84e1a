"""Train PyTorch's networks with what backward reads under a limit, beside other ways.

The peers are plain PyTorch, hooks that do nothing, `torch.autograd.graph.save_on_cpu`
and `torch.utils.checkpoint` around each block. `saved_tensors` gets shares of the bytes
that plain PyTorch saves. Steps are timed in turns in one process; the bytes that a
process has resident above those before the first step are of a process each. On a
machine where others work, run it as ``chrt -f 50 taskset -c 0 python ...``.

Asserts no time; that limits hold, and that losses and gradients have the same bits
where no codec rounds, it does.

What was expected before the first measurement: some 10 µs for each tensor that is
saved, and for what is packed the time of its codec, 5 to 10 GB/s for zeros: 5 to 15 %
of a step of convolutions, and more where a step has few operations a byte.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from bench_codecs import environment
from torch.utils.checkpoint import checkpoint

import memcfg.torch as mt
from memcfg.errors import ResourceExhaustedError

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from torch_networks import GPT, Recurrent, UNet, resnet

# By name: how it is made, the input, and the modules that are checkpointed.
NETWORKS = {
    "resnet": (lambda: resnet(32, 4), lambda: torch.randn(8, 3, 64, 64), "Residual"),
    "unet": (lambda: UNet(24), lambda: torch.randn(4, 3, 128, 128), "Sequential"),
    "gpt": (
        lambda: GPT(512, 256, 128, 6),
        lambda: torch.randint(512, (8, 128)),
        "Block",
    ),
    "lstm": (lambda: Recurrent(512, 192), lambda: torch.randint(512, (32, 64)), ""),
}
# By name: the share of what plain PyTorch saves, codecs, and whether there is a file.
OURS = {
    "all": (1.01, [], False),
    "zvc 85%": (0.85, ["zvc"], False),
    "zvc, fp16 60%": (0.6, ["zvc", "fp16"], False),
    "zvc, fp8 50%": (0.5, ["zvc", "fp8"], False),
    "file 50%": (0.5, [], True),
    "zvc, file 50%": (0.5, ["zvc"], True),
    "zvc, file 25%": (0.25, ["zvc"], True),
}
PEERS = ("plain", "hooks", "save_on_cpu", "checkpoint")


class Trainer:
    """A network, and steps of it in one way."""

    def __init__(self, network: str, method: str, saved: int, folder: str) -> None:
        torch.manual_seed(0)
        make, rows, blocks = NETWORKS[network]
        self.model, self.x = make(), rows()
        self.y = torch.randint(10, (len(self.x),))
        self.context = contextlib.nullcontext()
        graph = torch.autograd.graph
        if method == "hooks":
            self.context = graph.saved_tensors_hooks(lambda t: t.detach(), lambda t: t)
        elif method == "save_on_cpu":
            self.context = graph.save_on_cpu()
        elif method == "checkpoint":
            for each in self.model.modules():
                if type(each).__name__ == blocks and each is not self.model:
                    each.forward = partial(
                        checkpoint, each.forward, use_reentrant=False
                    )
        elif method in OURS:
            share, codecs, file = OURS[method]
            limit = int(share * saved)
            self.context = mt.saved_tensors(
                limit, codecs, spill_to=folder if file else None
            )

    def step(self) -> tuple[float, list]:
        torch.manual_seed(1)
        self.model.zero_grad(set_to_none=True)
        with self.context:
            loss = torch.nn.functional.cross_entropy(self.model(self.x), self.y)
        loss.backward()
        return loss.item(), [each.grad for each in self.model.parameters()]


def saved_bytes(network: str) -> int:
    """What plain PyTorch saves."""
    trainer = Trainer(network, "plain", 0, "")
    trainer.context = mt.saved_tensors("1TiB", [])
    trainer.step()
    return trainer.context.memory_report().saved_bytes


def resident_bytes(name: str) -> int:
    """Read what Linux counts: VmRSS, or the most that it was, VmHWM."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"this system does not tell {name}")


def measure_resident(network: str, method: str, saved: int, folder: str) -> None:
    """Print the most bytes that were resident above those before the first step."""
    torch.set_num_threads(1)
    trainer = Trainer(network, method, saved, folder)
    tiny = torch.ones(1, requires_grad=True)
    checkpoint(torch.exp, tiny, use_reentrant=False)  # which imports, 75 MiB of it
    before = resident_bytes("VmRSS")
    for _ in range(3):
        trainer.step()
    print(json.dumps(resident_bytes("VmHWM") - before))


def resident_of(network: str, method: str, saved: int, folder: str) -> int:
    words = ["--resident", network, method, str(saved), folder]
    command = [sys.executable, __file__, *words]
    # Memory that is free goes back at once, so that none is counted.
    variables = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=variables
    )
    return json.loads(done.stdout)


def measure(network: str, options, folder: str) -> list[dict]:
    """Time all ways in turns."""
    saved = saved_bytes(network)
    trainers, turns = {}, {}
    plain = Trainer(network, "plain", saved, folder)
    expected = plain.step()
    for method in (*PEERS, *OURS):
        if method == "checkpoint" and not NETWORKS[network][2]:
            continue
        trainer = Trainer(network, method, saved, folder)
        try:
            for _ in range(2):  # the second one knows the first
                loss, gradients = trainer.step()
        except ResourceExhaustedError:
            print(f"{network:<8} {method:<14} does not fit")
            continue
        pairs = zip(gradients, expected[1], strict=True)
        exact = loss == expected[0] and all(torch.equal(a, b) for a, b in pairs)
        if not exact and "fp" not in method:
            raise SystemExit(f"{network} {method}: other bits")
        trainers[method], turns[method] = trainer, []
    for _ in range(options.repeats):
        for method, trainer in trainers.items():
            began = time.perf_counter()
            trainer.step()
            turns[method].append(time.perf_counter() - began)
    results = []
    for method, trainer in trainers.items():
        ratios = [a / b for a, b in zip(turns[method], turns["plain"], strict=True)]
        result = {
            "network": network,
            "method": method,
            "seconds": statistics.median(turns[method]),
            "by_turn": turns[method],
            "times_plain": statistics.median(ratios),
            "resident_bytes": resident_of(network, method, saved, folder),
            "saved_bytes": saved,
        }
        if method in OURS:
            report = trainer.context.memory_report()
            assert report.peak_bytes <= report.limit_bytes
            result |= {
                "limit_bytes": report.limit_bytes,
                "peak_bytes": report.peak_bytes,
                "tensors": report.tensors,
                "codings": [
                    {"codec": each.codec, "tensors": each.tensors, "ratio": each.ratio}
                    for each in report.codings
                ],
                "spilled_bytes": report.spilled_bytes,
                "read_bytes": report.read_bytes,
                "read_ahead_bytes": report.read_ahead_bytes,
            }
        results.append(result)
        print(
            f"{network:<8} {method:<14} {1e3 * result['seconds']:8.1f} ms "
            f"{100 * (result['times_plain'] - 1):+6.1f}%  resident "
            f"{result['resident_bytes'] / 2**20:7.1f} MiB  held "
            f"{result.get('peak_bytes', saved) / 2**20:7.1f} MiB"
        )
    return results


def main() -> None:
    if sys.argv[1:2] == ["--resident"]:
        network, method, saved, folder = sys.argv[2:]
        measure_resident(network, method, int(saved), folder)
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=11, help="turns, at least 3")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS)
    parser.add_argument("--folder", help="where files lie; that of temporary files")
    parser.add_argument("--output", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    options.clock = "wall"
    torch.set_num_threads(1)
    results = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for network in options.networks:
            results += measure(network, options, folder)
    if options.output is not None:
        place = environment(options) | {"torch": torch.__version__}
        document = {"environment": place, "results": results}
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
