"""Moving averages in the model while it is evaluated, and logs sent to a server."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs

import numpy as np
import pytest

import memcfg as mc

nn = mc.nn


def model_of(**options):
    model = nn.Sequential(
        [nn.Input((3,)), nn.Dense(4, name="a"), nn.Dense(1, name="b")]
    )
    random = np.random.default_rng(0)
    model.set_weights([random.normal(size=w.shape) for w in model.weights])
    model.compile(nn.SGD(0.1, use_ema=True, ema_momentum=0.8, **options), "mse")
    return model


def data():
    random = np.random.default_rng(1)
    return [random.normal(size=(16, n)).astype(np.float32) for n in (3, 1)]


def averages(model):
    state = model.optimizer.get_state()
    return [
        state[f"{name}/average"]
        for name in ("a/kernel", "a/bias", "b/kernel", "b/bias")
    ]


class Watch(nn.callbacks.Callback):
    """Notes the weights at the end of epochs and whether they are averages."""

    def __init__(self):
        super().__init__()
        self.kept, self.are_averages = [], []

    def on_epoch_end(self, epoch, logs):
        self.kept.append(self.model.get_weights())
        same = zip(self.kept[-1], averages(self.model), strict=True)
        self.are_averages.append(all((a == b).all() for a, b in same))


def test_training_goes_on_with_the_weights():
    """The swapped run ends with the averages of a run without the callback."""
    x, y = data()
    plain, swapped = model_of(), model_of()
    watch = Watch()
    callbacks = [nn.callbacks.SwapEMAWeights(swap_on_epoch=True), watch]
    options = {"batch_size": 4, "epochs": 3, "shuffle": False, "verbose": 0}
    plain.fit(x, y, **options)
    kept = swapped.fit(x, y, validation_data=(x, y), callbacks=callbacks, **options)
    assert watch.are_averages == [True] * 3
    for a, b in zip(plain.get_weights(), swapped.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    found = swapped.evaluate(x, y, batch_size=4, verbose=0)
    assert kept.history["val_loss"][-1] == pytest.approx(found, rel=1e-6)
    plain.close()
    swapped.close()


def test_evaluation_and_prediction_see_the_averages():
    x, y = data()
    model, callback = model_of(), nn.callbacks.SwapEMAWeights()
    before = model.predict(x, verbose=0, callbacks=[callback])
    np.testing.assert_array_equal(before, model.predict(x, verbose=0))  # no step yet
    for _ in range(4):
        model.train_on_batch(x, y)
    weights, moved = model.get_weights(), averages(model)
    found = model.evaluate(x, y, verbose=0, callbacks=[callback])
    seen = model.predict(x, verbose=0, callbacks=[callback])
    for a, b in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(a, b)
    model.set_weights(moved)
    np.testing.assert_array_equal(seen, model.predict(x, verbose=0))
    assert found == pytest.approx(model.evaluate(x, y, verbose=0))
    model.close()


def test_an_optimizer_without_averages_is_refused():
    model = nn.Sequential([nn.Input((3,)), nn.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="use_ema=True"):
        model.evaluate(*data(), verbose=0, callbacks=[nn.callbacks.SwapEMAWeights()])
    model.close()


@pytest.fixture
def server():
    taken = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            taken.append((self.path, self.headers, body))
            self.send_response(200 if "refuse" not in self.path else 500)
            self.end_headers()

        def log_message(self, *_):
            pass

    made = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{made.server_port}", taken
    made.shutdown()
    thread.join()
    made.server_close()


def test_logs_reach_a_server(server):
    root, taken = server
    monitor = nn.callbacks.RemoteMonitor
    model = model_of()
    several = [
        monitor(root),
        monitor(root, "/own/", "mine", {"X-Who": "me"}),
        monitor(root, send_as_json=True),
    ]
    kept = model.fit(*data(), epochs=2, verbose=0, callbacks=several).history
    (path, _, form), (own, headers, mine), (_, kind, text) = taken[3:]
    assert path == "/publish/epoch/end/"
    assert json.loads(parse_qs(form)["data"][0])["loss"] == pytest.approx(
        kept["loss"][1]
    )
    assert (own, headers["X-Who"]) == ("/own/", "me")
    assert json.loads(parse_qs(mine)["mine"][0])["epoch"] == 1
    assert kind["Content-Type"] == "application/json"
    assert json.loads(text).keys() == {"epoch", "loss"}
    with pytest.warns(RuntimeWarning, match="does not take the logs: HTTP Error 500"):
        model.fit(*data(), verbose=0, callbacks=[monitor(root, "/refuse")])
    with pytest.raises(ValueError, match="must be an HTTP server"):
        monitor("file:///etc")
    model.close()
