"""Log how sparse ReLUs become in training, and what zero-value compression saves.

Two small VGGs, of two and of three convolutions a block, learn to tell digits (1,440 of
those of scikit-learn, twice as large each way) with `cdma` of `vdnn_all`. Every few
steps the maps of the batch that comes next are computed and encoded with `zvc`: the
density of each ReLU's and each pooling's results, and how many times fewer bytes the
code has, beside cDMA's formula 128 / (128 d + 4) at that density. Then the step runs,
and its report tells what the lanes made of what they copied: the training's own maps.

Asserts that codes have the formula's bytes and a header of 64, and that those of the
lanes are as long as those of the same maps to a ten-thousandth: predictions fuse ops
and may round a number on the other side of 0. They also give -0.0 where ReLUs of a
training step give 0, which is no zero to `zvc`: such words are set to 0 first.

What was expected, from Rhu et al. (HPCA 2018): densities fall steeply from a half in
the first steps, rise a little as training goes on, and a code has less than half of the
bytes on average.

What was found: ReLUs start below a half, rise above it while the loss has not fallen
(the first epoch, two where the network is deeper), and fall to 0.40 and 0.34. Their
codes are 2.3 and 2.5 times smaller on average, at least 1.8 and 1.6 times. What lanes
copy of the shallower network is 1.97 times smaller, short of 2: much of it is the first
layer's, which stays above a half.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import machine
import numpy as np
from sklearn import datasets

import memcfg as mc
from memcfg._core import encode_bytes
from memcfg.plan import cdma

nn = mc.nn
BATCH, HEADER = 32, 64
BLOCKS = (16, 32, 64)  # filters
NETWORKS = {"two convolutions a block": 2, "three convolutions a block": 3}
FUSED = 1e-4  # of a code's bytes: what fused ops may round otherwise


def digits() -> tuple[np.ndarray, np.ndarray]:
    found = datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))[:1440]
    images = (found.images / 16).astype(np.float32).repeat(2, 1).repeat(2, 2)
    return images[order][..., None], found.target[order]


def network(depth: int):
    """Return the model, and one that gives the maps; their layers' kinds."""
    nn.set_random_seed(0)
    x = images = nn.Input((16, 16, 1))
    maps: list[tuple[str, str, object]] = []
    for block, filters in enumerate(BLOCKS):
        for each in range(depth):
            name = f"conv{block + 1}_{each + 1}"
            layer = nn.Conv2D(filters, 3, padding="same", activation="relu", name=name)
            x = layer(x)
            maps.append((name, "relu", x))
        x = nn.MaxPooling2D(name=f"pool{block + 1}")(x)
        maps.append((f"pool{block + 1}", "pool", x))
    x = nn.Dense(64, activation="relu", name="dense")(nn.Flatten()(x))
    maps.append(("dense", "relu", x))
    model = nn.Model(images, nn.Dense(10, name="logits")(x))
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(0.02, momentum=0.9), loss, memory=cdma())
    probe = nn.Model(images, [tensor for _, _, tensor in maps])
    return model, probe, [(name, kind) for name, kind, _ in maps]


def measure(values: np.ndarray) -> dict:
    """Encode a map; hold its code against the formula."""
    values = np.ascontiguousarray(values + 0.0)  # -0.0 + 0.0 is 0.0
    code = np.empty(values.nbytes + HEADER, np.uint8)
    used = encode_bytes("zvc", values, code)
    kept = int(np.count_nonzero(values))
    planned = 4 * math.ceil(values.size / 32) + 4 * kept
    if used != HEADER + min(planned, values.nbytes):
        raise SystemExit(
            f"a code has {used} bytes; expected are {planned} and a header"
        )
    density = kept / values.size
    return {
        "density": density,
        "nbytes": values.nbytes,
        "code_bytes": used,
        "ratio": values.nbytes / used,
        "formula": 128 / (128 * density + 4),
    }


def ratio_of(maps: list[dict]) -> float:
    return sum(m["nbytes"] for m in maps) / sum(m["code_bytes"] for m in maps)


def lanes_of(model, maps: dict[str, dict]) -> dict:
    """Tell what the lanes encoded in the last step; hold it against the same maps."""
    codings = model.memory_report().codings
    for each in codings:
        found = maps[each.tensor.split("/")[0]]
        if each.used_bytes == each.tensor_bytes:  # a dense one was copied as it is
            continue
        if abs(each.used_bytes / found["code_bytes"] - 1) > FUSED:
            raise SystemExit(
                f"{each.tensor}: lanes made {each.used_bytes} bytes of it, and of the "
                f"same map {found['code_bytes']}"
            )
    return {
        "maps": [each.tensor for each in codings],
        "nbytes": sum(each.tensor_bytes for each in codings),
        "code_bytes": sum(each.used_bytes for each in codings),
        "raw": sum(each.raw for each in codings),
    }


def train(name: str, options: argparse.Namespace) -> dict:
    x, y = digits()
    model, probe, layers = network(NETWORKS[name])
    batches = len(x) // BATCH
    series = []
    for step in range(options.epochs * batches + 1):
        at = BATCH * (step % batches)
        if at == 0:
            order = np.random.default_rng(step).permutation(len(x))
        rows = order[at : at + BATCH]
        maps = {}
        if step % options.every == 0:
            found = probe.predict(x[rows], batch_size=BATCH, verbose=0)
            maps = {
                layer: {"kind": kind, **measure(np.asarray(values))}
                for (layer, kind), values in zip(layers, found, strict=True)
            }
        loss = float(np.ravel(model.train_on_batch(x[rows], y[rows]))[0])
        if not maps:
            continue
        sizes = [each["nbytes"] for each in maps.values()]
        relus = [each for each in maps.values() if each["kind"] == "relu"]
        words = sum(each["nbytes"] for each in relus)
        entry = {
            "step": step,
            "loss": loss,
            "density": sum(m["density"] * m["nbytes"] for m in relus) / words,
            "ratio": ratio_of(relus),
            "ratio_with_pools": ratio_of(list(maps.values())),
            "lanes": lanes_of(model, maps),
            **{
                f"map_{key}": [each[key] for each in maps.values()]
                for key in ("density", "ratio", "formula")
            },
        }
        series.append(entry)
        print(
            f"{name}, step {step:4}: loss {loss:.4f}, density {entry['density']:.3f}, "
            f"ratio {entry['ratio']:.3f}, of what lanes copy "
            f"{entry['lanes']['nbytes'] / entry['lanes']['code_bytes']:.3f}",
            flush=True,
        )
    model.close()
    heads = [
        {"map": layer, "kind": kind, "nbytes": nbytes}
        for (layer, kind), nbytes in zip(layers, sizes, strict=True)
    ]
    return {
        "network": name,
        "batch": BATCH,
        "steps_an_epoch": batches,
        "maps": heads,
        "series": series,
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--every", type=int, default=15, help="steps between looks")
    parser.add_argument("--output", type=Path, help="write the results as JSON")
    return parser.parse_args()


def main() -> None:
    options = parse()
    results = [train(name, options) for name in NETWORKS]
    if options.output is not None:
        place = machine.facts()
        document = {"environment": place, "results": results}
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
