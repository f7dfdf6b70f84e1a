"""Legal schedules of ops, copies and encodings, made by chance."""

from __future__ import annotations

from memcfg.plan.search import (
    EndSwapIn,
    EndSwapOut,
    Pack,
    Run,
    StartSwapIn,
    StartSwapOut,
    Unpack,
)


class Walk:
    """A legal schedule made by chance: whatever is read is there when it is."""

    def __init__(self, request, chance):
        self.graph = request.graph
        self.repeatable = request.repeatable
        self.chance = chance
        self.there = {*self.graph.persistent}
        self.fixed = {*self.graph.persistent, *self.graph.keep, *self.graph.losses}
        self.kept = {*self.graph.keep} - {*self.graph.persistent, *self.graph.losses}
        self.away = {}  # tensor -> "tier", "codec" or "dropped"
        self.leaving = []
        self.copied = set()
        self.events = []
        self.updated = False
        self.left = {t: len(r) for t, r in enumerate(self.graph.consumers)}

    def walk(self):
        for index in range(len(self.graph.ops)):
            self.compute(index)
            for tensor in self.graph.ops[index].inputs:
                self.left[tensor] -= 1
            self.move()
        self.end_copies(1.0)
        for tensor, how in [*self.away.items()]:
            if how == "codec" or tensor in self.kept:
                self.bring(tensor)
        return self.events

    def compute(self, index):
        op = self.graph.ops[index]
        wanted = set(op.inputs)
        if op.phase == "update":  # of what those read that are computed again
            self.updated = True
            wanted.update(t for t, how in self.away.items() if how == "dropped")
        for tensor in sorted(wanted):
            self.bring(tensor)
        self.events.append(Run(index))
        self.there.update(op.outputs)
        for tensor in op.outputs:
            self.away.pop(tensor, None)

    def bring(self, tensor):
        how = self.away.pop(tensor, None)
        if how == "tier":
            self.events.append(StartSwapIn(tensor))
            if self.chance.random() < 0.5:
                self.events.append(EndSwapIn(tensor))
        elif how == "codec":
            self.events.append(Unpack(tensor))
        elif how == "dropped":
            self.compute(self.graph.producer[tensor])
        self.there.add(tensor)

    def move(self):
        self.end_copies(0.5)
        for tensor in sorted(self.there - self.fixed | self.there & self.kept):
            if tensor not in self.kept and not self.left[tensor]:
                continue
            if self.chance.random() > 0.3 or tensor in self.leaving:
                continue
            how = self.chance.choice(["tier", "codec", "dropped"])
            if how == "dropped":
                if not self.may_drop(tensor):
                    continue
            elif tensor in self.fixed or self.is_beside_dropped(tensor):
                continue
            if how == "tier":
                if tensor in self.copied:
                    continue
                self.copied.add(tensor)
                self.events.append(StartSwapOut(tensor, *self.lane_codec(tensor)))
                self.leaving.append(tensor)
                continue
            if how == "codec":
                self.events.append(Pack(tensor, "zvc", *self.room(tensor)))
            self.there.remove(tensor)
            self.away[tensor] = how

    def may_drop(self, tensor):
        """Whether its op can run again, which makes its other outputs again, too."""
        maker = self.graph.producer[tensor]
        if self.updated or maker not in self.repeatable:
            return False
        others = self.graph.ops[maker].outputs
        on_their_way = any(each in self.leaving for each in others)
        return not on_their_way and all(
            self.away.get(each, "dropped") == "dropped" for each in others
        )

    def is_beside_dropped(self, tensor):
        maker = self.graph.producer[tensor]
        others = () if maker is None else self.graph.ops[maker].outputs
        return any(self.away.get(each) == "dropped" for each in others)

    def lane_codec(self, tensor):
        size = self.graph.tensors[tensor].nbytes
        if self.chance.random() < 0.5:
            return ()
        return "csr", self.chance.randint(1, size + 64)

    def room(self, tensor):
        """Bytes for what is encoded, and whether it may overflow."""
        size = self.graph.tensors[tensor].nbytes
        if self.chance.random() < 0.5:
            return (size + 64,)
        return self.chance.randint(64, size + 64), True

    def end_copies(self, chance):
        for tensor in [*self.leaving]:
            if self.chance.random() <= chance:
                self.leaving.remove(tensor)
                self.events.append(EndSwapOut(tensor))
                self.there.discard(tensor)
                self.away[tensor] = "tier"
