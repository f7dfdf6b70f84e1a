"""The example's server answers a bounded load on the loopback interface."""

from __future__ import annotations

import io
import runpy
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "67_serve_over_http.py"


@pytest.fixture
def served():
    """Yield the names of the example, with its server at a port."""
    uvicorn = pytest.importorskip("uvicorn", reason="the extra serve installs it")
    names = runpy.run_path(str(EXAMPLE))
    here = socket.create_server(("127.0.0.1", 0), backlog=64)
    config = uvicorn.Config(names["app"], lifespan="off", log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([here],))
    thread.start()
    names["port"] = here.getsockname()[1]
    yield names
    server.should_exit = True
    thread.join()
    names["inference"].close()
    names["model"].close()


def test_answers_are_the_models_and_wrong_requests_fail_alone(served):
    post, port, model = served["post"], served["port"], served["model"]
    x = np.random.default_rng(1).random((120, 32, 32, 1), np.float32)
    wanted = model.predict(x, verbose=0)

    def ask(i):
        if i % 10 == 9:
            return post(port, np.ones((1, 5), np.float32))
        return post(port, x[i : i + 1 + i % 3])

    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(ask, range(110)))
    for i, (status, content) in enumerate(answers):
        if i % 10 == 9:
            assert status == 400
            assert b"the model reads" in content
        else:
            assert status == 200
            got = np.load(io.BytesIO(content))
            own = wanted[i : i + 1 + i % 3]
            scale = max(1.0, np.abs(own).max())  # of rounding in sums
            np.testing.assert_allclose(got, own, rtol=1e-6, atol=1e-6 * scale)
    assert sum(served["inference"].stats().requests) == 99


def test_a_long_body_and_one_that_is_no_array_are_refused(served):
    post, port = served["post"], served["port"]
    assert post(port, np.zeros(served["MOST"], np.uint8))[0] == 413
    assert post(port, np.array([None]))[0] == 400  # a pickle is never loaded
    assert post(port, np.zeros((1, 32, 32, 1), np.float32))[0] == 200
