"""Workspaces under random use: the numbers of the oracle, and nobody's bytes change."""

from __future__ import annotations

import warnings
from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from workspace_oracle import Oracle
from workspace_rules import FullError, Rules

import memcfg as mc
from memcfg import config, memory
from memcfg.errors import WorkspaceLeakError, WorkspaceLeakWarning

INITIAL = st.sampled_from([0, 0, 1024, 4096])
MIN_SIZES = st.sampled_from([0, 0, 2048])
MAX_SIZES = st.sampled_from([None, None, 4096, 16_384])
SIZES = st.one_of(
    st.sampled_from([64, 128, 192, 1024]), st.integers(1, 300), st.integers(1, 3000)
)
LEARNING = st.sampled_from(
    [("first_loop", 0), ("over_time", 0), ("over_time", 2), ("none", 0)]
)


def escapes_told_by(call) -> bool:
    """Whether a call warned or raised because of arrays that outlive their cycle."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            call()
        except WorkspaceLeakError:
            return True
    assert all(each.category is WorkspaceLeakWarning for each in caught)
    return len(caught) > 0


class Machine(RuleBasedStateMachine):
    """A workspace, its oracle, and every array that is alive, with what it holds."""

    circular = False
    overallocations = (None, 0.0, 0.3, 1.0)

    @initialize(
        data=st.data(),
        initial=INITIAL,
        min_size=MIN_SIZES,
        max_size=MAX_SIZES,
        learning=LEARNING,
        spill=st.sampled_from(["external", "reallocate", "fail"]),
        on_escape=st.sampled_from(["retire", "warn", "error", "invalidate"]),
    )
    def begin(self, data, initial, min_size, max_size, learning, spill, on_escape):
        fraction = data.draw(st.sampled_from(self.overallocations))
        reclaim = data.draw(st.booleans()) and not self.circular
        self.rules = Rules(
            initial=initial,
            min_size=min_size,
            max_size=max_size,
            overallocation=fraction,
            circular=self.circular,
            learning=learning[0],
            learning_cycles=learning[1],
            spill=spill,
            reclaim=reclaim,
            overwrites=on_escape == "invalidate",
        )
        self.on_escape = on_escape
        self.pool = memory.Pool(limit="64MiB")
        self.ws = mc.Workspace(self.config(), "machine", resource=self.pool)
        self.oracle = Oracle(self.rules)
        self.arrays = []  # array, byte, what the oracle calls it (None: outside)
        self.depth = 0
        self.byte = 0

    def config(self):
        rules = self.rules
        strict = rules.overallocation is None
        return mc.WorkspaceConfig(
            initial_size=rules.initial,
            min_size=rules.min_size,
            max_size=rules.max_size,
            allocation="strict" if strict else "overallocate",
            overallocation=3.0 if strict else rules.overallocation,
            reset="end_of_buffer" if rules.circular else "block_left",
            learning=rules.learning,
            learning_cycles=rules.learning_cycles,
            spill=rules.spill,
            on_escape=self.on_escape,
            reclaim=rules.reclaim,
        )

    def teardown(self):
        if not hasattr(self, "ws"):
            return
        self.arrays.clear()
        self.ws.destroy()  # which closes it
        config.set_debug_mode("disabled")
        self.pool.check()
        assert self.pool.stats().current_bytes == 0

    def note(self, array, made):
        self.byte = self.byte % 255 + 1
        with mc.scope_out():  # what NumPy makes of a number is not to be counted
            array[:] = self.byte
        self.arrays.append((array, self.byte, made))

    # Scopes

    @precondition(lambda self: self.depth < 3)
    @rule()
    def open(self):
        self.ws.open()
        if self.depth == 0:
            self.escaped = self.oracle.escaped_arrays
            self.oracle.open()
        self.depth += 1

    @precondition(lambda self: self.depth > 0)
    @rule()
    def close(self):
        told = escapes_told_by(self.ws.close)
        self.depth -= 1
        if self.depth == 0:
            self.oracle.close()
        escaped = self.depth == 0 and self.oracle.escaped_arrays > self.escaped
        assert told == (escaped and self.on_escape in ("warn", "error"))

    @precondition(lambda self: self.depth == 1)
    @rule()
    def cycle(self):
        self.close()
        self.open()

    @precondition(lambda self: self.depth == 0)
    @rule(counts=st.lists(SIZES, min_size=1, max_size=3), times=st.integers(1, 15))
    def cycles(self, counts, times):
        for _ in range(times):
            self.open()
            before = len(self.arrays)
            for nbytes in counts:
                self.allocate(nbytes)
            self.check_all()
            while len(self.arrays) > before:
                self.free_the_last()
            self.close()
            self.check_all()

    # Arrays

    def take(self, nbytes, make):
        try:
            made = self.oracle.allocate(nbytes)
        except FullError:
            with pytest.raises(MemoryError):
                make(nbytes)
            return
        self.note(make(nbytes), made)

    @precondition(lambda self: self.depth > 0)
    @rule(nbytes=SIZES)
    def allocate(self, nbytes):
        self.take(nbytes, lambda nbytes: np.empty(nbytes, np.uint8))

    @precondition(lambda self: self.depth > 0)
    @rule(nbytes=SIZES)
    def allocate_by_method(self, nbytes):
        with mc.scope_out():
            self.take(nbytes, lambda nbytes: self.ws.empty(nbytes, np.uint8))

    @precondition(lambda self: self.depth > 0)
    @rule(nbytes=SIZES)
    def allocate_borrowed(self, nbytes):
        with mc.scope_out(), self.ws.borrow():
            self.take(nbytes, lambda nbytes: np.empty(nbytes, np.uint8))

    @rule(nbytes=SIZES, how=st.sampled_from(["disabled", "out", "bypass"]))
    def allocate_outside(self, nbytes, how):
        with ExitStack() as stack:
            if how == "disabled":
                stack.enter_context(self.ws.disabled())
            elif how == "out":
                stack.enter_context(mc.scope_out())
            else:
                before = config.set_debug_mode("bypass_everything")
                stack.callback(config.set_debug_mode, before)
            array = np.empty(nbytes, np.uint8)
            assert not mc.is_attached(array)
        self.note(array, None)

    @precondition(lambda self: self.arrays)
    @rule(data=st.data())
    def free(self, data):
        number = data.draw(st.integers(0, len(self.arrays) - 1))
        self.drop(self.arrays.pop(number))

    def drop(self, row):
        made = row[2]
        del row  # the array with it
        if made is not None:
            self.oracle.free(made)

    @precondition(lambda self: self.arrays)
    @rule()
    def free_the_last(self):
        self.drop(self.arrays.pop())

    @precondition(lambda self: self.arrays)
    @rule()
    def free_all(self):
        while self.arrays:
            self.drop(self.arrays.pop())

    # The rest

    @rule(what=st.sampled_from(["initialize", "trim", "trim", "destroy", "spill"]))
    def manage(self, what):
        getattr(self, what)()

    def initialize(self):
        self.ws.initialize()
        self.oracle.initialize()

    def trim(self):
        before = self.pool.stats().current_bytes
        given = self.ws.trim()
        assert before - self.pool.stats().current_bytes == given
        self.oracle.trim()

    def destroy(self):
        self.ws.destroy()
        self.oracle.destroy()
        self.depth = 0

    def spill(self):
        """Let everything spill, or no longer."""
        flag = not self.oracle.spill_everything
        config.set_debug_mode("spill_everything" if flag else "disabled")
        self.oracle.spill_everything = flag

    # What holds

    @invariant()
    def check_all(self):
        if hasattr(self, "ws"):
            self.check_numbers()
            self.check_bytes()
            self.check_pool()

    def check_numbers(self):
        stats = self.ws.stats()
        expected = self.oracle.stats()
        found = {name: getattr(stats, name) for name in expected}
        assert found == expected
        assert self.ws.is_open == (self.depth > 0)
        assert (mc.workspaces.current_workspace() is self.ws) == (self.depth > 0)

    def check_bytes(self):
        with mc.scope_out():
            for row in self.arrays:
                self.check(*row)

    def check(self, array, byte, made):
        assert mc.is_attached(array) == (made is not None)
        if self.on_escape != "invalidate" or made is None:
            assert mc.workspaces.is_valid(array)
        if mc.workspaces.is_valid(array):
            assert (array == byte).all()
        if made is not None:
            running = made.generation == self.oracle.generation and self.depth
            assert mc.workspaces.is_in_scope(array) == bool(running)
            assert mc.workspaces.generation_of(array) == made.generation

    def check_pool(self):
        self.pool.check()
        self.ws.memory.check()
        if not self.arrays:
            assert self.ws.stats().retired_bytes == 0
            pages = 2 * max(self.ws.stats().size, self.rules.initial * 2)
            assert self.pool.stats().requested_bytes <= pages


class RingMachine(Machine):
    """The same in a ring."""

    circular = True
    overallocations = (None, 1.0, 2.5)


CALM = settings(
    max_examples=settings().max_examples // 4,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestScoped = Machine.TestCase
TestScoped.settings = CALM
TestRing = RingMachine.TestCase
TestRing.settings = CALM
