"""Write down what TensorFlow's tf.data does, for machines that have no TensorFlow.

    python tests/support/write_data_golden.py tests/data/golden

Run it with TensorFlow 2.21. It needs nothing of memcfg.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from pathlib import Path

from data_draws import Chooser, draw_program
from data_libraries import TensorFlow
from data_programs import outcome

DRAWN = 150  # programs of each of the two kinds
SEEDS = itertools.cycle([0, 1, -5, 2**40 + 3, 2**31 - 1, 12345, 7])
SHUFFLES = itertools.product(
    (0, 1, 5, 33, 100), (1, 2, 7, 33, 1000), (True, False), (1, 3)
)
RANGE = ["range", [], {"arguments": [7]}]
PAIRS = [
    "from_tensor_slices",
    [],
    {"value": {"tuple": [{"array": ["int64", [4]]}, {"array": ["float32", [4, 2]]}]}},
]
ARGUMENTS = [  # steps that may be refused, on 0 ... 6
    *(["batch", {"batch_size": size}] for size in (0, -1, 1, 7, 100)),
    *(["padded_batch", {"batch_size": size}] for size in (0, -1, 8)),
    *(["shuffle", {"buffer_size": n, "seed": 1}] for n in (0, -1, -2, -3, 1, 7)),
    *(["repeat", {"count": n}] for n in (0, 1, 2)),
    *(["take", {"count": n}] for n in (-1, 0, 3, 100)),  # -5: has cardinality -5 there
    *(["skip", {"count": n}] for n in (-1, -5, 0, 3, 100)),
    *(
        ["shard", {"num_shards": n, "index": index}]
        for n, index in ((0, 0), (-1, 0), (1, 0), (3, 2), (3, 3), (3, -1), (9, 8))
    ),
    *(["prefetch", {"buffer_size": n}] for n in (-2, -1, 0, 1)),
    *(["enumerate", {"start": n}] for n in (0, -3, 2**40)),
    *(
        ["map", {"function": "double", "num_parallel_calls": calls}]
        for calls in (-2, -1, 0, 1)
    ),
    *(
        ["interleave", {"function": "twice", "cycle_length": cycle, **more}]
        for cycle, more in itertools.product(
            (-2, 0, 1, 2, 3, 100),
            (
                {},
                {"block_length": 0},
                {"block_length": -1},
                {"block_length": 2},
                {"num_parallel_calls": 0},
                {"num_parallel_calls": 2},
                {"num_parallel_calls": -2},
                {"num_parallel_calls": 3, "block_length": 2},
            ),
        )
    ),
    ["unbatch", {}],
]
RANGES = [
    *([n] for n in (-3, 0, 5)),
    *([2, 7], [7, 2], [2, 9, 3], [9, 2, -3], [2, 9, -3], [3, 9, 0], [-4, 5, 2]),
]


def shuffles():
    """Orders of many shuffles, each read twice."""
    for count, size, reshuffle, repeats in SHUFFLES:
        words = {
            "buffer_size": size,
            "seed": next(SEEDS),
            "reshuffle_each_iteration": reshuffle,
        }
        steps = [
            ["range", [], {"arguments": [count]}],
            ["shuffle", [0], words],
            ["repeat", [1], {"count": repeats}],
            ["batch", [2], {"batch_size": 1000}],
        ]
        yield {"steps": steps, "passes": [3, 3]}


def arguments():
    """One step with arguments that may be refused."""
    for operation, words in ARGUMENTS:
        yield {"steps": [RANGE, [operation, [0], words]], "passes": [1]}
    for numbers in RANGES:
        yield {"steps": [["range", [], {"arguments": numbers}]], "passes": [0]}
    for shapes, drop in itertools.product(([None], [3], [1], []), (False, True)):
        words = {"batch_size": 2, "padded_shapes": [[], shapes], "drop_remainder": drop}
        yield {"steps": [PAIRS, ["padded_batch", [0], words]], "passes": [1]}


def drawn(shared):
    """Programs as they come."""
    for seed in range(DRAWN):
        yield draw_program(Chooser(seed), shared=shared)


def write(path, programs, library):
    cases = [
        json.dumps(
            {"program": program, "outcome": outcome(program, library)},
            separators=(",", ":"),
        )
        for program in programs
    ]
    path.write_text("[\n" + ",\n".join(cases) + "\n]\n", encoding="utf-8")


def main(folder):
    with tempfile.TemporaryDirectory() as files:
        library = TensorFlow(files)
        write(folder / "shuffles.json", shuffles(), library)
        write(folder / "arguments.json", arguments(), library)
        write(folder / "plain.json", drawn(shared=False), library)
        write(folder / "shared.json", drawn(shared=True), library)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
