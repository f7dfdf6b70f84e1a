"""Write docs/keras.md: each name of Keras's, and whether it is here.

    python tests/keras_table.py

The names and parameters of Keras's are in ``support/keras_names.json``. A name is
*different* where arguments of Keras's are not taken here.
"""

from __future__ import annotations

import importlib
import inspect
import json
import textwrap
from pathlib import Path

import memcfg as mc
from memcfg.nn._keras_arguments import ARGUMENTS
from memcfg.nn._keras_names import ABSENT

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "keras.md"
NAMES = json.loads((HERE / "support" / "keras_names.json").read_text())
METHODS = ("version", "Model", "Sequential", "calls", "defaults")  # no modules
UNSAID = {"dtype", "name", "trainable", "autocast"}  # what every layer has in Keras


def missing(kind, theirs):
    """Which arguments of Keras's a class or function here does not take."""
    if inspect.ismodule(kind):
        return []
    function = kind.__init__ if inspect.isclass(kind) else kind
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return []
    ours = {each.name for each in parameters}
    left_out = [name for name in theirs if name not in ours | UNSAID]
    if inspect.isclass(kind) and issubclass(kind, mc.nn.Layer):
        left_out = [name for name in left_out if not name.endswith("_regularizer")]
    return left_out


def rows(room):
    module = importlib.import_module(f"memcfg.nn.{room}".rstrip("."))
    for name, theirs in NAMES[room].items():
        if not hasattr(module, name):
            yield name, f"absent: {ABSENT[room][name]}"
            continue
        left_out = missing(getattr(module, name), theirs)
        if left_out:
            yield name, f"without {', '.join(map(code, left_out))}"
        else:
            yield name, "here"


def page():
    parts = [
        "# Names of Keras's",
        "",
        textwrap.fill(
            f"What of Keras {NAMES['version']} is here, in `memcfg.nn`. `from memcfg "
            "import nn as keras` is the line to change. An argument that is not taken "
            "is a TypeError, an absent name an AttributeError, and both say what to do "
            "instead. `python tests/keras_table.py` writes this page.",
            88,
        ),
        "",
    ]
    for method, theirs in NAMES["Model"].items():
        owner = mc.nn.Model if hasattr(mc.nn.Model, method) else mc.nn.Layer
        left_out = missing(getattr(owner, method), theirs)
        words = "all arguments"
        if left_out:
            words = f"without {', '.join(map(code, left_out))}"
        text = f"- `{owner.__name__}.{method}`: {words}"
        parts.append(textwrap.fill(text, 88, subsequent_indent="  "))
    parts += [*arguments()]
    for room in NAMES:
        if room in METHODS:
            continue
        found = list(rows(room))
        here = [name for name, state in found if state == "here"]
        text = "Here: " + ", ".join(map(code, here)) + "."
        parts += ["", f"## {room or 'keras'}", "", textwrap.fill(text, 88)]
        others = [(name, state) for name, state in found if state != "here"]
        if others:
            parts += ["", "| name | |", "| --- | --- |"]
            alike = {}
            for name, state in others:
                alike.setdefault(state, []).append(code(name))
            parts += [f"| {', '.join(names)} | {s} |" for s, names in alike.items()]
    return "\n".join(parts) + "\n"


def arguments():
    """Each argument that is not taken: the values that it can have, and why."""
    yield from ("", "## Arguments that are not taken", "")
    yield from ("| name | can be | otherwise |", "| --- | --- | --- |")
    for name, (words, same) in ARGUMENTS.items():
        values = ", ".join(code(repr(each)) for each in (*same, None))
        shown = "NAME" + name[1:] if name[0] == "*" else name
        yield f"| {code(shown)} | {values} | {words} |"


def code(name):
    return f"`{name}`"


if __name__ == "__main__":
    PAGE.write_text(page())
