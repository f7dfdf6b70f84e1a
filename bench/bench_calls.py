"""Count the Python calls of memcfg in the first `fit` of a model under a limit.

The limit is a part of the peak that the model's plan has without one. Every start and
every resumption of a frame of a file in memcfg counts, from the call of `fit` to its
return; the model was built and compiled before, and the process plans nothing earlier.
Asserts nothing.

``python bench calls --model readme --steps 1 --top 40``
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import memcfg as mc
from memcfg.commands._digits import residual_network

if TYPE_CHECKING:
    from types import CodeType, FrameType

nn = mc.nn
HERE = Path(mc.__file__).resolve().parent
BATCH = 64


def readme_network() -> nn.Model:
    """Build the network of README.md."""
    layers = [nn.Conv2D(32, 3, padding="same", activation="relu") for _ in range(6)]
    return nn.Sequential([nn.Input((8, 8, 1)), *layers, nn.Flatten(), nn.Dense(10)])


def unet() -> nn.Model:
    """Build a U-Net with a class a pixel."""
    return mc.models.unet((32, 32, 3), padding="same")


MODELS = {"demo": residual_network, "readme": readme_network, "unet": unet}


def compiled(name: str) -> nn.Model:
    model = MODELS[name]()
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model


def count(
    name: str, steps: int, limit: int
) -> tuple[Counter[CodeType], Counter[tuple[CodeType, CodeType]]]:
    """Fit a model for some steps; return the calls of each function of memcfg.

    And the calls within ``memcfg.plan`` from one file to another.
    """
    mc.config.set_memory_limit("CPU:0", limit)
    model = compiled(name)
    x = np.zeros((BATCH * steps, *model.input_shape[1:]), np.float32)
    y = np.zeros((BATCH * steps, *model.output_shape[1:-1]), np.int32)
    calls: Counter[CodeType] = Counter()
    changes: Counter[tuple[CodeType, CodeType]] = Counter()
    plan = str(HERE / "plan")

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            code, caller = frame.f_code, frame.f_back
            calls[code] += 1
            if code.co_filename.startswith(plan) and caller is not None:
                other = caller.f_code
                if other.co_filename.startswith(plan):
                    changes[other, code] += code.co_filename != other.co_filename

    sys.setprofile(note)
    try:
        model.fit(x, y, batch_size=BATCH, verbose=0)
    finally:
        sys.setprofile(None)
    own = {code: n for code, n in calls.items() if HERE in path_of(code).parents}
    print(f"{name}, limit {limit} B, {steps} steps: plan by {model.memory_plan.method}")
    return Counter(own), changes


def path_of(code: CodeType) -> Path:
    return Path(code.co_filename)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="demo")
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--part", type=float, default=0.8, help="of the peak")
    parser.add_argument("--limit", type=int, help="bytes, instead of a part")
    parser.add_argument("--top", type=int, default=25, help="functions to list")
    options = parser.parse_args()
    if options.limit is None:  # the peak is planned in another process
        limit = int(options.part * compiled(options.model).plan(BATCH).peak_bytes)
        words = [__file__, "--limit", str(limit), "--model", options.model]
        words += ["--steps", str(options.steps), "--top", str(options.top)]
        subprocess.run([sys.executable, *words], check=True)
        return
    calls, changes = count(options.model, options.steps, options.limit)
    files: Counter[Path] = Counter()
    for code, number in calls.items():
        files[path_of(code).relative_to(HERE)] += number
    print(f"{calls.total()} calls in {len(files)} files")
    print(f"{changes.total()} calls from one file of plan to another")
    for path, number in files.most_common(options.top):
        print(f"{number:8} {path}")
    for code, number in calls.most_common(options.top):
        where = path_of(code).relative_to(HERE)
        print(f"{number:8} {where}:{code.co_firstlineno} {code.co_qualname}")
    for (caller, code), number in changes.most_common(options.top):
        where = path_of(code).relative_to(HERE)
        print(f"{number:8} {caller.co_qualname} -> {where} {code.co_qualname}")


if __name__ == "__main__":
    main()
