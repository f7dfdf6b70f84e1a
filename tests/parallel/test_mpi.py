"""Ranks that are processes of MPI: their sums, and that none waits for ever.

Each program runs under the launcher of MPICH. Timeouts of communicators are either
shorter than a test takes, or so long that only a notice can end the wait.
"""

import os
import random
import signal
import sys
import time

import pytest
from mpi_runs import MpiRun, needs_launcher
from mpi_training import train

from memcfg.errors import MissingDependencyError
from memcfg.parallel import mpi_communicator, mpi_size

pytestmark = [needs_launcher(), pytest.mark.always]
SLOW = pytest.mark.slow

CONTRACT = """
from communicator_cases import *

communicator = mpi_communicator(timeout=40)
assert (communicator.rank, communicator.size) == (rank, size)
rng = np.random.default_rng(5)
for seed in range(6):
    check_all_reduce(communicator, *draw(rng), seed)
    check_all_reduce_encoded(communicator, draw(rng)[0], seed)
    length = int(rng.integers(0, 1 << int(rng.integers(1, 19))))
    check_parts(communicator, length, str(rng.choice(DTYPES)), seed)
    check_broadcast(communicator, *draw(rng), int(rng.integers(size)), seed)
check_exchange(communicator)
communicator.close()
communicator.close()
caught(communicator.exchange, 1)
report(checked=True)
"""


@pytest.mark.parametrize("size", [2, 3, *(pytest.param(n, marks=SLOW) for n in (1, 4))])
def test_sums_are_those_in_the_order_of_ranks(size, tmp_path):
    with MpiRun(size, CONTRACT, tmp_path) as run:
        status, output = run.wait()
        assert (status, output) == (0, "")
        for rank in range(size):
            _, error, checked = run.reports(rank)
            assert error["error"] == "the communicator of this rank has been closed"
            assert checked == {"checked": True}


def test_threads_of_a_part_of_the_processes_sum_and_exchange(tmp_path):
    program = """
    from threading import Thread
    from communicator_cases import check_all_reduce, check_exchange
    from memcfg.ops import add_group, group_of

    group = mpi_communicator(MPI.COMM_WORLD.Split(rank % 2, -rank), timeout=40)
    add_group("evens or odds", group)
    assert group_of("evens or odds") is group

    def sum_often():
        for seed in range(30):
            check_all_reduce(group, [(50_000,), (7,)], ["float32"] * 2, seed)
        report(summed=group.size)

    thread = Thread(target=sum_often)
    thread.start()
    for _ in range(30):
        check_exchange(group)
    thread.join()
    work, one = np.empty(8, np.uint8), np.ones(1)
    for call in (
        lambda: group.all_reduce([np.ones(100)], work),
        lambda: group.all_reduce_encoded([np.ones(100, np.float32)], work),
        lambda: group.all_reduce([np.ones((4, 4)).T], work),
        lambda: group.reduce_scatter(np.ones(4), one, work),
        lambda: group.all_gather(one, np.ones(2, np.float32), work),
        lambda: group.broadcast([one], 2),
    ):
        try:
            call()
        except ValueError as error:
            report(error=str(error))
    group.close()
    """
    with MpiRun(3, program, tmp_path) as run:
        status, output = run.wait()
        assert (status, output) == (0, "")
        assert [run.reports(rank)[1]["summed"] for rank in range(3)] == [2, 1, 2]
        of_four = "parts of 4 elements in float64 are (2,) in that dtype"
        of_two = "parts of 2 elements in float32 are (1,) in that dtype"
        assert [each["error"] for each in run.reports(2)[2:]] == [
            "all_reduce needs 800 bytes of scratch, not 8",
            "all_reduce_encoded needs 600 bytes of scratch, not 8",
            "collectives need C-contiguous arrays",
            f"{of_four}, not (1,) in float64",
            f"{of_two}, not (1,) in float64",
            "there is no rank 2 of 2",
        ]


@pytest.mark.parametrize(
    ("mode", "size", "shard"),
    [
        ("all_reduce", 2, None),
        ("all_reduce", 2, "gradients"),
        ("all_reduce", 2, "optimizer"),
        ("all_reduce", 2, "parameters"),
        ("shared_gradients", 2, None),
        ("shared_gradients", 3, None),
    ],
)
def test_training_over_processes_has_the_bits_of_threads(mode, size, shard, tmp_path):
    """With parts of state, the sum of the weights is gathered from the processes."""
    program = f"""
    from mpi_training import train

    group = mpi_communicator(timeout=40)
    report(trained=train({mode!r}, communicator=group, shard={shard!r}))
    group.close()
    """
    with MpiRun(size, program, tmp_path) as run:
        assert run.wait() == (0, "")
        *wanted, entries = train(mode, workers=size)
        found = [run.reports(rank)[1]["trained"] for rank in range(size)]
    assert [each[:-1] for each in found] == [wanted] * size
    assert sum(each[-1] for each in found) == entries  # each counts its own
    assert bool(entries) == (mode == "shared_gradients")


def test_failures_of_a_group_are_named_on_all_ranks_and_are_its_own(tmp_path):
    program = """
    encoding, differing, failing, whole = (
        mpi_communicator(timeout=50) for _ in range(4)
    )
    slow = mpi_communicator(timeout=0.5)

    def sum_up(group, length):
        work = np.empty(group.work_bytes("all_reduce", length * 4, 4), np.uint8)
        group.all_reduce([np.ones(length, np.float32)], work)

    words = np.empty(encoding.work_bytes("all_reduce_encoded", 8, 4), np.uint8)
    try:
        encoding.all_reduce_encoded([np.float32([3, 3 + rank])], words)
    except (CommunicationError, ValueError) as error:
        report(encoded=str(error), kind=type(error).__name__)
    caught(sum_up, differing, 300_000 + (rank == 1))
    caught(differing.broadcast, [np.ones(3)], 0)
    if rank == 1:
        time.sleep(0.1)
        failing.fail("rank 1 has no data")
    caught(failing.exchange, rank)
    caught(sum_up, failing, 3)
    sum_up(slow, 400_000)
    if rank == 1:
        time.sleep(1.5)
    caught(sum_up, slow, 400_000)
    report(exchanged=whole.exchange(rank))
    """
    with MpiRun(3, program, tmp_path) as run:
        status, _ = run.wait()
        assert status != 0
        for rank in range(3):
            _, encode, differ, again, fail, later, slow, exchanged = run.reports(rank)
            assert "one finite magnitude" in encode["encoded"]
            assert encode["kind"] == ("CommunicationError", "ValueError")[rank > 0]
            assert differ == again
            assert "rank 1 called all_reduce of 300001 elements" in differ["error"]
            assert "called all_reduce of 300000 elements in 1 array" in differ["error"]
            assert fail == later == {"error": "rank 1 has no data", "ranks": [1]}
            assert slow["ranks"] == [1]
            said = "rank 1 did not arrive at a collective within 0.5 s"
            assert said in slow["error"]
            assert exchanged == {"exchanged": [0, 1, 2]}


ENDINGS = {
    "an exception": ('raise ValueError("no data")', "ended with ValueError: no data"),
    "sys.exit": ("sys.exit(3)", "has left the group"),
    "close": ("group.close(); sys.exit()", "has left the group"),
}


@pytest.mark.parametrize(
    "ending", ["an exception", "close", pytest.param("sys.exit", marks=SLOW)]
)
def test_a_rank_that_ends_early_ends_the_waiting_of_others(ending, tmp_path):
    statement, said = ENDINGS[ending]
    program = f"""
    group = mpi_communicator(timeout=50)
    arrays = [np.ones(400_000)]
    work = np.empty(group.work_bytes("all_reduce", 3_200_000, 8), np.uint8)
    group.all_reduce(arrays, work)
    if rank == 1:
        {statement}
    caught(group.all_reduce, arrays, work)
    time.sleep(0.2)
    report(saved=True)
    """
    with MpiRun(3, program, tmp_path) as run:
        status, _ = run.wait()
        assert status != 0
        for rank in (0, 2):
            _, error, saved = run.reports(rank)
            assert (error["error"], error["ranks"]) == (f"rank 1 {said}", [1])
            assert saved == {"saved": True}  # what a rank does then is not cut short


def test_a_call_that_the_rank_that_fails_has_ended_is_ended_by_all(tmp_path):
    """Rank 2 hears of the failure while rank 0 still sends it what rank 1 has got."""
    program = """
    class Held:
        def __init__(self, begin):
            self.begin, self.end, self.request = begin, time.monotonic() + 0.5, None
        def Test(self):
            if self.request is None and time.monotonic() >= self.end:
                self.request = self.begin()
            return self.request is not None and self.request.Test()

    class Late:  # the communicator of rank 0, whose last message to rank 2 is late
        def __init__(self, comm):
            self.comm, self.sent = comm, 0
        def __getattr__(self, name):
            return getattr(self.comm, name)
        def Idup(self):
            copy, request = self.comm.Idup()
            return Late(copy), request
        def Isend(self, data, to, tag):
            self.sent += (rank, to, tag) == (0, 2, 1)
            begin = lambda: self.comm.Isend(data, to, tag)
            return Held(begin) if self.sent == 3 and to == 2 and tag == 1 else begin()

    group = mpi_communicator(Late(MPI.COMM_WORLD), timeout=50)
    array = np.full(30, 1.0 + rank)
    work = np.empty(group.work_bytes("all_reduce", 240, 8), np.uint8)
    group.all_reduce([array], work)
    report(sum=array.tolist())
    if rank == 1:
        raise ValueError("no data")
    caught(group.all_reduce, [array], work)
    """
    with MpiRun(3, program, tmp_path) as run:
        status, output = run.wait()
        assert status != 0
        for rank in range(3):
            _, summed, *error = run.reports(rank)
            assert summed == {"sum": [6.0] * 30}, output
            if rank != 1:
                assert error[0]["error"] == "rank 1 ended with ValueError: no data"


LOOP = """
MPI.COMM_WORLD.Barrier()
group = mpi_communicator(timeout=TIMEOUT)
arrays = [np.ones(n, np.float32) for n in (300_000, 10, 2000, 70_000)]
work = np.empty(group.work_bytes("all_reduce", 4 * 372_010, 4), np.uint8)
def loop():
    while True:
        for array in arrays:
            array[:] = rank
        group.all_reduce(arrays, work)
        assert all((array == 3).all() for array in arrays)
report(begun=True)
caught(loop)
"""


def stop_one(folder, instant):
    """Suspend rank 1 of 3 in a loop of sums; others name it and end, and so all.

    One that it has suspended within a message to another rank may hang that as well, as
    MPICH waits for the rest of the message without a limit.
    """
    with MpiRun(3, LOOP.replace("TIMEOUT", "0.5"), folder) as run:
        pid = run.await_reports(1, 2)[0]["pid"]
        time.sleep(instant)
        os.kill(pid, signal.SIGSTOP)
        status, output = run.wait()
        assert status != 0
        assert "ending all processes: rank" in output
        errors = [error for rank in (0, 2) for error in run.reports(rank)[2:]]
        assert errors
        assert all(1 in error["ranks"] for error in errors), errors


def kill_one(folder, instant, options):
    """Kill rank 1 of 3 in a loop of sums; all end, by the launcher or by an error."""
    program = LOOP.replace("TIMEOUT", "0.5")
    with MpiRun(3, program, folder, options=options) as run:
        pid = run.await_reports(1, 2)[0]["pid"]
        time.sleep(instant)
        os.kill(pid, signal.SIGKILL)
        status, _ = run.wait()
        assert status != 0
        errors = [error for rank in (0, 2) for error in run.reports(rank)[2:]]
        assert all(error["ranks"] for error in errors)


def instant(seed):
    return random.Random(seed).uniform(0, 0.2)


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(n, marks=SLOW) for n in range(2, 31))]
)
def test_a_rank_that_hangs_at_any_instant_is_named(seed, tmp_path):
    stop_one(tmp_path, instant(seed))


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(n, marks=SLOW) for n in range(2, 31))]
)
def test_no_process_is_left_when_one_is_killed_at_any_instant(seed, tmp_path):
    kill_one(tmp_path, instant(seed), ["-disable-auto-cleanup"] * (seed % 2))


@pytest.mark.parametrize("to", ["one", "the launcher"])
def test_an_interrupt_ends_all_ranks(to, tmp_path):
    with MpiRun(
        2, LOOP.replace("TIMEOUT", "50").replace("== 3", "== 1"), tmp_path
    ) as run:
        pids = [run.await_reports(rank, 2)[0]["pid"] for rank in range(2)]
        os.kill(pids[1] if to == "one" else run.process.pid, signal.SIGINT)
        status, _ = run.wait()
        assert status != 0
        if to == "one":
            error = run.reports(0)[2]
            assert error["ranks"] == [1]
            assert "KeyboardInterrupt" in error["error"]


def test_a_rank_that_hangs_at_the_end_is_not_waited_for_longer(tmp_path):
    program = """
    MPI.COMM_WORLD.Barrier()
    group = mpi_communicator(timeout=0.5)
    group.exchange(rank)
    report(exchanged=True)
    if rank == 1:
        time.sleep(100)
    caught(group.close)
    """
    with MpiRun(2, program, tmp_path) as run:
        status, output = run.wait()
        assert status != 0
        assert "ending all processes: rank 1 did not close the communicator" in output
        error = run.reports(0)[2]
        assert error["ranks"] == [1]
        assert "within 0.5 s after rank 0" in error["error"]


def test_processes_that_do_not_call_together_get_an_error(tmp_path):
    program = """
    if rank == 0:
        caught(lambda: mpi_communicator(timeout=0.5))
    else:
        time.sleep(100)
    """
    with MpiRun(2, program, tmp_path) as run:
        run.wait()
        error = run.reports(0)[1]["error"]
        assert error == "not all processes called mpi_communicator within 0.5 s"


def test_threads_that_mpi_does_not_allow_are_an_error(tmp_path):
    program = """
    caught(mpi_communicator)
    """
    with MpiRun(1, program, tmp_path, thread_level="funneled") as run:
        run.wait()
        assert "set mpi4py.rc.thread_level" in run.reports(0)[1]["error"]


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan")])
def test_a_timeout_is_positive(timeout):
    with pytest.raises(ValueError, match="timeout is positive seconds"):
        mpi_communicator(timeout=timeout)


def test_what_to_install_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(MissingDependencyError, match=r"pip install memcfg\[mpi\]"):
        mpi_communicator()


@pytest.mark.parametrize(
    ("environment", "size"),
    [
        ({}, 1),
        ({"PMI_SIZE": "4", "PMI_RANK": "1"}, 4),
        ({"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_RANK": "0"}, 8),
        ({"SLURM_STEP_NUM_TASKS": "2", "PMIX_RANK": "0"}, 2),
        ({"SLURM_STEP_NUM_TASKS": "2"}, 1),
    ],
)
def test_the_number_of_processes_is_what_the_launcher_says(
    environment, size, monkeypatch
):
    for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("PMIX_RANK", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert mpi_size() == size
