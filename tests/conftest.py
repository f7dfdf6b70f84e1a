"""Every test starts with nothing configured and nothing in use."""

from __future__ import annotations

import gc
import itertools
import os
import signal

import pytest
from hypothesis import settings

if "PYTEST_XDIST_WORKER" in os.environ:  # as many processes as processors
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before it is read

from memcfg import config

pytest_plugins = ["covering_cells", "fewer_examples", "long_tests", "pytester"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started with nohup or `&`
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Ordinary runs draw the same examples every time; a release draws new ones, and more.
settings.register_profile("ordinary", derandomize=True, deadline=None, database=None)
settings.register_profile("release", max_examples=1000, deadline=None, database=None)
settings.load_profile("ordinary")  # --hypothesis-profile=release loads the other


def pytest_collection_modifyitems(items):
    if os.environ.get("MEMCFG_PARITY") == "1":
        return
    skip = pytest.mark.skip(reason="run it with: tox run -e parity")
    for item in items:
        if item.get_closest_marker("parity"):
            item.add_marker(skip)


def pytest_collection_finish():
    gc.collect()
    gc.freeze()  # or a collection in each test would go through all the others


@pytest.fixture(scope="session", autouse=True)
def _compiled_for_pytorch(tmp_path_factory):
    """What is compiled against PyTorch is kept for this run, and not for others."""
    folder = str(tmp_path_factory.getbasetemp() / "torch")
    os.environ.setdefault("MEMCFG_TORCH_CACHE", folder)


_NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def _fresh_configuration(monkeypatch, tmp_path_factory):
    # What was measured by another test, or by another run, is not known to this one.
    folder = tmp_path_factory.getbasetemp() / "algorithms" / str(next(_NUMBERS))
    monkeypatch.setenv("MEMCFG_ALGORITHM_CACHE", str(folder))
    monkeypatch.setenv("MEMCFG_TORCH_PLANS", "none")
    yield
    try:
        config.reset()
    except BaseException:
        from internals import registry  # `drop` has no public face

        registry.drop()  # a leak fails its own test, not those that follow
        raise


@pytest.fixture(
    params=[
        pytest.param(1, id="a tenth"),
        pytest.param(10, id="in full", marks=pytest.mark.slow),
    ]
)
def tenths(request):
    """How many tenths of its size a soak has: 1, and 10 where `slow` tests run."""
    return request.param


@pytest.fixture
def cpu():
    return config.list_physical_devices("CPU")[0]


@pytest.fixture
def native_kernels():
    if config.logical_device().kernels.name in ("blas", "reference"):
        pytest.skip("NumPy's kernels call Python and take temporaries from the heap")
