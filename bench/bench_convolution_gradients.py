"""Compare gradients of convolutions with float64, in memcfg and in PyTorch.

Each library runs each shape in processes of their own, once for each instruction set
that oneDNN is told to use at most (ONEDNN_MAX_CPU_ISA, which PyTorch's copy reads, too)
and, for PyTorch, once for each layout. NumPy computes the exact values in float64, one
tap of the kernel after the other. A result is wrong whose error is more than 1e-4 of
the largest exact value; rounding leaves some 1e-6. An exception counts against its
shape; so does a process that dies, and the next process goes on after it. Asserts
nothing.

``python bench convolution_gradients --output bench/results/convolution_gradients.json``
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import machine
import numpy as np

WRONG = 1e-4  # of the largest exact value
SETS = ("AVX2", "AVX512_CORE", "ALL")  # as oneDNN names them; ALL: what there is
SIDES = {"memcfg": ("channels_last",), "torch": ("contiguous", "channels_last")}
RESULTS = ("output", "input gradient", "kernel gradient")


@dataclass(frozen=True)
class Shape:
    """A convolution of a square image, padded as `same` or `valid`."""

    batch: int
    size: int
    channels: int
    filters: int
    kernel: int
    stride: int
    same: bool

    def padding(self) -> int:
        """The rows of zeros on each side: kernels of odd size, so both are alike."""
        return self.kernel // 2 if self.same else 0


def shapes() -> list[Shape]:
    """Return few and odd numbers of channels, strides, and sizes that leave a rest."""
    products = itertools.product(
        (1, 3), (7, 14), (1, 2, 3, 5, 8, 17, 32), (1, 4, 8, 24), (1, 3, 5), (1, 2)
    )
    every = [
        Shape(batch, size, channels, filters, kernel, stride, same=kernel > 1)
        for batch, size, channels, filters, kernel, stride in products
    ]
    more = itertools.product((6, 9), (1, 4, 16), (2, 16), (1, 3), (2, 3))
    every += [Shape(2, *numbers, same=False) for numbers in more]
    return every


def operands(shape: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return an input, a kernel, and the output's gradient; channels are the last."""
    random = np.random.default_rng(shape.size * 100 + shape.channels)
    out = (shape.size + 2 * shape.padding() - shape.kernel) // shape.stride + 1
    sizes = (
        (shape.batch, shape.size, shape.size, shape.channels),
        (shape.kernel, shape.kernel, shape.channels, shape.filters),
        (shape.batch, out, out, shape.filters),
    )
    x, kernel, slope = (random.standard_normal(size, np.float32) for size in sizes)
    return x, kernel, slope


def exact(shape: Shape) -> list[np.ndarray]:
    """Compute the output and both gradients in float64, tap by tap."""
    x, kernel, slope = (each.astype(np.float64) for each in operands(shape))
    rows, step, pad = slope.shape[1], shape.stride, shape.padding()
    x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    output = np.zeros(slope.shape)
    to_input, to_kernel = np.zeros(x.shape), np.zeros(kernel.shape)
    for i, j in itertools.product(range(shape.kernel), repeat=2):
        tap = (
            slice(None),
            slice(i, i + step * (rows - 1) + 1, step),
            slice(j, j + step * (rows - 1) + 1, step),
        )
        output += x[tap] @ kernel[i, j]
        to_input[tap] += slope @ kernel[i, j].T
        to_kernel[i, j] = np.einsum("bhwc,bhwf->cf", x[tap], slope)
    size = shape.size
    return [output, to_input[:, pad : pad + size, pad : pad + size], to_kernel]


def by_memcfg(shape: Shape, _layout: str) -> list[np.ndarray]:
    """Compute them in one planned function."""
    import memcfg as mc

    ops = mc.nn.ops
    padding = "same" if shape.same else "valid"

    @mc.function
    def run(x, kernel, slope):
        with mc.GradientTape() as tape:
            y = pad_and_convolve(ops, x, kernel, shape, padding)
            loss = ops.sum(y * slope)
        return [y, *tape.gradient(loss, [x, kernel])]

    return run(*operands(shape))


def pad_and_convolve(ops, x, kernel, shape: Shape, padding: str):
    """Convolve with as many zeros on each side, as PyTorch does, at every stride."""
    pad = shape.padding()
    if pad and shape.stride > 1:  # `same` would put fewer in front
        x, padding = ops.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0))), "valid"
    return ops.conv(x, kernel, strides=shape.stride, padding=padding)


def by_torch(shape: Shape, layout: str) -> list[np.ndarray]:
    """Compute them by autograd, in a layout."""
    import torch

    form = {
        "contiguous": torch.contiguous_format,
        "channels_last": torch.channels_last,
    }[layout]
    x, kernel, slope = map(torch.from_numpy, operands(shape))
    x = x.permute(0, 3, 1, 2).contiguous(memory_format=form).requires_grad_()
    kernel = kernel.permute(3, 2, 0, 1).contiguous(memory_format=form).requires_grad_()
    slope = slope.permute(0, 3, 1, 2).contiguous(memory_format=form)
    y = torch.nn.functional.conv2d(
        x, kernel, stride=shape.stride, padding=shape.padding()
    )
    y.backward(slope)
    return [
        y.detach().permute(0, 2, 3, 1).numpy(),
        x.grad.permute(0, 2, 3, 1).numpy(),
        kernel.grad.permute(2, 3, 1, 0).numpy(),
    ]


def work(side: str, layout: str, first: int) -> None:
    """Print the errors of each shape from one on: three numbers a line."""
    compute = {"memcfg": by_memcfg, "torch": by_torch}[side]
    for shape in shapes()[first:]:
        errors = []
        try:
            made = compute(shape, layout)
        except RuntimeError as error:
            print(json.dumps(str(error)), flush=True)
            continue
        for found, right in zip(made, exact(shape), strict=True):
            error = np.max(np.abs(np.asarray(found, np.float64) - right))
            errors.append(float(error / np.max(np.abs(right))))
        print(json.dumps(errors), flush=True)


def run(side: str, layout: str, instructions: str) -> list[list[float] | str]:
    """Return the errors of all shapes; a message where there was no result."""
    found: list[list[float] | str] = []
    place = os.environ | {"ONEDNN_MAX_CPU_ISA": instructions}
    while len(found) < len(shapes()):
        words = [sys.executable, __file__, "--worker", side, layout, str(len(found))]
        child = subprocess.run(
            words, env=place, stdout=subprocess.PIPE, text=True, check=False
        )
        lines = child.stdout.splitlines()
        if child.returncode > 0:
            raise SystemExit(f"{side}, {layout}, {instructions}: see the error above")
        found += [json.loads(line) for line in lines]
        if child.returncode < 0 and len(found) < len(shapes()):  # and not as it ended
            found.append(f"died of signal {-child.returncode}")
    return found


def is_wrong(error: float) -> bool:
    """Whether it is more than rounding; NaN is."""
    return not error <= WRONG


def summary(errors: list[list[float] | str]) -> dict:
    """Count the shapes that are wrong, by result, and name them."""
    every = [asdict(shape) for shape in shapes()]
    lived = [each for each in errors if not isinstance(each, str)]
    wrong = {
        name: sum(is_wrong(each[place]) for each in lived)
        for place, name in enumerate(RESULTS)
    }
    largest = {
        name: max(
            (each[place] for each in lived if not is_wrong(each[place])), default=0
        )
        for place, name in enumerate(RESULTS)
    }
    bad = [
        {"shape": shape, "errors": each}
        for shape, each in zip(every, errors, strict=True)
        if isinstance(each, str) or any(map(is_wrong, each))
    ]
    return {
        "shapes": len(every),
        "wrong": wrong,
        "no_result": len(errors) - len(lived),
        "largest_error_of_the_others": largest,
        "wrong_shapes": bad,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if options.worker:
        side, layout, first = options.worker
        work(side, layout, int(first))
        return
    import torch

    document = {
        "environment": machine.facts()
        | {"torch": torch.__version__, "instructions": machine.instructions()},
        "results": [],
    }
    for instructions in options.sets.split(","):
        for side, layouts in SIDES.items():
            for layout in layouts:
                result = {"library": side, "layout": layout, "set": instructions}
                result |= summary(run(side, layout, instructions))
                document["results"].append(result)
                counts = result["wrong"] | {"no result": result["no_result"]}
                print(f"{instructions:12} {side:7} {layout:14} {counts}", flush=True)
    if options.output:
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
