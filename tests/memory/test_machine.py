"""Resources against a dict: random steps, patterns written and read again."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from resources import ALL_MAKERS, NAMES, touchable

from memcfg import memory
from memcfg.errors import ResourceExhaustedError
from memcfg.units import align_up

SIZES = st.one_of(
    st.integers(1, 300), st.integers(1, 100_000), st.integers(2**16, 2**22)
)
TIGHT = {  # they refuse often
    "tight pool": lambda: memory.Pool(limit="1MiB"),
    "tight pool on simulated": lambda: memory.Pool(memory.simulated("1MiB")),
    "tight limiting": lambda: memory.limiting(memory.system(), "1MiB"),
    "tight device": lambda: memory.simulated("1MiB"),
}


class ResourceMachine(RuleBasedStateMachine):
    """Any resource against what was written into its blocks."""

    make = staticmethod(ALL_MAKERS["pool"])
    alone = True  # nobody else takes of its memory

    def __init__(self) -> None:
        super().__init__()
        self.resource = self.make()
        self.writes = touchable(self.resource)
        self.blocks: list[tuple[memory.Block, int]] = []
        self.detached: list[tuple[int, int, str]] = []
        self.peak = 0

    def tags(self) -> dict[str, int]:
        tags: dict[str, int] = {}
        for block, _ in self.blocks:
            tags[block.tag] = tags.get(block.tag, 0) + block.nbytes
        for _, nbytes, tag in self.detached:
            tags[tag] = tags.get(tag, 0) + align_up(nbytes)
        return tags

    def take(self, nbytes, **options):
        try:
            return self.resource.allocate(nbytes, **options)
        except ResourceExhaustedError as error:
            return error

    @rule(
        nbytes=SIZES,
        alignment=st.sampled_from([1, 64, 256, 4096, 2**16]),
        lifetime=st.sampled_from([None, "short", "long"]),
        tag=st.sampled_from(["", "a", "b"]),
        letter=st.integers(1, 255),
    )
    def allocate(self, nbytes, alignment, lifetime, tag, letter):
        block = self.take(nbytes, alignment=alignment, lifetime=lifetime, tag=tag)
        if isinstance(block, ResourceExhaustedError):
            assert block.in_use_bytes == self.resource.stats().current_bytes
            largest = block.largest_free_bytes
            assert block.limit_bytes is None or largest < nbytes + alignment
            return
        assert block.address % alignment == 0
        if self.writes:
            memoryview(block)[:] = bytes([letter]) * nbytes
        self.blocks.append((block, letter))
        self.peak = max(self.peak, sum(self.tags().values()))

    @precondition(lambda self: self.blocks)
    @rule(
        place=st.integers(0, 10**6), how=st.sampled_from(["free", "forget", "detach"])
    )
    def free(self, place, how):
        block, letter = self.blocks.pop(place % len(self.blocks))
        if self.writes:
            assert bytes(block) == bytes([letter]) * block.requested
        if how == "free":
            block.free()
        if how == "detach":
            nbytes = block.requested
            self.detached.append((block.detach(), nbytes, block.tag))

    @precondition(lambda self: self.detached)
    @rule(place=st.integers(0, 10**6))
    def deallocate(self, place):
        address, nbytes, _ = self.detached.pop(place % len(self.detached))
        self.resource.deallocate(address, nbytes)

    @rule()
    def take_the_largest(self):
        largest = self.resource.stats().largest_free_bytes
        if not largest or not self.alone:
            return
        self.resource.allocate(largest).free()
        self.peak = max(self.peak, sum(self.tags().values()) + largest)

    @rule(keep=st.sampled_from([0, 10**6]))
    def trim(self, keep):
        before = self.resource.stats().reserved_bytes
        given = self.resource.trim(keep)
        assert self.resource.stats().reserved_bytes == before - given

    @rule()
    def reset_peak(self):
        self.resource.reset_peak()
        self.peak = sum(self.tags().values())

    @invariant()
    def numbers_balance(self):
        self.resource.check()
        stats = self.resource.stats()
        tags = self.tags()
        assert self.resource.owners() == {t or "unnamed": n for t, n in tags.items()}
        assert stats.current_bytes == sum(tags.values()) <= stats.reserved_bytes
        assert stats.peak_bytes == self.peak
        assert stats.requested_bytes <= stats.current_bytes
        held = len(self.blocks) + len(self.detached)
        assert stats.allocation_count - stats.deallocation_count == held

    @invariant()
    def blocks_lie_apart(self):
        spans = [(block.address, block.nbytes) for block, _ in self.blocks]
        spans += [(address, nbytes) for address, nbytes, _ in self.detached]
        spans.sort()
        for (left, size), (right, _) in itertools.pairwise(spans):
            assert left + size <= right

    def teardown(self):
        for address, nbytes, _ in self.detached:
            self.resource.deallocate(address, nbytes)
        self.blocks.clear()
        assert self.resource.stats().current_bytes == 0


@pytest.mark.parametrize("name", [*NAMES, *TIGHT])
def test_it_agrees_with_a_dict(name):
    make = {**ALL_MAKERS, **TIGHT}[name]
    make()  # or a skip
    own = {"make": staticmethod(make), "alone": not name.startswith("GPU")}
    machine = type(name, (ResourceMachine,), own)
    case = machine.TestCase()
    case.settings = settings(max_examples=15, stateful_step_count=30, deadline=None)
    case.runTest()
