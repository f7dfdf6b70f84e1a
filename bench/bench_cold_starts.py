"""Time what a user waits for before training: imports, first steps, second models.

Each row is the median of several processes that start anew: memcfg; Keras on its
PyTorch backend, eager as its `fit` is there by default; PyTorch with `torch.compile`,
once without a cache on the disk and then with that of the run before. A first step is
given beside a later one of the same process, since only the difference is a start.
Asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

CONTENDERS = ("memcfg", "keras", "compile", "compile_cached")
BATCHES = {"residual digits": 32, "resnet50": 4}
SHAPES = {"residual digits": (8, 8, 1), "resnet50": (224, 224, 3)}
CLASSES = {"residual digits": 10, "resnet50": 1000}
LATER = 3  # steps whose median is that of a later step


class Contender(NamedTuple):
    """What one library does, after its import."""

    build: Callable[[str], Any]
    step: Callable[[Any, np.ndarray, np.ndarray], object]
    save: Callable[[Any, Path], object]
    load: Callable[[str, Path], Any]
    predict: Callable[[Any, np.ndarray], object]


def of_memcfg() -> Contender:
    from memcfg import models, nn
    from memcfg.commands._digits import residual_network

    builders = {"residual digits": residual_network, "resnet50": models.resnet50}

    def build(name: str) -> Any:
        model = builders[name]()
        loss = nn.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(nn.SGD(0.01), loss)
        return model

    return Contender(
        build,
        lambda model, x, y: model.fit(x, y, batch_size=len(x), verbose=0),
        lambda model, path: model.save(path / "model.memcfg"),
        lambda name, path: nn.models.load_model(path / "model.memcfg"),
        lambda model, x: model.predict(x, batch_size=len(x), verbose=0),
    )


def of_keras() -> Contender:
    os.environ["KERAS_BACKEND"] = "torch"
    import keras

    layers = keras.layers

    def unit(x: Any, filters: int, *, relu: bool = True) -> Any:
        x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization()(x)
        return layers.ReLU()(x) if relu else x

    def block(x: Any, filters: int) -> Any:
        branch = unit(unit(x, filters), filters, relu=False)
        return layers.ReLU()(layers.Add()([x, branch]))

    def digits() -> Any:
        inputs = layers.Input((8, 8, 1))
        x = block(block(unit(inputs, 32), 32), 32)
        x = block(unit(layers.MaxPooling2D(2)(x), 64), 64)
        x = layers.Dense(10)(layers.GlobalAveragePooling2D()(x))
        return keras.Model(inputs, x)

    def build(name: str) -> Any:
        if name == "resnet50":
            model = keras.applications.ResNet50(
                weights=None, classifier_activation=None
            )
        else:
            model = digits()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.01), loss)
        return model

    return Contender(
        build,
        lambda model, x, y: model.fit(x, y, batch_size=len(x), verbose=0),
        lambda model, path: model.save(path / "model.keras"),
        lambda name, path: keras.models.load_model(path / "model.keras"),
        lambda model, x: model.predict(x, batch_size=len(x), verbose=0),
    )


def of_compile() -> Contender:
    import torch
    from peers import torch_residual_network
    from zoo_peers import NETWORKS

    if len(os.sched_getaffinity(0)) != torch.get_num_threads():
        raise SystemExit("PyTorch does not run on all cores")

    def module(name: str) -> Any:
        if name == "residual digits":
            return torch_residual_network()
        return NETWORKS[name].torch_build()

    def step(model: Any, x: np.ndarray, y: np.ndarray) -> float:
        images = torch.from_numpy(x).permute(0, 3, 1, 2)
        labels = torch.from_numpy(y).long()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    def load(name: str, path: Path) -> Any:
        model = module(name)
        model.load_state_dict(torch.load(path / "model.pt"))
        return torch.compile(model)

    def predict(model: Any, x: np.ndarray) -> Any:
        model.eval()
        with torch.no_grad():
            return model(torch.from_numpy(x).permute(0, 3, 1, 2)).numpy()

    return Contender(
        lambda name: torch.compile(module(name)),
        step,
        lambda model, path: torch.save(model._orig_mod.state_dict(), path / "model.pt"),
        load,
        predict,
    )


LIBRARIES = {
    "memcfg": of_memcfg,
    "keras": of_keras,
    "compile": of_compile,
    "compile_cached": of_compile,
}


def seconds_of(call: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = call()
    return time.perf_counter() - began, result


def start(contender: str, name: str, folder: Path) -> dict[str, float]:
    """Return what a process waits for; called in one that has imported NumPy alone."""
    generator = np.random.default_rng(0)
    x = generator.random((BATCHES[name], *SHAPES[name]), np.float32)
    y = generator.integers(0, CLASSES[name], BATCHES[name]).astype(np.int32)
    found: dict[str, float] = {}
    found["import"], library = seconds_of(LIBRARIES[contender])

    def train(label: str) -> Any:
        building, model = seconds_of(lambda: library.build(name))
        first, _ = seconds_of(lambda: library.step(model, x, y))
        found[label] = building + first
        return model

    model = train("first")
    later = [seconds_of(lambda: library.step(model, x, y))[0] for _ in range(LATER)]
    found["later"] = statistics.median(later)
    second = train("second")
    library.save(second, folder)
    loading, loaded = seconds_of(lambda: library.load(name, folder))
    predicting, _ = seconds_of(lambda: library.predict(loaded, x))
    found["load"] = loading + predicting
    again = [seconds_of(lambda: library.predict(loaded, x))[0] for _ in range(LATER)]
    found["predict"] = statistics.median(again)
    return found


def measured(contender: str, name: str, repeats: int, cache: Path) -> dict[str, float]:
    rows = []
    for turn in range(repeats):
        kept = "kept" if contender == "compile_cached" else f"{contender}{turn}"
        with tempfile.TemporaryDirectory() as folder:
            words = [sys.executable, __file__, "--start", contender, name, folder]
            environment = os.environ | {
                "TORCHINDUCTOR_CACHE_DIR": str(cache / kept),
                "MEMCFG_ALGORITHM_CACHE": "none",
            }
            # An installed library has bytecode, which the first process writes here.
            environment.pop("PYTHONDONTWRITEBYTECODE", None)
            done = subprocess.run(
                words, env=environment, stdout=subprocess.PIPE, text=True, check=True
            )
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        if kept != "kept" and contender == "compile":
            (cache / "kept").exists() or (cache / kept).rename(cache / "kept")
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3, help="processes a row")
    parser.add_argument("--only", choices=CONTENDERS, nargs="*", default=CONTENDERS)
    parser.add_argument("--networks", choices=BATCHES, nargs="*", default=[*BATCHES])
    parser.add_argument("--output", type=Path, help="write the result as JSON")
    parser.add_argument("--start", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.start is not None:
        contender, name, folder = options.start
        print(json.dumps(start(contender, name, Path(folder))))
        return
    results = []
    with tempfile.TemporaryDirectory() as cache:
        for name in options.networks:
            for contender in options.only:
                repeats = 1 if contender == "compile" else options.repeats
                found = measured(contender, name, repeats, Path(cache))
                row = {"network": name, "contender": contender, "seconds": found}
                results.append(row | {"batch_size": BATCHES[name]})
                print(
                    f"{name:16}{contender:15}",
                    *(f"{k} {v:.3f}" for k, v in found.items()),
                )
    if options.output is not None:
        from bench_training import environment

        document = {
            "environment": environment(len(os.sched_getaffinity(0))),
            "results": results,
        }
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
