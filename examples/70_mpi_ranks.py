"""Train over processes: `mpiexec -n 2 python 70_mpi_ranks.py`.

The script is that of one process. Each rank reads its part of every batch, and has the
weights of all. Started without mpiexec, it starts two ranks itself.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np

import memcfg as mc
from memcfg import nn as keras

LIMIT = "256KiB"  # of each rank


def train():
    """Train on this rank's part of the data, and print what rank 0 has."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((512, 32)).astype("float32")
    y = (x[:, :16].sum(1) > x[:, 16:].sum(1)).astype("int32")

    mc.config.set_memory_limit("CPU:0", LIMIT)
    model = keras.Sequential(
        [
            keras.Input((32,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(2),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.003), loss, metrics=["accuracy"])

    group = mc.parallel.mpi_communicator(timeout=60)
    with mc.parallel.ParallelWrapper(
        model, training_mode="all_reduce", communicator=group
    ) as wrapper:
        logs = wrapper.fit(x, y, batch_size=64, epochs=5, verbose=0).history
        (report,) = wrapper.memory_reports(verify=True)
    rows = group.exchange((report.measured_peak_bytes, float(logs["loss"][-1])))
    group.close()
    if group.rank == 0:
        for rank, (peak, score) in enumerate(rows):
            print(f"rank {rank}: {peak} B within {LIMIT}, loss {score:.6f}")
        print(f"accuracy {logs['accuracy'][0]:.2f}, then {logs['accuracy'][-1]:.2f}")


if mc.parallel.mpi_size() > 1:
    train()
else:
    mpiexec = Path(sys.executable).with_name("mpiexec")  # of the wheel of mpich
    command = [str(mpiexec), "-n", "2", sys.executable, __file__]
    sys.exit(subprocess.run(command, check=False).returncode)
