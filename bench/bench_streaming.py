"""Time inference from a compressed file beside that of the decoded model.

VGG-16 with random weights at Deep Compression's densities and bits, as in
`bench_coding`: 528 MiB of weights in a file of 11 MB, which the page cache has. In one
process in turns: the decoded model, a model that reads and decodes each weight in each
step, the same in the least memory that a plan finds, and one whose layers multiply by
codes where that pays. Prints the median of each, its ratio to the decoded model's, and
the peaks. Asserts that outputs have the decoded model's bits (by codes: 1e-5), and that
peaks are as predicted; no time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import machine
import numpy as np
from bench_coding import NETWORKS, layer_of

import memcfg as mc
from memcfg import compression
from memcfg.errors import InfeasiblePlanError


def network() -> mc.nn.Model:
    model, rows = mc.models.vgg16(), iter(NETWORKS["VGG-16"].values())
    random = np.random.default_rng(0)
    values = []
    for weight in model.weights:
        if len(weight.shape) == 1:
            values.append(random.normal(0, 0.01, weight.shape).astype(np.float32))
            continue
        array = layer_of(next(rows))
        fan_in = int(np.prod(weight.shape[:-1]))
        values.append(array * np.float32(np.sqrt(2 / fan_in) / array.std()))
        values[-1] = values[-1].reshape(weight.shape)
    model.set_weights(values)
    return model


def smallest(model: mc.nn.Model, batch: int) -> int:
    try:
        model.plan(batch, 1, program="predict")
    except InfeasiblePlanError as error:
        return error.smallest_limit_bytes
    raise AssertionError("one byte is enough")


def at_least_memory(limit: int):
    """Return a policy that plans within a limit, whatever the device's is."""
    auto = mc.plan.auto()
    return lambda graph, limit_bytes=None: auto(graph, limit)


def measure(models, x: np.ndarray, repeats: int) -> dict:
    batch, found = len(x), {}
    expected = models["decoded"].predict(x, batch, verbose=0)
    times: dict[str, list[float]] = {name: [] for name in models}
    for name, model in models.items():
        outputs = model.predict(x, batch, verbose=0)
        if name == "by codes":
            np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-5)
        else:
            np.testing.assert_array_equal(outputs, expected)
    for _ in range(repeats):
        for name, model in models.items():
            began = time.perf_counter()
            model.predict(x, batch, verbose=0)
            times[name].append(time.perf_counter() - began)
    base = statistics.median(times["decoded"])
    for name, model in models.items():
        report = model.memory_report(verify=name != "decoded")
        if report.predicted_peak_bytes != report.measured_peak_bytes:
            raise SystemExit(f"{name}: the peak is not as predicted")
        seconds = statistics.median(times[name])
        found[name] = {
            "seconds": seconds,
            "ratio": seconds / base,
            "peak_bytes": report.measured_peak_bytes,
            "by_turn": times[name],
        }
        print(
            f"batch {batch}, {name:<14} {seconds * 1e3:7.1f} ms, {seconds / base:.2f} "
            f"of decoded, peak {report.measured_peak_bytes / 2**20:7.2f} MiB"
        )
    return {"batch": batch, "models": found}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--output", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    model = network()
    coding = compression.Coding(index_bits=5)
    settings = {w.path: coding for w in model.weights if len(w.shape) > 1}
    results = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "vgg16.mcz")
        compression.CompressedModel(model, settings).save(path)
        small = compression.load(path)
        for batch in options.batches:
            least = small.streamed()
            limit = smallest(least, batch)
            least.compile(loss="mse", memory=at_least_memory(limit))
            models = {
                "decoded": model,
                "streamed": small.streamed(),
                "least memory": least,
                "by codes": small.streamed(products="auto"),
            }
            x = np.random.default_rng(0).normal(size=(batch, 224, 224, 3))
            found = measure(models, x.astype(np.float32), options.repeats)
            results.append(found | {"smallest_limit_bytes": limit})
            for each in (*models.values(),)[1:]:
                each.close()
    if options.output is not None:
        document = {
            "environment": machine.facts(),
            "file_bytes": small.nbytes,
            "dense_bytes": small.dense_bytes,
            "results": results,
        }
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
