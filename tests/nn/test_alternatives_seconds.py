"""How long a refused model searches for alternatives, and how policies end in time."""

from __future__ import annotations

import math
import time
from contextlib import suppress

import pytest

import memcfg as mc
from memcfg.errors import InfeasiblePlanError

nn = mc.nn
BATCH = 24
SECONDS = 0.6  # for alternatives
LATE = 1.5  # seconds after the deadline; exact() takes more


class Alternatives:
    """Refuses any limit; plans alternatives by `plan` where share() has none."""

    name = "auto_alternatives"  # memory="auto" is no other setting to search then

    def __init__(self, plan):
        self.plan = plan
        self.asked = []  # how long alternatives could take
        self.made = []  # plans of `plan`, and how long they could still have taken

    def __call__(self, graph, limit_bytes=None):
        left = mc.plan.seconds_left()
        if left == math.inf:
            raise InfeasiblePlanError(
                "refused", smallest_limit_bytes=2**40, lower_bound_bytes=1
            )
        self.asked.append(left)
        try:
            return mc.plan.share()(graph, limit_bytes=limit_bytes)
        except InfeasiblePlanError:
            plan = self.plan(graph, limit_bytes)
        self.made.append((plan, mc.plan.seconds_left()))
        return plan


def wait(until):
    """Compute until so many seconds are left."""
    while mc.plan.seconds_left() > until:
        pass


def network(layers, policy):
    nn.set_random_seed(0)
    hidden = [nn.Dense(24, "tanh") for _ in range(layers)]
    model = nn.Sequential([nn.Input((8,)), *hidden, nn.Dense(3)])
    model.compile("sgd", "mse", memory=policy)
    return model


def refusal(policy, layers=4, part=0.85):
    """Return the refusal of a model under a part of the peak of share()."""
    (cpu,) = mc.config.list_physical_devices("CPU")
    spilling = mc.config.LogicalDeviceConfiguration(spill_to="host")
    mc.config.set_logical_device_configuration(cpu, [spilling])
    peak = network(layers, "share").plan(BATCH).peak_bytes
    mc.config.set_memory_limit("CPU:0", int(peak * part))
    with pytest.raises(InfeasiblePlanError) as caught:
        network(layers, policy).plan(BATCH)
    return caught.value


def test_without_time_nothing_is_searched():
    mc.config.set_alternatives_seconds(0)
    policy = Alternatives(mc.plan.auto())
    error = refusal(policy)
    assert error.unsearched == ("smaller batches",)
    assert error.largest_batch is None
    assert not policy.asked


def test_a_policy_is_told_how_long_it_may_take():
    assert mc.plan.seconds_left() == math.inf
    mc.config.set_alternatives_seconds(500.0)
    policy = Alternatives(mc.plan.share())
    error = refusal(policy)
    assert not error.unsearched
    assert len(policy.asked) > 1
    assert policy.asked == sorted(policy.asked, reverse=True)
    assert 500 > policy.asked[0] > policy.asked[-1] > 0
    assert mc.plan.seconds_left() == math.inf


def test_a_policy_that_ends_in_time_leaves_the_refusal_as_it_was():
    def plan(graph, limit):
        wait(0.0)
        raise TimeoutError

    mc.config.set_alternatives_seconds(SECONDS)
    error = refusal(Alternatives(plan))
    assert error.smallest_limit_bytes == 2**40
    assert "larger batches" in error.unsearched


def test_exact_ends_with_its_best_plan():
    def plan(graph, limit):
        batch = int(graph.name.split()[-1])
        if batch < 17:  # exact() proves the best plan of some of these at once
            return mc.plan.look_ahead()(graph, limit_bytes=limit)
        wait(0.2)
        return mc.plan.exact()(graph, limit_bytes=limit)

    mc.config.set_alternatives_seconds(3 * SECONDS)
    policy = Alternatives(plan)
    error = refusal(policy, 6, 0.8)
    ended, left = policy.made[-1]
    assert ended.summary.unproven
    assert ended.peak_bytes <= ended.limit_bytes
    assert left > -LATE
    assert error.largest_batch
    assert "larger batches" in error.unsearched


@pytest.mark.parametrize(
    ("make", "layers", "part"),
    [(mc.plan.checkmate, 4, 0.9), (mc.plan.checkmate_lp, 6, 0.8)],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_an_integer_program_is_not_solved_to_the_end(make, layers, part):
    limit = int(network(layers, "share").plan(BATCH).peak_bytes * part)
    mc.config.set_memory_limit("CPU:0", limit)
    began = time.perf_counter()
    with suppress(InfeasiblePlanError):
        network(layers, make()).plan(BATCH - 1)  # which does not fit by share()
    took = time.perf_counter() - began
    mc.config.set_memory_limit("CPU:0", None)
    lefts = []

    def plan(graph, limit):
        wait(took / 8)
        try:
            return make()(graph, limit_bytes=limit)
        finally:
            lefts.append(mc.plan.seconds_left())

    mc.config.set_alternatives_seconds(took)
    error = refusal(Alternatives(plan), layers, part)
    assert min(lefts) > -took / 4
    assert error.unsearched


@pytest.mark.parametrize(
    ("inner", "kind", "text"),
    [
        (mc.plan.auto(time_limit=1000), InfeasiblePlanError, "ended before a plan"),
        (mc.plan.look_ahead(), TimeoutError, "takes longer"),
        (mc.plan.checkmate(), TimeoutError, "takes longer"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_search_that_was_ended_is_not_taken_for_a_proof(inner, kind, text):
    errors = []

    def plan(graph, limit):
        wait(0.0)
        try:
            return inner(graph, limit_bytes=limit)
        except kind as error:
            errors.append(str(error))
            raise

    mc.config.set_alternatives_seconds(SECONDS)
    error = refusal(Alternatives(plan))
    assert text in errors[0]
    assert "larger batches" in error.unsearched
