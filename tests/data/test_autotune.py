"""What AUTOTUNE chooses, with a clock and a consumer that are only simulated."""

from __future__ import annotations

import random
from collections import deque
from itertools import cycle, islice, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from steps import passing

import memcfg as mc
from memcfg import memory
from memcfg.data import AUTOTUNE, Dataset, Options

# Choices are tested with a simulated clock, which a pass has not.
from memcfg.data.engine._autotune import (
    FIRST_DEPTH,
    HillClimber,
    TunedDepth,
    TunedParallelism,
)
from memcfg.data.engine._run import Budget, WaitTimer, cores, free_bytes

MIB = 1 << 20


class Pass:
    """What a tuner needs of a run."""

    def __init__(self, ram=None, cpus=None, enabled=None, size=None, limit="64MiB"):
        self.now = 0.0
        self.options = Options()
        self.options.autotune.ram_budget = ram
        self.options.autotune.cpu_budget = cpus
        self.options.autotune.enabled = enabled
        self.options.threading.private_threadpool_size = size
        self.budget = Budget(memory.Pool(limit=limit), self.options)
        self.wait_timer = WaitTimer(lambda: self.now)


def consume(run, depth, making, using, items):
    """Let a consumer use items that are made; return its waiting and the depths.

    The producer begins an item when the queue is not full. `making` are the
    seconds that items take, `using` those that the consumer uses one.
    """
    making = iter(making)
    queue, free_at, depths = deque(), 0.0, []
    waited_in_all = 0.0

    def produce(room_at):
        nonlocal free_at
        while len(queue) < depth.capacity:
            free_at = max(free_at, room_at) + next(making)
            queue.append(free_at)

    produce(0.0)
    for _ in range(items):
        waiting = sum(done <= run.now for done in queue)
        waited = max(0.0, queue[0] - run.now)
        run.now += waited
        waited_in_all += waited
        queue.popleft()
        depth.consumed(waiting, waited)
        produce(run.now)
        depths.append(depth.capacity)
        run.now += using
    return waited_in_all, depths


class Fixed:
    def __init__(self, capacity):
        self.capacity = capacity

    def consumed(self, waiting, waited):
        pass


def test_a_producer_that_is_faster_needs_one():
    run = Pass()
    _, depths = consume(run, TunedDepth(run), cycle([0.009]), 0.01, 2000)
    assert depths[-1] == 1
    assert set(depths[1000:]) == {1}


def test_nothing_helps_a_producer_that_is_slower():
    run = Pass()
    _, depths = consume(run, TunedDepth(run), cycle([0.02]), 0.01, 2000)
    assert max(depths) <= 2 * FIRST_DEPTH
    assert set(depths[1000:]) == {FIRST_DEPTH}


@pytest.mark.parametrize("period", [4, 8, 16, 32])
def test_it_grows_where_times_vary(period):
    times = [0.001] * (period - 1) + [0.008 * period]  # the mean is below the use
    run = Pass()
    waited, depths = consume(run, TunedDepth(run), cycle(times), 0.01, 8000)
    assert depths[-1] > FIRST_DEPTH
    assert set(depths[6000:]) == {depths[-1]}  # it has come to rest
    fixed = Pass()
    alone, _ = consume(fixed, Fixed(1), cycle(times), 0.01, 8000)
    assert waited < alone / 2


@given(
    seed=st.integers(0, 2**32),
    spread=st.floats(0, 3),
    ratio=st.floats(0.2, 3),
    item_bytes=st.integers(1, 4 * MIB),
    budget=st.integers(0, 64 * MIB),
)
def test_it_stays_within_the_budget_and_comes_to_rest(
    seed, spread, ratio, item_bytes, budget
):
    generator = random.Random(seed)
    times = [0.01 * ratio * generator.lognormvariate(0, spread) for _ in range(50)]
    run = Pass(ram=budget)
    depth = TunedDepth(run)
    depth.learned(item_bytes)
    _, depths = consume(run, depth, cycle(times), 0.01, 4000)
    assert max(depths[1:]) == 1 or (max(depths) + 2) * item_bytes <= budget
    changes = sum(one != other for one, other in pairwise(depths))
    assert changes <= 60  # of 4000: 4 a try, and so many tries as doublings fit


def test_bytes_that_others_hold_are_not_there():
    run = Pass(ram=10 * MIB)
    owner = Fixed(0)
    run.budget.set_held(owner, 4 * MIB)
    depth = TunedDepth(run)
    depth.learned(MIB)
    times = cycle([0.001] * 31 + [0.25])
    _, depths = consume(run, depth, times, 0.01, 4000)
    assert max(depths) == 4
    depth.learned(MIB)  # as for each item
    assert run.budget.available(depth) == 6 * MIB
    assert run.budget.available(owner) == 10 * MIB - 6 * MIB
    del owner
    _, depths = consume(run, depth, times, 0.01, 8000)
    assert max(depths) == 8


def test_items_that_become_larger():
    run = Pass(ram=10 * MIB)
    depth = TunedDepth(run)
    depth.learned(MIB)
    assert depth.capacity == FIRST_DEPTH
    depth.learned(3 * MIB)
    assert depth.capacity == 1
    depth.learned(30 * MIB)
    assert depth.capacity == 1  # there is no less


def test_items_that_lie_elsewhere_count():
    run = Pass(ram=10 * MIB)
    run.budget.note_item(2 * MIB)
    depth = TunedDepth(run)
    depth.learned(0)
    _, depths = consume(run, depth, cycle([0.001] * 31 + [0.25]), 0.01, 4000)
    assert max(depths) == 3


def test_a_failed_allocation():
    run = Pass()
    depth = TunedDepth(run)
    assert depth.allocation_failed(1)
    assert depth.capacity == 1
    assert not depth.allocation_failed(0)
    assert depth.capacity == 1


def test_nothing_changes_where_it_is_switched_off():
    run = Pass(enabled=False)
    _, depths = consume(run, TunedDepth(run), cycle([0.001] * 7 + [0.08]), 0.01, 2000)
    assert set(depths) == {FIRST_DEPTH}
    tuner = TunedParallelism(run)
    work(run, tuner, lambda threads: 0.1 / threads, 300)
    assert tuner.parallelism == 1


def work(run, tuner, seconds, items, using=0.0):
    """Let a step hand on items that take some seconds with so many threads."""
    chosen = []
    for _ in range(items):
        run.wait_timer.begin()
        run.now += seconds(tuner.parallelism)
        tuner.consumed(8)
        run.wait_timer.end()
        run.now += using
        chosen.append(tuner.parallelism)
    return chosen


@pytest.mark.parametrize("cpus", [1, 2, 3, 8, 12])
def test_a_function_that_can_be_parallel_gets_the_cores(cpus):
    run = Pass(cpus=cpus)
    tuner = TunedParallelism(run)
    chosen = work(run, tuner, lambda threads: 0.1 / threads, 2000)
    assert chosen[-1] == cpus
    assert set(chosen[1000:]) == {cpus}
    assert max(chosen) == cpus


@pytest.mark.parametrize("loss", [0.9, 1.0, 1.3])
def test_a_function_that_holds_the_lock_gets_one(loss):
    run = Pass(cpus=8)
    tuner = TunedParallelism(run)
    chosen = work(run, tuner, lambda n: 0.1 * (loss if n > 1 else 1), 2000)
    assert set(chosen[1000:]) == {1}


def test_where_nobody_waits_nothing_is_parallel():
    run = Pass(cpus=8)
    tuner = TunedParallelism(run)
    assert set(work(run, tuner, lambda _: 0.0001, 1000, using=0.1)) == {1}


def test_threads_that_are_not_needed_any_more_go():
    run = Pass(cpus=4)
    tuner = TunedParallelism(run)
    assert work(run, tuner, lambda n: 0.1 / n, 1000)[-1] == 4
    assert work(run, tuner, lambda _: 0.0, 2000, using=0.1)[-1] == 1


def test_bytes_bound_the_threads_too():
    run = Pass(cpus=8, ram=3 * MIB)
    tuner = TunedParallelism(run)
    tuner.item_bytes = MIB
    run.budget.set_held(run, 2 * MIB)
    assert work(run, tuner, lambda n: 0.1 / n, 2000)[-1] > 1
    run = Pass(cpus=8, ram=0)
    tuner = TunedParallelism(run)
    tuner.item_bytes = MIB
    assert set(work(run, tuner, lambda n: 0.1 / n, 2000)) == {1}


def test_two_steps_share_the_cores():
    run = Pass(cpus=4)
    first, second = TunedParallelism(run), TunedParallelism(run)
    for _ in range(3000):
        run.wait_timer.begin()
        run.now += 0.05 / first.parallelism + 0.05 / second.parallelism
        first.consumed(8)
        second.consumed(8)
        run.wait_timer.end()
    assert first.parallelism + second.parallelism <= 4
    assert first.parallelism * second.parallelism > 1


def test_a_failed_allocation_for_threads():
    run = Pass(cpus=4)
    tuner = TunedParallelism(run)
    work(run, tuner, lambda n: 0.1 / n, 1000)
    tuner.allocation_failed()
    assert tuner.parallelism == 3


@given(data=st.data())
def test_a_number_changes_so_often_at_most(data):
    """Costs are drawn: whatever they are, changes come to an end."""
    climber = HillClimber(1, lambda value: min(2 * value, 64), lambda *_: 0.1)
    costs = data.draw(st.lists(st.sampled_from([0.0, 1.0, 2.0, 4.0]), max_size=40))
    changes, last = 0, 1
    for cost in (*costs, *islice(cycle(costs or [0.0]), 2000)):
        waiting = cost > 0
        if climber.is_trying:
            climber.end_trial(cost, waiting=waiting)
        else:
            value = climber.propose(cost, climber.value - 1, waiting=waiting)
            if value != climber.value:
                climber.begin_trial(value, cost)
        changes += climber.value != last
        last = climber.value
        assert 1 <= last <= 64
    assert changes <= 200


def test_the_budget_is_half_of_what_is_free():
    pool = memory.Pool(limit="64MiB")
    block = pool.allocate(16 * MIB)
    assert free_bytes(pool) == 48 * MIB
    budget = Budget(pool, Options())
    assert budget.ram_bytes == 24 * MIB
    block.free()
    assert budget.ram_bytes == 24 * MIB
    assert budget.cpus == cores()
    assert 0 < free_bytes(memory.Pool()) < 1 << 50


def test_threads_of_the_pass():
    run = Pass(size=3)
    one, two = Fixed(0), Fixed(0)
    assert run.budget.reserve_threads(one, 2) == 2
    assert run.budget.reserve_threads(two, 2) == 1
    assert run.budget.reserve_threads(one, 8) == 2
    del one
    assert run.budget.reserve_threads(two, 8) == 3
    assert Pass().budget.reserve_threads(two, 8) == 8


def test_one_trial_at_a_time():
    budget = Pass().budget
    one, two = Fixed(0), Fixed(0)
    assert budget.begin_trial(one)
    assert not budget.begin_trial(two)
    budget.end_trial(kept=True)
    assert budget.changes == 1
    assert budget.begin_trial(two)
    del two
    assert budget.begin_trial(one)  # who was trying is gone


def test_the_wait_timer_counts_while_the_consumer_waits():
    run = Pass()
    run.wait_timer.end()
    assert run.wait_timer.seconds() == 0
    run.wait_timer.begin()
    run.now = 1.5
    assert run.wait_timer.seconds() == 1.5
    run.wait_timer.end()
    run.now = 9.0
    assert run.wait_timer.seconds() == 1.5


def test_a_pass_tells_what_was_chosen():
    data = mc.data.Dataset.from_tensor_slices(np.zeros((2000, 4)))
    data = data.map(lambda row: row + 1, num_parallel_calls=mc.data.AUTOTUNE)
    with iter(data.batch(10).prefetch(mc.data.AUTOTUNE)) as batches:
        assert sum(len(batch) for batch in batches) == 2000
        report = batches.report()
    assert {stage.name for stage in report.stages} == {"map+batch", "prefetch"}
    assert all(stage.autotuned for stage in report.stages)
    assert "* chosen by AUTOTUNE" in str(report)


@pytest.mark.parametrize("batches", [4, 6])
@pytest.mark.parametrize("calls", [None, AUTOTUNE])
def test_a_pass_stays_within_its_budget(batches, calls):
    batch_bytes = 8 * 2**15
    options = Options()
    options.autotune.ram_budget = batches * batch_bytes
    dataset = Dataset.range(800).map(
        lambda i: np.full(2**13, i, np.float32), num_parallel_calls=calls
    )
    dataset = dataset.batch(8).prefetch(AUTOTUNE).with_options(options)
    pool = memory.Pool(limit="64MiB")
    with passing(dataset, pool) as elements:
        assert sum(len(element) for element in elements) == 800
    # Beside the buffers: the first batch, and what functions make on their way.
    assert pool.stats().peak_bytes < (batches + 2) * batch_bytes
    assert pool.stats().current_bytes == 0


def test_a_pass_goes_on_where_the_last_one_was():
    tuned_state = {"climber": (2, 1, 0.5, 1)}
    assert TunedParallelism(Pass(cpus=2), tuned_state).parallelism == 2
    assert TunedParallelism(Pass(cpus=1), tuned_state).parallelism == 1
    assert TunedParallelism(Pass(cpus=2)).parallelism == 1


def test_passes_over_a_dataset_share_what_they_learn():
    data = mc.data.Dataset.from_tensor_slices(np.zeros((300_000, 4)))
    data = data.map(lambda row: row + 1, num_parallel_calls=AUTOTUNE)
    data = data.batch(1000).prefetch(AUTOTUNE)
    for _ in range(20):  # until a period was over
        for _ in data:
            pass
        if "climber" in data._node.tuned_state.get("map+batch", {}):
            break
    assert data._node.tuned_state["map+batch"]["climber"][0] >= 1
    assert data.batch(2)._node.tuned_state == {}
