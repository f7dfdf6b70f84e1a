"""No test here may hang, leave a thread behind, or leave memory in use."""

from __future__ import annotations

import faulthandler

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from calls import data_threads, settle

from memcfg import memory

HANG = 300  # seconds after which a test is ended, with the stacks of all threads


@pytest.fixture(autouse=True)
def _never_for_ever(request):
    stderr = request.config.stash.get(fault_handler_stderr_fd_key, 2)  # not captured
    faulthandler.dump_traceback_later(HANG, exit=True, file=stderr)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def _without_threads():
    yield
    settle(lambda: not data_threads())
    assert data_threads() == []


@pytest.fixture
def pool():
    """A pool that nothing may be left in."""
    pool = memory.Pool(limit="512MiB", name="data")
    yield pool
    settle(lambda: not pool.owners())
    pool.check()
    assert pool.owners() == {}
