"""Training steps whose gradients are summed over ranks, and ranks that are threads."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import memcfg as mc
from memcfg import ops
from memcfg.graph import Graph, Link, Op, Tensor, hoist_updates
from memcfg.plan import overlap_collectives, share

LINK = Link(0.0, 1e7)  # slower than the ops of small networks


def data_parallel(
    graph: Graph, group: str, ranks: int, link: Link = LINK, *, hoisted: bool = True
) -> Graph:
    """Sum each gradient over the ranks as soon as it is there, before its update.

    Updates come right behind, or at the end.
    """
    tensors, made, updates = [*graph.tensors], [], []

    def add(name: str, nbytes: int, role: str, shape, dtype="float32") -> int:
        tensors.append(Tensor(name, nbytes, role, shape, dtype))
        return len(tensors) - 1

    token = add("token", 4, "activation", (1,))
    zero = {"shape": (1,), "value": 0.0, "dtype": "float32"}
    made.append(
        Op("token", "fill", "forward", (), (token,), attributes=zero, replayable=False)
    )
    sums: dict[int, int] = {}
    of = {"group": group, "ranks": ranks, "work_bytes": 0}
    for op in graph.ops:
        for gradient in op.inputs if op.phase == "update" else ():
            whole = tensors[gradient]
            if whole.role != "gradient" or gradient in sums:
                continue
            after = add(f"token {whole.name}", 4, "activation", (1,))
            total = add(f"sum {whole.name}", whole.nbytes, "gradient", whole.shape)
            sums[gradient] = total
            made.append(
                Op(
                    f"all_reduce {whole.name}",
                    "all_reduce",
                    "backward",
                    (token, gradient),
                    (after, total),
                    seconds=1e-6,
                    replayable=False,
                    in_place=((token, after), (gradient, total)),
                    attributes=of,
                )
            )
            token = after
        if op.phase == "update":
            op = replace(op, inputs=tuple(sums.get(t, t) for t in op.inputs))
            updates.append(op)
        else:
            made.append(op)
    ops = (*made, *updates)
    changed = replace(graph, tensors=tuple(tensors), ops=ops, link=link)
    return hoist_updates(changed) if hoisted else changed


@dataclass(frozen=True)
class Overlapping:
    """The plans of a policy, with collectives that run beside compute."""

    base: object = share()
    name: str = "overlapping"

    def __call__(self, graph, limit_bytes=None):
        return overlap_collectives(graph, self.base(graph, limit_bytes))


class Late:
    """A communicator that is late, by times that differ between ranks and calls.

    It fails when it is told to: `failing` counts the calls until then.
    """

    def __init__(self, inner, seed: int, seconds: float = 0.001) -> None:
        self.inner = inner
        self.rank = inner.rank
        self.size = inner.size
        self.calls: list[str] = []
        self.failing: int | None = None
        self.error: Exception = ValueError("out of order")
        self.hangs = 0.0  # seconds
        self._random = random.Random(1000 * seed + inner.rank)
        self._seconds = seconds

    def work_bytes(self, *of) -> int:
        return self.inner.work_bytes(*of)

    def __getattr__(self, name):
        call = getattr(self.inner, name)

        def late(*arguments):
            self.calls.append(name)
            time.sleep(self._random.random() * self._seconds + self.hangs)
            if self.failing is not None:
                self.failing -= 1
                if self.failing < 0:
                    self.inner.fail(f"rank {self.rank} raised")
                    raise self.error
            call(*arguments)
            time.sleep(self._random.random() * self._seconds)

        return late


def on_ranks(work, ranks: int = 2, seed: int = 0, timeout: float = 20.0) -> list:
    """What ``work(communicator, name of its group)`` returns on each rank, a thread."""
    group = mc.parallel.in_process_group(ranks, timeout=timeout)
    late = [Late(each, seed) for each in group]

    def call(communicator):
        name = f"ranks of threads/{communicator.rank}"
        ops.add_group(name, communicator)
        return work(communicator, name)

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(call, late))
