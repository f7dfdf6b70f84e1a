"""Count the files that one touches to add an op: one, or two with a C++ kernel.

``python tests/count_files.py`` copies the sources to a scratch folder and adds an
element-wise op and another op there. It looks whether the kernel compiles, and trains
with both ops, by their meaning in NumPy: nothing is built again.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import memcfg

ROOT = Path(__file__).resolve().parents[1]

LINE = """
elementwise("twice_plus_one", lambda x: 2 * x + 1)
"""

FAMILY = '''"""The elements in reverse."""

from memcfg.ops import OpType, Spec, register

__all__ = []


def _infer(inputs, _):
    return [Spec(inputs[0].shape, inputs[0].dtype)]


def _reverse(_, inputs, outputs):
    outputs[0][...] = inputs[0].ravel()[::-1].reshape(inputs[0].shape)


def _gradient(adjoint):
    return adjoint.emit("mirror", (adjoint.dy,))


register(OpType("mirror", 1, _infer, _reverse, gradient=_gradient))
'''

KERNEL = """// mirror: the elements from the last to the first.
#include "kernels/function_kernel.hpp"

namespace memcfg {
namespace {

KernelPtr make_reverse(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32}, {kFloat32});
  const Count count = reader.count(spec.inputs[0]);
  const Bytes bytes = float_bytes(count);
  return function_kernel({{bytes}, {bytes}}, 0, [=](void* const* operands, void*) {
    const float* x = input(operands, 0);
    float* y = output(operands, 1);
    for (Count i = 0; i < count; ++i) y[i] = x[count - 1 - i];
  });
}

const KernelType kReverse{"mirror", make_reverse};

}  // namespace
}  // namespace memcfg
"""

USE = """
import numpy as np
import memcfg as mc

assert mc.__file__.startswith({root!r}), mc.__file__


class Reverse(mc.nn.Layer):
    def trace(self, scope, inputs):
        return scope.apply("mirror", inputs)[0]


x = np.arange(12, dtype=np.float32).reshape(2, 6)
inputs = mc.nn.Input((6,))
model = mc.nn.Model(inputs, Reverse()(mc.nn.Activation("twice_plus_one")(inputs)))
expected = (2 * x + 1).ravel()[::-1].reshape(2, 6)
assert np.array_equal(model.predict(x, batch_size=2, verbose=0), expected)
y = mc.nn.Dense(2, activation="twice_plus_one")(Reverse()(inputs))
model = mc.nn.Model(inputs, y)
model.compile(mc.nn.SGD(0.1), mc.nn.SparseCategoricalCrossentropy(from_logits=True))
model.fit(x, np.array([0, 1]), batch_size=2, epochs=2, verbose=0)
"""


class Copy:
    """A scratch copy of the sources, and which of its files have changed."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "memcfg"
        leave = shutil.ignore_patterns("__pycache__", "*.so", "*.pyc")
        for name in ("memcfg", "_native"):
            shutil.copytree(ROOT / name, self.root / name, ignore=leave)
        built = Path(memcfg.__file__).parent  # compiled modules stay as installed
        for path in built.rglob("*.so"):
            (self.root / "memcfg" / path.relative_to(built)).symlink_to(path)
        self.before = self.contents()

    def contents(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in self.root.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }

    def touched(self) -> list[str]:
        now = self.contents()
        return sorted(name for name in now if now[name] != self.before.get(name))

    def add_element_wise_op(self) -> None:
        path = self.root / "memcfg/ops/pointwise.py"
        path.write_text(path.read_text(encoding="utf-8") + LINE, encoding="utf-8")

    def add_other_op(self) -> None:
        (self.root / "memcfg/ops/mirror.py").write_text(FAMILY, encoding="utf-8")
        kernel = self.root / "_native/src/kernels/mirror.cpp"
        kernel.write_text(KERNEL, encoding="utf-8")

    def compile(self) -> None:
        """Compile the new kernel as setup.py's glob would find it."""
        source = self.root / "_native/src/kernels/mirror.cpp"
        folders = [f"-I{self.root / '_native' / each}" for each in ("include", "src")]
        command = ["g++", "-std=c++17", "-fsyntax-only", *folders, str(source)]
        subprocess.run(command, check=True)

    def use(self) -> None:
        script = USE.format(root=str(self.root))
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=self.root,
            env={"PYTHONPATH": str(self.root), "MEMCFG_KERNELS": "reference"},
            check=True,
        )


def count() -> tuple[list[str], list[str]]:
    """Return the files touched for an element-wise op, and for another op."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for add in (Copy.add_element_wise_op, Copy.add_other_op):
            copy = Copy(Path(folder) / add.__name__)
            add(copy)
            found.append(copy.touched())
        both = Copy(Path(folder) / "both")
        both.add_element_wise_op()
        both.add_other_op()
        both.compile()
        both.use()
    return found[0], found[1]


if __name__ == "__main__":
    for what, files in zip(("element-wise", "other"), count(), strict=True):
        print(f"{what}: {len(files)} ({', '.join(files)})")
