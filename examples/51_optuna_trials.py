"""Optuna's trials in threads: each has a share that no other one can take."""

from importlib.util import find_spec

import numpy as np

import memcfg as mc
from memcfg.errors import ResourceExhaustedError

x = np.random.default_rng(0).random((512, 32), np.float32)
y = (x.sum(axis=1) > 16).astype(np.int64)


def loss_of(width):
    """Train within the share of a trial; a width that does not fit never runs."""
    model = mc.nn.Sequential(
        [mc.nn.Input((32,)), mc.nn.Dense(width, "relu"), mc.nn.Dense(2)]
    )
    loss = mc.nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, on_oom="raise")  # no smaller batches instead
    try:
        return model.fit(x, y, epochs=2, verbose=0).history["loss"][-1]
    finally:
        model.close()


def search(budget):
    import optuna

    def objective(trial):
        width = trial.suggest_int("width", 16, 8192, log=True)
        with budget.share("2MiB"):
            try:
                return loss_of(width)
            except ResourceExhaustedError as error:
                trial.set_user_attr("refused", error.message)
                raise optuna.TrialPruned from error

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(objective, n_trials=12, n_jobs=3)
    for trial in study.trials:
        told = trial.user_attrs.get("refused") or f"loss {trial.value:.3f}"
        print(f"width {trial.params['width']:5}: {told}")


with mc.budget("8MiB") as budget:
    if find_spec("optuna") is None:
        print("pip install optuna to run the search; these are two of its trials:")
        for width in (64, 8192):
            with budget.share("2MiB"):
                try:
                    print(f"width {width:5}: loss {loss_of(width):.3f}")
                except ResourceExhaustedError as error:
                    print(f"width {width:5}: {error.message}")
    else:
        search(budget)
