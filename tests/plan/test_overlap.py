"""Plans whose collectives run beside compute: times, orders, limits."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from data_parallel import data_parallel
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import chain, noisy
from plan_mutations import with_collectives, with_statistics
from plan_oracle import check
from swapping import Swapping
from training_graphs import typed_step

from memcfg.errors import InfeasiblePlanError
from memcfg.graph import Graph, Link, Op, Tensor
from memcfg.plan import (
    Compute,
    Start,
    SwapOut,
    Wait,
    auto,
    overlap_collectives,
    share,
    simulate,
    sqrt_checkpoint,
    time_lower_bound,
    validate,
    validate_ranks,
)

SEEDS = st.integers(0, 2**32 - 1)
UNIT = 4096  # bytes of each tensor


def layers(count: int, collective: float, *, update: float = 0.5) -> Graph:
    """`count` layers of one second, whose gradients are summed in `collective` each.

    Each update stands right behind the sum that it reads.
    """
    tensors: list[Tensor] = []
    ops: list[Op] = []

    def add(name, role, nbytes=UNIT):
        tensors.append(Tensor(name, nbytes, role))
        return len(tensors) - 1

    def run(name, phase, inputs, outputs, seconds=1.0, kind="", **fields):
        ops.append(
            Op(name, kind or name, phase, inputs, outputs, seconds=seconds, **fields)
        )

    x = [add("x0", "input")]
    weights = [add(f"w{i}", "parameter") for i in range(count)]
    for i, weight in enumerate(weights):
        x.append(add(f"x{i + 1}", "activation"))
        run(f"f{i}", "forward", (x[i], weight), (x[i + 1],))
    token, grad = add("token", "activation", 4), add("g", "activation_gradient")
    run("start", "backward", (), (token,), 0.0, replayable=False)
    run("loss", "backward", (x[-1],), (grad,))
    keep = []
    for i in reversed(range(count)):
        own, total = add(f"gw{i}", "gradient"), add(f"sum{i}", "gradient")
        after, new = add(f"token{i}", "activation", 4), add(f"new{i}", "parameter")
        run(f"b{i}", "backward", (x[i], grad), (own,))
        fields = {"replayable": False, "attributes": {"ranks": 2}}
        pairs = ((token, after), (own, total))
        run(
            *(f"sum{i}", "backward", (token, own), (after, total), 1e-6, "all_reduce"),
            in_place=pairs,
            **fields,
        )
        fields = {"replayable": False, "in_place": ((weights[i], new),)}
        run(f"u{i}", "update", (weights[i], total), (new,), update, **fields)
        token = after
        keep.append(new)
    link = Link(0.0, UNIT / collective)  # 2 (N - 1) / N of the bytes for 2 ranks
    return Graph("layers", tuple(tensors), tuple(ops), tuple(keep), link=link)


def starts(plan) -> int:
    return sum(isinstance(action, Start) for action in plan.actions)


def test_collectives_hide_behind_compute():
    """Of three sums of a second, two hide behind gradients, the last behind updates."""
    graph = layers(3, 1.0)
    inline = share()(graph)
    assert inline.elapsed_seconds == pytest.approx(7 + 3 * 1.0 + 3 * 0.5)
    plan = auto()(graph)
    validate(graph, plan)
    check(graph, plan)
    assert starts(plan) == 3
    assert plan.predicted.seconds == pytest.approx(7 + 3 * 0.5)
    assert plan.predicted.stall_seconds == pytest.approx(0.0)
    assert plan.gap == pytest.approx(0.0)


def test_waiting_for_a_slow_network_is_exact():
    """Sums of two seconds each: the network is busy from the first gradient on."""
    graph = layers(4, 2.0, update=0.0)
    plan = auto()(graph)
    validate(graph, plan)
    first = 4 + 1 + 1  # forward, loss and the first gradient
    assert plan.elapsed_seconds == pytest.approx(first + 4 * 2.0)
    stall = plan.elapsed_seconds - plan.predicted.seconds
    assert plan.predicted.stall_seconds == pytest.approx(stall) == pytest.approx(5.0)
    assert "compute waits for ops beside it" in str(plan)
    assert "2 ops run beside compute" in str(plan)  # nothing is left for the last


def test_what_a_link_takes():
    """Latency, and the bytes that a rank sends: Thakur et al., 2005, table 1."""

    def seconds(kind, inputs, outputs, link, **attributes):
        tensors = (Tensor("t", 4, "input"), *(Tensor("a", n, "input") for n in inputs))
        made = (Tensor("t", 4, "output"), *(Tensor("b", n, "output") for n in outputs))
        numbers = range(len(tensors) + len(made))
        op = Op(
            *("c", kind, "forward", tuple(numbers[: len(tensors)])),
            tuple(numbers[len(tensors) :]),
            attributes=attributes,
        )
        graph = Graph("g", (*tensors, *made), (op,), link=link)
        return simulate(graph, share()(graph)).elapsed_seconds

    link = Link(0.5, 100.0)
    sent = {
        ("all_reduce", (400, 400), (400, 400)): 2 * 3 / 4 * 800,
        ("reduce_scatter", (400,), (100,)): 3 / 4 * 400,
        ("all_gather", (100,), (400,)): 3 / 4 * 400,
        ("broadcast", (400,), (400,)): 400,
    }
    for (kind, inputs, outputs), nbytes in sent.items():
        took = seconds(kind, inputs, outputs, link, ranks=4)
        assert took == pytest.approx(0.5 + nbytes / 100)
        if kind in ("reduce_scatter", "all_gather", "broadcast"):  # from a file
            assert seconds(kind, inputs, outputs, link) == pytest.approx(took)
    many = seconds("all_reduce", (400,), (400,), link)
    assert many == pytest.approx(0.5 + 8)
    assert seconds("broadcast", (400,), (400,), Link(0.5, 0)) == 0.5
    assert 0 < seconds("broadcast", (400,), (400,), None) < 0.5  # nominal


def test_the_clock_of_a_plan_runs_collectives_in_order():
    graph = layers(2, 1.5, update=0.0)
    plan = auto()(graph)
    found = [each for each in simulate(graph, plan).schedule if each.queue == "network"]
    assert [graph.ops[plan.actions[e.action].op].name for e in found] == [
        "sum1",
        "sum0",
    ]
    (first, second) = found
    assert first.begin == pytest.approx(4.0)
    assert second.begin == pytest.approx(first.end) == pytest.approx(5.5)
    assert second.end == pytest.approx(7.0) == pytest.approx(plan.elapsed_seconds)


def test_tight_limits_keep_collectives_in_between():
    """Never slower than in between, and never above the limit."""
    graph = layers(5, 1.5)
    free = auto()(graph)
    lowest = share()(graph)
    assert free.peak_bytes > lowest.peak_bytes
    times = []
    for limit in range(lowest.peak_bytes, free.peak_bytes + UNIT, UNIT // 2):
        plan = auto()(graph, limit)
        validate(graph, plan)
        assert plan.peak_bytes <= limit
        times.append(plan.elapsed_seconds)
        assert times[-1] <= share()(graph, limit).elapsed_seconds + 1e-9
    assert times[-1] == pytest.approx(free.elapsed_seconds)
    assert times[0] > times[-1]


def test_a_plan_that_starts_collectives_stays_as_it_is():
    graph = layers(3, 1.0)
    plan = auto()(graph)
    assert overlap_collectives(graph, plan) is plan
    plain = chain(2, 1, 4, 2)
    plan = share()(plain)
    assert overlap_collectives(plain, plan) is plan
    nowhere = layers(1, 1.0, update=0.0)  # nothing to run beside
    plan = share()(nowhere)
    assert overlap_collectives(nowhere, plan) is plan


def test_the_first_plan_that_fits_is_not_improved():
    graph = layers(3, 1.0)
    assert starts(replace(auto(), first=True)(graph)) == 0


def test_traced_steps_overlap_within_limits():
    graph = data_parallel(noisy(3, 1, 4, 2), "g", 4, Link(1e-6, 1e9))
    plan = auto()(graph)
    validate(graph, plan)
    check(graph, plan)
    assert starts(plan) > 2
    assert plan.elapsed_seconds < share()(graph).elapsed_seconds
    ranks = [data_parallel(noisy(3, 1, 4, 2), f"g{rank}", 4) for rank in range(4)]
    validate_ranks(ranks, [plan, share()(ranks[1]), plan, auto()(ranks[3])])
    for policy in (share(), sqrt_checkpoint()):
        inline = policy(graph)
        made = overlap_collectives(graph, inline)
        validate(graph, made)
        assert made.method == policy.name
        assert made.summary.by_role


def test_gathering_runs_ahead_of_its_readers():
    """Weights in parts: the next one is gathered while a layer computes."""
    tensors = [Tensor("x0", UNIT, "input"), Tensor("t0", 4, "input")]
    ops, x, token = [], 0, 1
    for i in range(4):
        first = len(tensors)
        tensors += [
            Tensor(f"part{i}", UNIT // 2, "parameter"),
            Tensor(f"t{i + 1}", 4, "activation"),
            Tensor(f"w{i}", UNIT, "activation"),
            Tensor(f"x{i + 1}", UNIT, "activation"),
        ]
        part, after, whole, y = range(first, first + 4)
        ops.append(
            Op(
                *(f"gather{i}", "all_gather", "forward", (token, part)),
                (after, whole),
                replayable=False,
                in_place=((token, after),),
                attributes={"ranks": 2},
            )
        )
        ops.append(Op(f"f{i}", "f", "forward", (x, whole), (y,), seconds=1.0))
        token, x = after, y
    link = Link(0.0, UNIT / 2)  # half of a weight is sent: a second
    graph = Graph("sharded", tuple(tensors), tuple(ops), (x,), link=link)
    inline = share()(graph)
    assert inline.elapsed_seconds == pytest.approx(8.0)
    plan = auto()(graph)
    validate(graph, plan)
    check(graph, plan)
    assert plan.elapsed_seconds == pytest.approx(5.0)
    # one more weight is there than in between
    assert auto()(graph, inline.peak_bytes + UNIT).elapsed_seconds == pytest.approx(5.0)


def test_lower_bounds_of_time_are_below():
    for collective in (0.1, 1.0, 3.0):
        graph = layers(4, collective)
        for limit in (None, share()(graph).peak_bytes):
            plan = auto()(graph, limit)
            assert plan.gap is not None
            least = plan.elapsed_seconds / (1 + plan.gap)
            assert least >= time_lower_bound(graph, limit) - 1e-9
            assert least >= 4 * collective - 1e-9


def seconds_in_order(graph, order):
    """When a step ends if collectives are started in order, and waited for late."""
    now = free = 0.0
    there = {}  # tensor -> when it is there
    for index in order:
        op = graph.ops[index]
        ready = max([there.get(tensor, 0.0) for tensor in op.inputs], default=0.0)
        if op.type == "all_gather":
            sent = sum(graph.tensors[tensor].nbytes for tensor in op.outputs[1:]) / 2
            begin = max(now, free, ready)
            free = begin + graph.link.seconds + sent / graph.link.bytes_per_second
            there |= dict.fromkeys(op.outputs, free)
        else:
            now = max(now, ready) + op.seconds
            there |= dict.fromkeys(op.outputs, now)
    return max(now, free)


def orders(graph, order=()):
    """All orders of the ops that their operands allow."""
    made = {tensor for op in graph.ops for tensor in op.outputs}
    there = {tensor for index in order for tensor in graph.ops[index].outputs}
    if len(order) == len(graph.ops):
        yield order
    for index, op in enumerate(graph.ops):
        if index not in order and made.intersection(op.inputs) <= there:
            yield from orders(graph, (*order, index))


def small_step(chance):
    """Up to 7 ops, of which some gather, that read what was made before."""
    tensors, ops = [Tensor("x", UNIT, "input")], []
    for number in range(chance.randint(2, 7)):
        before = [t for t, tensor in enumerate(tensors) if tensor.nbytes == UNIT]
        reads = chance.sample(before, min(len(before), chance.randint(1, 2)))
        gathers = chance.random() < 0.45
        tensors += [Tensor(f"token{number}", 0, "activation")] * gathers
        tensors.append(Tensor(f"t{number}", UNIT, "activation"))
        outputs = tuple(range(len(tensors) - 1 - gathers, len(tensors)))
        of = {"attributes": {"ranks": 2}} if gathers else {}
        kind = "all_gather" if gathers else "f"
        seconds = 0.0 if gathers else float(chance.randint(1, 4))
        ops.append(
            Op(
                *(f"op{number}", kind, "forward", tuple(reads), outputs),
                seconds=seconds,
                **of,
            )
        )
    link = Link(chance.choice([0.0, 0.5]), UNIT / chance.choice([1.0, 4.0, 8.0]))
    made = {tensor for op in ops for tensor in op.outputs if tensors[tensor].nbytes}
    return Graph("small", tuple(tensors), tuple(ops), tuple(sorted(made)), link=link)


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS)
def test_no_order_is_faster_than_the_bound(seed):
    """All orders of small steps; with `seconds_in_order`, an oracle of its own."""
    graph = small_step(random.Random(seed))
    if not any(op.seconds for op in graph.ops):
        return
    least = min(seconds_in_order(graph, order) for order in orders(graph))
    plan = auto()(graph)
    validate(graph, plan)
    assert plan.elapsed_seconds >= least * (1 - 1e-9)
    assert plan.elapsed_seconds / (1 + plan.gap) <= least * (1 + 1e-9)


@pytest.mark.parametrize("collective", [0.5, 1.0, 2.0, 4.0])
def test_the_bound_is_what_a_slow_link_takes(collective):
    """Sums begin behind the first gradient, and the last one behind the last."""
    graph = layers(4, collective, update=0.0)
    plan = auto()(graph)
    wanted = max(4 + 1 + 1 + 4 * collective, 4 + 1 + 4 + collective)
    assert plan.elapsed_seconds == pytest.approx(wanted)
    assert plan.gap == pytest.approx(0.0)


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS)
def test_random_steps_are_right_and_no_slower(seed):
    chance = random.Random(seed)
    step = typed_step(chance.randrange(10**6), chance.randint(1, 8))
    graph = with_collectives(with_statistics(step, chance), chance)
    inline = share()(graph)
    limit = chance.choice([None, inline.peak_bytes, inline.peak_bytes * 5 // 4])
    for policy in (share(), auto()):
        try:
            plan = overlap_collectives(graph, policy(graph, limit))
        except InfeasiblePlanError:
            continue
        validate(graph, plan)
        check(graph, plan)
        assert limit is None or plan.peak_bytes <= limit
        assert plan.elapsed_seconds <= inline.elapsed_seconds * (1 + 1e-9)
        cost = simulate(graph, plan)
        assert cost.elapsed_seconds == pytest.approx(plan.elapsed_seconds)
        assert cost.peak_bytes == plan.peak_bytes


def test_copies_and_collectives_go_together():
    graph = data_parallel(noisy(2, 1, 4, 2), "g", 2, Link(0.0, 1e6), hoisted=False)
    inline = Swapping()(graph)
    plan = overlap_collectives(graph, inline)
    kinds = {type(action) for action in plan.actions}
    assert {Start, SwapOut, Wait, Compute} <= kinds
    validate(graph, plan)
    check(graph, plan)
    assert plan.elapsed_seconds < simulate(graph, inline).elapsed_seconds
