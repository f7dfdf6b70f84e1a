"""Time sums over two processes: `mpi_communicator`, MPI's own, and gloo's.

All are called in turns, in the same two processes, which begin each call together.
Prints the medians of the seconds of a call, and the ratio of ours to those of MPI's
Allreduce and of torch.distributed's all_reduce with gloo (below 1, ours is faster). The
first row has no elements: what ranks tell each other before a collective. One row has
60 arrays of 1 KiB to 1 MiB; MPI and gloo get their elements as one array. Waiting is
the processor time of a rank while the other is late. Asserts nothing.

``python bench collectives --output bench/results/collectives.json``
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

KIB = 1 << 10
SIZES = (
    0,
    KIB,
    16 * KIB,
    256 * KIB,
    KIB * KIB,
    4 * KIB * KIB,
    16 * KIB**2,
    64 * KIB**2,
)
MANY = 60
LATE_SECONDS = 0.2


def lengths_of_many() -> list[int]:
    """Elements of arrays of 1 KiB to 1 MiB, as many in each octave."""
    return [int(256 * 2 ** (10 * i / (MANY - 1))) for i in range(MANY)]


def measure(communicator, lengths, seconds, comm, distributed):
    """The seconds of calls by each, and how many were made."""
    import numpy as np
    import torch
    from mpi4py import MPI

    arrays = [np.zeros(length, np.float32) for length in lengths]
    nbytes = 4 * sum(lengths)
    work = np.zeros(communicator.work_bytes("all_reduce", nbytes, 4), np.uint8)
    whole = np.zeros(sum(lengths), np.float32)
    tensor = torch.zeros(sum(lengths))
    sides = {
        "memcfg": lambda: communicator.all_reduce(arrays, work),
        "mpi": lambda: comm.Allreduce(MPI.IN_PLACE, whole),
        "gloo": lambda: distributed.all_reduce(tensor),
    }
    taken = {side: [] for side in sides}
    end = time.perf_counter() + seconds
    more = True
    while more:
        for side, call in sides.items():
            comm.Barrier()
            began = time.perf_counter()
            call()
            taken[side].append(time.perf_counter() - began)
        mine = time.perf_counter() < end or len(taken["mpi"]) < 7
        more = comm.bcast(mine)
    return taken


def row(lengths, taken, work_bytes) -> dict:
    pairs = {
        side: [
            ours / each for ours, each in zip(taken["memcfg"], taken[side], strict=True)
        ]
        for side in ("mpi", "gloo")
    }
    return {
        "arrays": len(lengths),
        "bytes": 4 * sum(lengths),
        "work_bytes": work_bytes,
        "calls": len(taken["memcfg"]),
        "seconds": {side: statistics.median(each) for side, each in taken.items()},
        "fastest": {side: min(each) for side, each in taken.items()},
        "ratio": {side: statistics.median(each) for side, each in pairs.items()},
    }


def waiting(communicator, comm) -> float:
    """The part of a processor that rank 0 takes while rank 1 is late."""
    comm.Barrier()
    if comm.rank == 1:
        time.sleep(LATE_SECONDS)
    began, processor = time.perf_counter(), time.process_time()
    communicator.exchange(None)
    return (time.process_time() - processor) / (time.perf_counter() - began)


def run_rank(store: str, seconds: float) -> None:
    """What each of the two processes does; rank 0 prints a line of JSON a row."""
    import torch
    from mpi4py import MPI
    from torch import distributed

    import memcfg as mc

    torch.set_num_threads(1)
    comm = MPI.COMM_WORLD
    distributed.init_process_group(
        "gloo", f"file://{store}", rank=comm.rank, world_size=comm.size
    )
    communicator = mc.parallel.mpi_communicator(timeout=60)
    for lengths in [*([size // 4] for size in SIZES), lengths_of_many()]:
        taken = measure(communicator, lengths, seconds, comm, distributed)
        work_bytes = communicator.work_bytes("all_reduce", 4 * sum(lengths), 4)
        if comm.rank == 0:
            print(json.dumps(row(lengths, taken, work_bytes)), flush=True)
    part = waiting(communicator, comm)
    if comm.rank == 0:
        print(json.dumps({"waiting": part, "late_seconds": LATE_SECONDS}), flush=True)
    communicator.close()
    distributed.destroy_process_group()


def text(result: dict) -> str:
    if "waiting" in result:
        return f"waiting takes {result['waiting']:.0%} of a processor"
    ours, mpi, gloo = (
        1e6 * result["seconds"][each] for each in ("memcfg", "mpi", "gloo")
    )
    return (
        f"{result['arrays']:3} {result['bytes'] / KIB:9.0f} KiB {ours:9.0f} {mpi:9.0f} "
        f"{gloo:9.0f} us {result['ratio']['mpi']:6.2f} {result['ratio']['gloo']:6.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each row")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--rank", metavar="STORE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        run_rank(options.rank, options.seconds)
        return
    from machine import facts

    about = facts()
    with tempfile.TemporaryDirectory() as folder:
        launcher = Path(sys.executable).with_name("mpiexec")
        words = ["--rank", f"{folder}/store", "--seconds", str(options.seconds)]
        command = [launcher, "-n", "2", sys.executable, __file__, *words]
        ranks = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
        )
        results = []
        for line in ranks.stdout:
            results.append(json.loads(line))
            print(text(results[-1]), flush=True)
        if ranks.wait():
            raise SystemExit("a rank failed")
    if options.output:
        made = {"environment": about, "results": results}
        options.output.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
