"""Programs over datasets, drawn at random.

Only what both libraries do in one order is drawn: no unordered steps, and nothing that
reads ahead where datasets are shared or read again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from data_programs import (
    FILTERS,
    INNERS,
    MAPS,
    NUMBERS,
    SIGNATURES,
    Leaf,
    kind_of,
    leaves,
    mapped,
)

SEEDS = [0, 1, 7, 2**31 - 1, 2**40 + 3, -5]


class Chooser:
    """Choices of a pseudo-random generator; hypothesis has another one.

    Parameters
    ----------
    seed : int
        What they depend on.
    """

    def __init__(self, seed):
        self._random = random.Random(seed)

    def pick(self, options):
        return self._random.choice(options)

    def number(self, low, high):
        return self._random.randint(low, high)


@dataclass
class Step:
    """What is known of a step while a program is drawn."""

    number: int
    kind: object
    endless: bool = False
    most: int = 0  # elements, about
    fused: bool = False


@dataclass
class Draw:
    """A program that is being drawn.

    Parameters
    ----------
    chooser : Chooser
        Who chooses.
    shared : bool
        Whether steps are read more than once.
    """

    chooser: object
    shared: bool
    steps: list = field(default_factory=list)
    known: list = field(default_factory=list)

    def program(self):
        self.source()
        for _ in range(self.chooser.number(1, 7)):
            self.grow()
        last = self.known[-1]
        if last.endless:
            last = self.add("take", [last], {"count": 30}, last.kind, most=30)
        passes = [last.number]
        if self.shared:
            finite = [step.number for step in self.known if not step.endless]
            passes += [self.chooser.pick(finite) for _ in range(2)] + [last.number]
        return {"steps": self.steps, "passes": passes}

    def add(self, operation, inputs, words, kind, **facts):
        self.steps.append([operation, [step.number for step in inputs], words])
        step = Step(len(self.steps) - 1, kind, **facts)
        self.known.append(step)
        return step

    # Sources

    def source(self):
        pick, number = self.chooser.pick, self.chooser.number
        form = pick(["range", "range", "slices", "slices", "tensors", "generator"])
        if form == "range":
            arguments = pick([[number(0, 12)], [2, 9], [9, 1, -3], [1, 10, 4], [5, 5]])
            words = {"arguments": arguments}
            dtype = pick(["int64", "int64", "int32", "float32"])
            if dtype != "int64":
                words["output_type"] = dtype
            most = len(range(*arguments))
            return self.add("range", [], words, Leaf(dtype, ()), most=most)
        if form == "generator":
            name = pick(sorted(SIGNATURES))
            kind = SIGNATURES[name][2]
            return self.add("from_generator", [], {"name": name}, kind, most=6)
        rows = number(0, 7)
        words = {"value": self.value(rows if form == "slices" else None)}
        kind = kind_of(words["value"])
        if form == "tensors":
            return self.add("from_tensors", [], words, kind, most=1)
        kind = mapped(lambda leaf: Leaf(leaf.dtype, leaf.shape[1:]), kind)
        return self.add("from_tensor_slices", [], words, kind, most=rows)

    def value(self, rows, depth=0):
        pick, number = self.chooser.pick, self.chooser.number
        form = pick(
            ["array"] * 4 + ["python", "tuple", "dict"][: 3 if depth < 2 else 1]
        )
        if form == "tuple":
            count = number(1, 3)
            name = "point" if count == 2 and number(0, 1) else "tuple"
            return {name: [self.value(rows, depth + 1) for _ in range(count)]}
        if form == "dict":
            names = ["z", "a", "m"][: number(1, 3)]
            return {"dict": {name: self.value(rows, depth + 1) for name in names}}
        if form == "python":
            scalar = pick([3, 2.5, "word", True, -1])
            if rows is None:
                return {"python": scalar}
            if rows:
                return {"python": [scalar] * rows}
        shape = [number(1, 3) for _ in range(number(0, 2))]  # TensorFlow crashes on 0
        dtype = pick([*NUMBERS, "string", "bool"])
        return {"array": [dtype, ([] if rows is None else [rows]) + shape]}

    # Steps

    def grow(self):
        pick = self.chooser.pick
        if self.chooser.number(0, 5) == 0:
            self.source()
            return
        this = pick(self.known) if self.shared else self.known[-1]
        operation = pick(sorted(OPERATIONS))
        OPERATIONS[operation](self, this)

    def other(self):
        """A second step to combine with; it is drawn where none may be read twice."""
        if self.shared:
            return self.chooser.pick(self.known)
        return self.source()

    def kept(self, operation, this, words, **facts):
        facts = {"most": this.most, "endless": this.endless, **facts}
        return self.add(operation, [this], words, this.kind, **facts)

    def calls(self, most=3):
        if self.shared or self.chooser.number(0, 2):
            return {}
        return {
            "num_parallel_calls": self.chooser.number(1, most),
            "deterministic": True,
        }

    def batch(self, this):
        size = self.chooser.number(1, 5)
        words = {"batch_size": size}
        if drop := self.chooser.pick([False, True, None]):
            words["drop_remainder"] = drop
        kind = mapped(
            lambda leaf: Leaf(leaf.dtype, (size if drop else None, *leaf.shape)),
            this.kind,
        )
        words |= self.calls()
        self.add(
            "batch",
            [this],
            words,
            kind,
            most=this.most // size + 1,
            endless=this.endless,
        )

    def padded_batch(self, this):
        size = self.chooser.number(1, 4)
        drop = self.chooser.pick([False, True])
        words = {"batch_size": size, "drop_remainder": drop}
        shapes = {}
        if isinstance(this.kind, Leaf) and self.chooser.number(0, 1):
            known = [size or 0 for size in this.kind.shape]  # less is refused at once
            sizes = [self.chooser.pick([None, max(3, one), 5]) for one in known]
            words["padded_shapes"] = sizes
            shapes[this.kind] = tuple(sizes)
            # TensorFlow takes an int for int32 only, and a float for float32.
            values = {"int32": [0, 1, -1], "float32": [0.0, 2.5], "string": ["", "x"]}
            if this.kind.dtype in values and self.chooser.number(0, 1):
                words["padding_values"] = self.chooser.pick(values[this.kind.dtype])
        kind = mapped(
            lambda leaf: Leaf(
                leaf.dtype, (size if drop else None, *shapes.get(leaf, leaf.shape))
            ),
            this.kind,
        )
        self.add(
            "padded_batch", [this], words, kind, most=this.most, endless=this.endless
        )

    def unbatch(self, this):
        if this.endless or not all(leaf.shape for leaf in leaves(this.kind)):
            return  # without end it may never find an element
        if len({leaf.shape[0] for leaf in leaves(this.kind)} - {None}) > 1:
            return  # TensorFlow refuses that at once, memcfg when it meets it
        kind = mapped(lambda leaf: Leaf(leaf.dtype, leaf.shape[1:]), this.kind)
        self.add("unbatch", [this], {}, kind, most=this.most * 5, endless=this.endless)

    def shuffle(self, this):
        words = {
            "buffer_size": self.chooser.pick([1, 2, 3, 5, 8, 100]),
            "seed": self.chooser.pick(SEEDS),
        }
        if self.chooser.number(0, 2) == 0:
            words["reshuffle_each_iteration"] = False
        self.kept("shuffle", this, words, fused=True)

    def repeat(self, this):
        count = self.chooser.pick([1, 2, 3, None, -1, 0])
        if count == 0 and this.fused:
            return  # TensorFlow joins the two steps, and then refuses 0
        if this.most * (count or 1) > 100:
            return
        endless = count in (None, -1) or (this.endless and count != 0)
        self.kept("repeat", this, {"count": count}, most=this.most * 3, endless=endless)

    def map(self, this):
        names = [name for name, (fits, *_) in sorted(MAPS.items()) if fits(this.kind)]
        name = self.chooser.pick(names)
        kind = MAPS[name][1](this.kind)
        words = {"function": name, **self.calls()}
        self.add("map", [this], words, kind, most=this.most, endless=this.endless)

    def filter(self, this):
        names = [name for name, (fits, _) in sorted(FILTERS.items()) if fits(this.kind)]
        name = self.chooser.pick(names)
        if this.endless and name != "all":
            return
        self.kept("filter", this, {"function": name})

    def take(self, this):
        count = self.chooser.pick([-1, 0, 1, 2, 3, 5, 7, 50])
        self.kept("take", this, {"count": count}, endless=this.endless and count < 0)

    def skip(self, this):
        count = self.chooser.pick([-1, 0, 1, 2, 3, 5, 50])
        self.kept("skip", this, {"count": count}, endless=this.endless and count >= 0)

    def cache(self, this):
        if not this.endless:
            words = {"file": len(self.steps)} if self.chooser.number(0, 2) == 0 else {}
            self.kept("cache", this, words)

    def shard(self, this):
        shards = self.chooser.number(1, 4)
        words = {"num_shards": shards, "index": self.chooser.number(0, shards - 1)}
        self.kept("shard", this, words)

    def enumerate(self, this):
        start = self.chooser.pick([0, 5, -2])
        kind = (Leaf("int64", ()), this.kind)
        self.add(
            "enumerate",
            [this],
            {"start": start},
            kind,
            most=this.most,
            endless=this.endless,
        )

    def prefetch(self, this):
        if not self.shared:
            self.kept(
                "prefetch", this, {"buffer_size": self.chooser.pick([-1, 0, 1, 3])}
            )

    def zip(self, this):
        inputs = [this, self.other()]
        named = self.chooser.pick([False, False, True])
        kinds = [step.kind for step in inputs]
        kind = dict(zip("ba", kinds, strict=True)) if named else tuple(kinds)
        self.add(
            "zip",
            inputs,
            {"dict": named},
            kind,
            most=min(step.most for step in inputs),
            endless=all(step.endless for step in inputs),
        )

    def concatenate(self, this):
        alike = [step for step in self.known if step.kind == this.kind]
        if not self.shared:
            alike = [this] if self.steps[this.number][0] == "range" else []
            if alike:
                words = dict(self.steps[this.number][2])
                alike = [self.add("range", [], words, this.kind, most=this.most)]
        if alike:
            other = self.chooser.pick(alike)
            self.add(
                "concatenate",
                [this, other],
                {},
                this.kind,
                most=this.most + other.most,
                endless=this.endless or other.endless,
            )

    def inner(self, this, operation, words):
        names = [
            name
            for name, (fits, *_) in sorted(INNERS.items())
            if fits(this.kind) and (self.shared or name != "captured")
        ]
        if this.endless:
            names = ["batches", "twice"]
        name = self.chooser.pick(names)
        inputs = [this]
        if name == "captured":
            finite = [
                step for step in self.known if not step.endless and step.most < 20
            ]
            if not finite:
                return
            inputs.append(self.chooser.pick(finite))
            kind = inputs[-1].kind
        else:
            kind = INNERS[name][1](this.kind)
        if not self.shared and name in ("shuffled",):
            words = {k: v for k, v in words.items() if k in ("cycle_length",)}
        self.add(
            operation,
            inputs,
            {"function": name, **words},
            kind,
            most=this.most * 5,
            endless=this.endless,
        )

    def flat_map(self, this):
        self.inner(this, "flat_map", {})

    def interleave(self, this):
        words = {"cycle_length": self.chooser.number(1, 4)}
        if self.chooser.number(0, 1):
            words["block_length"] = self.chooser.number(1, 3)
        words |= self.calls(words["cycle_length"])
        self.inner(this, "interleave", words)


OPERATIONS = {
    name: getattr(Draw, name)
    for name in (
        *("batch", "padded_batch", "unbatch", "shuffle", "repeat", "map", "filter"),
        *("take", "skip", "cache", "shard", "enumerate", "prefetch", "zip"),
        *("concatenate", "flat_map", "interleave"),
    )
}


def draw_program(chooser, *, shared):
    """Draw a program.

    Parameters
    ----------
    chooser : Chooser
        Who chooses.
    shared : bool
        Whether steps are read more than once.
    """
    return Draw(chooser, shared).program()
