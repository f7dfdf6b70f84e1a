"""Time products by codes beside decoding and a dense product, on one thread.

A matrix of 4,096 by 512 weights, of which a part is kept and takes 31 values, is in
Huffman codes; batches have 1 to 64 samples. The kernels run in turns; the shortest of
several runs counts, in seconds of the thread, since others may work on the machine.
Asserts no time; that both products agree to 1e-5 it does.

What was found: a product by codes adds 0.12 ns a sample to each entry, decoding takes
3 ns an entry, and a dense product 0.011 ns a sample for each element and what it takes
to read the matrix. So codes pay where at most 0.3 of the elements have entries, and
those times the samples are at most 3.2 an element: what
`memcfg/graph/rewrites/_column_products.py` goes by.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import machine
import numpy as np

import memcfg as mc
from memcfg._core import decode_bytes, encode_codebook, set_num_threads
from memcfg.devices import OperandSpec

ROWS, UNITS = 4096, 512
DENSITIES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
BATCHES = (1, 4, 8, 16, 32, 64)
_LINE = 64  # bytes


def aligned(shape, dtype=np.float32) -> np.ndarray:
    """Make an array at a multiple of 64."""
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    room = np.zeros(nbytes + _LINE, np.uint8)
    begin = -room.ctypes.data % _LINE
    return room[begin : begin + nbytes].view(dtype).reshape(shape)


def shortest(acts, repeats: int) -> dict[str, float]:
    """Return the shortest seconds of each of some calls, which run in turns."""
    found = dict.fromkeys(acts, float("inf"))
    for _ in range(repeats):
        for name, act in acts.items():
            began = time.thread_time()
            act()
            found[name] = min(found[name], time.thread_time() - began)
    return found


def measure(density: float, batch: int, repeats: int) -> dict:
    random = np.random.default_rng(0)
    kernels = mc.config.logical_device("CPU:0").kernels
    x, y, by_codes = aligned((batch, ROWS)), *(aligned((batch, UNITS)) for _ in "ab")
    matrix = aligned((ROWS, UNITS))
    x[:] = random.standard_normal(x.shape)
    values = random.standard_normal(31).astype(np.float32)
    kept = random.random(matrix.shape) < density
    matrix[:] = np.where(kept, values[random.integers(0, 31, matrix.shape)], 0)
    room = np.empty(matrix.nbytes + 64, np.uint8)
    nbytes = encode_codebook(matrix, room, None, True)
    codes = aligned((nbytes,), np.uint8)
    codes[:] = room[:nbytes]
    specs = OperandSpec(x.shape, "float32"), OperandSpec(y.shape, "float32")
    whole, coded = OperandSpec(matrix.shape, "float32"), OperandSpec((nbytes,), "uint8")
    dense = kernels.make("dense", {}, (specs[0], whole), specs[1:])
    sections = {"ends": [nbytes], "columns": UNITS, "units": UNITS, "entries": 1}
    sections |= {"source": "", "section": 0}
    sparse = kernels.make("coded_dense", sections, (specs[0], coded), specs[1:])
    scratch = aligned((max(dense.scratch_bytes, sparse.scratch_bytes, 1),), np.uint8)

    def run(kernel, second, result) -> None:
        operands = [each.ctypes.data for each in (x, second, result)]
        kernel.run(operands, scratch.ctypes.data)

    acts = {
        "decode": lambda: decode_bytes("codebook", codes, matrix),
        "dense": lambda: run(dense, matrix, y),
        "by_codes": lambda: run(sparse, codes, by_codes),
    }
    seconds = shortest(acts, repeats)
    np.testing.assert_allclose(by_codes, y, rtol=1e-5, atol=1e-5 * np.abs(y).max())
    entries = int.from_bytes(codes[8:12].tobytes(), "little")
    ratio = seconds["by_codes"] / (seconds["decode"] + seconds["dense"])
    return {
        "density": density,
        "batch": batch,
        "entries": entries / matrix.size,
        "seconds": seconds,
        "ratio": ratio,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--output", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    set_num_threads(1)
    results = []
    for batch in BATCHES:
        for density in DENSITIES:
            found = measure(density, batch, options.repeats)
            results.append(found)
            print(
                f"batch {batch:>2}, density {density:<4}: by codes "
                f"{found['ratio']:.2f} of decoding and a dense product"
            )
    if options.output is not None:
        document = {"environment": machine.facts(), "results": results}
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
