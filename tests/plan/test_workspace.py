"""Which algorithm each op takes: within what is free, within bytes, and for real."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from internals import set_kernel_seconds
from kernels import onednn
from training_graphs import chain, random_step, with_algorithms

import memcfg as mc
from memcfg.errors import InfeasiblePlanError
from memcfg.graph import Algorithm
from memcfg.plan import (
    Alias,
    Alloc,
    Compute,
    Free,
    Plan,
    keep_all,
    look_ahead,
    share,
    simulate,
    sqrt_checkpoint,
    ucudnn_wd,
    ucudnn_wr,
    validate,
    vdnn_all,
    workspace_balanced,
    workspace_dynamic,
    workspace_memory,
    workspace_performance,
    workspace_priority,
)
from memcfg.units import align_up

nn = mc.nn
STATIC = (workspace_performance, workspace_memory)
DIVIDED = (workspace_priority, workspace_balanced, ucudnn_wd)
FITTING = (workspace_dynamic, ucudnn_wr, *DIVIDED)
ALL = (*STATIC, *FITTING)
BASES = (None, keep_all(), sqrt_checkpoint(), look_ahead(), vdnn_all())
by_policy = pytest.mark.parametrize("policy", ALL, ids=lambda make: make.__name__)


def options(op):
    return [each for each in op.algorithms if each.name != "reference"]


def least(op):
    return min(options(op), key=lambda each: (each.scratch_bytes, each.seconds))


def taken(graph, plan):
    """The algorithm of each op that has a choice; the same whenever it runs."""
    found = {}
    for action in plan.actions:
        if isinstance(action, Compute) and graph.ops[action.op].algorithms:
            op = graph.ops[action.op]
            name = action.algorithm or op.algorithms[0].name
            (each,) = [a for a in op.algorithms if a.name == name]
            assert found.setdefault(action.op, each) == each
    return found


def within(policy, graph, limit):
    try:
        return policy(graph, limit)
    except InfeasiblePlanError as refusal:
        smallest = refusal.smallest_limit_bytes
    assert smallest > limit
    return policy(graph, smallest)


@by_policy
@given(seed=st.integers(0, 10**6), ops=st.integers(2, 14), base=st.sampled_from(BASES))
@settings(max_examples=25, deadline=None)
def test_plans_are_valid_within_every_limit(policy, seed, ops, base):
    graph = with_algorithms(random_step(seed, ops), seed)
    made = policy(base=base)
    limits = [None, share()(graph).peak_bytes * (5 + seed % 8) // 10 or 1]
    for limit in limits:
        plan = made(graph) if limit is None else within(made, graph, limit)
        written = Plan.from_json(plan.to_json())
        validate(graph, written)
        assert plan.method == policy.__name__
        assert plan.peak_bytes == simulate(graph, plan).peak_bytes
        assert "reference" not in {each.name for each in taken(graph, plan).values()}


@given(seed=st.integers(0, 10**6), ops=st.integers(2, 12))
@settings(max_examples=40, deadline=None)
def test_those_for_all_ops_take_the_fastest_or_the_least(seed, ops):
    graph = with_algorithms(random_step(seed, ops), seed)
    quick, small = (taken(graph, policy()(graph)) for policy in STATIC)
    for index, each in quick.items():
        rows = options(graph.ops[index])
        assert each.seconds == min(row.seconds for row in rows)
        assert small[index] == least(graph.ops[index])


# -- what is free at each moment ----------------------------------------------


def free_at(graph, plan, limit):
    """The largest free piece below the limit as each op runs: byte by byte."""
    used, where, takes, found = {}, {}, {}, {}
    state = set(graph.persistent)
    for action in plan.actions:
        match action:
            case Alloc(tensor, offset):
                used[tensor] = where[tensor] = offset
            case Alias(output, tensor):
                if tensor in state:
                    state.add(output)
                else:
                    takes[tensor] = output
            case Free(tensor):
                offset = used.pop(tensor)
                if tensor in takes:
                    used[takes.pop(tensor)] = offset
            case Compute(op):
                cells = np.zeros(limit // 64, bool)
                for tensor, offset in used.items():
                    size = align_up(graph.tensors[tensor].nbytes)
                    cells[offset // 64 : (offset + size) // 64] = True
                runs = [
                    len(list(group))
                    for full, group in itertools.groupby(cells.tolist())
                    if not full
                ]
                room = 64 * max(runs, default=0)
                found[op] = min(room, found.get(op, room))
    return found


@given(seed=st.integers(0, 10**6), ops=st.integers(2, 10), more=st.integers(0, 80))
@settings(max_examples=60, deadline=None)
def test_the_fastest_is_taken_that_the_free_bytes_hold(seed, ops, more):
    """By the bytes that are free beside the plan of least scratch."""
    graph = with_algorithms(random_step(seed, ops), seed)
    small = workspace_memory()(graph)
    limit = small.peak_bytes + 64 * more
    room = free_at(graph, workspace_memory()(graph, limit), limit)
    plan = workspace_dynamic()(graph, limit)
    validate(graph, plan)
    assert plan.peak_bytes <= limit
    for index, each in taken(graph, plan).items():
        rows = options(graph.ops[index])
        fitting = [
            row.seconds
            for row in rows
            if align_up(row.scratch_bytes) <= room[index]
            or row == least(graph.ops[index])
        ]
        assert each.seconds == min(fitting)
    assert plan.predicted.seconds <= small.predicted.seconds


def test_the_algorithm_changes_along_a_step_as_memory_fills():
    """Early layers find room that later ones have not: the same op, other choices."""
    rows = (Algorithm("quick", 1.0, 640), Algorithm("small", 3.0, 0))
    graph = chain(8, nbytes=640)
    ops = [replace(op, algorithms=rows, scratch_bytes=640) for op in graph.ops]
    graph = replace(graph, ops=tuple(ops))
    limit = workspace_memory()(graph).peak_bytes
    names = [
        a.name
        for _, a in sorted(taken(graph, workspace_dynamic()(graph, limit)).items())
    ]
    assert names[0] == "quick"
    middle = names.index("small")
    assert set(names[middle:]) == {"small", "quick"}  # and there is room again
    assert names[-1] == "quick"


def test_what_is_computed_again_has_the_same_algorithm():
    rows = (Algorithm("quick", 1.0, 640), Algorithm("small", 3.0, 0))
    graph = chain(12, nbytes=640)
    ops = [replace(op, algorithms=rows, scratch_bytes=640) for op in graph.ops]
    graph = replace(graph, ops=tuple(ops))
    for policy in (workspace_dynamic, ucudnn_wr):
        plan = within(policy(base=sqrt_checkpoint()), graph, 1)
        validate(graph, plan)
        computes = [a.op for a in plan.actions if isinstance(a, Compute)]
        assert len(computes) > len(graph.ops)
        taken(graph, plan)


# -- bytes that ops share --------------------------------------------------------


def costs(graph, chosen):
    """What ops take beside the plan of least scratch."""
    return sum(
        each.scratch_bytes
        for index, each in chosen.items()
        if each != least(graph.ops[index])
    )


def best(graph, total):
    """The least time of all choices within so many bytes."""
    indices = [i for i, op in enumerate(graph.ops) if op.algorithms]
    rest = sum(op.seconds for op in graph.ops if not op.algorithms)
    return min(
        rest + sum(each.seconds for each in row)
        for row in itertools.product(*(options(graph.ops[i]) for i in indices))
        if costs(graph, dict(zip(indices, row, strict=True))) <= total
    )


@given(seed=st.integers(0, 10**6), total=st.integers(0, 250).map(lambda n: 64 * n))
@settings(max_examples=60, deadline=None)
def test_no_division_of_the_bytes_is_faster(seed, total):
    graph = with_algorithms(random_step(seed, 3), seed, most=3)
    found = {make: make(total)(graph) for make in DIVIDED}
    for plan in found.values():
        validate(graph, plan)
        assert costs(graph, taken(graph, plan)) <= total
    quickest = found[ucudnn_wd].predicted.seconds
    assert quickest == pytest.approx(best(graph, total))
    for make in (workspace_priority, workspace_balanced):
        assert found[make].predicted.seconds >= quickest * (1 - 1e-12)


@given(seed=st.integers(0, 10**6), ops=st.integers(2, 10), more=st.integers(0, 300))
@settings(max_examples=40, deadline=None)
def test_what_a_limit_leaves_is_divided(seed, ops, more):
    graph = with_algorithms(random_step(seed, ops), seed)
    limit = workspace_memory()(graph).peak_bytes + 64 * more
    for make in DIVIDED:
        plan = make()(graph, limit)
        validate(graph, plan)
        assert plan.peak_bytes <= limit
        assert costs(graph, taken(graph, plan)) <= 64 * more
        assert make(1 << 40)(graph, limit).actions == plan.actions  # no more than it


def test_long_ops_come_first_or_what_saves_most_a_byte():
    graph = random_step(1, 4)
    ops = list(graph.ops)
    rows = {
        0: (("a", 100.0, 0), ("b", 90.0, 640)),  # longest, and saves 10 with 640
        1: (("a", 50.0, 0), ("b", 20.0, 640)),  # saves 30 with 640
        2: (("a", 20.0, 0), ("b", 16.0, 64)),  # saves 4 with 64
    }
    for index, each in rows.items():
        choice = tuple(itertools.starmap(Algorithm, each))
        ops[index] = replace(
            ops[index], algorithms=choice, scratch_bytes=0, seconds=each[0][1]
        )
    graph = replace(graph, ops=tuple(ops))

    def quick(policy):
        return {i for i, a in taken(graph, policy(graph)).items() if a.name == "b"}

    assert quick(workspace_priority(640)) == {0}
    assert quick(workspace_balanced(640)) == {2}  # the greatest rate leaves no room
    assert quick(ucudnn_wd(640)) == {1}
    assert quick(workspace_balanced(704)) == quick(ucudnn_wd(704)) == {1, 2}
    assert quick(ucudnn_wr(63)) == set()
    assert quick(ucudnn_wr(64)) == {2}
    assert quick(ucudnn_wr(640)) == {0, 1, 2}
    for make in DIVIDED:
        assert quick(make()) == {0, 1, 2}
        assert quick(make(0)) == set()


def with_rows(graph, rows):
    """Give the first ops these algorithms, the default first."""
    ops = list(graph.ops)
    for index, each in enumerate(rows):
        choice = tuple(itertools.starmap(Algorithm, each))
        ops[index] = replace(
            ops[index], algorithms=choice, scratch_bytes=0, seconds=each[0][1]
        )
    return replace(graph, ops=tuple(ops))


def test_the_longest_op_does_not_take_what_others_need_more():
    """With 640 bytes it would save 1 second with what saves the other op 30."""
    long = (("a", 100.0, 0), ("b", 99.0, 640))
    short = (("a", 50.0, 0), ("b", 20.0, 320))
    graph = with_rows(random_step(1, 4), (long, short))
    limit = workspace_memory()(graph).peak_bytes
    few, more, all_ = (
        workspace_priority()(graph, limit + extra) for extra in (320, 640, 960)
    )
    assert more.predicted.seconds == few.predicted.seconds
    assert all_.predicted.seconds == few.predicted.seconds - 1


@pytest.mark.parametrize("make", FITTING, ids=lambda make: make.__name__)
@given(
    seed=st.integers(0, 10**6),
    ops=st.integers(2, 10),
    steps=st.lists(st.integers(1, 3000), min_size=2, max_size=20),
)
@settings(max_examples=40, deadline=None)
def test_a_larger_limit_is_never_slower(make, seed, ops, steps):
    graph = with_algorithms(random_step(seed, ops), seed)
    limits = itertools.accumulate(steps, initial=workspace_memory()(graph).peak_bytes)
    seconds = [make()(graph, limit).predicted.seconds for limit in limits]
    seconds.append(make()(graph).predicted.seconds)
    assert all(b <= a * (1 + 1e-12) for a, b in itertools.pairwise(seconds))


@pytest.mark.parametrize(
    "make", [workspace_priority, workspace_balanced, ucudnn_wr, ucudnn_wd]
)
def test_arguments_are_checked(make):
    assert make(64) == make(64) != make()
    assert make(base=share()) == make()
    with pytest.raises(TypeError, match="workspace_bytes is an integer, not '1MiB'"):
        make("1MiB")
    with pytest.raises(ValueError, match="workspace_bytes is at least 0, not -1"):
        make(-1)
    for other in (make, workspace_dynamic, workspace_memory, workspace_performance):
        with pytest.raises(TypeError, match="base must be a policy"):
            other(base="share")
        with pytest.raises(TypeError, match="policy"):
            other(base=share)


def test_a_chain_is_a_base_and_takes_none_of_them():
    graph = with_algorithms(random_step(3, 9), 3)
    base = mc.plan.chain(mc.plan.order(), mc.plan.in_place(), mc.plan.place())
    for make in ALL:
        validate(graph, make(base=base)(graph))
        with pytest.raises(ValueError, match=f"{make.__name__} chooses algorithms"):
            mc.plan.recompute(make())


def test_a_plan_tells_which_ops_have_other_algorithms():
    graph = random_step(1, 4)
    rows = (Algorithm("a", 9.0, 0), Algorithm("im2col", 1.0, 6400))
    ops = (replace(graph.ops[0], algorithms=rows), *graph.ops[1:])
    graph = replace(graph, ops=ops)
    plan = workspace_performance()(graph)
    (line,) = [row for row in str(plan).splitlines() if "algorithms" in row]
    assert f"1 ops by others: {graph.ops[0].name} (im2col)" in line
    assert "6400 B" in line or "6.25 KiB" in line
    assert "algorithms" not in str(share()(graph))


# -- a network --------------------------------------------------------------------

BATCH = 8


@pytest.fixture
def seconds(monkeypatch):
    """Measured seconds for every run alike: a part of the batch is quicker."""
    onednn()
    monkeypatch.setenv("MEMCFG_KERNELS", "onednn")
    monkeypatch.setenv("MEMCFG_ALGORITHM_CACHE", "none")
    told = {"onednn": 8.0, "brgemm": 7.5, "direct": 7.0, "im2col": 6.0}

    def measured(kernel):
        name, _, part = kernel.algorithm.partition("/")
        return told.get(name, 1.0) - (1.0 / int(part) if part else 0.0)

    set_kernel_seconds(monkeypatch, measured)
    mc.config.reset()
    yield
    mc.config.reset()


def network():
    nn.set_random_seed(1)
    wide = {"padding": "same", "activation": "relu"}
    layers = [nn.Conv2D(16, 5, **wide), nn.Conv2D(16, 3, **wide), nn.MaxPool2D()]
    layers += [nn.Conv2D(32, 3, strides=2, **wide), nn.Conv2D(16, 1), nn.ReLU()]
    ends = [nn.GlobalAveragePooling2D(), nn.Dense(5)]
    return nn.Sequential([nn.Input((16, 16, 4)), *layers, *ends])


def trained(policy, limit=None):
    """Weights after three steps; the plan."""
    mc.config.reset()
    if limit is not None:
        (cpu,) = mc.config.list_physical_devices("CPU")
        device = mc.config.LogicalDeviceConfiguration(memory_limit=f"{limit}B")
        mc.config.set_logical_device_configuration(cpu, [device])
    model = network()
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(0.01, momentum=0.9), loss, memory=policy, times="measured")
    chance = np.random.default_rng(0)
    x = chance.standard_normal((BATCH, 16, 16, 4)).astype(np.float32)
    for _ in range(3):
        model.train_on_batch(x, np.arange(BATCH) % 5)
    report = model.memory_report(verify=True)
    assert report.measured_peak_bytes == report.predicted_peak_bytes
    plan, weights = model.memory_plan, model.get_weights()
    assert limit is None or plan.peak_bytes <= limit
    model.close()
    return plan, weights


def names(plan):
    return [a.algorithm for a in plan.actions if isinstance(a, Compute) and a.algorithm]


@pytest.mark.parametrize("policy", ALL, ids=lambda make: make.__name__)
def test_a_network_has_the_peak_that_is_predicted(policy, seconds):
    _, expected = trained(share())
    small, _ = trained(workspace_memory())
    peaks = (small.peak_bytes, small.peak_bytes * 5 // 4, small.peak_bytes * 2)
    for limit in (None, *peaks):
        if policy is workspace_performance and limit in peaks:
            continue
        plan, weights = trained(policy(), limit)
        assert names(plan) or limit == peaks[0]
        for one, other in zip(weights, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)


def test_parts_of_the_batch_run_where_less_fits(seconds):
    small, _ = trained(workspace_memory())
    limit = small.peak_bytes * 5 // 4
    parted, _ = trained(ucudnn_wr(), limit)
    assert any("/" in name for name in names(parted))
    dynamic, _ = trained(workspace_dynamic(), limit)
    assert not any("/" in name for name in names(dynamic))
    assert parted.predicted.seconds < dynamic.predicted.seconds
    assert dynamic.predicted.seconds < small.predicted.seconds


def test_a_policy_whose_choice_is_the_default_has_its_bits(seconds, monkeypatch):
    """By nominal times the default is as fast as any."""
    set_kernel_seconds(monkeypatch, lambda kernel: 1.0)
    _, expected = trained(share())
    for policy in (workspace_performance, *FITTING):
        plan, weights = trained(policy())
        if not names(plan):
            for one, other in zip(weights, expected, strict=True):
                np.testing.assert_array_equal(one, other)
    plan, _ = trained(workspace_performance())
    assert not names(plan)
