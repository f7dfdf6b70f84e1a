"""Write the loops of the library's own element-wise ops as C++: generate.py FILE.

Each expression of `memcfg.ops` becomes one loop, which the compiler vectorises. The
core's table of nodes is written too, beside the code that includes it. A file is only
written when it changes. Needs no compiled module.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from memcfg.ops import op_types
from memcfg.ops._expression import instructions, operand, read, write
from memcfg.ops._nodes import CONDITIONS, NODES
from memcfg.ops.chain import Link, join_elementwise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.ops._expression import Expression

HEAD = """// Written by _native/generate.py from memcfg/ops: do not change it here.
#include <cmath>

#include "kernels/expression.hpp"

namespace memcfg {
namespace {
"""
# Chains that most networks have: what ends a residual block in inference.
CHAINS = {"add_relu": (Link("add", {}, (0, 1)), Link("relu", {}, (-1,)))}

NODES_HEAD = """\
// Written by _native/generate.py from memcfg/ops/_nodes.py: do not change it here.
//
// The nodes of expressions: name, number of arguments, and value of x, y and z. What
// includes this defines MEMCFG_NODE, and MEMCFG_CONDITION (true or false) and
// MEMCFG_UNIFORM (never of elements) where these differ.
#ifndef MEMCFG_CONDITION
#define MEMCFG_CONDITION(name, count, value) MEMCFG_NODE(name, count, value)
#endif
#ifndef MEMCFG_UNIFORM
#define MEMCFG_UNIFORM(name, count, value) MEMCFG_NODE(name, count, value)
#endif
"""
NODES_FILE = Path(__file__).parent / "src" / "kernels" / "expression_nodes.inc"


def nodes() -> str:
    """Write the table of nodes that the core includes."""
    lines = []
    for name, node in NODES.items():
        kind = "CONDITION" if name in CONDITIONS else "NODE"
        kind = "UNIFORM" if node.uniform else kind
        value = node.code.format(*"xyz")
        lines.append(f"MEMCFG_{kind}({name}, {node.arguments}, ({value}))\n")
    names = ("NODE", "CONDITION", "UNIFORM")
    return NODES_HEAD + "".join([*lines, *(f"#undef MEMCFG_{n}\n" for n in names)])


def literal(value: float) -> str:
    """Write a constant: the float that a double is rounded to, by its bits."""
    with np.errstate(over="ignore"):
        bits = np.float64(value).astype(np.float32).view(np.uint32)
    return f"float_of({int(bits):#010x}U)"


def loop(name: str, outputs: Sequence[Expression], operands: Sequence[str]) -> str:
    """Write one loop and the constant that makes it known."""
    rows, places = instructions(outputs)
    used = {place for node, args in rows if not node.uniform for place in args}
    used.update(places)
    read = {
        place
        for place, (node, _) in enumerate(rows)
        if node.uniform and node.kind != "constant" and place in used
    }
    before, inside, after = [], [], []
    for place, (node, arguments) in enumerate(rows):
        kind = "bool" if node.condition else "float"
        target = f"const {kind} v{place} = "
        if place in read:
            test = " != 0.0F" if node.condition else ""
            before.append(f"{target}uniform[{sorted(read).index(place)}]{test};")
        elif node.kind == "constant" and place in used:
            before.append(f"{target}{literal(node.value)};")
        elif node.kind == "operand":
            position = operands.index(node.value)
            before.append(f"const float* x{position} = inputs[{position}];")
            inside.append(f"{target}x{position}[i];")
        elif not node.uniform:
            form = NODES[node.kind].code.format(*(f"v{each}" for each in arguments))
            inside.append(f"{target}{form};")
    for position, place in enumerate(places):
        before.append(f"float* y{position} = outputs[{position}];")
        after.append(f"y{position}[i] = v{place};")
    body = "\n".join(f"  {line}" for line in before)
    steps = "\n".join(f"    {line}" for line in [*inside, *after])
    text = write(outputs, operands)
    return f"""
MEMCFG_VECTORIZED void {name}([[maybe_unused]] const float* const* inputs,
                              float* const* outputs,
                              [[maybe_unused]] const float* uniform,
                              Count count) {{
{body}
  MEMCFG_INDEPENDENT
  for (Count i = 0; i < count; ++i) {{
{steps}
  }}
}}
const CompiledLoop loop_{name}{{"{text}", {name}}};
"""


def main(path: Path) -> None:
    """Write the file of all loops."""
    loops: dict[str, str] = {}
    for kind in op_types():
        for case, outputs in enumerate(kind.formula.cases() if kind.formula else ()):
            text = write(outputs, kind.formula.operands)
            loops.setdefault(
                text, loop(f"{kind.name}_{case}", outputs, kind.formula.operands)
            )
    for name, links in CHAINS.items():
        text = join_elementwise(links, (False, False))
        assert text is not None
        outputs = read(text, [operand("0"), operand("1")], {})
        loops.setdefault(text, loop(name, outputs, ("0", "1")))
    whole = (
        HEAD + "".join(loops.values()) + "\n}  // namespace\n}  // namespace memcfg\n"
    )
    update(path, whole)
    update(NODES_FILE, nodes())


def update(path: Path, text: str) -> None:
    """Write a file if that changes it."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
