from __future__ import annotations

import threading
import warnings

import pytest

from memcfg import config
from memcfg.config import LogicalDevice, LogicalDeviceConfiguration


@pytest.fixture
def three(cpu):
    config.set_logical_device_configuration(cpu, [LogicalDeviceConfiguration()] * 3)
    return config.list_logical_devices()


class TestDeviceBlock:
    def test_the_innermost_block_chooses(self, three):
        second = three[1]
        assert config.logical_device().name == "/device:CPU:0"
        with config.device(second) as chosen:
            assert chosen == second
            assert config.logical_device().name == second.name
            with config.device("/CPU:2"):
                assert config.logical_device().name == "/device:CPU:2"
            assert config.logical_device() is config.logical_device(second.name)
        assert config.logical_device().name == "/device:CPU:0"

    def test_an_error_inside_ends_the_block(self, three):
        with pytest.raises(KeyError), config.device(three[1]):
            raise KeyError
        assert config.logical_device().name == "/device:CPU:0"

    def test_hardware_stands_for_its_only_logical_device(self, gpus):
        with config.device(gpus[1]) as chosen:
            assert chosen == LogicalDevice("/device:GPU:1", "GPU")

    @pytest.mark.usefixtures("three")
    def test_a_wrong_name_is_refused_at_the_door(self, cpu):
        for wrong, words in ((cpu, "Multiple"), ("CPU", "Multiple"), ("x", "Failed")):
            with pytest.raises(ValueError, match=words), config.device(wrong):
                pytest.fail("the block was entered")
        with pytest.raises(TypeError), config.device(0):
            pytest.fail("the block was entered")

    @pytest.mark.usefixtures("three")
    def test_another_thread_does_not_see_the_choice(self):
        seen = []
        with config.device("CPU:1"):
            thread = threading.Thread(
                target=lambda: seen.append(config.logical_device().name)
            )
            thread.start()
            thread.join()
        assert seen == ["/device:CPU:0"]


def placed(name):
    """Name the device that a block on `name` chooses."""
    with config.device(name) as chosen:
        assert config.logical_device().name == chosen.name
        return chosen.name


class TestSoftPlacement:
    # [T] "Soft placement default True in eager; toggles after init."
    def test_it_is_on_by_default_and_can_change_after_first_use(self):
        assert config.get_soft_device_placement() is True
        config.list_logical_devices()
        config.set_soft_device_placement(False)
        assert config.get_soft_device_placement() is False
        config.set_soft_device_placement(True)
        assert config.get_soft_device_placement() is True

    # [T] "with soft placement, CPU:2 falls back to CPU:0"
    def test_a_missing_device_falls_back_with_one_warning(self, cpu):
        config.set_logical_device_configuration(cpu, [LogicalDeviceConfiguration()] * 2)
        with pytest.warns(RuntimeWarning, match="set_soft_device_placement") as caught:
            found = [placed("CPU:2") for _ in range(3)]
        assert found == ["/device:CPU:0"] * 3
        assert len(caught) == 1
        assert "'CPU:2'" in str(caught[0].message)
        assert caught[0].filename == __file__

    def test_each_missing_device_is_told_once(self):
        names = ("GPU:0", "TPU:0", "GPU:0", "/device:GPU:0", "/GPU:0")
        with pytest.warns(RuntimeWarning, match="so /device:CPU:0") as caught:
            found = [placed(name) for name in names]
        assert found == ["/device:CPU:0"] * 5
        assert [str(w.message).split("'")[1] for w in caught] == ["GPU:0", "TPU:0"]

    # [T] tf.device: "Unknown attribute 'cuda' is encountered"; a type that TensorFlow
    # does not have is no missing device
    @pytest.mark.parametrize(
        ("name", "told"),
        [
            ("cuda:0", "Write '/GPU:0'"),
            ("cuda:3", "Write '/GPU:3'"),
            ("cuda", "write '/GPU:0'"),
            ("CUDA", "Write '/GPU:0'"),
            ("/device:CUDA:1", "Write '/GPU:1'"),
            ("xla:0", "there are: /device:CPU:0"),
        ],
    )
    @pytest.mark.parametrize("soft", [True, False])
    def test_an_unknown_type_is_an_error(self, name, told, soft):
        config.set_soft_device_placement(soft)
        with pytest.raises(ValueError, match=told), config.device(name):
            pytest.fail("the block was entered")
        for ask in (config.get_memory_info, config.logical_device):
            with pytest.raises(ValueError, match=told):
                ask(name)
        if "/" not in name:
            with pytest.raises(ValueError, match=r"[wW]rite '/GPU|there are"):
                config.set_memory_growth(name, True)

    def test_of_cuda_it_is_said_that_there_is_no_gpu(self):
        for ask in (config.logical_device, config.get_memory_growth):
            with pytest.raises(ValueError, match=r"Write '/GPU:1'\. There is no GPU: "):
                ask("cuda:1")
        config.reset()
        config.experimental.add_simulated_device("GPU", memory="1GiB")
        with pytest.raises(ValueError, match=r"Write '/GPU:1'$"):
            config.logical_device("cuda:1")

    def test_a_simulated_type_is_known(self):
        config.experimental.add_simulated_device("XLA", memory="1GiB")
        with pytest.warns(RuntimeWarning, match="so /device:CPU:0"):
            assert placed("XLA:7") == "/device:CPU:0"
        assert placed("xla:0") == "/device:XLA:0"

    def test_case_does_not_matter(self, gpus):
        for name in ("gpu:1", "GPU:1", "/Gpu:1", "/device:gpu:1"):
            assert placed(name) == "/device:GPU:1"

    # [T] "without it, an unknown device is an error"
    def test_without_it_a_missing_device_is_an_error(self):
        config.set_soft_device_placement(False)
        with pytest.raises(ValueError, match=r"Could not satisfy.*/device:CPU:0"):  # noqa: SIM117
            with config.device("CPU:2"):
                pytest.fail("the block was entered")

    # [T] "Given a GPU made invisible and soft placement off, when placing on GPU:0,
    # then … 'Could not satisfy'."
    def test_an_invisible_device_is_missing(self, cpu, gpus):
        config.set_visible_devices(cpu)
        with pytest.warns(RuntimeWarning, match="GPU:0"), config.device("GPU:0") as it:
            assert it.name == "/device:CPU:0"
        config.set_soft_device_placement(False)
        for device in ("GPU:0", gpus[0]):
            with pytest.raises(ValueError, match="Could not satisfy"):  # noqa: SIM117
                with config.device(device):
                    pytest.fail("the block was entered")

    def test_with_the_cpu_invisible_there_is_nothing_to_fall_back_to(self, gpus):
        config.set_visible_devices(gpus[0])
        with pytest.raises(ValueError, match="Could not satisfy"), config.device("x:1"):
            pytest.fail("the block was entered")

    def test_questions_about_a_device_never_fall_back(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for ask in (
                config.get_memory_info,
                config.get_memory_usage,
                config.reset_memory_stats,
                config.memory_fraction,
                config.trim,
                config.logical_device,
                lambda device: config.set_memory_limit(device, 4096),
            ):
                with pytest.raises(ValueError, match="No matching devices"):
                    ask("GPU:0")

    @pytest.mark.parametrize("value", [None, 0, 1, "yes"])
    def test_it_is_a_bool(self, value):
        with pytest.raises(TypeError, match="soft placement"):
            config.set_soft_device_placement(value)
        assert config.get_soft_device_placement() is True


class TestReset:
    def test_everything_starts_over(self, cpu, gpus):
        config.set_logical_device_configuration(cpu, [LogicalDeviceConfiguration(1)])
        config.set_memory_growth(gpus[0], False)
        config.set_memory_growth(gpus[1], False)
        config.set_visible_devices([cpu, gpus[0]])
        config.threading.set_inter_op_parallelism_threads(3)
        config.set_soft_device_placement(False)
        config.optimizer.set_jit(True)
        config.optimizer.set_experimental_options({"remapping": True})
        config.experimental.set_device_policy("warn")
        config.experimental.set_synchronous_execution(False)
        config.list_logical_devices()
        config.reset()
        assert config.list_physical_devices() == [cpu] == config.get_visible_devices()
        assert config.get_logical_device_configuration(cpu) is None
        assert config.threading.get_inter_op_parallelism_threads() == 0
        assert config.get_soft_device_placement() is True
        assert config.optimizer.get_jit() == ""
        assert "remapping" not in config.optimizer.get_experimental_options()
        assert config.experimental.get_device_policy() == "silent"
        assert config.experimental.get_synchronous_execution() is True
        config.set_logical_device_configuration(cpu, [LogicalDeviceConfiguration(2)])
        assert config.logical_device().pool.limit == 2**21

    def test_a_missing_device_is_warned_about_again(self):
        for _ in range(2):
            with pytest.warns(RuntimeWarning, match="GPU:3"), config.device("GPU:3"):
                pass
            config.reset()

    # row 8 of table (i): "when nothing live; else clear error listing live blocks"
    def test_while_memory_is_in_use_it_names_the_holders_and_changes_nothing(self):
        device = config.logical_device()
        block = device.pool.allocate(1000, tag="some tensor")
        other = device.pool.allocate(1000)
        try:
            with pytest.raises(RuntimeError, match=r"some tensor.*/device:CPU:0") as it:
                config.reset()
            assert "unnamed holds 1.00 KiB" in str(it.value)
            assert config.logical_device() is device
        finally:
            block.free()
            other.free()
        config.reset()
        assert config.logical_device() is not device
