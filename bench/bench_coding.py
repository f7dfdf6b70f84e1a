"""Code layers of AlexNet and VGG-16 at Deep Compression's densities and bits.

Random weights stand for trained ones. Of each layer they have the paper's number of
weights, density, codebook and index bits, and gaps and numbers as uneven as the bits
that Huffman codes take there say (tables 4 and 5 of S. Han, H. Mao, W. J. Dally, ICLR
2016). For each layer and coder: the bytes beside the paper's formula, m (w + i) / 8 + 4
k, where m is the number of entries, w and i are the bits of a number and of a gap, and
k is the size of the codebook; and gigabytes (10^9) of float32 weights a second on one
thread. Asserts that the bits come back, that without Huffman codes the bytes are
those of the formula and a header of 16, and that with them each layer is within 4 % of
the formula (the paper's bits are rounded to 0.1), but for header and lengths of codes,
and the network within 3 % of the sum of the paper's layers. No time is asserted.

The paper's layers of VGG-16 add up to 10.5 MB, not to the 11.3 MB of its last line;
those of AlexNet add up to 7.07 MB, where that line says 6.9. Entries are as many as the
paper's bytes say; random places would need more that fill gaps, in the layers of which
few weights are kept.

What was expected: 2 look-ups for each entry, which wait for the ones before them, some
10 cycles together; a density of 4 % then decodes at 10 GB/s and more, one of 35 % at 2
to 4. constriction takes some 20 ns a symbol of range codes.

What was found: that, for fixed widths and Huffman codes of all but small layers. Range
codes take memcfg's decoder 8 ns a symbol, or 15 where the processor divides integers
slowly, and two codes at once take no longer than one. Looking a symbol up by a quotient
that is off by one at most, and correcting it after, was no faster. All blocks of an
array are decoded by one call, so that by range codes the 1,728 weights of VGG-16's
first layer decode at some 200 MB/s; in blocks by Python they did at 100.
"""

from __future__ import annotations

import argparse
import heapq
import json
import statistics
import time
from math import ceil
from pathlib import Path

import machine
import numpy as np

from memcfg.compression import encode, expected_fillers

# Of a layer: weights, density, bits of a number, with Huffman codes, the same of a gap,
# and the part of 32 bits a weight that is left with Huffman codes, in percent.
NETWORKS = {
    "AlexNet": {
        "conv1": (34_848, 0.84, 8, 6.3, 4, 1.2, 20.53),
        "conv2": (307_200, 0.38, 8, 5.5, 4, 2.3, 9.43),
        "conv3": (884_736, 0.35, 8, 5.1, 4, 2.6, 8.44),
        "conv4": (663_552, 0.37, 8, 5.2, 4, 2.5, 9.11),
        "conv5": (442_368, 0.37, 8, 5.6, 4, 2.5, 9.43),
        "fc6": (37_748_736, 0.09, 5, 3.9, 4, 3.2, 2.39),
        "fc7": (16_777_216, 0.09, 5, 3.6, 4, 3.7, 2.46),
        "fc8": (4_096_000, 0.25, 5, 4.0, 4, 3.2, 5.85),
    },
    "VGG-16": {
        "conv1_1": (1_728, 0.58, 8, 6.8, 5, 1.7, 29.97),
        "conv1_2": (36_864, 0.22, 8, 6.5, 5, 2.6, 6.99),
        "conv2_1": (73_728, 0.34, 8, 5.6, 5, 2.4, 8.91),
        "conv2_2": (147_456, 0.36, 8, 5.9, 5, 2.3, 9.31),
        "conv3_1": (294_912, 0.53, 8, 4.8, 5, 1.8, 11.15),
        "conv3_2": (589_824, 0.24, 8, 4.6, 5, 2.9, 5.67),
        "conv3_3": (589_824, 0.42, 8, 4.6, 5, 2.2, 8.96),
        "conv4_1": (1_179_648, 0.32, 8, 4.6, 5, 2.6, 7.29),
        "conv4_2": (2_359_296, 0.27, 8, 4.2, 5, 2.9, 5.93),
        "conv4_3": (2_359_296, 0.34, 8, 4.4, 5, 2.5, 7.47),
        "conv5_1": (2_359_296, 0.35, 8, 4.7, 5, 2.5, 8.00),
        "conv5_2": (2_359_296, 0.29, 8, 4.6, 5, 2.7, 6.52),
        "conv5_3": (2_359_296, 0.36, 8, 4.6, 5, 2.3, 7.79),
        "fc6": (102_760_448, 0.04, 5, 3.6, 5, 3.5, 1.10),
        "fc7": (16_777_216, 0.04, 5, 4.0, 5, 4.3, 1.25),
        "fc8": (4_096_000, 0.23, 5, 4.0, 5, 3.4, 5.24),
    },
}
PAPER = {"AlexNet": 6.9e6, "VGG-16": 11.3e6}  # bytes
CLOCKS = {"wall": time.perf_counter, "thread": time.thread_time}


def huffman_bits(shares: np.ndarray) -> float:
    """Return the mean length of Huffman's codes."""
    heap = sorted(shares[shares > 0].tolist())
    total = 0.0
    while len(heap) > 1:
        pair = heapq.heappop(heap) + heapq.heappop(heap)
        heapq.heappush(heap, pair)
        total += pair
    return total


def bisected(of, target: float, low: float, high: float) -> float:
    """Return where an increasing function takes a value, or the nearer end."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if of(middle) < target else (low, middle)
    return (low + high) / 2


def uneven(count: int, bits: float, others: float, least: float) -> np.ndarray:
    """Return shares of numbers, of which others have a part, with so many bits."""
    places = (np.arange(count) - (count - 1) / 2) / count

    def shares(scale: float) -> np.ndarray:
        weights = np.exp(-np.abs(places) / scale)
        found = least + (1 - least * count) * weights / weights.sum()
        return np.append((1 - others) * found, others)

    return shares(bisected(lambda s: huffman_bits(shares(s)), bits, 1e-3, 1e3))[:-1]


def gaps_of(steps: int, mean: float, bits: float, fillers: float) -> np.ndarray:
    """Return shares of gaps of a mean; with entries that fill, so many bits."""
    places = np.arange(steps)

    def shares(extra: float) -> np.ndarray:
        def geometric(rate: float) -> np.ndarray:
            weights = np.exp(places * rate)
            found = (1 - extra) * weights / weights.sum()
            found[0] += extra
            return found

        rate = bisected(lambda r: geometric(r) @ places, mean, -20, 20)
        return geometric(rate)

    def all_bits(extra: float) -> float:
        whole = (1 - fillers) * shares(extra)
        whole[-1] += fillers
        return huffman_bits(whole)

    tried = np.linspace(0, 0.98, 200)
    return shares(min(tried, key=lambda extra: abs(all_bits(extra) - bits)))


def drawn(random, shares: np.ndarray, count: int, least: int = 0) -> np.ndarray:
    """Draw numbers in their shares, each at least so often, in random order."""
    ends = np.round(np.cumsum(shares / shares.sum()) * count).astype(int)
    times = np.maximum(np.diff(ends, prepend=0), least)
    times[times.argmax()] -= times.sum() - count
    found = np.repeat(np.arange(shares.size), times)
    random.shuffle(found)
    return found


def layer_of(row, entries: int | None = None) -> np.ndarray:
    """Make an array as a layer of the paper."""
    count, density, width, bits, index_bits, gap_bits, percent = row
    random = np.random.default_rng(count)
    steps, kept = 2**index_bits, round(density * count)
    codebook = 4 * 2**width
    code = percent / 100 * 4 * count - codebook
    entries = max(round(8 * code / (bits + gap_bits)), kept)
    fillers = min(entries - kept, (count - kept) // (steps + 1))
    entries = kept + fillers
    mean = (count - fillers * steps) / kept - 1
    gaps = drawn(random, gaps_of(steps, mean, gap_bits, fillers / entries), kept)
    numbers = uneven(2**width - 1, bits, fillers / entries, 1 / kept)
    numbers = drawn(random, numbers, kept, 1)
    fills = np.zeros(entries, bool)
    fills[random.permutation(entries - 1)[:fillers]] = True  # the last one does not
    step = np.full(entries, steps)
    step[~fills] = gaps + 1
    at = np.cumsum(step) - 1
    values = np.sort(random.normal(0, 0.02, 2**width - 1)).astype(np.float32)
    array = np.zeros(max(count, int(at[-1]) + 1), np.float32)
    array[at[~fills]] = values[numbers]
    return array[:count]


def seconds_of(act, options) -> float:
    clock, times = CLOCKS[options.clock], []
    for _ in range(options.repeats):
        began = clock()
        act()
        times.append(clock() - began)
    return statistics.median(times)


def measure(row, coder: str, options) -> dict:
    """Code one layer."""
    count, density, width, bits, index_bits, gap_bits, percent = row
    array = layer_of(row)
    clock = CLOCKS[options.clock]
    began = clock()
    code = encode(array, index_bits=index_bits, coder=coder)
    took = clock() - began
    out = np.empty_like(array)
    seconds = seconds_of(lambda: code.decode(out), options)
    if out.tobytes() != array.tobytes():
        raise SystemExit("the bits do not come back")
    each = (width, index_bits) if coder == "none" else (bits, gap_bits)
    kept = np.flatnonzero(array)
    fillers = int(((np.diff(kept, prepend=-1) - 1) // 2**index_bits).sum())
    entries = kept.size + fillers
    codebook = 4 * np.unique(array[kept] if not fillers else array).size
    formula = sum(ceil(entries * b / 8) for b in each) + codebook
    kept_there = round(density * count)
    anywhere = kept_there + expected_fillers(kept_there, density, index_bits)
    if coder == "none" and code.nbytes != 16 + formula:
        raise SystemExit(f"{code.nbytes} bytes, not those of the formula, {formula}")
    return {
        "coder": coder,
        "weights": count,
        "density": np.count_nonzero(array) / count,
        "entries": entries,
        "nbytes": code.nbytes,
        "parts": code.parts._asdict(),
        "formula_bytes": formula,
        "bits": each,
        "random_places_entries": anywhere,
        "random_places_bytes": anywhere * sum(each) / 8 + 4 * 2**width,
        "paper_bytes": percent / 100 * 4 * count,
        "encode_gigabytes_per_second": array.nbytes / took / 1e9,
        "decode_gigabytes_per_second": array.nbytes / seconds / 1e9,
        "decode_seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--coders", nargs="+", default=["none", "huffman", "range"])
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS))
    parser.add_argument("--output", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    results, totals = [], {}
    for network in options.networks:
        layers = NETWORKS[network]
        for coder in options.coders:
            rows = []
            for layer, row in layers.items():
                found = measure(row, coder, options)
                rows.append({"network": network, "layer": layer} | found)
                parts = found["parts"]
                own = found["nbytes"] - parts["header"] - parts["tables"]
                off = own / found["formula_bytes"] - 1
                print(
                    f"{network:<8} {layer:<8} {coder:<8} {found['nbytes']:>9} bytes, "
                    f"{off:+6.2%} of the formula, decoded at "
                    f"{found['decode_gigabytes_per_second']:6.2f} GB/s",
                    flush=True,
                )
                if coder == "huffman" and abs(off) > 0.04:
                    raise SystemExit("not within 4 % of the formula")
            nbytes = sum(each["nbytes"] for each in rows)
            dense = sum(4 * each["weights"] for each in rows)
            seconds = sum(each["decode_seconds"] for each in rows)
            totals[f"{network} {coder}"] = {
                "nbytes": nbytes,
                "dense_bytes": dense,
                "ratio": dense / nbytes,
                "paper_layers_bytes": sum(each["paper_bytes"] for each in rows),
                "paper_total_bytes": PAPER[network],
                "decode_gigabytes_per_second": dense / seconds / 1e9,
            }
            print(
                f"{network} {coder}: {nbytes / 1e6:.2f} MB, {dense / nbytes:.1f} times "
                f"fewer, {dense / seconds / 1e9:.2f} GB/s"
            )
            paper = sum(each["paper_bytes"] for each in rows)
            if coder == "huffman" and abs(nbytes / paper - 1) > 0.03:
                raise SystemExit("not within 3 % of the paper's layers")
            results += rows
    if options.output is not None:
        document = {
            "environment": machine.facts() | {"clock": options.clock},
            "totals": totals,
            "results": results,
        }
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
