"""Layer workspaces: which kind of array lives where, and what is said when not.

Upstream has no test class of LayerWorkspaceMgr; L1 to L6 are derived from its code.
"""

from __future__ import annotations

import numpy as np
import pytest

import memcfg as mc
from memcfg.errors import (
    ResourceExhaustedError,
    WorkspaceConfigError,
    WorkspaceError,
    WorkspaceLeakError,
    WorkspaceStaleError,
)
from memcfg.workspaces import ArrayType, LayerWorkspaceMgr

ACTIVATIONS, WORKING = ArrayType.ACTIVATIONS, ArrayType.FF_WORKING_MEM
INPUT, GRADIENT = ArrayType.INPUT, ArrayType.ACTIVATION_GRAD


class Source:
    """Workspaces of one pool, by name."""

    def __init__(self, pool):
        self.pool = pool

    def get(self, name):
        return mc.workspace(name) if mc.workspaces.workspace_exists(name) else None

    def make(self, name, config):
        return mc.workspace(name, config, resource=self.pool)


@pytest.fixture
def manager(pool):
    """Activations in "act", working memory in "work", gradients in none."""
    made = LayerWorkspaceMgr(Source(pool))
    made.set(ACTIVATIONS, "act").set(WORKING, "work")
    return made.no_workspace_for(GRADIENT)


def test_the_types_are_those_of_dl4j():
    names = {kind.name for kind in ArrayType}
    assert names == {
        *("INPUT", "ACTIVATIONS", "ACTIVATION_GRAD", "FF_WORKING_MEM"),
        *("BP_WORKING_MEM", "RNN_FF_LOOP_WORKING_MEM", "RNN_BP_LOOP_WORKING_MEM"),
        *("UPDATER_WORKING_MEM", "FF_CACHE"),
    }


@pytest.mark.parametrize(
    "act",
    [
        lambda m: m.create(INPUT, 3),
        lambda m: m.dup(INPUT, np.ones(3)),
        lambda m: m.cast_to(INPUT, np.ones(3), "f4"),
        lambda m: m.enter(INPUT),
        lambda m: m.borrow(INPUT),
        lambda m: m.workspace_name(INPUT),
        lambda m: m.assert_open(INPUT),
        lambda m: m.assert_not_open(INPUT),
        lambda m: m.assert_current_workspace(INPUT),
        lambda m: m.validate_array_location(INPUT, np.ones(3)),
    ],
)
def test_l1_a_type_without_entry_is_an_error_that_names_it(manager, act):
    with pytest.raises(WorkspaceError, match=r"array type INPUT.*set\(ArrayType.INPUT"):
        act(manager)
    assert not manager.has_configuration(INPUT)


def test_l1_also_for_an_attached_array_that_is_to_be_moved(manager):
    with manager.enter(ACTIVATIONS):
        a = manager.create(ACTIVATIONS, 3)
        with pytest.raises(WorkspaceError, match="array type INPUT"):
            manager.leverage_to(INPUT, a)


def test_an_unknown_type_is_an_error_that_names_the_known_ones(manager):
    with pytest.raises(ValueError, match=r"'activations'.*not 'weights'"):
        manager.create("weights", 3)
    assert manager.workspace_name("activations") == "act"


@pytest.mark.parametrize(
    "act",
    [
        lambda m: m.create(ACTIVATIONS, 3),
        lambda m: m.create_uninitialized(ACTIVATIONS, 3),
        lambda m: m.empty(ACTIVATIONS, 3),
        lambda m: m.zeros(ACTIVATIONS, 3),
        lambda m: m.dup(ACTIVATIONS, np.ones(3)),
        lambda m: m.cast_to(ACTIVATIONS, np.ones(3), "f4"),
        lambda m: m.borrow(ACTIVATIONS),
        lambda m: m.validate_array_location(ACTIVATIONS, np.ones(3)),
    ],
)
@pytest.mark.parametrize("known", [False, True], ids=["never made", "closed"])
def test_l2_nothing_is_made_in_a_closed_workspace(manager, pool, act, known):
    if known:
        mc.workspace("act", resource=pool)
    with pytest.raises(
        WorkspaceError, match="'act' for array type ACTIVATIONS is not open"
    ):
        act(manager)
    assert mc.workspaces.workspace_exists("act") == known


def test_l3_a_detached_array_stays_itself(manager):
    a = np.ones(3)
    with manager.enter(ACTIVATIONS):
        assert manager.leverage_to(ACTIVATIONS, a) is a
    assert manager.leverage_to(GRADIENT, a) is a


def test_l3_a_type_without_workspace_gets_a_detached_copy(manager):
    with manager.enter(ACTIVATIONS):
        a = manager.create(ACTIVATIONS, 3)
        copy = manager.leverage_to(GRADIENT, a)
    assert copy is not a
    assert not mc.is_attached(copy)
    assert np.array_equal(copy, np.zeros(3))


def test_l3_else_the_copy_is_in_the_workspace_of_the_type(manager):
    with manager.enter(ACTIVATIONS, WORKING):
        a = manager.create(WORKING, 3, np.int16)
        copy = manager.leverage_to(ACTIVATIONS, a)
        assert mc.workspace_of(copy).name == "act"
        assert copy.dtype == np.int16
        assert manager.leverage_to(ACTIVATIONS, copy) is copy


def test_l3_the_workspace_of_the_type_must_be_open(manager):
    with manager.enter(WORKING):
        a = manager.create(WORKING, 3)
        with pytest.raises(WorkspaceError, match=r"'act'.*is not open"):
            manager.leverage_to(ACTIVATIONS, a)


def test_l4_an_array_in_the_right_place_is_returned(manager):
    with manager.enter(ACTIVATIONS):
        a = manager.create(ACTIVATIONS, 3)
        assert manager.validate_array_location(ACTIVATIONS, a) is a
    b = np.ones(3)
    assert manager.validate_array_location(GRADIENT, b, error_if_detached=True) is b


def test_l4_an_array_in_the_wrong_workspace_is_an_error_that_names_both(manager):
    with manager.enter(ACTIVATIONS, WORKING):
        a = manager.create(WORKING, 3)
        with pytest.raises(WorkspaceError, match=r"ACTIVATIONS.*'act'.*'work'"):
            manager.validate_array_location(ACTIVATIONS, a)
        with pytest.raises(WorkspaceError, match=r"GRAD should be in no w.*'work'"):
            manager.validate_array_location(GRADIENT, a)


def test_l4_or_it_is_moved(manager):
    with manager.enter(ACTIVATIONS, WORKING):
        a = manager.create(WORKING, 3)
        a[:] = 5
        moved = manager.validate_array_location(ACTIVATIONS, a, True)
        out = manager.validate_array_location(GRADIENT, a, migrate_if_invalid=True)
        assert mc.workspace_of(moved).name == "act"
        assert not mc.is_attached(out)
        assert moved.tolist() == out.tolist() == [5, 5, 5]


def test_l4_a_detached_array_is_an_error_if_that_is_asked_for(manager):
    a = np.ones(3)
    with manager.enter(ACTIVATIONS):
        assert manager.validate_array_location(ACTIVATIONS, a) is a
        with pytest.raises(WorkspaceError, match="'act', but is in no workspace"):
            manager.validate_array_location(ACTIVATIONS, a, error_if_detached=True)
        moved = manager.validate_array_location(ACTIVATIONS, a, True, True)
        assert mc.workspace_of(moved).name == "act"


def test_l4_an_array_of_an_earlier_cycle_is_not_in_the_right_place(manager):
    with manager.enter(ACTIVATIONS):
        a = manager.create(ACTIVATIONS, 3)
    with manager.enter(ACTIVATIONS):
        with pytest.raises(WorkspaceError, match="cycle 1, which has ended"):
            manager.validate_array_location(ACTIVATIONS, a)
        again = manager.validate_array_location(ACTIVATIONS, a, True)
        assert mc.workspaces.generation_of(again) == 2


@pytest.mark.parametrize("act", ["dup", "cast_to", "leverage_to", "validate"])
def test_scope_checks_are_heeded(pool, act):
    """Nothing is read that may be another's: DL4J's scope panic."""
    config = mc.WorkspaceConfig(on_escape="invalidate")
    manager = LayerWorkspaceMgr(Source(pool)).set(ACTIVATIONS, "act", config)
    manager.set(WORKING, "work")
    calls = {
        "dup": lambda a: manager.dup(WORKING, a),
        "cast_to": lambda a: manager.cast_to(WORKING, a, "f4"),
        "leverage_to": lambda a: manager.leverage_to(WORKING, a),
        "validate": lambda a: manager.validate_array_location(WORKING, a, True),
    }
    with manager.enter(ACTIVATIONS):
        a = manager.create(ACTIVATIONS, 3)
    with manager.enter(WORKING):
        with pytest.raises(WorkspaceLeakError):
            calls[act](a)
        with manager.enter(ACTIVATIONS), pytest.raises(WorkspaceStaleError):
            calls[act](a)


def test_l5_defaults_never_override(manager):
    manager.default_workspace("rest").default_no_workspace()
    assert manager.workspace_name(ACTIVATIONS) == "act"
    assert manager.workspace_name(WORKING) == "work"
    assert manager.workspace_name(GRADIENT) is None
    assert manager.workspace_name(INPUT) == "rest"
    assert all(manager.has_configuration(kind) for kind in ArrayType)


def test_l5_the_first_default_counts(pool):
    manager = LayerWorkspaceMgr(Source(pool)).default_no_workspace()
    manager.default_workspace("rest")
    assert {manager.workspace_name(kind) for kind in ArrayType} == {None}


def test_settings_override_what_came_before(manager):
    manager.set(ACTIVATIONS, "other").with_(WORKING, "third")
    assert manager.workspace_name(ACTIVATIONS) == "other"
    assert manager.workspace_name(WORKING) == "third"
    manager.no_workspace_for(ACTIVATIONS, WORKING)
    assert manager.workspace_name(ACTIVATIONS) is None
    assert manager.workspace_name(WORKING) is None


def test_l6_arrays_of_some_workspaces_are_left_where_they_are(manager, pool):
    manager.set_no_leverage_override("batches")
    with mc.workspace("batches", resource=pool), manager.enter(ACTIVATIONS):
        a = mc.workspace("batches").empty(3)
        assert manager.leverage_to(ACTIVATIONS, a) is a
        assert manager.leverage_to(GRADIENT, a) is a


def test_arrays_are_made_where_their_type_lives(manager):
    with manager.enter(ACTIVATIONS), manager.enter(WORKING):
        a = manager.create(ACTIVATIONS, (2, 3), np.float32)
        assert mc.workspace_of(a).name == "act"
        assert a.dtype == np.float32
        assert a.tolist() == [[0, 0, 0], [0, 0, 0]]
        b = manager.dup(WORKING, a[:, :2])
        assert mc.workspace_of(b).name == "work"
        c = manager.cast_to(WORKING, a, np.int64)
        assert mc.workspace_of(c).name == "work"
        assert c.dtype == np.int64
        assert manager.cast_to(WORKING, a, np.float32) is a
        copied = manager.cast_to(WORKING, a, np.float32, dup_if_same=True)
        assert mc.workspace_of(copied).name == "work"
        g = manager.create(GRADIENT, 3)
        assert not mc.is_attached(g)
        assert mc.workspace("act").stats().cycle_bytes == 64
        assert mc.workspace("work").stats().cycle_bytes == 192


def test_entering_opens_each_workspace_once_and_closes_all(manager):
    manager.set(INPUT, "act")
    with manager.enter(ACTIVATIONS, INPUT, WORKING):
        assert mc.workspaces.current_workspace().name == "work"
        assert mc.workspace("act").is_open
    assert not mc.workspace("act").is_open
    assert mc.workspace("act").stats().cycles == 1
    assert mc.workspaces.current_workspace() is None


def test_entering_a_type_without_workspace_is_outside_of_all(manager):
    with manager.enter(ACTIVATIONS):
        with manager.enter(GRADIENT):
            assert mc.workspaces.current_workspace() is None
            assert not mc.is_attached(np.ones(3))
        assert mc.workspaces.current_workspace().name == "act"


def test_notify_scope_entered_opens_at_once(manager):
    scopes = manager.notify_scope_entered(ACTIVATIONS, WORKING)
    assert mc.workspace("act").is_open
    assert mc.workspace("work").is_open
    scopes.close()
    scopes.close()
    assert not mc.workspace("act").is_open
    with manager.notify_scope_entered(ACTIVATIONS):
        assert mc.workspaces.current_workspace().name == "act"
    assert not mc.workspace("act").is_open
    assert mc.workspace("act").stats().cycles == 2


def test_an_error_inside_closes_all(manager):
    with pytest.raises(ZeroDivisionError), manager.enter(ACTIVATIONS, WORKING):
        _ = 1 / 0
    assert not mc.workspace("act").is_open
    assert not mc.workspace("work").is_open


def test_a_workspace_that_cannot_be_opened_leaves_none_open(pool):
    big = mc.WorkspaceConfig(initial_size="64MiB", allocation="strict", spill="fail")
    manager = LayerWorkspaceMgr(Source(pool)).set(ACTIVATIONS, "act")
    scopes = manager.set(WORKING, "big", big).enter(ACTIVATIONS, WORKING)
    mc.workspace("big").destroy()  # its page is allocated again when it is opened
    with pool.allocate(500 << 20), pytest.raises(ResourceExhaustedError):
        scopes.open()
    assert not mc.workspace("act").is_open
    assert mc.workspaces.current_workspace() is None
    scopes.open().close()
    assert mc.workspace("act").stats().cycles == 2


def test_borrowing(manager):
    with manager.enter(ACTIVATIONS, WORKING):
        with manager.borrow(ACTIVATIONS):
            assert mc.workspaces.current_workspace().name == "act"
            with pytest.raises(WorkspaceError, match="Can't borrow from borrowed"):
                manager.borrow(ACTIVATIONS).__enter__()
        assert mc.workspaces.current_workspace().name == "work"
        with manager.borrow(GRADIENT):
            assert mc.workspaces.current_workspace() is None


def test_assertions(manager):
    manager.assert_not_open(ACTIVATIONS, "begin")
    with pytest.raises(WorkspaceError, match=r"^step 3: w.* 'act'.*should be open"):
        manager.assert_open(ACTIVATIONS, "step 3")
    with pytest.raises(WorkspaceError, match=r"^workspace 'act' should be .*no w"):
        manager.assert_current_workspace(ACTIVATIONS)
    with manager.enter(ACTIVATIONS, WORKING):
        manager.assert_open(ACTIVATIONS, "step 3")
        manager.assert_current_workspace(WORKING)
        with pytest.raises(WorkspaceError, match=r"end: workspace 'act'.*not be open"):
            manager.assert_not_open(ACTIVATIONS, "end")
        with pytest.raises(WorkspaceError, match=r"'act' should be.*'work' is"):
            manager.assert_current_workspace(ACTIVATIONS)
        with pytest.raises(WorkspaceError, match="no workspace should be current"):
            manager.assert_current_workspace(GRADIENT)
    manager.assert_open(GRADIENT)
    manager.assert_not_open(GRADIENT)
    manager.assert_current_workspace(GRADIENT)
    assert manager.is_workspace_open(GRADIENT)
    assert not manager.is_workspace_open(WORKING)


def test_one_workspace_has_one_configuration(manager):
    strict = mc.WorkspaceConfig(allocation="strict")
    with pytest.raises(WorkspaceConfigError, match="'act' has another configuration"):
        manager.set(INPUT, "act", strict)
    assert not manager.has_configuration(INPUT)
    with pytest.raises(TypeError, match="name of a workspace is a string"):
        manager.set(INPUT, "")
    with pytest.raises(TypeError, match="config is a WorkspaceConfig or None, not 3"):
        manager.set(INPUT, "a", 3)


def test_workspaces_are_made_with_their_configuration(pool):
    strict = mc.WorkspaceConfig(allocation="strict", initial_size=640)
    manager = LayerWorkspaceMgr(Source(pool)).default_workspace("all", strict)
    with manager.enter(ACTIVATIONS):
        assert mc.workspace("all").config == strict
        assert mc.workspace("all").stats().size == 640


def test_no_workspaces():
    manager = LayerWorkspaceMgr.no_workspaces()
    assert not mc.is_attached(manager.create(ACTIVATIONS, 3))
    with mc.workspace("outer"):
        assert not mc.is_attached(manager.create(ACTIVATIONS, 3))
    manager.set(INPUT, "in")
    assert manager.workspace_name(INPUT) == "in"


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.set(INPUT, "in"),
        lambda m: m.no_workspace_for(INPUT),
        lambda m: m.default_workspace("all"),
        lambda m: m.default_no_workspace(),
        lambda m: m.set_no_leverage_override("in"),
        lambda m: m.set_helper_workspace("scratch", 1),
    ],
)
def test_the_shared_manager_cannot_be_changed(change):
    manager = LayerWorkspaceMgr.no_workspaces_immutable()
    with pytest.raises(WorkspaceError, match=r"LayerWorkspaceMgr.no_workspaces\(\)"):
        change(manager)
    assert manager is LayerWorkspaceMgr.no_workspaces_immutable()
    assert manager.workspace_name(INPUT) is None
    assert not mc.is_attached(manager.create(INPUT, 3))


def test_helpers_share_what_they_keep(manager):
    assert manager.get_helper_workspace("scratch") is None
    scratch = np.empty(10)
    assert manager.set_helper_workspace("scratch", scratch) is manager
    assert manager.get_helper_workspace("scratch") is scratch


def test_managers_use_the_threads_workspaces_by_default():
    manager = mc.workspaces.LayerWorkspaceMgr().set(INPUT, "mine")
    with manager.enter(INPUT):
        assert mc.workspace_of(manager.empty(INPUT, 3)) is mc.workspace("mine")
        assert mc.workspace("mine").is_open
