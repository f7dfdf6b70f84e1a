"""Ray Tune's trials are processes: each enters a budget of its own."""

from importlib.util import find_spec

import numpy as np

import memcfg as mc
from memcfg.errors import ResourceExhaustedError

LIMIT = 2 * 2**20  # of a trial


def trial(config):
    """Train within the limit of a trial; a width that does not fit never runs."""
    x = np.random.default_rng(0).random((512, 32), np.float32)
    y = (x.sum(axis=1) > 16).astype(np.int64)
    with mc.budget(LIMIT):
        model = mc.nn.Sequential(
            [mc.nn.Input((32,)), mc.nn.Dense(config["width"], "relu"), mc.nn.Dense(2)]
        )
        loss = mc.nn.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, on_oom="raise")  # no smaller batches instead
        try:
            losses = model.fit(x, y, epochs=2, verbose=0).history["loss"]
        except ResourceExhaustedError as error:
            return {"loss": float("inf"), "refused": error.message}
        return {"loss": losses[-1], "refused": ""}


def search():
    from ray import tune

    space = {"width": tune.grid_search([16, 256, 8192])}
    tuner = tune.Tuner(tune.with_resources(trial, {"cpu": 1}), param_space=space)
    for result in tuner.fit():
        print(result.config["width"], result.metrics["loss"], result.metrics["refused"])


if __name__ == "__main__":
    if find_spec("ray") is None:
        print('pip install "ray[tune]" to run the search; these are two of its trials:')
        for width in (16, 8192):
            print(width, trial({"width": width}))
    else:
        search()
