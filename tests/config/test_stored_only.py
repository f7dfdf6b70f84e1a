"""Settings that are checked and kept, and that nothing reads."""

from __future__ import annotations

import threading

import pytest

from memcfg import config

experimental, optimizer = config.experimental, config.optimizer


# [T] "Device policy: default 'silent'; 'silent'/'silent_for_int32'/'warn'/'explicit'
# round-trip, changeable after init, per thread; None ⇒ 'silent'"
def test_the_device_policy_goes_round_in_each_thread():
    assert experimental.get_device_policy() == "silent"
    for policy in ("silent", "silent_for_int32", "warn", "explicit"):
        experimental.set_device_policy(policy)
        assert experimental.get_device_policy() == policy
    config.list_logical_devices()
    seen = []
    thread = threading.Thread(
        target=lambda: seen.append(experimental.get_device_policy())
    )
    thread.start()
    thread.join()
    assert seen == ["silent"]
    assert experimental.get_device_policy() == "explicit"
    experimental.set_device_policy(None)
    assert experimental.get_device_policy() == "silent"


# [M] "other ⇒ ValueError"
@pytest.mark.parametrize("policy", ["loud", "", "SILENT", 1, ["warn"]])
def test_another_policy_is_refused(policy):
    experimental.set_device_policy("warn")
    with pytest.raises(ValueError, match="silent_for_int32"):
        experimental.set_device_policy(policy)
    assert experimental.get_device_policy() == "warn"


# [T] "Setting policy/execution mode does not itself init (init-time settings still
# changeable afterwards)."
def test_setting_policy_or_mode_is_no_first_use(cpu):
    experimental.set_device_policy("warn")
    experimental.set_synchronous_execution(False)
    optimizer.set_jit(True)
    config.set_soft_device_placement(False)
    config.set_memory_growth(cpu, True)


# [T] "Synchronous default True; toggles freely."
def test_synchronous_is_the_default_and_toggles_freely():
    assert experimental.get_synchronous_execution() is True
    config.list_logical_devices()
    for value, found in ((False, False), (True, True), (False, False), (None, True)):
        experimental.set_synchronous_execution(value)
        assert experimental.get_synchronous_execution() is found
    with pytest.raises(TypeError, match="True, False or None"):
        experimental.set_synchronous_execution("yes")


# [T] "Optimizer toggles: unset ⇒ None; disable_* bools default False; set({k:v})
# merges, get() returns merged dict"
def test_optimizer_options_merge():
    options = optimizer.get_experimental_options
    assert options() == {
        "disable_model_pruning": False,
        "disable_meta_optimizer": False,
    }
    assert options().get("constant_folding") is None
    optimizer.set_experimental_options({"constant_folding": True})
    config.list_logical_devices()
    optimizer.set_experimental_options({"disable_model_pruning": True})
    optimizer.set_experimental_options({"remapping": False, "min_graph_nodes": 4})
    assert options() == {
        "constant_folding": True,
        "remapping": False,
        "min_graph_nodes": 4,
        "disable_model_pruning": True,
        "disable_meta_optimizer": False,
    }
    options().clear()
    optimizer.set_experimental_options({"remapping": None})
    assert set(options()) == {
        *("constant_folding", "min_graph_nodes"),
        *("disable_model_pruning", "disable_meta_optimizer"),
    }


# [M] "unknown keys silently ignored (memcfg: ValueError)"
@pytest.mark.parametrize(
    ("bad", "error"),
    [
        *(({"constant_foldin": True}, ValueError), ({7: True}, ValueError)),
        *(({"remapping": "on"}, TypeError), ({"min_graph_nodes": True}, TypeError)),
        *(({"remapping": 1}, TypeError), ([("remapping", True)], TypeError)),
    ],
)
def test_wrong_options_set_nothing(bad, error):
    before = optimizer.get_experimental_options()
    both = {"shape_optimization": True} | bad if isinstance(bad, dict) else bad
    with pytest.raises(error):
        optimizer.set_experimental_options(both)
    assert optimizer.get_experimental_options() == before


# [T] "jit default False-like"; [M] "default '', True reads back 'autoclustering',
# invalid string accepted" (not here)
def test_jit_reads_back():
    assert optimizer.get_jit() == ""
    for value, found in (
        *((True, "autoclustering"), (False, ""), ("autoclustering", "autoclustering")),
        ("", ""),
    ):
        optimizer.set_jit(value)
        assert optimizer.get_jit() == found


@pytest.mark.parametrize("bad", ["auto", "True", 1, None, ["autoclustering"]])
def test_another_jit_is_refused(bad):
    with pytest.raises(ValueError, match="autoclustering"):
        optimizer.set_jit(bad)
    assert optimizer.get_jit() == ""


@pytest.mark.parametrize(
    "function",
    [
        *(experimental.get_device_policy, experimental.set_device_policy),
        *(experimental.get_synchronous_execution,),
        *(experimental.set_synchronous_execution,),
        *(optimizer.get_jit, optimizer.set_jit),
        *(optimizer.get_experimental_options, optimizer.set_experimental_options),
    ],
)
def test_the_documentation_says_so(function):
    assert "Stored only" in function.__doc__
