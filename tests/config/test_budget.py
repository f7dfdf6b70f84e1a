"""One limit for a program, and shares of it."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import memcfg as mc
import memcfg.nn  # its constants are no part of a budget
from memcfg.errors import InfeasiblePlanError, ResourceExhaustedError

MIB = 2**20
CPU = "CPU:0"


def limit():
    return mc.config.get_memory_limit(CPU)


def ones(nbytes):
    return np.ones(nbytes, np.uint8)


def network():
    model = mc.nn.Sequential([mc.nn.Input((64,)), mc.nn.Dense(512), mc.nn.Dense(2)])
    loss = mc.nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    return model


def data(samples=256):
    return np.ones((samples, 64), np.float32), np.arange(samples) % 2


# The limit


def test_numpys_arrays_count_and_what_does_not_fit_is_our_error():
    def run(budget):
        with budget:
            array = ones(3 * MIB)
            assert mc.memory.owner_of(array) is mc.config.logical_device(CPU).pool
            assert budget.in_use_bytes == 3 * MIB
            ones(6 * MIB)

    with pytest.raises(ResourceExhaustedError) as caught:
        run(mc.budget("8MiB"))
    assert caught.value.limit_bytes == 8 * MIB
    assert limit() is None


def test_models_count_and_are_planned_within_it():
    x, y = data()
    with mc.budget("2MiB") as budget:
        model = network()
        model.fit(x, y, verbose=0)
        assert mc.config.get_memory_info(CPU)["peak"] <= 2 * MIB
        assert 0 < budget.in_use_bytes <= budget.limit_bytes
        assert model.predict(x, verbose=0).shape == (256, 2)


def test_a_model_that_does_not_fit_says_so_before_it_runs():
    x, y = data()
    with mc.budget("256KiB"):
        with pytest.raises(InfeasiblePlanError) as caught:
            network().fit(x, y, verbose=0)
        assert caught.value.limit_bytes == 256 * 1024
    with mc.budget(caught.value.smallest_limit_bytes + MIB):
        network().fit(x, y, verbose=0)


@pytest.mark.parametrize("before", [None, 64 * MIB])
def test_the_limit_before_comes_back(before):
    mc.config.set_memory_limit(CPU, before)
    with mc.budget("32MiB"):
        assert limit() == 32 * MIB
    assert limit() == before
    with pytest.raises(ZeroDivisionError), mc.budget("32MiB"):
        raise ZeroDivisionError
    assert limit() == before


def test_of_nested_budgets_the_smallest_holds():
    mc.config.set_memory_limit(CPU, "64MiB")
    with mc.budget("128MiB") as outer:
        assert outer.limit_bytes == limit() == 64 * MIB
        with mc.budget("16MiB"), mc.budget("32MiB") as inner:
            assert inner.limit_bytes == outer.limit_bytes == limit() == 16 * MIB
        assert limit() == 64 * MIB


def test_budgets_of_threads_may_overlap():
    begun, ended = threading.Event(), threading.Event()

    def other():
        with mc.budget("16MiB"):
            begun.set()
            ended.wait(60)

    thread = threading.Thread(target=other)
    with mc.budget("32MiB"):
        thread.start()
        begun.wait(60)
        assert limit() == 16 * MIB
    assert limit() == 16 * MIB
    ended.set()
    thread.join(60)
    assert limit() is None


def test_one_that_is_more_than_the_machine_has_warns():
    total = mc.config.get_device_details(mc.config.list_physical_devices(CPU[:3])[0])
    with (
        pytest.warns(RuntimeWarning, match="limits nothing"),
        mc.budget(total["memory"] + 1),
    ):
        ones(MIB)


def test_one_that_is_less_than_is_in_use_changes_nothing():
    with mc.budget("32MiB"):
        array = ones(8 * MIB)
        with pytest.raises(ResourceExhaustedError), mc.budget("8388607B"):
            pytest.fail("it was entered")
        assert limit() == 32 * MIB
        assert mc.memory.owner_of(ones(64)) is mc.memory.owner_of(array)
        with mc.budget("8MiB"), pytest.raises(MemoryError):
            ones(64)


def test_arrays_outlive_the_block():
    with mc.budget("8MiB"):
        array = ones(MIB)
    assert mc.config.get_memory_info(CPU)["current"] == MIB
    assert array.sum() == MIB
    del array
    assert mc.config.get_memory_info(CPU)["current"] == 0
    assert mc.memory.owner_of(ones(64)) is None


def test_meanwhile_the_limit_cannot_be_set():
    with mc.budget("8MiB"):
        for call in (mc.config.set_memory_limit, mc.config.memory_fraction):
            with pytest.raises(RuntimeError, match="that of a budget"):
                call(CPU, 0.5 if call is mc.config.memory_fraction else "4MiB")
        assert limit() == 8 * MIB
    mc.config.set_memory_limit(CPU, "4MiB")


def test_meanwhile_nothing_is_reset():
    with mc.budget("16MiB"):
        with pytest.raises(RuntimeError, match="budget limits /device:CPU:0"):
            mc.config.reset()
        assert limit() == 16 * MIB
        with pytest.raises(MemoryError):
            ones(17 * MIB)
    mc.config.reset()


def test_another_cpu_may_be_meant():
    cpu = mc.config.list_physical_devices("CPU")[0]
    two = [mc.config.LogicalDeviceConfiguration(memory_limit=n) for n in (32, 64)]
    mc.config.set_logical_device_configuration(cpu, two)
    with mc.device("CPU:1"), mc.budget("16MiB"):
        assert mc.config.get_memory_limit("CPU:1") == 16 * MIB
        assert limit() == 32 * MIB
        ones(MIB)
        assert mc.config.get_memory_info("CPU:1")["peak"] >= MIB
    assert mc.config.get_memory_limit("CPU:1") == 64 * MIB


# Threads, tasks, forks


def test_a_thread_counts_its_arrays_inside_a_decorated_function():
    held = mc.budget("8MiB")
    with mc.budget("8MiB") as budget, ThreadPoolExecutor(1) as threads:
        plain = threads.submit(ones, MIB).result()
        assert budget.in_use_bytes == 0
        counted = threads.submit(held(ones), MIB).result()
        assert budget.in_use_bytes == MIB
        with pytest.raises(ResourceExhaustedError):
            threads.submit(held(ones), 8 * MIB).result()
    assert len(plain) == len(counted)
    assert limit() is None


def test_tasks_that_are_started_inside_count():
    async def task():
        return ones(MIB)

    async def main(budget):
        arrays = await asyncio.gather(task(), task())
        return budget.in_use_bytes, len(arrays)

    with mc.budget("8MiB") as budget:
        assert asyncio.run(main(budget)) == (2 * MIB, 2)


def test_coroutines_are_decorated_and_generators_are_not():
    @mc.budget("4MiB")
    async def task(nbytes):
        await asyncio.sleep(0)
        return len(ones(nbytes)), limit()

    def generator():
        yield ones(MIB)

    async def asynchronous():
        yield ones(MIB)

    assert asyncio.iscoroutinefunction(task)
    assert asyncio.run(task(MIB)) == (MIB, 4 * MIB)
    with pytest.raises(MemoryError):
        asyncio.run(task(5 * MIB))
    assert limit() is None
    for function in (generator, asynchronous):
        with pytest.raises(TypeError, match=f"function '{function.__name__}'"):
            mc.budget("4MiB")(function)


def test_the_limit_holds_in_all_threads():
    pool = mc.config.logical_device(CPU).pool
    with mc.budget("8MiB"), ThreadPoolExecutor(1) as threads:
        error = threads.submit(pool.allocate, 9 * MIB).exception()
    assert isinstance(error, ResourceExhaustedError)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_keeps_the_limit():
    with mc.budget("8MiB"):
        child = os.fork()
        if child == 0:
            try:
                ones(4 * MIB)
                ones(9 * MIB)
            except MemoryError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


# Misuse


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (None, TypeError),
        (True, TypeError),
        (1.5, TypeError),
        (0, ValueError),
        (-1, ValueError),
        ("much", ValueError),
        ("200%", ValueError),
    ],
)
def test_what_is_no_size_is_refused(given, error):
    with pytest.raises(error):
        mc.budget(given)
    with mc.budget("8MiB") as budget, pytest.raises(error), budget.share(given):
        pytest.fail("it was entered")


def test_few_bytes_warn():
    with pytest.warns(RuntimeWarning, match="MiB"):
        budget = mc.budget(64)
    budget(ones)


def test_one_that_is_never_entered_warns():
    with pytest.warns(RuntimeWarning, match="never entered"):
        mc.budget("8MiB")


def test_one_that_could_not_be_made_says_so_once(monkeypatch):
    dropped = []
    monkeypatch.setattr("sys.unraisablehook", dropped.append)
    for wrong in ((), ("lots",), (None,), ("8MiB", "CPU:0")):
        with pytest.raises((TypeError, ValueError)):
            mc.budget(*wrong)
    assert dropped == []


def test_it_may_be_entered_again_but_not_twice():
    budget = mc.budget("8MiB")
    for _ in range(2):
        with budget:
            with pytest.raises(RuntimeError, match="already entered"):
                budget.__enter__()
            assert limit() == 8 * MIB
    for use in (
        lambda: budget.limit_bytes,
        lambda: budget.in_use_bytes,
        lambda: budget.share("1MiB").__enter__(),
    ):
        with pytest.raises(RuntimeError, match="not entered"):
            use()
    assert "not entered" in repr(budget)


# Shares


def test_a_share_is_taken_from_the_rest_and_comes_back():
    with mc.budget("16MiB") as budget:
        with budget.share("4MiB") as device:
            assert budget.limit_bytes == 12 * MIB
            assert mc.config.get_memory_limit(device) == 4 * MIB
            assert device in mc.config.list_logical_devices("CPU")
            array = ones(3 * MIB)
            assert mc.config.get_memory_info(device)["current"] == 3 * MIB
            assert budget.in_use_bytes == 0
            with pytest.raises(MemoryError):
                ones(2 * MIB)
            del array
        assert budget.limit_bytes == 16 * MIB
        assert device not in mc.config.list_logical_devices("CPU")
        with budget.share("25%") as another:
            assert mc.config.get_memory_limit(another) == 4 * MIB
            assert another.name != device.name  # for who still has the old one


def test_a_refused_share_names_the_largest_one():
    with mc.budget("16MiB") as budget:
        array = ones(4 * MIB)
        with budget.share("2MiB"):
            with (
                pytest.raises(ResourceExhaustedError) as caught,
                budget.share("16MiB"),
            ):
                pytest.fail("it was entered")
            largest = caught.value.largest_free_bytes
            assert f"{largest} B" in caught.value.hint
            with pytest.raises(ResourceExhaustedError), budget.share(largest + 64):
                pytest.fail("it was entered")
            with budget.share(largest), pytest.raises(ResourceExhaustedError):
                mc.config.logical_device(CPU).pool.allocate(128)
            assert budget.limit_bytes == 14 * MIB
        assert array.sum() == 4 * MIB


def test_trials_in_threads_cannot_take_memory_of_others():
    x, y = data()
    gate = threading.Barrier(3, timeout=60)

    def trial(budget, size):
        with budget.share(size) as device:
            gate.wait()
            model = network()
            try:
                model.fit(x, y, batch_size=64, epochs=3, verbose=0)
            finally:
                model.close()
            assert mc.config.get_memory_info(device)["peak"] <= size
            return model.name

    with mc.budget("8MiB") as budget, ThreadPoolExecutor(3) as threads:
        trials = [threads.submit(trial, budget, n) for n in (MIB, 2 * MIB, 200_000)]
        assert [each.exception() is None for each in trials] == [True, True, False]
        assert isinstance(trials[2].exception(), InfeasiblePlanError)
        trials.clear()  # errors keep frames
        with budget.share("7MiB"):
            assert budget.limit_bytes == MIB


def test_what_outlives_a_share_keeps_its_part():
    with mc.budget("16MiB") as budget:
        with budget.share("8MiB"):
            array = ones(MIB)
        assert budget.limit_bytes == 15 * MIB
        with budget.share("8MiB"):
            pass
        assert budget.limit_bytes == 15 * MIB
        assert array.sum() == MIB
        del array
        with budget.share("8MiB"):
            pass
        assert budget.limit_bytes == 16 * MIB


def test_a_share_may_outlive_its_budget():
    begun, ended = threading.Event(), threading.Event()

    def other(budget):
        with budget.share("8MiB"):
            begun.set()
            ended.wait(60)
            return ones(MIB).sum()

    mc.config.set_memory_limit(CPU, "32MiB")
    with ThreadPoolExecutor(1) as threads:
        with mc.budget("16MiB") as budget:
            thread = threads.submit(other, budget)
            begun.wait(60)
            assert limit() == 8 * MIB
        assert limit() == 24 * MIB
        ended.set()
        assert thread.result() == MIB
    assert limit() == 32 * MIB


def test_a_limit_may_be_set_while_what_outlives_a_share_keeps_its_part():
    with mc.budget("16MiB") as budget, budget.share("8MiB"):
        array = ones(MIB)
    assert mc.config.set_memory_limit(CPU, "12MiB") is None
    assert limit() == 11 * MIB
    assert mc.config.set_memory_limit(CPU, "10MiB") == 12 * MIB
    with mc.budget("6MiB"):
        assert limit() == 5 * MIB
    assert limit() == 9 * MIB
    with pytest.raises(ResourceExhaustedError, match="1048640 B"):
        mc.config.set_memory_limit(CPU, "1MiB")
    assert limit() == 9 * MIB
    assert array.sum() == MIB
    del array
    assert mc.config.set_memory_limit(CPU, None) == 10 * MIB
    assert limit() is None


def test_a_budget_that_leaves_nothing_beside_shares_changes_nothing():
    with mc.budget("16MiB") as budget, budget.share("8MiB") as device:
        with mc.device(CPU):
            for nbytes in (MIB, 8 * MIB):
                with pytest.raises(ResourceExhaustedError) as caught, mc.budget(nbytes):
                    pytest.fail("it was entered")
                assert f"{8 * MIB + 64} B" in caught.value.hint
                assert caught.value.owners == {f"share {device.name}": 8 * MIB}
                assert limit() == 8 * MIB
            with mc.budget(8 * MIB + 64):
                assert limit() == 64
        assert mc.config.get_memory_limit(device) == 8 * MIB
    assert limit() is None


@pytest.mark.parametrize("nbytes", [8 * MIB, 9 * MIB, 10 * MIB - 64])
def test_what_a_refusal_beside_shares_names_is_enough(nbytes):
    with mc.budget("16MiB") as budget:
        array = ones(2 * MIB)
        with budget.share("8MiB"), mc.device(CPU):
            with pytest.raises(ResourceExhaustedError) as caught, mc.budget(nbytes):
                pytest.fail("it was entered")
            assert caught.value.requested_bytes == nbytes
            least = caught.value.in_use_bytes
            assert f"{least} B" in caught.value.hint
            with mc.budget(least):
                assert limit() == 2 * MIB
        assert array.sum() == 2 * MIB
