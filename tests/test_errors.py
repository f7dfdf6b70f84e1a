"""The words of running out of memory, and the exceptions' other promises."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from memcfg import errors
from memcfg.errors import (
    InfeasiblePlanError,
    InvalidFreeError,
    MemcfgError,
    NoSuchWorkspaceError,
    ResourceExhaustedError,
    WorkspaceError,
    WorkspaceFullError,
)


def exhausted() -> ResourceExhaustedError:
    return ResourceExhaustedError(
        "The arena could not grow.",
        requested_bytes=331_521,
        in_use_bytes=64,
        limit_bytes=331_520,
        largest_free_bytes=331_456,
        device="/device:CPU:0",
        owners={"small": 1, "large": 4096, "middle": 64, "larger": 2048},
        hint="Make the batch smaller.",
    )


def fragmented() -> ResourceExhaustedError:
    return ResourceExhaustedError(
        "Enough memory is free, but not in one piece.",
        requested_bytes=4_194_305,
        rounded_bytes=4_194_368,
        in_use_bytes=4_194_304,
        reserved_bytes=16_777_216,
        limit_bytes=16_777_216,
        largest_free_bytes=2_097_152,
        fragmentation=5 / 6,
        device="GPU:0",
        hint="Trim.",
    )


def infeasible() -> InfeasiblePlanError:
    return InfeasiblePlanError(
        "share cannot plan 'g'.",
        smallest_limit_bytes=331_521,
        lower_bound_bytes=331_456,
        requested_bytes=331_521,
        limit_bytes=331_520,
    )


def not_proven() -> InfeasiblePlanError:
    return InfeasiblePlanError(
        "Buffers were not placed.",
        smallest_limit_bytes=12,
        lower_bound_bytes=10,
        is_smallest=False,
        limit_bytes=10,
    )


def workspace_full() -> WorkspaceFullError:
    return WorkspaceFullError(
        "Workspace 'loop' is full.",
        requested_bytes=64,
        in_use_bytes=1024,
        limit_bytes=1024,
        owners={"numpy": 1024},
        hint="Make max_size larger.",
    )


def test_a_difference_of_one_byte_is_seen():
    assert str(exhausted()) == (
        "The arena could not grow.\n"
        "Requested 331521 B (323.75 KiB) on /device:CPU:0;\n"
        "in use 64 B; limit 331520 B (323.75 KiB).\n"
        "Largest free block 331456 B (323.69 KiB).\n"
        "Held by: large (4.00 KiB), larger (2.00 KiB), middle (64 B).\n"
        "Make the batch smaller."
    )
    assert str(infeasible()) == (
        "share cannot plan 'g'.\n"
        "Requested 331521 B (323.75 KiB);\n"
        "in use 0 B; limit 331520 B (323.75 KiB).\n"
        "The smallest limit that would do is 331521 B (323.75 KiB).\n"
        "Lower bound for any policy: 331456 B (323.69 KiB)."
    )


def test_rounding_reserve_and_fragmentation_are_told_when_they_tell_something():
    assert str(fragmented()) == (
        "Enough memory is free, but not in one piece.\n"
        "Requested 4194305 B (4.00 MiB), rounded up to 4194368 B, on GPU:0;\n"
        "in use 4194304 B (4.00 MiB), reserved 16777216 B (16.00 MiB); "
        "limit 16777216 B (16.00 MiB).\n"
        "Largest free block 2097152 B (2.00 MiB).\n"
        "Fragmentation 83%: so much of the reserved and unused memory is not in one "
        "piece.\nTrim."
    )
    nowhere = ResourceExhaustedError("Full.", requested_bytes=1, rounded_bytes=64)
    assert "Requested 1 B, rounded up to 64 B;\nin use" in str(nowhere)
    plain = ResourceExhaustedError("Full.", requested_bytes=3, in_use_bytes=5)
    assert (plain.rounded_bytes, plain.reserved_bytes) == (3, 5)
    assert not any(word in str(plain) for word in ("rounded", "reserved", "Fragment"))


def test_no_limit_is_said():
    assert "limit no limit" not in str(ResourceExhaustedError("Full."))
    assert str(ResourceExhaustedError("Full.")).endswith("in use 0 B; no limit.")


MAKERS = [exhausted, fragmented, infeasible, not_proven, workspace_full]


def pickled(error: Exception) -> Exception:
    return pickle.loads(pickle.dumps(error))


@pytest.mark.parametrize("make", MAKERS)
def test_they_survive_pickling(make):
    error = make()
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("repeat", [copy.copy, copy.deepcopy, pickled])
def test_what_was_added_to_them_survives(make, repeat):
    error = make()
    error.add_note("while planning")
    error.step = 7
    again = repeat(error)
    assert (type(again), str(again)) == (type(error), str(error))
    assert vars(again) == vars(error)
    assert (again.__notes__, again.step) == (["while planning"], 7)


def test_a_subclass_keeps_its_own_attributes():
    own = OwnError("Full.", requested_bytes=1, device="here")
    own.layer = "dense_1"
    own.add_note("late")
    for again in (pickled(own), copy.deepcopy(own)):
        assert type(again) is OwnError
        assert (again.layer, again.__notes__) == ("dense_1", ["late"])
        assert vars(again) == vars(own)


def test_subclasses_of_others_survive_pickling():
    own = OwnError("Full.", requested_bytes=1, device="here")
    error = pickle.loads(pickle.dumps(own))
    assert type(error) is OwnError
    assert (error.requested_bytes, error.device) == (1, "here")
    wrong = pickle.loads(pickle.dumps(InvalidFreeError("twice")))
    assert (type(wrong), str(wrong)) == (InvalidFreeError, "twice")


class OwnError(ResourceExhaustedError):
    """What a user may derive."""


def test_a_missing_workspace_is_told_without_the_quotes_of_a_key_error():
    error = NoSuchWorkspaceError("This thread has no workspace 'act'.")
    for again in (error, pickled(error), copy.copy(error)):
        assert type(again) is NoSuchWorkspaceError
        assert str(again) == "This thread has no workspace 'act'."
        assert again.args == error.args


def test_a_full_workspace_is_out_of_memory_and_a_workspace_error():
    error = workspace_full()
    assert isinstance(error, WorkspaceError)
    assert isinstance(error, ResourceExhaustedError)
    assert isinstance(error, RuntimeError)
    assert isinstance(error, MemoryError)
    assert str(error) == (
        "Workspace 'loop' is full.\nRequested 64 B;\n"
        "in use 1024 B (1.00 KiB); limit 1024 B (1.00 KiB).\n"
        "Held by: numpy (1.00 KiB).\nMake max_size larger."
    )


@pytest.mark.parametrize(
    "kind",
    [
        errors.WorkspaceError,
        errors.WorkspaceLeakError,
        errors.WorkspaceStaleError,
        errors.WorkspaceConfigError,
    ],
)
def test_the_other_errors_of_workspaces_survive_pickling(kind):
    error = kind("Workspace 'loop' is closed.")
    again = pickled(error)
    assert (type(again), str(again)) == (kind, "Workspace 'loop' is closed.")


def test_warnings_are_no_errors():
    for kind in errors.__all__:
        if kind.endswith("Warning"):
            assert issubclass(getattr(errors, kind), UserWarning)
            assert not issubclass(getattr(errors, kind), MemcfgError)


def test_each_is_also_a_built_in_that_a_caller_would_catch():
    built_in = (MemoryError, ValueError, FloatingPointError, RuntimeError, ImportError)
    for name in errors.__all__:
        kind = getattr(errors, name)
        if issubclass(kind, Warning):
            continue
        assert issubclass(kind, MemcfgError)
        assert kind is MemcfgError or issubclass(kind, built_in)
        assert inspect.getdoc(kind)
