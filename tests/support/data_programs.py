"""Programs over datasets: drawn at random, built with any library, and written down.

A program is JSON. A step is a list ``[operation, numbers of steps before, keywords]``;
passes are the numbers of the steps that are read to the end, one after the other. A
library is an object such as those of `data_libraries`: it has the class ``Dataset`` and
what functions of elements need.
"""

from __future__ import annotations

import math
from collections import namedtuple
from itertools import islice

import numpy as np

MOST = 400  # elements of a pass
UNKNOWN = -2  # a cardinality

Leaf = namedtuple("Leaf", "dtype shape")  # noqa: PYI024  None is a size nobody knows
Point = namedtuple("Point", "y x")  # noqa: PYI024
NUMBERS = ("int64", "int32", "float32", "float64", "uint8")

# Values


def value_of(words):
    """Make what a source is given of its description."""
    if "array" in words:
        dtype, shape = words["array"]
        numbers = np.arange(math.prod(shape))
        if dtype == "string":
            return np.array([f"s{n % 7}" * (n % 3) for n in numbers], "U").reshape(
                shape
            )
        return (numbers % 23).reshape(shape).astype(dtype)
    if "python" in words:
        return words["python"]
    if "tuple" in words:
        return tuple(map(value_of, words["tuple"]))
    if "point" in words:
        return Point(*map(value_of, words["point"]))
    return {key: value_of(child) for key, child in words["dict"].items()}


def kind_of(words):
    """The leaves of such a value, as an element."""
    if "array" in words:
        return Leaf(words["array"][0], tuple(words["array"][1]))
    if "python" in words:
        found = np.asarray(words["python"])
        dtype = {"i": "int32", "f": "float32", "U": "string", "b": "bool"}
        return Leaf(dtype[found.dtype.kind], found.shape)
    if "tuple" in words:
        return tuple(map(kind_of, words["tuple"]))
    if "point" in words:
        return Point(*map(kind_of, words["point"]))
    return {key: kind_of(child) for key, child in words["dict"].items()}


def mapped(function, kind):
    if isinstance(kind, Leaf):
        return function(kind)
    if isinstance(kind, tuple):
        children = [mapped(function, child) for child in kind]
        return Point(*children) if isinstance(kind, Point) else tuple(children)
    return {key: mapped(function, child) for key, child in kind.items()}


def leaves(kind):
    if isinstance(kind, Leaf):
        return [kind]
    if isinstance(kind, tuple):
        return [leaf for child in kind for leaf in leaves(child)]
    return [leaf for key in sorted(kind) for leaf in leaves(kind[key])]


def first(element):
    """The first leaf of an element, of arrays or of kinds."""
    while isinstance(element, dict) or (
        isinstance(element, tuple) and not isinstance(element, Leaf)
    ):
        element = element[min(element)] if isinstance(element, dict) else element[0]
    return element


def whole(arguments):
    """The element that a function was given as arguments."""
    return arguments if len(arguments) > 1 else arguments[0]


# Functions of elements by name: what kinds they take, what they make of them, and how


def _is_number(kind):
    return isinstance(kind, Leaf) and kind.dtype in NUMBERS


def _is_count(kind):
    return _is_number(kind) and kind.dtype[0] == "i" and kind.shape == ()


def _is_pair(kind):
    return type(kind) is tuple and len(kind) == 2


def _any(kind):
    return True


MAPS = {
    "double": (_is_number, lambda k: k, lambda lib: lambda x: x * 2),
    "negative": (
        lambda k: _is_number(k) and k.dtype != "uint8",
        lambda k: k,
        lambda lib: lambda x: -x,
    ),
    "pair": (_is_number, lambda k: (k, k), lambda lib: lambda x: (x, x + 1)),
    "listed": (_is_number, lambda k: (k, k), lambda lib: lambda x: [x, x]),
    "dict": (
        _is_number,
        lambda k: {"b": k, "a": k},
        lambda lib: lambda x: {"b": x, "a": x * 3},
    ),
    "nested": (
        _is_number,
        lambda k: (k, {"k": (k, k)}),
        lambda lib: lambda x: (x, {"k": (x, x + 1)}),
    ),
    "stack": (
        _is_number,
        lambda k: Leaf(k.dtype, (2, *k.shape)),
        lambda lib: lambda x: lib.stack([x, x]),
    ),
    "float": (
        _is_number,
        lambda k: Leaf("float32", k.shape),
        lambda lib: lambda x: lib.cast(x, "float32"),
    ),
    "byte": (
        _is_number,
        lambda k: Leaf("uint8", k.shape),
        lambda lib: lambda x: lib.cast(x % 50, "uint8"),
    ),
    "truth": (
        _is_number,
        lambda k: Leaf("bool", k.shape),
        lambda lib: lambda x: x > 3,
    ),
    "sum": (_is_number, lambda k: Leaf(k.dtype, ()), lambda lib: lib.sum),
    "ragged": (
        _is_count,
        lambda k: Leaf(k.dtype, (None,)),
        lambda lib: lambda x: lib.range(x % 4),
    ),
    "fail": (_is_count, lambda k: k, lambda lib: lambda x: lib.refuse(x, 5)),
    "swap": (_is_pair, lambda k: k[::-1], lambda lib: lambda a, b: (b, a)),
    "second": (_is_pair, lambda k: k[1], lambda lib: lambda a, b: b),
    "within": (_is_pair, lambda k: {"in": k}, lambda lib: lambda a, b: {"in": (a, b)}),
    "inverse": (
        lambda k: isinstance(k, Point),
        lambda k: Point(k.x, k.y),
        lambda lib: lambda p: Point(p.x, p.y),
    ),
    "value": (
        lambda k: isinstance(k, dict),
        lambda k: k[min(k)],
        lambda lib: lambda x: x[min(x)],
    ),
    "int": (_any, lambda k: Leaf("int32", ()), lambda lib: lambda *x: 7),
    "real": (_any, lambda k: Leaf("float32", ()), lambda lib: lambda *x: 2.5),
    "text": (_any, lambda k: Leaf("string", ()), lambda lib: lambda *x: "abc"),
    "yes": (_any, lambda k: Leaf("bool", ()), lambda lib: lambda *x: True),
    "nan": (_any, lambda k: Leaf("float32", ()), lambda lib: lambda *x: math.nan),
    "same": (_any, lambda k: k, lambda lib: lambda *x: whole(x)),
}

FILTERS = {
    "even": (
        lambda k: first(k).dtype in NUMBERS,
        lambda lib: lambda *x: lib.equal(lib.sum(first(whole(x))) % 2, 0),
    ),
    "small": (
        lambda k: first(k).dtype in NUMBERS,
        lambda lib: lambda *x: lib.sum(first(whole(x))) < 9,
    ),
    "all": (_any, lambda lib: lambda *x: True),
    "none": (_any, lambda lib: lambda *x: False),
}


def _with_rows(kind):
    return bool(first(kind).shape)


INNERS = {
    "twice": (
        _any,
        lambda k: k,
        lambda lib: lambda *x: lib.Dataset.from_tensors(whole(x)).repeat(2),
    ),
    "count": (
        lambda k: _is_count(first(k)),
        lambda k: Leaf("int64", ()),
        lambda lib, _: (
            lambda *x: lib.Dataset.range(lib.cast(first(whole(x)) % 4, "int64"))
        ),
    ),
    "slices": (
        _with_rows,
        lambda k: Leaf(first(k).dtype, first(k).shape[1:]),
        lambda lib: lambda *x: lib.Dataset.from_tensor_slices(first(whole(x))),
    ),
    "batches": (
        _any,
        lambda k: Leaf("int64", (None,)),
        lambda lib: lambda *x: lib.Dataset.range(5).batch(2),
    ),
    "shuffled": (
        _any,
        lambda k: Leaf("int64", ()),
        lambda lib: lambda *x: lib.Dataset.range(6).shuffle(3, seed=7),
    ),
    "captured": (_any, None, lambda lib, inner: lambda *x: inner),
}

SIGNATURES = {
    "numbers": (
        lambda: iter(range(6)),
        lambda lib: lib.spec((), "int64"),
        Leaf("int64", ()),
    ),
    "arrays": (
        lambda: (np.arange(n % 3 + 1, dtype=np.float32) for n in range(5)),
        lambda lib: lib.spec((None,), "float32"),
        Leaf("float32", (None,)),
    ),
    "pairs": (
        lambda: ((n, {"t": "x" * n}) for n in range(4)),
        lambda lib: (lib.spec((), "int32"), {"t": lib.spec((), "string")}),
        (Leaf("int32", ()), {"t": Leaf("string", ())}),
    ),
    "nothing": (
        lambda: iter(()),
        lambda lib: lib.spec((), "int64"),
        Leaf("int64", ()),
    ),
    "wrong": (
        lambda: iter([1, [2, 3]]),
        lambda lib: lib.spec((), "int64"),
        Leaf("int64", ()),
    ),
}


# Building


def build(program, library):
    """Make the datasets of a program's steps; what is raised is added, and the last."""
    found = []
    for operation, inputs, words in program["steps"]:
        try:
            step = _step(operation, [found[n] for n in inputs], dict(words), library)
        except Exception as error:
            found.append(error)
            break
        found.append(step)
    return found


def _step(operation, inputs, words, library):
    if not inputs:
        return _source(operation, words, library)
    if operation == "zip":
        nest = dict(zip("ba", inputs, strict=True)) if words["dict"] else tuple(inputs)
        return library.Dataset.zip(nest)
    this, *others = inputs
    if operation == "concatenate":
        return this.concatenate(others[0])
    if "function" in words:
        table = {"map": MAPS, "filter": FILTERS}.get(operation, INNERS)
        make = table[words.pop("function")][-1]
        function = make(library, *others) if others else make(library)
        return getattr(this, operation)(library.function(function), **words)
    if "file" in words:
        words = {"filename": library.path(words["file"])}
    shapes = words.get("padded_shapes")
    if shapes and isinstance(shapes[0], list):
        words["padded_shapes"] = tuple(shapes)
    return getattr(this, operation)(**words)


def _source(operation, words, library):
    if operation == "range":
        return library.Dataset.range(*words.pop("arguments"), **words)
    if operation == "from_generator":
        make, signature, _ = SIGNATURES[words["name"]]
        return library.Dataset.from_generator(make, output_signature=signature(library))
    return getattr(library.Dataset, operation)(value_of(words["value"]))


# What a program does


def outcome(program, library):
    """Write down specs and cardinalities of steps, and the elements of passes."""
    library.begin()
    datasets = build(program, library)
    failed = isinstance(datasets[-1], Exception)
    steps = [_facts(one, library) for one in datasets[: len(datasets) - failed]]
    passes = []
    for number in [] if failed else program["passes"]:
        elements, error = [], False
        try:
            with_end = islice(library.elements(datasets[number]), MOST)
            elements.extend(map(nested, with_end))
        except Exception:
            error = True
        passes.append({"elements": elements, "error": error})
    return {"failed": failed, "steps": steps, "passes": passes}


def _facts(dataset, library):
    return {
        "cardinality": int(dataset.cardinality()),
        "spec": library.spec_words(dataset),
        "known": library.is_known(dataset),
    }


def nested(element):
    """Write an element down."""
    if isinstance(element, tuple):
        name = "point" if isinstance(element, Point) else "tuple"
        return {name: [nested(child) for child in element]}
    if isinstance(element, dict):
        return {"dict": {key: nested(element[key]) for key in sorted(element)}}
    found = np.asarray(element)
    if found.dtype.kind in "OSU":
        texts = [
            t if isinstance(t, str) else t.decode() for t in found.ravel().tolist()
        ]
        return ["string", list(found.shape), texts]
    numbers = found.ravel().tolist()
    words = ["nan" if number != number else number for number in numbers]
    return [found.dtype.name, list(found.shape), words]


def differences(program, theirs, ours):
    """Say in what two outcomes of a program differ; empty: in nothing."""
    if theirs["failed"] or ours["failed"]:
        return [] if _fails(ours) and _fails(theirs) else ["one is built, one is not"]
    found = []
    for number, (one, other) in enumerate(
        zip(theirs["steps"], ours["steps"], strict=True)
    ):
        name = f"step {number} ({program['steps'][number][0]})"
        unknown = other["cardinality"] == UNKNOWN and not other["known"]
        if one["cardinality"] != other["cardinality"] and not unknown:
            found.append(f"{name}: {one['cardinality']}, not {other['cardinality']}")
        if not _agree(one["spec"], other["spec"], exactly=other["known"]):
            found.append(f"{name}: spec {one['spec']}, not {other['spec']}")
    for number, (one, other) in enumerate(
        zip(theirs["passes"], ours["passes"], strict=True)
    ):
        if one != other:
            found.append(f"pass {number}: {one}, not {other}")
    return found


def _fails(found):
    return found["failed"] or any(one["error"] for one in found["passes"])


def _agree(one, other, *, exactly):
    if other is None:  # there was no element to tell from
        return not exactly
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(_agree(one[key], other[key], exactly=exactly) for key in one)
        )
    if isinstance(one, list) and one and isinstance(one[0], str):
        if exactly:
            return one == other
        if not (isinstance(other, list) and one[0] == other[0]):
            return False
        (_, shape), (_, found) = one, other
        if shape is None or found is None:
            return True
        return len(shape) == len(found) and all(
            a == b or None in (a, b) for a, b in zip(shape, found, strict=True)
        )
    return (
        isinstance(other, list)
        and len(one) == len(other)
        and all(_agree(a, b, exactly=exactly) for a, b in zip(one, other, strict=True))
    )
