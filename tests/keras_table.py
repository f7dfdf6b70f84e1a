"""Write docs/keras.md: names of Keras's that are not here, or not with all arguments.

    python tests/keras_table.py

The names and parameters of Keras's are in ``support/keras_names.json``. A name is
*different* where arguments of Keras's are not taken here, or not all of their values.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
import textwrap
from pathlib import Path

import memcfg as mc

HERE = Path(__file__).parent
sys.path.append(str(HERE / "support"))
from internals import ABSENT, ARGUMENTS, instead  # noqa: E402

PAGE = HERE.parent / "docs" / "keras.md"
NAMES = json.loads((HERE / "support" / "keras_names.json").read_text())
# All public names of Keras's by module, each once: without those of older versions, and
# of the modules that name functions of ``ops`` and ``applications`` again.
PUBLIC = json.loads((HERE / "support" / "keras_public_names.json").read_text())
METHODS = ("version", "Model", "Sequential", "calls", "defaults")  # no modules
UNSAID = {"dtype", "name", "trainable", "autocast"}  # what every layer has in Keras

CONVOLUTIONAL = {f"ConvLSTM{rank}D" for rank in (1, 2, 3)}

# Values that are refused although the argument is there: the argument, the names (None:
# all that have it), such a value, and what can be had.
VALUES = (
    ("data_format", "ops", "channels_first", "channels last"),
    ("data_format", "ops.image", "channels_first", "channels last"),
    ("data_format", CONVOLUTIONAL, "channels_first", "channels last"),
    ("loss_scale_factor", None, 2.0, "gradients are float32: no `loss_scale_factor`"),
    ("attention_axes", {"MultiHeadAttention"}, (2,), "attention over all steps"),
    ("use_gate", {"MultiHeadAttention", "GroupQueryAttention"}, True, "no gate"),
    ("sliding_window", {"GroupQueryAttention"}, 2, "attention over all steps"),
    ("weights", {"Embedding", "Bidirectional"}, [1], "`set_weights` for `weights`"),
    ("tie_weights", {"ReversibleEmbedding"}, False, "tied weights"),
    ("mask_zero", {"ReversibleEmbedding"}, True, "no mask"),
    ("reverse_dtype", {"ReversibleEmbedding"}, "float16", "no `reverse_dtype`"),
    ("logit_soft_cap", {"ReversibleEmbedding"}, 9.0, "no `logit_soft_cap`"),
    ("x", {"nonzero", "unique", "view"}, mc.nn.Input((4,)), "of arrays alone"),
    ("ragged", {"audio_dataset_from_directory"}, True, "padded, and not resampled"),
    ("use_multiprocessing", {"PyDataset", "Sequence"}, True, "threads only"),
)

# How values are read, in words.
VALUED = (
    "Layers, models, ops and losses that are called on arrays return arrays of NumPy, "
    "and `metric.result()` is a number. `keras.ops.convert_to_numpy(x)`, "
    "`np.asarray(x)` and `float(x)` read them as in programs for all of Keras's "
    "backends. TensorFlow's `x.numpy()` is a method of weights, of what is computed "
    "while a `GradientTape` records, and of gradients. Other results have no such "
    "method, like arrays of JAX: with a subclass of NumPy's arrays that has it, "
    "whatever a program computes from a result would be of that class.",
    "Tensors in a function, a step or a `call` have no values: return what is to be "
    "read.",
)


def different(room, name, kind):
    """The rows of `VALUES` that a class or function is in."""
    if inspect.ismodule(kind) or (inspect.isfunction(kind) and room == "losses"):
        return []
    function = kind.__init__ if inspect.isclass(kind) else kind
    ours = inspect.signature(function).parameters
    return [
        row
        for row in VALUES
        if row[0] in ours
        and (row[1] in (None, room) or (isinstance(row[1], set) and name in row[1]))
    ]


def missing(kind, theirs):
    """The arguments of Keras's that a class or function here does not take."""
    if inspect.ismodule(kind):
        return []
    function = kind.__init__ if inspect.isclass(kind) else kind
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return []
    ours = {each.name for each in parameters}
    left_out = [name for name in theirs if name not in ours | UNSAID]
    if inspect.isclass(kind) and issubclass(kind, mc.nn.Layer):
        left_out = [
            name
            for name in left_out
            if not name.endswith(("_regularizer", "_constraint"))
        ]
    return left_out


def rows(room):
    module = importlib.import_module(f"memcfg.nn.{room}".rstrip("."))
    for name, theirs in NAMES[room].items():
        if not hasattr(module, name):
            yield name, f"absent: {instead(ABSENT[room], name)}"
            continue
        kind = getattr(module, name)
        left_out = missing(kind, theirs)
        how = [row[3] for row in different(room, name, kind)]
        if left_out:
            how.append(f"without {', '.join(map(code, left_out))}")
        yield name, f"different: {'; '.join(how)}" if how else "here"


def counted():
    """Say how many names are as in Keras, differ, and are absent."""
    states = [state for room in NAMES if room not in METHODS for _, state in rows(room)]
    here, absent = states.count("here"), sum(each[:6] == "absent" for each in states)
    return (
        f"Of {len(states)} public names, {here} are here and not listed, "
        f"{len(states) - here - absent} differ in arguments, and {absent} are absent: "
        f"{100 * absent / len(states):.1f} %."
    )


def missing_names():
    """All public names of Keras's that are not here, by module."""
    result = {}
    for room, names in PUBLIC.items():
        module = mc.nn
        for part in filter(None, room.split(".")):
            module = getattr(module, part, None)
        left = [name for name in names if not hasattr(module, name)]
        if left:
            result[room or "keras"] = left
    return result


def all_counted():
    """Say how many of all public names are absent, and in which modules."""
    left, total = missing_names(), sum(map(len, PUBLIC.values()))
    count = sum(map(len, left.values()))
    most = sorted(left, key=lambda room: -len(left[room]))[:6]
    shown = ", ".join(f"`{room}` ({len(left[room])})" for room in most)
    return (
        "A module that is absent counts as one name there. Of all names in all of "
        f"Keras's modules, {total}, {count} are absent: {100 * count / total:.1f} %. "
        f"Most of them are those of {shown}."
    )


def page():
    parts = [
        "# Keras names",
        "",
        textwrap.fill(
            f"This page lists what differs between Keras {NAMES['version']} and "
            "`memcfg.nn`. `from memcfg import nn as keras` is the line to change. "
            f"{counted()} An unsupported argument is a TypeError, an absent name is an "
            "AttributeError, and both say what to do instead. `python "
            "tests/keras_table.py` writes this page.",
            88,
        ),
        "",
        textwrap.fill(all_counted(), 88, break_on_hyphens=False),
        "",
        "[Keras's own tests](../bench/results/keras_suite.md), run with `memcfg.nn` in",
        "its place, show how far names behave alike.",
        "",
        textwrap.fill(
            "What `memcfg.nn` lacks also trains in Keras itself: with its PyTorch "
            "backend, a Keras model is a `torch.nn.Module`, and "
            '`memcfg.torch.budget(model, "1GiB")` keeps `fit`, `evaluate`, `predict`, '
            "callbacks and saving within a budget "
            "([how](torch.md#loops-of-other-libraries)).",
            88,
            break_long_words=False,
            break_on_hyphens=False,
        ),
        "",
        textwrap.fill(
            "Sections: [values](#values), [methods](#methods), "
            "[unsupported arguments](#unsupported-arguments), "
            + ", ".join(
                f"[{room or 'keras'}](#{(room or 'keras').replace('.', '')})"
                for room in NAMES
                if room not in METHODS
                and any(state != "here" for _, state in rows(room))
            )
            + ".",
            88,
            break_long_words=False,
            break_on_hyphens=False,
        ),
        "",
        "## Values",
        "",
        *(textwrap.fill(each, 88, break_on_hyphens=False) + "\n" for each in VALUED),
        "## Methods",
        "",
    ]
    for method, theirs in NAMES["Model"].items():
        owner = mc.nn.Model if hasattr(mc.nn.Model, method) else mc.nn.Layer
        left_out = missing(getattr(owner, method), theirs)
        if not left_out:
            continue
        words = f"without {', '.join(map(code, left_out))}"
        text = f"- `{owner.__name__}.{method}`: {words}"
        parts.append(textwrap.fill(text, 88, subsequent_indent="  "))
    parts += [*arguments()]
    for room in NAMES:
        if room in METHODS:
            continue
        found = list(rows(room))
        others = [(name, state) for name, state in found if state != "here"]
        if not others:
            continue
        alike = f"{len(found) - len(others)} of {len(found)} names are as in Keras."
        parts += ["", f"## {room or 'keras'}", "", alike]
        if others:
            parts += ["", "| name | difference |", "| --- | --- |"]
            alike = {}
            for name, state in others:
                alike.setdefault(state, []).append(code(name))
            parts += [f"| {', '.join(names)} | {s} |" for s, names in alike.items()]
    return "\n".join(parts) + "\n"


def arguments():
    """Each unsupported argument: the values that it may have, and why."""
    yield from ("", "## Unsupported arguments", "")
    yield from (
        "| name | allowed values | why, or what to do instead |",
        "| --- | --- | --- |",
    )
    for name, (words, same) in ARGUMENTS.items():
        values = ", ".join(code(repr(each)) for each in (*same, None))
        shown = "NAME" + name[1:] if name[0] == "*" else name
        yield f"| {code(shown)} | {values} | {words} |"


def code(name):
    return f"`{name}`"


if __name__ == "__main__":
    PAGE.write_text(page())
