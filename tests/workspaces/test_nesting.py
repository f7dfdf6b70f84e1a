"""Which workspace is current: any order of opening, borrowing, leaving and closing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import memcfg as mc
from memcfg import memory
from memcfg.errors import WorkspaceError

CONFIGS = [
    mc.WorkspaceConfig(initial_size=4096),
    mc.WorkspaceConfig(),
    mc.WorkspaceConfig(reset="end_of_buffer", overallocation=2),
    mc.WorkspaceConfig(initial_size=4096, on_escape="invalidate"),
]
NUMBERS = st.integers(0, len(CONFIGS) - 1)


class Nesting(RuleBasedStateMachine):
    """Four workspaces, and the chain of what was entered and not left."""

    def __init__(self):
        super().__init__()
        self.pool = memory.Pool(limit="8MiB")
        self.all = [
            mc.Workspace(config, str(number), resource=self.pool)
            for number, config in enumerate(CONFIGS)
        ]
        self.chain = []  # entries, the current one last: the number, None for outside
        self.entries = [[] for _ in self.all]  # what each close undoes, last first
        self.blocks = []  # with blocks that were entered: the block, its entry
        self.borrowed = set()
        self.parents = [None for _ in self.all]

    def teardown(self):
        for block, _ in reversed(self.blocks):
            block.__exit__(None, None, None)
        for ws in self.all:
            ws.destroy()
        self.pool.check()
        assert mc.workspaces.current_workspace() is None
        assert not mc.is_attached(np.empty(1))
        assert self.pool.stats().current_bytes == 0

    def current(self):
        """The number of what is on top, if that is open."""
        number = self.chain[-1][0] if self.chain else None
        return number if number is not None and self.entries[number] else None

    def on_top(self, number):
        return bool(self.chain) and self.chain[-1][0] == number

    @precondition(lambda self: sum(map(len, self.entries)) < 8)
    @rule(number=NUMBERS)
    def open(self, number):
        entry = [number]
        if not self.entries[number]:
            self.parents[number] = self.current()
        self.all[number].open()
        self.entries[number].append(entry)
        self.chain.append(entry)

    @rule(number=NUMBERS)
    def close(self, number):
        if not self.entries[number]:
            with pytest.raises(WorkspaceError, match="not open"):
                self.all[number].close()
            return
        self.all[number].close()
        self.leave(self.entries[number].pop())
        if not self.entries[number]:
            self.parents[number] = None

    def leave(self, entry):
        self.chain = [each for each in self.chain if each is not entry]

    @rule(number=NUMBERS)
    def borrow(self, number):
        block = self.all[number].borrow()
        if not self.entries[number] or number in self.borrowed:
            with pytest.raises(WorkspaceError, match=r"not open|borrow"):
                block.__enter__()
            return
        assert block.__enter__() is self.all[number]
        self.borrowed.add(number)
        self.enter_block(block, [number])

    @rule()
    def go_out(self):
        block = mc.scope_out()
        block.__enter__()
        self.enter_block(block, [None])

    def enter_block(self, block, entry):
        self.blocks.append((block, entry))
        self.chain.append(entry)

    @precondition(lambda self: self.blocks)
    @rule(data=st.data())
    def leave_block(self, data):
        last = len(self.blocks) - 1
        block, entry = self.blocks.pop(data.draw(st.integers(0, last) | st.just(last)))
        block.__exit__(None, None, None)
        self.leave(entry)
        self.borrowed.discard(entry[0])

    @precondition(lambda self: self.chain)
    @rule()
    def fail(self):
        """An exception leaves all blocks, from the inside to the outside."""
        while self.blocks:
            block, entry = self.blocks.pop()
            assert not block.__exit__(KeyError, KeyError(), None)
            self.leave(entry)
        self.borrowed.clear()

    @invariant()
    def arrays_are_where_they_should_be(self):
        number = self.current()
        expected = None if number is None else self.all[number]
        array = np.empty(100, np.uint8)
        assert mc.workspace_of(array) is expected
        assert mc.workspaces.current_workspace() is expected
        for ws, entries, parent in zip(
            self.all, self.entries, self.parents, strict=True
        ):
            assert ws.is_open == bool(entries)
            assert ws.is_current == (ws is expected)
            assert ws.parent is (None if parent is None else self.all[parent])
            ws.memory.check()


TestNesting = Nesting.TestCase
TestNesting.settings = settings(
    max_examples=settings().max_examples // 6,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
