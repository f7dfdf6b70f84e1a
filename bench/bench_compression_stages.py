"""Measure each stage of compression of LeNets: size, accuracy, latency, peak memory.

One LeNet-300-100 and one LeNet-5, trained and pruned as in `bench_compression`, to the
sparser of its densities there, and then shared by k-means and by rate; and the dense
network with calibrated weights of 8 and 4 bits, which is not trained again. Of
the pruned network the bytes are those of the paper's formula, with 32 bits a weight and
the best bits of a gap, since a file has it only after sharing; of the rest they are
those of files.

Coded networks are timed as they are read from their files, with `streamed`, which
decodes all weights in each step; dense, pruned and integer networks as they are in
memory. Integers have quantised products. All take turns in one process, with one
thread for products; readers of files have one more. Asserts that networks from files
have the bits of the decoded ones, and that peaks are as predicted; no time.

What was expected: files of fixed widths, Huffman and range codes in this order of size
and of time, and in less memory than the dense network.

What was found: that order of sizes, but for range codes of LeNet-300-100's weights by
k-means, which are some bytes longer than Huffman codes. A step that decodes all weights
takes twice as long as a dense one for LeNet-300-100 and two to three times for LeNet-5,
of range codes up to five times; in larger networks products take more of it. One matrix
has nearly all weights of these networks and is read whole, so the peak is lower by a
third at most. Integers of 8 bits lose no accuracy, take 0.4 to 0.8 of the memory, and
less time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import bench_compression as digits
import machine
import numpy as np

import memcfg as mc

compression = mc.compression
SEED = 0
FACTOR = min(digits.FACTORS)  # of the paper's densities
INDEX_BITS = range(1, 9)
CODERS = {"fixed widths": "none", "Huffman codes": "huffman", "range codes": "range"}
GROUP = 64  # rows with one scale, of 4 bits


def pruned_bytes(weight: np.ndarray) -> float:
    """Return the bytes of what is left, by the formula of the paper."""
    places = np.flatnonzero(weight)
    sizes = [
        compression.sparse_bytes(
            len(places) + compression.count_fillers(places, bits), 32, bits
        )
        for bits in INDEX_BITS
    ]
    return min(4.0 * weight.size, *sizes)


class Stage:
    """A network after a stage: what it takes, and what it is timed with."""

    def __init__(self, name, nbytes, model, train_peak, sets) -> None:
        self.name, self.nbytes, self.model = name, nbytes, model
        self.batch = sets[2][0][: digits.BATCH]
        self.scores = [digits.accuracy_of(model, each) for each in sets[1:]]
        self.train_peak = train_peak
        self.times: list[float] = []

    def run(self) -> None:
        began = time.perf_counter()
        self.model.predict_on_batch(self.batch)
        self.times.append(time.perf_counter() - began)

    def row(self) -> dict:
        self.model.predict_on_batch(self.batch)
        planned = self.model.plan(digits.BATCH, program="predict").peak_bytes
        report = self.model.memory_report(verify=True)
        if not planned == report.predicted_peak_bytes == report.measured_peak_bytes:
            raise SystemExit(f"{self.name}: the peak is not as predicted")
        validation, test = self.scores
        return {
            "stage": self.name,
            "nbytes": int(self.nbytes),
            "validation": validation,
            "accuracy": test,
            "seconds": statistics.median(self.times),
            "predict_peak": planned,
            "train_peak": self.train_peak,
        }


def peak_of(model) -> int:
    """Return the peak of a step of training, and leave the model without memory."""
    planned = model.plan(digits.BATCH).peak_bytes
    model.close()
    return planned


def from_files(name: str, shared, train_peak: int, sets, folder: Path):
    """Yield the stages of a network with shared weights, coded in each way."""
    plain = compression.strip(shared)
    kernels = [w.path for w in plain.weights if len(w.shape) > 1]
    for words, coder in CODERS.items():
        settings = dict.fromkeys(kernels, compression.Coding(coder=coder))
        path = folder / f"{name}-{coder}.mcz"
        compression.CompressedModel(plain, settings).save(path)
        streamed = compression.load(path).streamed()
        expected = plain.predict(sets[2][0], digits.BATCH, verbose=0)
        found = streamed.predict(sets[2][0], digits.BATCH, verbose=0)
        np.testing.assert_array_equal(found, expected)
        title = f"{name}, {words}"
        yield Stage(title, path.stat().st_size, streamed, train_peak, sets)
    plain.close()


def stages_of(network: str, sets, epochs: int, folder: Path):
    """Yield the stages of a network."""
    train = sets[0]
    dense = digits.trained(network, train, SEED)
    weights = dense.get_weights()
    peak = peak_of(compression.strip(dense))
    given = compression.strip(dense)
    yield Stage("given", sum(4 * w.size for w in weights), given, peak, sets)
    for factor, model in digits.chain(dense, network, train, epochs):
        if factor == FACTOR:
            pruned = model
    plain = compression.strip(pruned)
    nbytes = sum(map(pruned_bytes, plain.get_weights()))
    yield Stage("pruned", nbytes, plain, peak_of(pruned), sets)
    for quantizer, name in (("k_means", "shared"), ("rate", "by rate")):
        again = compression.prune(compression.strip(pruned), densities_of(plain))
        shared = digits.shared(again, network, quantizer, train, epochs)
        yield from from_files(name, shared, peak_of(shared), sets, folder)
    for dtype, group in (("int8", None), ("int4", GROUP)):
        whole = compression.quantize(dense, dtype, group=group, products="int8")
        path = folder / f"{dtype}.mcz"
        compression.CompressedModel(whole).save(path)
        peak = peak_of(whole)
        yield Stage(dtype, path.stat().st_size, whole, peak, sets)


def densities_of(plain) -> dict[str, float]:
    """Return the shares that are not 0, of the kernels."""
    return {
        w.path: np.count_nonzero(w.numpy()) / w.numpy().size
        for w in plain.weights
        if len(w.shape) > 1
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--digits", type=Path, default=digits.INSTALLED)
    parser.add_argument("--epochs", type=int, default=4, help="after each step")
    parser.add_argument("--repeats", type=int, default=51)
    parser.add_argument("--networks", nargs="*", default=list(digits.NETWORKS))
    parser.add_argument("--output", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    if not options.digits.exists():
        print(f"{options.digits} is not there: pass --digits")
        return
    mc.config.threading.set_intra_op_parallelism_threads(1)
    rest, test = digits.split(*digits.digits(options.digits), digits.TEST_SEED, 100)
    sets = (*digits.split(*rest, SEED, digits.VALIDATED), test)
    results = []
    for network in options.networks:
        with tempfile.TemporaryDirectory() as folder:
            stages = list(stages_of(network, sets, options.epochs, Path(folder)))
            for _ in range(1 + options.repeats):
                for stage in stages:
                    stage.run()
            for stage in stages:
                del stage.times[0]
                row = stage.row()
                results.append({"network": network, **row})
                print(
                    f"{network} {row['stage']:<22} {row['nbytes']:>9} bytes, "
                    f"{row['validation']:.3f} {row['accuracy']:.3f}, "
                    f"{1e3 * row['seconds']:6.2f} ms, "
                    f"{row['predict_peak'] / 2**20:5.2f} MiB, in training "
                    f"{row['train_peak'] / 2**20:5.2f}",
                    flush=True,
                )
                stage.model.close()
    if options.output is not None:
        document = {"environment": machine.facts(), "results": results}
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
