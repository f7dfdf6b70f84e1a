"""Time training over two processes: `ParallelWrapper` over MPI, and DDP with gloo.

Both train the same network on the same batches with SGD and momentum, in the same two
processes of one thread each, and take turns. Seconds of a step are medians on rank 0;
ratios are DDP's over memcfg's (above 1, memcfg is faster). Memory is that of memcfg's
plan, predicted and measured on each rank. Asserts nothing.

``python bench data_parallel --output bench/results/data_parallel.json``
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RATE = 1e-4  # a random batch over and over: larger ones diverge
STEPS = 8  # a turn
NETWORKS = ("resnet18", "gpt")


def network(name):
    """Return the network for both libraries, and a batch of each rank."""
    import numpy as np
    from zoo_peers import NETWORKS as PEERS
    from zoo_peers import tv

    import memcfg as mc

    rng = np.random.default_rng(0)
    if name == "resnet18":
        x = rng.normal(size=(32, 32, 32, 3)).astype(np.float32)
        y = rng.integers(0, 10, 32).astype(np.int32)
        model = mc.models.resnet18(input_shape=(32, 32, 3), classes=10)
        return model, tv.resnet18(num_classes=10), x, y
    peer = PEERS[name]
    x = rng.integers(0, peer.words, (8, *peer.shapes[0])).astype(np.int32)
    y = rng.integers(0, peer.classes, (8, *peer.target)).astype(np.int32)
    return peer.build(), peer.torch_build(), x, y


def ours(model, x, y, communicator):
    """Return what runs a turn, and the wrapper."""
    import memcfg as mc

    model.compile(
        mc.nn.SGD(RATE, momentum=0.9),
        mc.nn.SparseCategoricalCrossentropy(from_logits=True),
        batch_statistics="micro",
    )
    wrapper = mc.parallel.ParallelWrapper(
        model, training_mode="all_reduce", communicator=communicator
    )
    times = []

    class Clock(mc.nn.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            times.append(time.perf_counter())

    batches = [(x, y)] * (STEPS + 1)

    def turn():
        times.clear()
        wrapper.fit(batches, verbose=0, callbacks=[Clock()])
        return [b - a for a, b in itertools.pairwise(times)]

    return turn, wrapper


def theirs(module, x, y, rank):
    """Return what runs a turn of DDP, channels last where there are images."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    half = len(x) // 2
    rows = slice(rank * half, (rank + 1) * half)
    if x.ndim == 4:
        data = torch.from_numpy(x[rows]).permute(0, 3, 1, 2)
        data = data.contiguous(memory_format=torch.channels_last)
        module = module.to(memory_format=torch.channels_last)
    else:
        data = torch.from_numpy(x[rows]).long()
    labels = torch.from_numpy(y[rows]).long()
    wrapped = DistributedDataParallel(module)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=RATE, momentum=0.9)
    loss_of = torch.nn.CrossEntropyLoss()

    def step():
        optimizer.zero_grad(set_to_none=True)
        found = wrapped(data)
        loss = loss_of(found.reshape(-1, found.shape[-1]), labels.reshape(-1))
        loss.backward()
        optimizer.step()
        return loss.item()

    def turn():
        step()
        times = [time.perf_counter()]
        for _ in range(STEPS):
            step()
            times.append(time.perf_counter())
        return [b - a for a, b in itertools.pairwise(times)]

    return turn


def run_rank(store: str, turns: int) -> None:
    """What each of the two processes does; rank 0 prints a line of JSON a network."""
    import torch
    from mpi4py import MPI
    from torch import distributed

    import memcfg as mc

    torch.set_num_threads(1)
    mc.config.threading.set_intra_op_parallelism_threads(1)
    comm = MPI.COMM_WORLD
    distributed.init_process_group(
        "gloo", f"file://{store}", rank=comm.rank, world_size=comm.size
    )
    for name in NETWORKS:
        model, module, x, y = network(name)
        communicator = mc.parallel.mpi_communicator(timeout=120)
        own, wrapper = ours(model, x, y, communicator)
        sides = {"memcfg": own, "ddp": theirs(module, x, y, comm.rank)}
        for turn in sides.values():
            turn()
        taken = {side: [] for side in sides}
        for _ in range(turns):
            for side, turn in sides.items():
                comm.Barrier()
                taken[side].append(statistics.median(turn()))
        (report,) = wrapper.memory_reports(verify=True)
        peaks = report.predicted_peak_bytes, report.measured_peak_bytes
        rows = communicator.exchange(peaks)
        wrapper.close()
        communicator.close()
        model.close()
        if comm.rank == 0:
            ratios = [b / a for a, b in zip(*taken.values(), strict=True)]
            result = {
                "network": name,
                "batch": len(x),
                "seconds": {side: statistics.median(t) for side, t in taken.items()},
                "ratio": statistics.median(ratios),
                "ratios": ratios,
                "peaks": rows,
            }
            print(json.dumps(result), flush=True)
    distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--rank", metavar="STORE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        run_rank(options.rank, options.turns)
        return
    from machine import facts

    about = facts()
    with tempfile.TemporaryDirectory() as folder:
        launcher = Path(sys.executable).with_name("mpiexec")
        words = ["--rank", f"{folder}/store", "--turns", str(options.turns)]
        command = [launcher, "-n", "2", sys.executable, __file__, *words]
        environment = dict(os.environ) | {"OMP_NUM_THREADS": "1"}
        ranks = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment
        )
        results = []
        for line in ranks.stdout:
            results.append(json.loads(line))
            seconds = results[-1]["seconds"]
            print(
                f"{results[-1]['network']:10} memcfg {seconds['memcfg']:.4f} s, DDP "
                f"{seconds['ddp']:.4f} s, ratio {results[-1]['ratio']:.2f}",
                flush=True,
            )
        if ranks.wait():
            raise SystemExit("a rank failed")
    if options.output:
        made = {"environment": about, "results": results}
        options.output.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
