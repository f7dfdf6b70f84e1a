"""Random graphs that are small enough to try all schedules of."""

from __future__ import annotations

import random
from dataclasses import replace

from memcfg.graph import Graph, Op, Tensor

SIZES = (0, 1, 64, 64, 128, 192, 320, 640)
STATE = ("parameter", "optimizer_state")


class _Tiny:
    """A graph in the making."""

    def __init__(self, seed: int, kept: int) -> None:
        self.chance = random.Random(seed)
        chance = self.chance
        roles = ("input", "input", *STATE)
        self.tensors = [
            Tensor(f"s{i}", chance.choice(SIZES), chance.choice(roles))
            for i in range(chance.randint(1, 3))
        ]
        self.ops: list[Op] = []
        count = chance.randint(2, 7)
        mirrored = chance.random() < 0.5
        for i in range(count):
            back = count - 1 - i
            if mirrored and self.ops and back < i:
                self.backward(i, back)
            else:
                self.forward(i, mirrored=mirrored)
            if i >= count - 2 and chance.random() < 0.4:
                self.make_update()
        count = chance.randint(0, min(kept, len(self.tensors)))
        keep = chance.sample(range(len(self.tensors)), count)
        self.graph = Graph(
            f"tiny {seed}", tuple(self.tensors), tuple(self.ops), tuple(keep)
        )

    def forward(self, i: int, *, mirrored: bool) -> None:
        first = max(0, len(self.tensors) - 3) if self.chance.random() < 0.7 else 0
        reads = [
            self.chance.randrange(first, len(self.tensors))
            for _ in range(self.chance.randint(1, 2))
        ]
        late = not mirrored and self.chance.random() < 0.3
        self.op(i, "backward" if late else "forward", reads)

    def backward(self, i: int, back: int) -> None:
        other = self.ops[back]
        reads = [self.ops[-1].outputs[0]]
        reads.append(self.chance.choice(other.inputs + other.outputs))
        self.op(i, "backward", reads)

    def op(self, i: int, phase: str, reads: list[int]) -> None:
        chance = self.chance
        reads = list(dict.fromkeys(reads))
        first = len(self.tensors)
        outputs = range(first, first + chance.choice([1, 1, 1, 1, 2]))
        for t in outputs:
            same = self.tensors[reads[0]].nbytes
            size = same if chance.random() < 0.4 else chance.choice(SIZES)
            self.tensors.append(Tensor(f"t{t}", size, "activation"))
        self.ops.append(
            Op(
                f"o{i}",
                "f",
                phase,
                tuple(reads),
                tuple(outputs),
                seconds=float(chance.choice([0, 1, 1, 2, 3, 5, 8])),
                scratch_bytes=chance.choice([0, 0, 0, 64, 100]),
                replayable=chance.random() < 0.92,
                in_place=tuple(
                    (a, b) for a in reads for b in outputs if chance.random() < 0.3
                ),
            )
        )

    def make_update(self) -> None:
        """Let the last op update state."""
        op = self.ops[-1]
        state = [
            t
            for t in range(len(self.tensors))
            if self.tensors[t].role in STATE and self.chance.random() < 0.6
        ]
        pairs = [
            (a, b) for a in state for b in op.outputs if self.chance.random() < 0.8
        ]
        self.ops[-1] = replace(
            op,
            phase="update",
            inputs=tuple(dict.fromkeys((*op.inputs, *state))),
            in_place=tuple(dict.fromkeys((*op.in_place, *pairs))),
        )


def tiny_graph(seed: int, *, kept: int = 2) -> Graph:
    """Up to seven ops, and up to so many tensors that are kept.

    In half of the graphs the last ops mirror the first ones.
    """
    return _Tiny(seed, kept).graph
