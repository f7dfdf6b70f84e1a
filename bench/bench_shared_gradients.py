"""Train digits with whole and with encoded gradients: accuracies, and bytes sent.

The handwritten digits of scikit-learn, 1,200 to train on and 597 to test with, a
network of two dense layers and Adam; each number is a mean of some seeds. Workers are
threads of this process, whose encodings have the bytes that processes of MPI send. A
sum of whole gradients sends, from each of N ranks, 2 (N - 1) / N of their bytes, as
`mpi_communicator` does. Asserts nothing.

What was expected: accuracies within a point of each other, since residuals send in
later steps what was left out; and some 4 bytes for each of the 1 % of elements at which
the threshold settles, so 1 % of the bytes between two workers. That is so after some
200 steps, in which the threshold grows from its first value a thousandfold; until then
an encoding has 2 bits an element. So the last epoch is written as well.

``python bench shared_gradients --output bench/results/shared_gradients.json``
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import numpy as np
from machine import facts
from sklearn.datasets import load_digits

import memcfg as mc

nn = mc.nn
TRAINED = 1200
MODES = ("all_reduce", "shared_gradients")


def network(seed: int) -> nn.Model:
    nn.utils.set_random_seed(seed)
    layers = [nn.Dense(64, activation="relu"), nn.Dense(10)]
    model = nn.Sequential([nn.Input((64,)), *layers])
    loss = nn.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model


def trained(mode: str, workers: int, seed: int, epochs: int) -> dict:
    """Return the accuracy in the test, and what all workers have sent."""
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    x, y = (found.data / 16).astype(np.float32)[order], found.target[order]
    model = network(seed)
    sent = [0]  # until each epoch has ended

    class Reader(nn.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: object = None) -> None:
            sent.append(wrapper.bytes_sent)

    with mc.parallel.ParallelWrapper(model, workers, training_mode=mode) as wrapper:
        wrapper.fit(
            *(x[:TRAINED], y[:TRAINED]),
            batch_size=64,
            epochs=epochs,
            seed=seed,
            verbose=0,
            callbacks=[Reader()],
        )
    _, accuracy = model.evaluate(x[TRAINED:], y[TRAINED:], verbose=0)
    if mode == "all_reduce":
        whole = 2 * (workers - 1) * 4 * model.count_params() * -(-TRAINED // 64)
        sent = [whole * epoch for epoch in range(epochs + 1)]
    model.close()
    return {
        "accuracy": accuracy,
        "sent_bytes": sent[-1],
        "sent_in_last_epoch": sent[-1] - sent[-2],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    cases = []
    for workers in (2, 4):
        for mode in MODES:
            runs = [
                trained(mode, workers, seed, options.epochs)
                for seed in range(options.seeds)
            ]
            case = {"workers": workers, "mode": mode, "runs": runs}
            for name in runs[0]:
                case[name] = statistics.fmean(run[name] for run in runs)
            cases.append(case)
            print(
                f"{workers} workers, {mode}: accuracy {case['accuracy']:.4f}, "
                f"{case['sent_bytes']:,.0f} B sent",
                flush=True,
            )
    if options.output is not None:
        machine = facts() | {"seeds": options.seeds, "epochs": options.epochs}
        text = json.dumps({"environment": machine, "cases": cases}, indent=1)
        options.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
