"""Real GPUs in the configuration, on the driver's stand-in, and none."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import cuda_stand_in
import gpus
import numpy as np
import pytest
from cuda_stand_in import driver_path

import memcfg as mc
from memcfg import config
from memcfg.cli import main
from memcfg.config import LogicalDeviceConfiguration as Configuration
from memcfg.errors import (
    MissingDependencyError,
    ResourceExhaustedError,
    WorkspaceConfigError,
)
from memcfg.memory import LimitingResource

MIB = 2**20
NONE = "/nonexistent/libcuda.so.1"


@pytest.fixture
def gpu(monkeypatch):
    """The stand-in's GPU, as the configuration finds it."""
    gpus.find_stand_in(monkeypatch)
    (found,) = config.list_physical_devices("GPU")
    return found


@pytest.fixture
def no_gpu(monkeypatch):
    gpus.find_none(monkeypatch)


def test_where_tensors_spill_to(gpu, tmp_path):
    wanted = config.LogicalDeviceConfiguration(
        memory_limit=64, spill_to=tmp_path, spill_limit="1MiB"
    )
    config.set_logical_device_configuration(gpu, [wanted])
    device = config.logical_device("GPU:0")
    assert dict(device.tiers) == {"file": "file"}
    space = device.tier_memory("file", 4096, tag="model")
    assert space.nbytes == 4096
    device.tier_limit.reserve(space, {"file": 2**20})
    with pytest.raises(ResourceExhaustedError, match="tier 'file' of /device:GPU:0"):
        device.tier_limit.reserve(device, {"file": 64})


def test_lanes_of_a_gpu_keep_to_no_bandwidth(gpu):
    wanted = config.LogicalDeviceConfiguration(
        memory_limit=64, spill_to="host", lane_bandwidth="1GB"
    )
    with pytest.raises(ValueError, match="lane_bandwidth is not supported for"):
        config.set_logical_device_configuration(gpu, [wanted])


def test_lanes_of_a_gpu_have_no_timeout(gpu):
    wanted = config.LogicalDeviceConfiguration(
        memory_limit=64, spill_to="host", lane_timeout=5
    )
    with pytest.raises(ValueError, match="lane_timeout is not supported for"):
        config.set_logical_device_configuration(gpu, [wanted])


def fit(name, epochs=2):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 5)).astype(np.float32)
    y = x[:, :1] * 2
    mc.nn.set_random_seed(0)
    with mc.device(name):
        model = mc.nn.Sequential([mc.nn.Input((5,)), mc.nn.Dense(4), mc.nn.Dense(1)])
        model.compile("adam", "mean_squared_error")
    losses = model.fit(x, y, batch_size=16, epochs=epochs, verbose=0, seed=0)
    return model, losses.history["loss"]


# A driver that is initialized leaves no usable GPU to processes that are forked later,
# so this runs in a process of its own.
ON_THE_CPU = """
import os
import numpy as np
import memcfg as mc
from memcfg import config
from memcfg.config import LogicalDeviceConfiguration as Configuration

def loaded():
    return "libcuda" in open("/proc/self/maps").read()

for hidden in (False, True):
    config.reset()
    if hidden:
        config.set_visible_devices([], "GPU")
        assert len(config.list_logical_devices()) == 1
        config.reset()
        config.set_visible_devices([], "GPU")
    (cpu,) = config.list_physical_devices("CPU")
    config.set_logical_device_configuration(cpu, [Configuration(memory_limit=64)])
    config.set_memory_growth("CPU:0", True)
    config.set_host_memory_limit(tracked="1GiB")
    assert len(config.list_logical_devices("CPU")) == 1
    x = np.ones((16, 5), np.float32)
    with mc.device("/CPU:0"):
        one = mc.nn.Sequential([mc.nn.Input((5,)), mc.nn.Dense(1)])
        one.compile("sgd", "mean_squared_error")
    one.fit(x, x[:, :1], verbose=0)
    two = mc.nn.Sequential([mc.nn.Input((5,)), mc.nn.Dense(1)])
    two.compile("sgd", "mean_squared_error")
    two.fit(x, x[:, :1], verbose=0)
    two.predict(x, verbose=0)
    with mc.workspace("loop"):
        assert np.ones(1000).sum() == 1000
    assert config.get_memory_info("CPU:0")["current"] > 0
    config.trim("CPU:0")
    config.set_memory_limit("CPU:0", "65MiB")
    assert config.memory_fraction("CPU:0") > 0
    assert not loaded()
    mc.workspaces.destroy_all_workspaces()
    one.close()
    two.close()
reader, writer = os.pipe()
if os.fork() == 0:
    config.reset()
    os.write(writer, str(config.list_physical_devices("GPU")).encode())
    os._exit(0)
os.wait()
assert b"GPU:0" in os.read(reader, 4096)
assert not loaded()
config.reset()
assert len(config.list_logical_devices()) == 2
assert loaded()
"""


def test_who_asks_for_a_cpu_does_not_initialize_cuda():
    environment = {**os.environ, "MEMCFG_CUDA_LIBRARY": driver_path()}
    command = [sys.executable, "-c", ON_THE_CPU]
    subprocess.run(command, check=True, env=environment)


def test_gpus_that_are_asked_for_later_join_the_devices(monkeypatch):
    monkeypatch.setenv("MEMCFG_CUDA_LIBRARY", driver_path())
    config.reset()
    cpu = config.list_physical_devices("CPU")[0]
    config.set_logical_device_configuration(cpu, [Configuration(memory_limit=64)] * 2)
    config.experimental.add_simulated_device("TPU", memory="1GiB")
    first = config.logical_device()
    names = [each.name for each in config.list_logical_devices("CPU")]
    assert names == ["/device:CPU:0", "/device:CPU:1"]
    assert config.logical_device("GPU:0").name == "/device:GPU:0"
    every = [each.name for each in config.list_logical_devices()]
    assert every == [*names, "/device:GPU:0", "/device:TPU:0"]
    assert [each.device_type for each in config.list_physical_devices()] == [
        *("CPU", "GPU", "TPU")
    ]
    assert config.logical_device() is first
    with pytest.raises(RuntimeError, match="cannot be modified after first use"):
        config.set_memory_growth("GPU:0", False)
    with pytest.raises(RuntimeError, match="cannot be modified after first use"):
        config.set_visible_devices([], "GPU")


def test_what_the_environment_says_of_gpus_is_asking_for_them(monkeypatch):
    monkeypatch.setenv("MEMCFG_CUDA_LIBRARY", driver_path())
    monkeypatch.setenv("MEMCFG_SIMULATED_DEVICES", "GPU:1:1GiB")
    config.reset()
    config.list_physical_devices("CPU")
    assert config.logical_device("GPU:1").pool.limit == 2**30  # the simulated one
    config.reset()
    monkeypatch.delenv("MEMCFG_SIMULATED_DEVICES")
    monkeypatch.setenv("MEMCFG_MEMORY_LIMIT", "GPU:3=1MiB")
    with pytest.raises(ValueError, match="there is no GPU:3"):
        config.logical_device("CPU:0")
    monkeypatch.setenv("MEMCFG_MEMORY_LIMIT", "GPU:0=8MiB")
    config.logical_device("CPU:0")
    assert config.get_memory_limit("GPU:0") == 8 * MIB


def test_without_pycuda_there_is_none(monkeypatch):
    gpus.find_none(monkeypatch, driver_path())
    pycuda = ModuleType("pycuda")
    pycuda.__spec__ = ModuleSpec("pycuda", None)
    for module in (None, pycuda):
        monkeypatch.setitem(sys.modules, "pycuda", module)
        config.reset()
        if module is not None:
            assert len(config.list_physical_devices("GPU")) == 1
            continue
        assert config.list_physical_devices("GPU") == []
        with pytest.raises(ValueError, match=r"pycuda.*: `pip install pycuda`"):
            config.logical_device("GPU:0")


def test_hidden_gpus_stay_hidden(gpu, cpu):
    config.reset()
    config.set_visible_devices([], "GPU")
    assert config.list_logical_devices("GPU") == []
    assert config.list_physical_devices("GPU") == [gpu]
    assert config.list_logical_devices() == config.list_logical_devices("CPU")
    assert config.get_visible_devices() == [cpu]


def test_it_stands_in_every_listing(gpu, cpu):
    assert gpu.name == "/physical_device:GPU:0"
    assert config.list_physical_devices() == [cpu, gpu]
    assert config.get_visible_devices("GPU") == [gpu]
    details = config.get_device_details(gpu)
    assert details["memory"] > 0
    assert len(details["compute_capability"]) == 2
    assert details["device_name"]
    simulated = config.experimental.add_simulated_device("GPU", memory="1GiB")
    assert simulated.name == "/physical_device:GPU:1"


def test_training_there_gives_the_losses_of_the_cpu(gpu):
    other, expected = fit("/CPU:0")
    model, losses = fit("/GPU:0")
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert config.get_memory_info("GPU:0")["current"] > 0
    assert config.get_memory_info("GPU:0")["peak"] == model.memory_plan.peak_bytes
    for one, two in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)
    model.close()
    other.close()
    assert config.get_memory_info("GPU:0")["current"] == 0


def test_logical_gpus_have_limits_of_their_own(gpu):
    config.set_memory_growth(gpu, True)
    config.set_logical_device_configuration(
        gpu, [Configuration(memory_limit=4), Configuration(memory_limit="3MiB")]
    )
    assert [each.name for each in config.list_logical_devices("GPU")] == [
        "/device:GPU:0",
        "/device:GPU:1",
    ]
    assert config.get_memory_limit("GPU:0") == 4 * MIB
    assert config.get_memory_limit("GPU:1") == 3 * MIB
    models = [fit(f"/GPU:{number}") for number in range(2)]
    assert models[0][1] == models[1][1]
    pool = config.logical_device("GPU:1").pool
    with pytest.raises(ResourceExhaustedError):
        pool.allocate(3 * MIB, tag="test")
    assert config.set_memory_limit("GPU:1", 2 * MIB) == 3 * MIB
    assert (
        config.memory_fraction("GPU:1")
        == 2 * MIB / (config.get_device_details(gpu)["memory"])
    )
    for model, _ in models:
        model.close()


def test_who_trains_on_the_cpu_takes_nothing_of_it(gpu, monkeypatch):
    gpus.forbid_contexts(monkeypatch)
    model, _ = fit("/CPU:0")
    assert config.get_memory_limit("CPU:0") is None
    model.close()
    config.reset()


def test_growth(gpu):
    assert config.get_memory_growth(gpu) is None
    assert config.logical_device("GPU:0").pool.growth
    assert config.get_memory_limit("GPU:0") == config.get_device_details(gpu)["memory"]
    config.reset()
    config.set_memory_growth(gpu, False)
    config.set_logical_device_configuration(gpu, [Configuration(memory_limit=16)])
    assert config.logical_device("GPU:0").pool.stats().reserved_bytes == 16 * MIB


def test_the_environment_bounds_it(gpu, monkeypatch):
    monkeypatch.setenv("MEMCFG_MEMORY_LIMIT", "GPU:0=8MiB")
    assert config.get_memory_limit("GPU:0") == 8 * MIB
    with pytest.raises(ValueError, match="MEMCFG_MEMORY_LIMIT allows"):
        config.set_memory_limit("GPU:0", "9MiB")


def test_priorities_are_those_of_the_driver(gpu):
    config.set_logical_device_configuration(
        gpu, [Configuration(memory_limit=4, experimental_priority=-1)]
    )
    assert config.logical_device("GPU:0").priority == -1
    config.reset()
    config.set_logical_device_configuration(
        gpu, [Configuration(memory_limit=4, experimental_priority=-99)]
    )
    with pytest.raises(ValueError, match="-99 is out of range"):
        config.list_logical_devices()


def test_it_can_be_hidden(gpu, cpu):
    config.set_visible_devices([], "GPU")
    assert config.list_logical_devices("GPU") == []


def test_workspace_modes_that_place_arrays_are_refused(gpu):
    with mc.device("/GPU:0"):
        model = mc.nn.Sequential([mc.nn.Input((5,)), mc.nn.Dense(1)])
        model.compile("sgd", "mean_squared_error", training_workspace_mode="none")
    x = np.ones((4, 5), np.float32)
    with pytest.raises(RuntimeError, match="workspace mode 'enabled'"):
        model.fit(x, x[:, :1], verbose=0)


def test_batches_read_ahead_lie_in_page_locked_memory(gpu):
    x = np.random.default_rng(0).standard_normal((64, 5)).astype(np.float32)
    data = mc.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(16).prefetch(2)
    losses = []
    for name in ("/CPU:0", "/GPU:0"):
        mc.nn.set_random_seed(0)
        with mc.device(name):
            model = mc.nn.Sequential([mc.nn.Input((5,)), mc.nn.Dense(1)])
            model.compile("adam", "mean_squared_error")
        losses.append(model.fit(data, epochs=2, verbose=0).history["loss"])
        model.close()
    np.testing.assert_allclose(*losses, rtol=1e-5)
    device = config.logical_device("GPU:0")
    assert device.host_pool.stats().peak_bytes > 0
    assert device.pool.stats().peak_bytes == config.get_memory_info("GPU:0")["peak"]


def test_arrays_of_a_workspace_lie_in_page_locked_memory(gpu):
    with mc.device("/GPU:0"), mc.workspace("loop") as workspace:
        array = np.ones(1000)
        assert array.sum() == 1000
        assert workspace.memory.upstream is config.logical_device().host_pool
        del array
    mc.workspaces.destroy_all_workspaces()


def test_no_workspace_is_mirrored_on_a_gpu(gpu):
    full = mc.WorkspaceConfig(mirroring="full", initial_size=64)
    pinned = config.logical_device("GPU:0").host_pool
    for resource in (None, pinned, LimitingResource(pinned, 4096)):
        with (
            mc.device("/GPU:0"),
            pytest.raises(WorkspaceConfigError, match=r"'full'.*mirroring='host_only'"),
        ):
            mc.Workspace(full, "mirrored", resource=resource)
    assert mc.list_workspaces() == []
    assert pinned.stats().current_bytes == 0
    with mc.device("/GPU:0"):
        mc.Workspace(full.replace(mirroring="host_only"), "mirrored").destroy()
    with mc.device("/CPU:0"):  # its memory is the host's
        mc.Workspace(full, "mirrored").destroy()


def test_several_gpus(gpu):
    cuda_stand_in.machine(count=2)
    config.reset()
    found = config.list_physical_devices("GPU")
    assert [each.name[-5:] for each in found] == ["GPU:0", "GPU:1"]
    for each in found:
        config.set_logical_device_configuration(each, [Configuration(memory_limit=4)])
    models = [fit(f"/GPU:{number}") for number in range(2)]
    assert models[0][1] == models[1][1]
    assert config.get_memory_info("GPU:1")["current"] > 0
    for model, _ in models:
        model.close()
    config.reset()
    config.set_visible_devices("GPU:1")
    assert [each.name for each in config.list_logical_devices()] == ["/device:GPU:0"]
    cuda_stand_in.reset()


def test_the_command_lists_it(gpu, capsys):
    assert main(["devices"]) == 0
    assert "GPU:0" in capsys.readouterr().out


# -- without one -------------------------------------------------------


def test_without_a_driver_there_is_none_and_a_sentence_says_why(no_gpu):
    assert config.list_physical_devices("GPU") == []
    why = r"There is no GPU: .*libcuda"
    with pytest.raises(ValueError, match=why):
        config.logical_device("GPU:0")
    with pytest.raises(ValueError, match=why):
        config.set_memory_growth("GPU:0", True)
    with (
        pytest.warns(RuntimeWarning, match=why),
        mc.device("/GPU:0") as found,
    ):
        assert found.name == "/device:CPU:0"
    config.set_soft_device_placement(False)
    with pytest.raises(ValueError, match=why), mc.device("/GPU:0"):
        pass
    config.reset()
    config.experimental.add_simulated_device("GPU", memory="1GiB")
    with pytest.raises(ValueError) as refused:  # noqa: PT011  (which text it has not)
        config.logical_device("GPU:7")
    assert "There is no GPU" not in str(refused.value)


def test_a_driver_that_is_named_must_be_there(monkeypatch):
    monkeypatch.setenv("MEMCFG_CUDA_LIBRARY", NONE)
    with pytest.raises(MissingDependencyError, match="MEMCFG_CUDA_LIBRARY is"):
        config.list_physical_devices()
    assert config.logical_device("CPU:0").name == "/device:CPU:0"
    for _ in range(2):
        with pytest.raises(MissingDependencyError, match="MEMCFG_CUDA_LIBRARY is"):
            config.list_logical_devices()


def test_importing_loads_nothing_of_it():
    text = (
        "import sys, memcfg, memcfg.nn, memcfg.config\n"
        "assert not [n for n in sys.modules if '.cuda._gpu' in n"
        " or '.cuda._sources' in n or 'pycuda' in n]\n"
        "assert 'libcuda' not in open('/proc/self/maps').read()\n"
    )
    subprocess.run([sys.executable, "-c", text], check=True)
