"""A configuration is checked once, read as plain values, and never changes."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import memcfg as mc
from memcfg import config
from memcfg.errors import FormatError, WorkspaceConfigError

POLICIES = {
    "allocation": mc.config.AllocationPolicy,
    "learning": mc.config.LearningPolicy,
    "spill": mc.config.SpillPolicy,
    "reset": mc.config.ResetPolicy,
    "mirroring": mc.config.MirroringPolicy,
    "location": mc.config.LocationPolicy,
    "on_escape": mc.config.EscapePolicy,
}


def test_defaults_are_nd4js_but_for_escapes_and_mirroring():
    assert mc.WorkspaceConfig().to_dict() == {
        "initial_size": 0,
        "min_size": 0,
        "max_size": None,
        "overallocation": 0.3,
        "allocation": "overallocate",
        "learning": "first_loop",
        "spill": "external",
        "reset": "block_left",
        "mirroring": "host_only",
        "location": "ram",
        "path": None,
        "overwrite": False,
        "learning_cycles": 0,
        "on_escape": "retire",
        "reclaim": False,
        "capture_numpy": True,
    }


def test_sizes_are_read(cpu):
    made = mc.WorkspaceConfig(
        initial_size="8MiB", min_size=np.int64(640), max_size="50%", overallocation=1
    )
    assert (made.initial_size, made.min_size) == (8 * 2**20, 640)
    assert type(made.min_size) is int
    assert made.max_size == config.get_device_details(cpu)["memory"] // 2
    assert made.overallocation == 1.0
    assert type(made.overallocation) is float


@pytest.mark.parametrize("field", POLICIES)
def test_policies_are_members_or_words(field):
    others = {"location": {"learning": "none", "initial_size": 64}}.get(field, {})
    others |= {"reset": {"overallocation": 2}}.get(field, {})
    for member in POLICIES[field]:
        for value in (member, member.value, member.value.upper()):
            made = mc.WorkspaceConfig(**{field: value}, **others)
            assert getattr(made, field) is member
    with pytest.raises(
        WorkspaceConfigError, match=f"{field} is one of .*, not 'never'"
    ):
        mc.WorkspaceConfig(**{field: "never"})
    with pytest.raises(WorkspaceConfigError, match=field):
        mc.WorkspaceConfig(**{field: None})


def test_a_ring_has_two_names():
    for word in ("end_of_buffer", "ENDOFBUFFER_REACHED", "END_OF_BUFFER"):
        made = mc.WorkspaceConfig(reset=word, overallocation=2.9)
        assert made.reset is mc.config.ResetPolicy.ENDOFBUFFER_REACHED
        assert (made.circular, made.ring_blocks) == (True, 3)
    assert mc.WorkspaceConfig(overallocation=2.9).ring_blocks == 1
    strict = mc.WorkspaceConfig(reset="end_of_buffer", allocation="strict")
    assert strict.ring_blocks == 1


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"initial_size": -1}, "initial_size.*negative"),
        ({"initial_size": 1.5}, "initial_size.*1.5"),
        ({"initial_size": True}, "initial_size.*True"),
        ({"min_size": "8 bananas"}, "min_size.*bananas"),
        ({"max_size": 2**63}, "max_size=.*address space"),
        ({"max_size": 0}, "max_size is positive"),
        ({"initial_size": 65, "max_size": 64}, "initial_size=65 is above max_size=64"),
        ({"min_size": 65, "max_size": 64}, "min_size=65 is above max_size=64"),
        ({"overallocation": -0.1}, "overallocation"),
        ({"overallocation": float("nan")}, "overallocation"),
        ({"overallocation": "0.3"}, "overallocation"),
        ({"overallocation": True}, "overallocation"),
        ({"overallocation": 10**400}, "overallocation"),
        ({"learning_cycles": -1}, "learning_cycles"),
        ({"learning_cycles": 1.0}, "learning_cycles"),
        ({"reclaim": 1}, "reclaim is True or False"),
        ({"capture_numpy": None}, "capture_numpy is True or False"),
        ({"overwrite": "yes", "path": "x"}, "overwrite is True or False"),
        ({"reset": "end_of_buffer"}, r"by 1 or more.*RingWorkspace\(slots=4\)"),
        ({"reset": "end_of_buffer", "overallocation": 0.99}, "by 1 or more"),
        (
            {"reset": "end_of_buffer", "allocation": "strict", "reclaim": True},
            "cannot reclaim",
        ),
        ({"path": "somewhere"}, "location='mmap'"),
        ({"overwrite": True}, "location='mmap'"),
        ({"location": "mmap", "initial_size": 64}, "learning='none'"),
        ({"location": "mmap", "learning": "none"}, "needs a path"),
        (
            {
                "location": "mmap",
                "learning": "none",
                "initial_size": 1,
                "overwrite": True,
            },
            "overwrite is for a path",
        ),
        ({"location": "mmap", "learning": "none", "path": 7}, "path is"),
    ],
)
def test_what_is_no_configuration_says_why(settings, what):
    with pytest.raises(WorkspaceConfigError, match=what):
        mc.WorkspaceConfig(**settings)


def test_an_unknown_setting_is_an_error():
    with pytest.raises(TypeError, match="steps_number"):
        mc.WorkspaceConfig(steps_number=2)
    with pytest.raises(WorkspaceConfigError, match=r"'steps_number'.*initial_size"):
        mc.WorkspaceConfig.from_dict({"steps_number": 2})
    with pytest.raises(WorkspaceConfigError, match="'size'"):
        mc.WorkspaceConfig().replace(size=3)


def test_it_is_frozen_and_compares_by_value():
    first = mc.WorkspaceConfig(initial_size="1KiB", spill="fail")
    second = mc.WorkspaceConfig(initial_size=1024, spill=mc.config.SpillPolicy.FAIL)
    assert first == second
    assert hash(first) == hash(second)
    assert first != mc.WorkspaceConfig(initial_size=1024)
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.initial_size = 2
    assert pickle.loads(pickle.dumps(first)) == first


def test_replace_checks_the_whole():
    base = mc.WorkspaceConfig(max_size=1000)
    larger = base.replace(initial_size="1000B", on_escape="warn")
    assert (larger.initial_size, larger.max_size) == (1000, 1000)
    assert base.initial_size == 0
    assert dataclasses.replace(base, initial_size=5).initial_size == 5
    with pytest.raises(WorkspaceConfigError, match="above max_size"):
        base.replace(initial_size=1001)


SIZES = st.integers(0, 2**40)


@given(
    st.fixed_dictionaries(
        {"overallocation": st.floats(1, 100)},
        optional={
            "initial_size": SIZES,
            "min_size": SIZES,
            "learning_cycles": st.integers(0, 9),
            "capture_numpy": st.booleans(),
            **{
                name: st.sampled_from(list(kind))
                for name, kind in POLICIES.items()
                if name != "location"
            },
        },
    )
)
def test_plain_data_and_back(settings):
    made = mc.WorkspaceConfig(**settings)
    text = json.dumps(made.to_dict())
    assert mc.WorkspaceConfig.from_dict(json.loads(text)) == made
    assert made.replace() == made
    for name, value in settings.items():
        assert getattr(made, name) == value


def test_paths_are_strings(tmp_path):
    settings = {"location": "mmap", "learning": "none", "initial_size": 64}
    assert mc.WorkspaceConfig(path=tmp_path, **settings).path == str(tmp_path)
    assert mc.WorkspaceConfig(**settings).path is None


def test_a_default_for_workspaces_without_a_configuration(pool):
    default = mc.WorkspaceConfig(initial_size=6400, allocation="strict")
    assert config.set_default_workspace_config(default) == mc.WorkspaceConfig()
    assert config.get_default_workspace_config() is default
    assert mc.workspace("one", resource=pool).config is default
    assert mc.Workspace(name="two", resource=pool).stats().size == 6400
    ring = mc.RingWorkspace(3, resource=pool)
    assert ring.config == default.replace(
        reset="end_of_buffer", allocation="overallocate", overallocation=2
    )
    with pytest.raises(TypeError, match="WorkspaceConfig"):
        config.set_default_workspace_config({})
    assert config.get_default_workspace_config() is default


def test_scope_checks_are_one_of_three():
    assert config.get_scope_checks() == "error"
    assert config.set_scope_checks("off") == "error"
    with pytest.raises(ValueError, match="error, warn, off"):
        config.set_scope_checks("panic")
    assert config.set_scope_checks("warn") == "off"


def test_a_reset_puts_settings_back():
    config.set_scope_checks("off")
    config.set_default_workspace_config(mc.WorkspaceConfig(min_size=64))
    config.set_debug_mode("spill_everything")
    config.reset()
    assert config.get_scope_checks() == "error"
    assert config.get_default_workspace_config() == mc.WorkspaceConfig()
    assert config.get_debug_mode() is mc.config.DebugMode.DISABLED


def test_a_reset_ends_the_debug_mode_in_the_core(pool):
    ws = mc.Workspace(mc.WorkspaceConfig(initial_size=640), resource=pool)
    for mode, attached in (("spill_everything", True), ("bypass_everything", False)):
        config.set_debug_mode(mode)
        with ws:
            assert mc.is_attached(ws.empty(8)) is attached
            assert ws.stats().offset == 0
        config.reset()
        with ws:
            assert mc.is_attached(ws.empty(8))
            assert ws.stats().offset == 64


def test_the_environment_sets_the_debug_mode(monkeypatch, pool):
    monkeypatch.setenv("MEMCFG_WORKSPACE_DEBUG", " Spill_Everything ")
    ws = mc.Workspace(mc.WorkspaceConfig(initial_size=640), resource=pool)
    with ws:
        ws.empty(8)
        assert (ws.stats().offset, ws.stats().spilled_bytes) == (0, 64)
    assert config.get_debug_mode() is mc.config.DebugMode.SPILL_EVERYTHING
    assert config.set_debug_mode("disabled") is mc.config.DebugMode.SPILL_EVERYTHING
    assert config.get_debug_mode() is mc.config.DebugMode.DISABLED


def test_a_variable_that_cannot_be_read_makes_no_workspace(monkeypatch, pool):
    monkeypatch.setenv("MEMCFG_WORKSPACE_DEBUG", "BYPASS")
    with pytest.raises(FormatError, match=r"MEMCFG_.*='BYPASS'.*bypass_ev"):
        mc.workspace("one", resource=pool)
    assert not mc.workspaces.workspace_exists("one")
    with pytest.raises(FormatError):
        config.set_debug_mode("disabled")
    with pytest.raises(ValueError, match="'spill_everything'"):
        config.set_debug_mode("spill")


def test_a_process_starts_with_the_variable():
    script = (
        "import numpy as np, memcfg as mc\n"
        "with mc.workspace() as ws:\n"
        "    print(mc.is_attached(np.ones(3)), mc.is_attached(ws.ones(3)))"
    )
    out = subprocess.run(
        [sys.executable, "-c", script],
        env={
            **os.environ,
            "MEMCFG_WORKSPACE_DEBUG": "bypass_everything",
            "PYTHONPATH": str(Path(mc.__file__).parents[1]),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.split() == ["False", "False"]
