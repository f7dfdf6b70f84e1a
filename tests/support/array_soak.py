"""Random work on NumPy's arrays in pools, in threads, against shadows in Python.

An array of bytes is a family: it, its views, and a `bytearray` that nothing but the
oracle writes. Whatever is done to the arrays is done to the shadow in plain Python.
"""

from __future__ import annotations

import gc
import json
import os
import random
import subprocess
import sys
import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from memcfg import memory
from memcfg._core import resident_bytes, tracked_bytes

if TYPE_CHECKING:
    from memcfg.memory import Resource

ADD_ONE = bytes((i + 1) % 256 for i in range(256))


class Family:
    """An array of bytes, views of it, and what they should hold."""

    def __init__(self, array: np.ndarray, shadow: bytes | bytearray) -> None:
        self.array = array
        self.shadow = bytearray(shadow)
        self.views: list[tuple[np.ndarray, range]] = []

    def check(self) -> None:
        assert self.array.tobytes() == self.shadow
        for view, places in self.views:
            assert view.tobytes() == self.expected(places)

    def expected(self, places: range) -> bytes:
        return bytes(self.shadow[places.start : places.stop : places.step])


class Actor:
    """One thread's work: `count` operations out of a seed."""

    def __init__(self, work: Work, seed: int, count: int) -> None:
        self.work = work
        self.random = random.Random(seed)
        self.count = count
        self.families: list[Family] = []
        self.refusals = 0

    def run(self) -> None:
        done = 0
        while done < self.count:
            part = min(self.random.randrange(1, 200), self.count - done)
            resource = self.random.choice(self.work.resources)
            with memory.numpy_allocator(resource) if resource else nullcontext():
                for _ in range(part):
                    self.step()
            done += part
        for family in self.families:
            family.check()
        self.families.clear()

    def step(self) -> None:
        operation = self.random.choice(OPERATIONS)
        try:
            operation(self)
        except MemoryError:
            self.refusals += 1
            for family in self.families[:3]:
                family.check()
            self.free()

    def size(self) -> int:
        return int(2 ** self.random.uniform(0, self.work.most_bits))

    def family(self) -> Family:
        if not self.families:
            self.create()
        return self.random.choice(self.families)

    def part(self, family: Family) -> tuple[np.ndarray, range]:
        """Choose the array or one of its views, and the places that it shows."""
        if family.views and self.random.random() < 0.7:
            return self.random.choice(family.views)
        return family.array, range(len(family.shadow))

    def cut(self, places: range) -> slice:
        start = self.random.randrange(len(places) + 1)
        stop = self.random.randrange(start, len(places) + 1)
        return slice(start, stop, self.random.choice([1, 1, 1, 2, 7]))

    def add(self, array: np.ndarray, shadow: bytes | bytearray) -> None:
        self.families.append(Family(array, shadow))
        if len(self.families) > self.work.most_families:
            self.free()

    def create(self) -> None:
        size = self.size()
        if self.random.random() < 0.3:
            self.add(np.zeros(size, np.uint8), bytes(size))
            return
        text = self.random.randbytes(min(size, 64)) * (size // 64 + 1)
        array = np.empty(size, np.uint8)
        array[:] = np.frombuffer(text, np.uint8)[:size]
        self.add(array, text[:size])

    def view(self) -> None:
        family = self.family()
        array, places = self.part(family)
        cut = self.cut(places)
        family.views.append((array[cut], places[cut]))

    def drop_views(self) -> None:
        self.family().views.clear()

    def assign(self) -> None:
        family = self.family()
        array, places = self.part(family)
        cut = self.cut(places)
        value = self.random.randrange(256)
        array[cut] = value
        self.write(family, places[cut], bytes([value]) * len(places[cut]))

    def ufunc_in_place(self) -> None:
        family = self.family()
        array, places = self.part(family)
        np.add(array, np.uint8(1), out=array)
        self.write(family, places, family.expected(places).translate(ADD_ONE))

    @staticmethod
    def write(family: Family, places: range, text: bytes) -> None:
        if places:  # a range of no places may have any bounds
            family.shadow[places.start : places.stop : places.step] = text

    def ufunc(self) -> None:
        family = self.family()
        array, places = self.part(family)
        self.add(array + np.uint8(1), family.expected(places).translate(ADD_ONE))

    def copy(self) -> None:
        family = self.family()
        array, places = self.part(family)
        self.add(array.copy(), family.expected(places))

    def sort(self) -> None:
        family = self.family()
        array, places = self.part(family)
        if len(places) < 5000:
            self.add(np.sort(array), bytes(sorted(family.expected(places))))

    def concatenate(self) -> None:
        one, two = self.family(), self.family()
        if len(one.shadow) + len(two.shadow) < 2**20:
            self.add(np.concatenate([one.array, two.array]), one.shadow + two.shadow)

    def cast(self) -> None:
        family = self.family()
        if len(family.shadow) < 2**16:
            wide = family.array.astype(np.float64)
            self.add(wide.astype(np.uint8), family.shadow)

    def resize(self) -> None:
        family = self.family()
        if family.views or not family.array.flags.owndata:
            return
        size = self.size()
        family.array.resize(size, refcheck=False)
        family.shadow[size:] = bytes(max(0, size - len(family.shadow)))

    def too_large(self) -> None:
        size = 2 * self.work.limit
        try:
            np.empty(size, np.uint8)
        except MemoryError:
            self.refusals += 1

    def check(self) -> None:
        self.family().check()

    def free(self) -> None:
        if self.families:
            last = self.families.pop(self.random.randrange(len(self.families)))
            last.check()
            if last.views and self.random.random() < 0.5:
                view, places = last.views[-1]  # a view outlives its array
                self.families.append(Family(view, last.expected(places)))

    def hand_over(self) -> None:
        with self.work.lock:
            self.work.shelf.append(self.family())
            self.families.remove(self.work.shelf[-1])
            if len(self.work.shelf) > 3:
                place = self.random.randrange(len(self.work.shelf))
                self.families.append(self.work.shelf.pop(place))
        self.check()


OPERATIONS = [
    *[Actor.create] * 4,
    *[Actor.view] * 4,
    *[Actor.assign] * 4,
    *[Actor.ufunc] * 3,
    *[Actor.ufunc_in_place] * 2,
    *[Actor.copy] * 3,
    *[Actor.resize] * 3,
    *[Actor.free] * 6,
    *[Actor.hand_over] * 2,
    *[Actor.check] * 2,
    Actor.drop_views,
    Actor.sort,
    Actor.concatenate,
    Actor.cast,
    Actor.too_large,
]


class Work:
    """Threads that work on arrays in the same resources; None is NumPy's own memory."""

    def __init__(
        self, resources: list[Resource | None], *, limit: int, most_bits: float
    ) -> None:
        self.resources = resources
        self.limit = limit
        self.most_bits = most_bits
        self.most_families = 40
        self.lock = threading.Lock()
        self.shelf: list[Family] = []
        self.failures: list[BaseException] = []
        self.refusals = 0

    def run(self, seeds: list[int], count: int) -> None:
        """Let one thread a seed do `count` operations; raise what went wrong first."""
        threads = [
            threading.Thread(target=self.act, args=[seed, count]) for seed in seeds
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for family in self.shelf:
            family.check()
        self.shelf.clear()
        if self.failures:
            raise self.failures[0]

    def act(self, seed: int, count: int) -> None:
        actor = Actor(self, seed, count)
        try:
            actor.run()
        except BaseException as error:
            self.failures.append(error)
        finally:
            actor.families.clear()
            self.refusals += actor.refusals


def soak(
    operations: int, per_example: int = 5000, *, derandomize: bool = False
) -> dict[str, list[int]]:
    """Do so many operations in examples of hypothesis'; return counts of each example.

    Raises AssertionError when an array is not what it should be, or something is left.
    """
    found: dict[str, list[int]] = {
        "operations": [],
        "refusals": [],
        "allocations": [],
        "resident": [],
    }

    @settings(
        max_examples=operations // per_example,
        deadline=None,
        database=None,
        derandomize=derandomize,
        phases=[Phase.generate],  # what threads do does not happen again
        suppress_health_check=list(HealthCheck),
    )
    @given(
        seeds=st.lists(st.integers(0, 2**32), min_size=4, max_size=4, unique=True),
        limit=st.sampled_from([2**18, 2**21, 2**26, 2**28]),
        most_bits=st.sampled_from([8, 14, 18, 22.5]),
        adaptors=st.booleans(),
    )
    def example(seeds, limit, most_bits, adaptors):
        refusals, allocations = one(seeds, limit, most_bits, per_example, adaptors)
        gc.collect()
        found["operations"].append(per_example)
        found["refusals"].append(refusals)
        found["allocations"].append(allocations)
        found["resident"].append(resident_bytes())

    example()
    return found


def one(seeds, limit, most_bits, operations, adaptors) -> tuple[int, int]:
    pool, other = memory.Pool(limit=limit), memory.Pool(limit=limit)
    top = memory.statistics(memory.limiting(other, limit)) if adaptors else other
    work = Work([pool, pool, top, None], limit=limit, most_bits=most_bits)
    work.run(seeds, operations // len(seeds))
    gc.collect()
    for each in (pool, other, top):
        each.check()
        stats = each.stats()
        assert (stats.current_bytes, stats.requested_bytes) == (0, 0)
        assert stats.allocation_count == stats.deallocation_count
        assert stats.peak_bytes <= limit
    assert tracked_bytes() == 0
    return work.refusals, pool.stats().allocation_count


def soak_alone(operations: int, *, derandomize: bool) -> str:
    """Soak in a process of its own; check that nothing grows, and tell what happened.

    The C library's allocator is told to give freed memory back: what grows is not its.
    """
    done = subprocess.run(
        [sys.executable, __file__, str(operations), str(int(derandomize))],
        env=os.environ | {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"},
        capture_output=True,
        text=True,
        check=False,
        timeout=3600,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads(done.stdout)
    resident = found.pop("resident")
    quarter = max(1, len(resident) // 4)
    early, late = max(resident[:quarter]), max(resident[-quarter:])
    told = {name: sum(counts) for name, counts in found.items()}
    text = f"{told}, resident {early / 2**20:.1f} MiB, then {late / 2**20:.1f} MiB"
    assert told["operations"] >= operations, text
    assert told["refusals"] > 0, text
    assert late < early + 2**23, text
    return text


if __name__ == "__main__":
    print(json.dumps(soak(int(sys.argv[1]), derandomize=sys.argv[2] == "1")))
