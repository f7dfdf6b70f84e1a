"""`fit` over processes of MPI: the same script, and what a failure leaves."""

import os
import random
import signal
import time

import pytest
from mpi_runs import LAUNCHER, MpiRun

pytestmark = [
    pytest.mark.skipif(not LAUNCHER.exists(), reason="needs mpiexec: memcfg[mpi]"),
    pytest.mark.always,
]
SLOW = pytest.mark.slow

MODEL = """
import memcfg as mc
mc.nn.utils.set_random_seed(rank)  # weights and orders are those of rank 0
layers = [mc.nn.Dense(48, activation="relu"), mc.nn.Dense(3)]
model = mc.nn.Sequential([mc.nn.Input((8,)), *layers])
loss = mc.nn.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(mc.nn.optimizers.Adam(0.01), loss)
data = np.random.default_rng(5)
x, y = data.standard_normal((96, 8)).astype("float32"), data.integers(0, 3, 96)

known = []  # weights after the last step that callbacks saw

def total():
    return [float(np.abs(each).sum()).hex() for each in model.get_weights()]
"""


@pytest.mark.parametrize("mode", ["all_reduce", "averaging"])
def test_a_script_of_one_process_trains_over_all(mode, tmp_path):
    """Without a communicator, ranks are those that the launcher has started."""
    program = f"""{MODEL}
import warnings
with warnings.catch_warnings(record=True) as heard:
    warnings.simplefilter("always")
    wrapper = mc.parallel.ParallelWrapper(model, workers=4, training_mode={mode!r})
with wrapper:
    logs = wrapper.fit(x, y, batch_size=30, epochs=2, verbose=0).history
report(workers=wrapper.workers, said=[str(each.message) for each in heard])
report(total=total(), loss=[each.hex() for each in logs["loss"]])
"""
    with MpiRun(2, program, tmp_path) as run:
        assert run.wait() == (0, "")
        (_, told, one), (_, _, other) = run.reports(0), run.reports(1)
    assert told["workers"] == 2
    assert told["said"] == ["workers=4 is not used: each of the 2 ranks is a worker"]
    assert one == other


def test_an_error_of_a_rank_ends_the_step_of_all_and_leaves_whole_weights(tmp_path):
    program = f"""{MODEL}
class Fails(mc.nn.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 3 and rank == 1:
            raise ValueError("rank 1 has had enough")
        known[:] = total()

group = mpi_communicator(timeout=30)
try:
    with mc.parallel.ParallelWrapper(
        model, training_mode="all_reduce", communicator=group
    ) as wrapper:
        wrapper.fit(x, y, batch_size=8, verbose=0, callbacks=[Fails()])
except (CommunicationError, ValueError) as error:
    report(error=f"{{type(error).__name__}}: {{error}}", same=total() == known)
"""
    with MpiRun(2, program, tmp_path) as run:
        run.wait()
        (_, first), (_, second) = run.reports(0), run.reports(1)
    assert first["error"].startswith("CommunicationError: ")
    assert "rank 1" in first["error"]
    assert "had enough" in first["error"]
    assert first["same"]  # as before the step that rank 1 did not take
    assert second["error"] == "ValueError: rank 1 has had enough"


@pytest.mark.parametrize("how", ["killed", "suspended"])
@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(n, marks=SLOW) for n in range(2, 31))]
)
def test_a_rank_lost_in_training_leaves_no_process_and_whole_weights(
    how, seed, tmp_path
):
    """The other rank gets an error by the timeout, unless the launcher ends it."""
    program = f"""{MODEL}
class Notes(mc.nn.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        known[:] = total()

MPI.COMM_WORLD.Barrier()
group = mpi_communicator(timeout=2.0)
report(begun=True)
try:
    with mc.parallel.ParallelWrapper(
        model, training_mode="all_reduce", communicator=group
    ) as wrapper:
        wrapper.fit(x, y, batch_size=8, epochs=10_000, verbose=0, callbacks=[Notes()])
except CommunicationError as error:
    report(ranks=error.ranks, same=total() == known)
"""
    options = ["-disable-auto-cleanup"] * (how == "killed")
    with MpiRun(2, program, tmp_path, options=options) as run:
        pid = run.await_reports(1, 2)[0]["pid"]
        time.sleep(1.0 + random.Random(seed).random())
        os.kill(pid, signal.SIGSTOP if how == "suspended" else signal.SIGKILL)
        status, _ = run.wait()
        assert status != 0
        _, _, *said = run.reports(0)
    if how == "suspended":  # the launcher may end the others of a rank that is gone
        assert said
    assert all(1 in each["ranks"] and each["same"] for each in said)
