"""Every public name of tf.config 2.21 is here, or says what to do instead.

Not expressible here, and so without a test of their own: the rules on importing
TensorFlow 1's ``ConfigProto``, on a list of virtual devices longer than that of GPUs
(a configuration belongs to its hardware), and on logging placements, which is no name
of tf.config.
"""

from __future__ import annotations

import pytest

import memcfg
from memcfg import config

SAME = {  # allocators.md §1a: "Public names actually exported by TF 2.21"
    config: [
        *("PhysicalDevice", "LogicalDevice", "LogicalDeviceConfiguration"),
        *("list_physical_devices", "list_logical_devices"),
        *("get_visible_devices", "set_visible_devices"),
        *("get_logical_device_configuration", "set_logical_device_configuration"),
        *("get_soft_device_placement", "set_soft_device_placement"),
        *("threading", "optimizer", "experimental"),
    ],
    config.threading: [
        *("get_intra_op_parallelism_threads", "set_intra_op_parallelism_threads"),
        *("get_inter_op_parallelism_threads", "set_inter_op_parallelism_threads"),
    ],
    config.optimizer: [
        *("get_jit", "set_jit"),
        *("get_experimental_options", "set_experimental_options"),
    ],
    config.experimental: [
        *("get_memory_growth", "set_memory_growth", "get_memory_info"),
        *("reset_memory_stats", "get_memory_usage", "get_device_details"),
        *("get_device_policy", "set_device_policy"),
        *("get_synchronous_execution", "set_synchronous_execution"),
        *("VirtualDeviceConfiguration", "get_virtual_device_configuration"),
        *("set_virtual_device_configuration", "get_visible_devices"),
        *("set_visible_devices", "list_physical_devices", "list_logical_devices"),
    ],
}
OTHERWISE = {
    config: [
        *("run_functions_eagerly", "functions_run_eagerly"),
        *("experimental_connect_to_cluster", "experimental_connect_to_host"),
        *("experimental_run_functions_eagerly", "experimental_functions_run_eagerly"),
    ],
    config.experimental: [
        *("enable_op_determinism", "enable_tensor_float_32_execution"),
        *("tensor_float_32_execution_enabled", "enable_mlir_bridge"),
        *("disable_mlir_bridge", "ClusterDeviceFilters"),
    ],
}


@pytest.mark.parametrize("module", SAME, ids=lambda module: module.__name__)
def test_the_names_are_those_of_tensorflow(module):
    assert [name for name in SAME[module] if name not in module.__all__] == []
    assert [name for name in SAME[module] if not hasattr(module, name)] == []


# "names that TensorFlow has and that mean nothing here raise a clear error"
@pytest.mark.parametrize(
    ("module", "name"),
    [(module, name) for module, names in OTHERWISE.items() for name in names],
)
def test_a_name_without_meaning_says_what_to_do(module, name):
    assert not hasattr(module, name)
    with pytest.raises(AttributeError, match=f"'{name}', which tf.config has: ") as it:
        getattr(module, name)
    assert "remove the call" in str(it.value) or "call memcfg" in str(it.value)


@pytest.mark.parametrize("module", [config, config.experimental])
def test_another_name_is_just_not_there(module):
    with pytest.raises(AttributeError, match=r"has no attribute 'nothing_like_it'$"):
        module.nothing_like_it  # noqa: B018 - the look-up is the test


# §1a: "VirtualDeviceConfiguration (is LogicalDeviceConfiguration)"
def test_the_aliases_are_the_same_objects():
    experimental = config.experimental
    assert experimental.VirtualDeviceConfiguration is config.LogicalDeviceConfiguration
    assert (
        experimental.set_virtual_device_configuration
        is config.set_logical_device_configuration
    )
    for name in set(experimental.__all__) & set(config.__all__):
        assert getattr(experimental, name) is getattr(config, name)


# "The code of the memory guide for TensorFlow users runs with memcfg in place of
# tensorflow"
@pytest.mark.usefixtures("gpus")
def test_the_guides_limit_runs(capsys, limits):
    tf = memcfg
    gpus = tf.config.experimental.list_physical_devices("GPU")
    if gpus:
        try:
            tf.config.experimental.set_virtual_device_configuration(
                gpus[0],
                [tf.config.experimental.VirtualDeviceConfiguration(memory_limit=1024)],
            )
            logical_gpus = tf.config.experimental.list_logical_devices("GPU")
            print(len(gpus), "Physical GPUs,", len(logical_gpus), "Logical GPUs")
        except RuntimeError as e:
            print(e)
    assert capsys.readouterr().out == "2 Physical GPUs, 2 Logical GPUs\n"
    assert limits("GPU") == [2**30, 2**34]


@pytest.mark.parametrize("late", [False, True])
def test_the_guides_growth_runs(capsys, gpus, growths, late):
    tf = memcfg
    if late:
        tf.config.list_logical_devices()
    try:
        for gpu in tf.config.experimental.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError as e:
        print(e)
    printed = capsys.readouterr().out
    assert ("cannot be modified" in printed) is late
    assert growths() == [not late] * len(gpus)


@pytest.mark.usefixtures("gpus")
def test_growth_and_limit_of_the_guide_hold_together(growths, limits):
    tf = memcfg
    gpus = tf.config.experimental.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    tf.config.experimental.set_virtual_device_configuration(
        gpus[0], [tf.config.experimental.VirtualDeviceConfiguration(memory_limit=1024)]
    )
    assert growths() == [True, True]
    assert limits("GPU") == [2**30, 2**34]


@pytest.mark.parametrize(
    ("module", "name", "meant"),
    [
        (config, "set_memory_limits", "set_memory_limit"),
        (config.experimental, "set_memory_grow", "set_memory_growth"),
    ],
)
def test_the_name_that_was_meant_is_told(module, name, meant):
    with pytest.raises(AttributeError, match=f"{name!r}: did you mean '{meant}'"):
        getattr(module, name)
    assert not hasattr(module, "zzz")
