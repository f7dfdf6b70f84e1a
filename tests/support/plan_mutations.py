"""Plans that are nearly right."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memcfg.graph import Graph, Link, Op, Tensor
from memcfg.plan import (
    Alias,
    Alloc,
    Compute,
    Decode,
    Encode,
    Free,
    Plan,
    Predicted,
    Start,
    SwapIn,
    SwapOut,
    Wait,
)

if TYPE_CHECKING:
    import random

COLLECTIVES = ("all_gather", "all_reduce", "broadcast", "reduce_scatter")


def with_collectives(graph: Graph, chance: random.Random) -> Graph:
    """Make some ops collectives, which run beside others, on a link that takes time."""
    often = chance.choice([0.2, 0.5])
    ops = [
        replace(op, type=chance.choice(COLLECTIVES)) if chance.random() < often else op
        for op in graph.ops
    ]
    link = Link(chance.choice([0.0, 1e-6]), chance.choice([1e7, 1e9]))
    return replace(graph, ops=tuple(ops), link=link)


def with_statistics(graph: Graph, chance: random.Random) -> Graph:
    """Add state that is moved by a value of the forward phase, some twice, and a loss.

    The updates stand right behind what they read, where no plan may have them.
    """
    tensors, ops, keep = [*graph.tensors], [*graph.ops], [*graph.keep]
    values = [t for op in graph.ops if op.phase == "forward" for t in op.outputs]
    for number in range(chance.randint(0, 2)):
        value = chance.choice(values)
        nbytes = chance.choice([1, 64, 200])
        for name in ("", "'", "''")[: chance.choice([2, 2, 3])]:
            tensors.append(Tensor(f"m{number}{name}", nbytes, "optimizer_state"))
            if not name:
                continue
            old, new = len(tensors) - 2, len(tensors) - 1
            op = Op(
                f"m{number}{name}",
                "move",
                "update",
                (old, value),
                (new,),
                replayable=False,
                in_place=((old, new),),
            )
            maker = next(
                k
                for k, other in reversed([*enumerate(ops)])
                if {old, value} & {*other.outputs}
            )
            ops.insert(maker + 1, op)
        keep.append(new)
    losses = [t for t in values if t in keep][: chance.choice([0, 1])]
    return Graph(graph.name, tuple(tensors), tuple(ops), tuple(keep), tuple(losses))


def claimed(graph: Graph, plan: Plan, actions) -> Plan:
    """The plan of these actions, which claims the peak that it has and nothing else."""
    peak = 0
    for action in actions:
        match action:
            case Alloc(tensor, offset) | Decode(tensor, offset):
                nbytes = graph.tensors[tensor].nbytes
            case Encode(_, _, nbytes, offset):
                pass
            case Compute(op, _, int(offset)):
                nbytes = graph.ops[op].scratch_bytes
            case _:
                continue
        step = max(plan.alignment, 1)
        peak = max(peak, offset + -(-nbytes // step) * step)
    return replace(plan, actions=tuple(actions), predicted=Predicted(peak))


class Mutator:
    """Changes that a careless planner could make."""

    def __init__(self, graph: Graph, plan: Plan, chance: random.Random) -> None:
        self.graph = graph
        self.plan = plan
        self.chance = chance
        self.actions = list(plan.actions)
        self.alignment = plan.alignment

    def mutate(self) -> Plan:
        changes = [
            *(self.drop, self.swap, self.duplicate, self.shift, self.move_update),
            *(self.replace_offset, self.exchange_offsets, self.part, self.part),
            *(self.join, self.divert, self.rename, self.release, self.replay),
            *(self.realign, self.encode, self.copy, self.choose, self.reorder),
            *(self.move_copy, self.move_wait, self.move_wait, self.start),
        ]
        for _ in range(self.chance.choice([1, 1, 1, 2, 3])):
            self.chance.choice(changes)()
        plan = replace(self.plan, alignment=self.alignment)
        return claimed(self.graph, plan, self.actions)

    # -- helpers ---------------------------------------------------------------

    def place(self, *kinds) -> int | None:
        places = [k for k, a in enumerate(self.actions) if isinstance(a, kinds)]
        return self.chance.choice(places) if places else None

    def anywhere(self) -> int:
        return self.chance.randint(0, len(self.actions))

    def end(self) -> int:
        return -(-claimed(self.graph, self.plan, self.actions).peak_bytes // 64) * 64

    def offset(self) -> int:
        used = [a.offset for a in self.actions if isinstance(a, Alloc)] or [0]
        aside = self.chance.choice([-64, 0, 0, 0, 64, 32])
        near = max(0, self.chance.choice(used) + aside)
        return self.chance.choice([near, near, self.end(), self.end() + 4096])

    # -- changes ---------------------------------------------------------------

    def drop(self) -> None:
        if self.actions:
            del self.actions[self.chance.randrange(len(self.actions))]

    def swap(self) -> None:
        k = self.chance.randrange(len(self.actions) - 1)
        self.actions[k : k + 2] = self.actions[k : k + 2][::-1]

    def duplicate(self) -> None:
        self.actions.insert(self.anywhere(), self.chance.choice(self.actions))

    def shift(self) -> None:
        action = self.actions.pop(self.chance.randrange(len(self.actions)))
        self.actions.insert(self.anywhere(), action)

    def move_update(self) -> None:
        """An update and its alias, somewhere else."""
        places = [
            k
            for k, a in enumerate(self.actions)
            if isinstance(a, Compute) and self.graph.ops[a.op].phase == "update" and k
        ]
        if places:
            k = self.chance.choice(places)
            pair = self.actions[k - 1 : k + 1]
            del self.actions[k - 1 : k + 1]
            place = self.anywhere()
            self.actions[place:place] = pair

    def replace_offset(self) -> None:
        k = self.place(Alloc, Decode, Encode)
        if k is not None:
            self.actions[k] = replace(self.actions[k], offset=self.offset())

    def exchange_offsets(self) -> None:
        a, b = self.place(Alloc), self.place(Alloc)
        if a is not None and b is not None:
            here, there = self.actions[a], self.actions[b]
            self.actions[a] = replace(here, offset=there.offset)
            self.actions[b] = replace(there, offset=here.offset)

    def part(self) -> None:
        """An output gets bytes of its own instead of an input's."""
        k = self.place(Alias)
        if k is not None:
            self.actions[k] = Alloc(self.actions[k].output, self.offset())

    def join(self) -> None:
        """An output takes an input's bytes instead of its own."""
        k = self.place(Alloc)
        if k is not None:
            output = self.actions[k].tensor
            maker = self.graph.producer[output]
            if maker is not None and self.graph.ops[maker].inputs:
                source = self.chance.choice(self.graph.ops[maker].inputs)
                self.actions[k] = Alias(output, source)

    def divert(self) -> None:
        k = self.place(Alias)
        if k is not None:
            tensor = self.chance.randrange(len(self.graph.tensors))
            field = self.chance.choice(["input", "output"])
            self.actions[k] = replace(self.actions[k], **{field: tensor})

    def rename(self) -> None:
        k = self.place(Alloc, Free)
        if k is not None:
            tensor = self.chance.randrange(len(self.graph.tensors))
            self.actions[k] = replace(self.actions[k], tensor=tensor)

    def release(self) -> None:
        tensor = self.chance.randrange(len(self.graph.tensors))
        self.actions.insert(self.anywhere(), Free(tensor))

    def replay(self) -> None:
        """An op is computed again, where its inputs may or may not be there."""
        index = self.chance.randrange(len(self.graph.ops))
        op = self.graph.ops[index]
        end = self.end()
        again = []
        for t in op.outputs:
            again += [Free(t), Alloc(t, end)]
            end += -(-self.graph.tensors[t].nbytes // 64) * 64
        again.append(Compute(index, None, end if op.scratch_bytes else None))
        place = self.anywhere()
        self.actions[place:place] = again

    def realign(self) -> None:
        self.alignment = self.chance.choice([1, 32, 64, 128, 192])

    def encode(self) -> None:
        tensor = self.chance.randrange(len(self.graph.tensors))
        nbytes = self.chance.choice([0, 1, self.graph.tensors[tensor].nbytes // 2])
        place = self.chance.choice([self.offset(), self.end()])
        back = self.chance.choice([self.offset(), self.end() + rounded(nbytes)])
        pair = [Encode(tensor, "code", nbytes, place), Free(tensor)]
        self.scatter([*pair, Decode(tensor, back)])

    def copy(self) -> None:
        tensor = self.chance.randrange(len(self.graph.tensors))
        k = self.anywhere()
        where = self.chance.choice([None, 0, 0, 64, 32])
        out = [SwapOut(tensor, "host", where), Wait(k), Free(tensor)]
        back = [
            Alloc(tensor, self.offset()),
            SwapIn(tensor, "host", where),
            Wait(k + 4),
        ]
        chosen = self.chance.choice([[*out, *back], [*out, *back[:-1]], out[:1]])
        if not any(isinstance(a, Wait) for a in self.actions):
            self.actions[k:k] = chosen

    def move_copy(self) -> None:
        """A copy, and perhaps what reads it, lies elsewhere on its tier."""
        k = self.place(SwapOut, SwapIn)
        if k is None:
            return
        old = self.actions[k]
        used = [a.offset for a in self.actions if isinstance(a, SwapOut)]
        new = self.chance.choice([*used, 0, 4096, None, 32])
        both = self.chance.random() < 0.7
        for n, action in enumerate(self.actions):
            if isinstance(action, SwapOut | SwapIn) and (
                n == k or (both and action.tensor == old.tensor)
            ):
                self.actions[n] = replace(action, offset=new)

    def move_wait(self) -> None:
        """A wait comes earlier or later; none changes its number."""
        k = self.place(Wait)
        if k is None:
            return
        to = self.anywhere() % len(self.actions)
        action = self.actions.pop(k)
        self.actions.insert(to, action)
        low, high = min(k, to), max(k, to)
        shift = 1 if to < k else -1
        for n, other in enumerate(self.actions):
            if isinstance(other, Wait) and low <= other.action <= high:
                self.actions[n] = Wait(other.action + shift)

    def start(self) -> None:
        """An op, most often a collective, runs until a wait somewhere behind it."""
        places = [
            k
            for k, a in enumerate(self.actions)
            if type(a) is Compute
            and (
                self.graph.ops[a.op].type in COLLECTIVES or self.chance.random() < 0.02
            )
        ]
        if not places:
            return
        k = self.chance.choice(places)
        old = self.actions[k]
        self.actions[k] = Start(old.op, old.algorithm, old.scratch_offset)
        to = min(k + self.chance.choice([1, 2, 3, 5, 9]), len(self.actions))
        for n, other in enumerate(self.actions):
            if isinstance(other, Wait) and other.action >= to:
                self.actions[n] = Wait(other.action + 1)
        if self.chance.random() < 0.9:
            self.actions.insert(to, Wait(k))

    def scatter(self, actions) -> None:
        """Insert actions in order, together or apart."""
        places = sorted(self.anywhere() for _ in actions)
        if self.chance.random() < 0.7:
            places = [places[0]] * len(actions)
        for place, action in reversed([*zip(places, actions, strict=True)]):
            self.actions.insert(place, action)

    def choose(self) -> None:
        k = self.place(Compute)
        if k is not None:
            name = self.chance.choice([None, "none such"])
            scratch = self.chance.choice([None, self.offset(), self.end()])
            changes = {"algorithm": name, "scratch_offset": scratch}
            self.actions[k] = replace(self.actions[k], **changes)

    def reorder(self) -> None:
        """Some of the state lies behind all else."""
        persistent = set(self.graph.persistent)
        places = [
            k
            for k, a in enumerate(self.actions)
            if isinstance(a, Alloc) and a.tensor in persistent
        ]
        offsets = [self.actions[k].offset for k in places]
        end = self.end()
        for k, offset in zip(places, offsets, strict=True):
            moved = end + offset if self.chance.random() < 0.5 else offset
            self.actions[k] = replace(self.actions[k], offset=moved)


def rounded(nbytes: int) -> int:
    return -(-nbytes // 64) * 64
