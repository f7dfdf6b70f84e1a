from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from memcfg import config
from memcfg.cli import main

threads = config.threading
INTRA = (
    threads.get_intra_op_parallelism_threads,
    threads.set_intra_op_parallelism_threads,
)
INTER = (
    threads.get_inter_op_parallelism_threads,
    threads.set_inter_op_parallelism_threads,
)
both = pytest.mark.parametrize(
    ("ask", "choose"), [INTRA, INTER], ids=["intra", "inter"]
)


# [T] "set 10 ⇒ get 10; after init a different value ⇒ RuntimeError; the same value ⇒
# fine (intra and inter)." [M] "default 0"
@both
def test_set_10_get_10_and_after_first_use_only_the_same(ask, choose):
    assert ask() == 0
    choose(10)
    assert ask() == 10
    config.list_logical_devices()
    choose(10)
    for other in (0, 9):
        with pytest.raises(RuntimeError, match="cannot be modified"):
            choose(other)
    assert ask() == 10


# [M] "−1 and 'x' accepted at set, 'x' fails at get (wart: validate at set)."
@both
@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize(
    ("bad", "error"),
    [
        *((-1, ValueError), (2**16, ValueError), ("x", TypeError), (1.0, TypeError)),
        *((True, TypeError), (None, TypeError)),
    ],
)
def test_what_is_no_number_of_threads_is_refused_at_set(ask, choose, bad, error, used):
    choose(1)
    if used:
        config.list_logical_devices()
    with pytest.raises(error, match="number of threads"):
        choose(bad)
    assert ask() == 1


# "real: they govern the kernels"
def test_intra_op_threads_are_those_of_the_kernels(capsys):
    def told(*counts):
        """Set numbers, and read what the kernels use; that is a first use."""
        config.reset()
        for count in counts:
            threads.set_intra_op_parallelism_threads(count)
        assert main(["devices"]) == 0
        return capsys.readouterr().out.partition("Threads: ")[2].strip()

    automatic = told()
    assert told(1) == "1"
    assert told(1, 3) == "3"
    assert told(1, 3, 0) == automatic
    assert told(1) == "1"
    config.reset()
    assert threads.get_intra_op_parallelism_threads() == 0
    assert told() == automatic


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_of_a_fork_is_not_stuck_on_its_parents_threads():
    source = """
        import os, threading
        from memcfg import config

        ready, done = threading.Event(), threading.Event()

        def devices():
            ready.set()
            done.wait()
            yield "CPU:0"

        hold = config.set_visible_devices  # has the lock while it reads them
        thread = threading.Thread(target=hold, args=(devices(),))
        thread.start()
        ready.wait()
        child = os.fork()
        if child == 0:
            os._exit(len(config.list_logical_devices()))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        done.set()
        thread.join()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("1\n", "")
