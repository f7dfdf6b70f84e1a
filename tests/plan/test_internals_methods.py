"""What methods of the literature compute on their way, against what papers say."""

from __future__ import annotations

import heapq
import itertools
import math
import random
import signal
from collections import OrderedDict
from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import NETWORKS, zoo_step
from training_graphs import Sketch, attended, chain, random_step, reachable, unit_chain

from memcfg._core.search import ChainTable
from memcfg.graph import Algorithm, Graph, Op, Tensor, Tier
from memcfg.plan import (
    keep_all,
    layrub,
    share,
    simulate,
    validate,
    with_updates_in_time,
)
from memcfg.plan.methods import _knapsack, hidden_table
from memcfg.plan.methods._chen import budget_segments, recursive_moves, search_budgets
from memcfg.plan.methods._highs import solve
from memcfg.plan.methods._knapsack import Option, divide, front, hull
from memcfg.plan.methods._layrub import lay_out, readers_first
from memcfg.plan.methods._lives import Life
from memcfg.plan.methods._micro_batches import (
    MicroKernel,
    algorithm_of,
    desirable,
    divide_batch,
    micro_kernels,
)
from memcfg.plan.methods._mxnet import co_share, color_paths
from memcfg.plan.methods._rotor import Stage, chain_moves, in_slots
from memcfg.plan.methods._stages import Stages
from memcfg.plan.methods._superneurons import Cache, Layer, chain_model
from memcfg.plan.methods._swapping import Away, plan_swaps
from memcfg.plan.methods._timed_swaps import TimedSwaps
from memcfg.plan.search import Do, Request, clock, least_load
from memcfg.plan.search.algorithms._claims import (
    Claim,
    Claims,
    by_longest,
    by_rate,
    equally,
)
from memcfg.units import align_up

# -- chen ------------------------------------------------------------------------------


@given(count=st.integers(1, 200), k=st.integers(1, 40))
def test_a_recursion_runs_each_stage_in_time(count, k):
    moves = recursive_moves(count, k)
    there = {-1}  # what is kept: the end of a stage
    done = []
    for do, stage in moves:
        if do is Do.BACKWARD:
            done.append(stage)
            there = {end for end in there if end < stage}
        else:
            assert stage - 1 in there
            there.add(stage)
    assert done == list(reversed(range(count)))
    forwards = sum(do is not Do.BACKWARD for do, _ in moves)
    assert forwards <= count * (math.ceil(math.log(count, k + 1) + 1e-9) + 1)


def test_budgets_divide_a_chain_as_in_the_published_search():
    sizes = [4, 1, 1, 3, 9, 2, 2]
    assert budget_segments(sizes, 5) == ([3, 5], 10, 12)
    assert budget_segments(sizes, 0) == ([1, 2, 3, 4, 5, 6], 22, 9)
    assert budget_segments(sizes, 100) == ([], 0, 22)
    budgets = search_budgets(sizes)
    first = math.sqrt(22 * 9 / 2)
    assert budgets[:3] == [0.0, first, 9.0]
    assert budgets[-1] == pytest.approx(math.sqrt(2) * first)
    assert len(budgets) == 8


@given(sizes=st.lists(st.integers(0, 50), max_size=30), budget=st.integers(0, 200))
def test_no_segment_but_for_its_last_stage_is_over_the_budget(sizes, budget):
    ends, kept, largest = budget_segments(sizes, budget)
    parts = [sizes[a:b] for a, b in zip([0, *ends], [*ends, len(sizes)], strict=True)]
    assert all(sum(part[:-1]) <= budget < sum(part) for part in parts[:-1])
    assert largest == max(sum(part) for part in parts)
    closed = parts if sum(parts[-1]) > budget else parts[:-1]
    assert kept == sum(part[-1] for part in closed)


# -- checkmate -------------------------------------------------------------------------


@pytest.mark.parametrize(("units", "optimum"), [(8, 43), (10, 41), (14, 37)])
def test_the_optima_of_a_chain_of_sixteen(units, optimum):
    stages = Stages(Request.of(unit_chain(16), "", None))
    found = solve(stages, 64 * units)
    assert found.optimal
    assert 33 + found.value == pytest.approx(optimum, abs=1e-6)
    relaxed = solve(stages, 64 * units, whole=False)
    assert relaxed.value <= found.value + 1e-6


@pytest.mark.slow
def test_the_optimum_of_a_chain_of_sixteen_in_six_units():
    stages = Stages(Request.of(unit_chain(16), "", None))
    found = solve(stages, 64 * 6, checks=10**6)
    assert found.optimal
    assert 33 + found.value == pytest.approx(47, abs=1e-6)


def every_schedule(stages: Stages):
    for count in range(len(stages.again) + 1):
        yield from itertools.combinations(sorted(stages.again), count)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), ops=st.integers(1, 3))
def test_the_program_is_as_good_as_all_schedules(seed, ops):
    """On Checkmate's grid: any op again in any stage, in the order of the graph."""
    graph = random_step(seed, ops)
    request = Request.of(graph, "", None)
    stages = Stages(request)
    if len(stages.again) > 9:
        return
    found = []
    for again in every_schedule(stages):
        sequence = stages.sequence(again)
        if request.step.fault(sequence) is None:
            found.append(request.step.measure(sequence))
    least = solve(stages, None)
    assert least.optimal
    load = stages.base + least.value * stages.unit
    # What the graph starts with counts throughout, so the program may be above.
    assert load >= min(each[0] for each in found) - 1e-3 * stages.unit
    for limit in {each[0] for each in found}:
        answer = solve(stages, limit)
        assert answer.optimal == bool(answer.columns)
        if not answer.columns:
            continue
        again = {k for k, c in stages.again.items() if answer.columns[c] > 1 / 2}
        measured = request.step.measure(stages.sequence(again))
        assert measured[0] <= limit + 1e-3 * stages.unit
        assert measured[1] >= min(e[1] for e in found if e[0] <= measured[0]) - 1e-9


@settings(max_examples=15, deadline=None)
@given(layers=st.integers(1, 3), units=st.integers(2, 6))
def test_nothing_is_better_on_small_chains(layers, units):
    graph = unit_chain(layers)
    request = Request.of(graph, "", None)
    stages = Stages(request)
    pairs = [key for key in stages.again if key[1] < layers]  # no gradient again
    costs = [
        len(again)
        for count in range(len(pairs) + 1)
        for again in itertools.combinations(pairs, count)
        if request.step.measure(stages.sequence(again))[0] <= 64 * units
    ]
    answer = solve(stages, 64 * units)
    assert bool(answer.columns) == bool(costs)
    if costs:
        assert answer.value == pytest.approx(min(costs), abs=1e-6)


def test_an_interruption_ends_the_search():
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    stages = Stages(Request.of(unit_chain(16), "", None))
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            solve(stages, 64 * 6, checks=10**6)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_search_that_is_ended_early_keeps_what_it_has():
    stages = Stages(Request.of(unit_chain(16), "", None))
    lowest = solve(stages, None, start=stages.values(frozenset()), checks=1)
    assert not lowest.optimal
    start = stages.values(frozenset())
    first = solve(stages, 64 * 18, start=start, checks=1)
    assert first.columns
    assert first.value == pytest.approx(0, abs=1e-6)


# -- knapsack --------------------------------------------------------------------------


options = st.builds(Option, st.integers(0, 60), st.integers(0, 50).map(float))


groups = st.lists(
    st.lists(options, max_size=4).map(lambda row: [Option(0, 50.0), *row]), max_size=5
)


def taken(rows, chosen):
    picked = [row[number] for row, number in zip(rows, chosen, strict=True)]
    return sum(o.nbytes for o in picked), sum(o.seconds for o in picked)


@given(rows=groups, total=st.integers(0, 200))
@settings(max_examples=300, deadline=None)
def test_no_choice_within_the_bytes_is_faster(rows, total):
    found = divide(rows, total)
    assert found.proven
    nbytes, seconds = taken(rows, found.chosen)
    assert nbytes <= total
    every = (
        taken(rows, each) for each in itertools.product(*map(range, map(len, rows)))
    )
    assert seconds == min(time for size, time in every if size <= total)


@given(row=st.lists(options, max_size=8))
def test_a_front_has_what_no_other_beats(row):
    numbers = front(row)
    kept = [row[n] for n in numbers]
    assert kept == sorted(set(kept))
    for option in row:
        assert any(
            k.nbytes <= option.nbytes and k.seconds <= option.seconds for k in kept
        )
    for one, other in itertools.permutations(kept, 2):
        assert one.nbytes > other.nbytes or one.seconds > other.seconds


@given(row=st.lists(options, min_size=1, max_size=8))
def test_rates_fall_along_a_hull(row):
    corners = hull([row[n] for n in front(row)])
    rates = [
        (a.seconds - b.seconds) / (b.nbytes - a.nbytes)
        for a, b in itertools.pairwise(corners)
    ]
    assert rates == sorted(set(rates), reverse=True)


def test_many_groups_are_proven_with_few_states():
    """160 convolutions of seven options: bounds leave little of 7 ** 160."""
    rows = [
        [Option(0, 9.0 + k % 7)]
        + [
            Option((k * 37 + n * 101) % 997 * 64 + 64, (k + n * 3) % 9)
            for n in range(6)
        ]
        for k in range(160)
    ]
    every = sum(max(option.nbytes for option in row) for row in rows)
    for percent in (1, 10, 30, 60, 100):
        assert divide(rows, every * percent // 100).proven


def test_what_is_cut_is_said(monkeypatch):
    rows = [[Option(0, 10.0), *(Option(n, 10.0 - n) for n in range(1, 9))]] * 4
    whole = divide(rows, 17)
    monkeypatch.setattr(_knapsack, "_STATES", 1)
    cut = divide(rows, 17)
    assert whole.proven
    assert not cut.proven
    assert taken(rows, cut.chosen)[0] <= 17


def test_nothing_is_divided_among_nobody():
    assert divide([], 0).chosen == ()
    assert divide([[Option(0, 1.0), Option(1, 0.0)]], 0).chosen == (0,)


# -- layrub ----------------------------------------------------------------------------


@pytest.mark.parametrize(("network", "pairs"), [("resnet18", 5), ("mobilenet", 12)])
def test_layers_of_real_networks_work_in_the_bytes_of_their_data(network, pairs):
    graph = zoo_step(network, 2)
    sequence, _, reuse = lay_out(Request.of(graph, "", None))
    assert len(reuse.within) >= pairs
    for gradient, data in reuse.within.items():
        a, b = reuse.lives[gradient], reuse.lives[data]
        assert a.size == b.size
        assert b.end < a.begin
        assert graph.ops[sequence[a.begin]].phase == "backward"
        assert b.begin < 0 or graph.ops[sequence[b.begin]].phase == "forward"
        assert reuse.offsets[gradient] == reuse.offsets[data]
    plan = layrub()(graph)
    validate(graph, plan)
    assert plan.peak_bytes == simulate(graph, plan).peak_bytes
    assert share()(graph).peak_bytes <= plan.peak_bytes < keep_all()(graph).peak_bytes


def slot_bytes(graph: Graph) -> int:
    validate(graph, layrub()(graph))
    return lay_out(Request.of(graph, "", None))[2].slot_bytes


def test_slots_do_not_grow_with_depth():
    """A hundred bytes a layer wait for the backward phase; what turns is as before."""
    assert slot_bytes(chain(50)) == slot_bytes(chain(500)) == 2 * 64
    shallow = slot_bytes(NETWORKS["chain"](depth=5))
    deep = slot_bytes(NETWORKS["chain"](depth=50))
    assert abs(deep / shallow - 1) <= 0.02
    kept = [layrub()(chain(n)).peak_bytes - 2 * 64 for n in (50, 500)]
    assert kept[1] > 9 * kept[0]


def test_slots_are_as_large_as_the_largest_and_as_few_as_live_at_once():
    sketch = Sketch()
    sizes = [64, 640, 128, 1280, 64, 64]
    values = [sketch.tensor("x", 64, "input")]
    values += [sketch.tensor(f"v{i}", n, "activation") for i, n in enumerate(sizes)]
    for i, (a, b) in enumerate(pairwise(values)):
        sketch.op(f"f{i}", "forward", [a], [b])
    graph = sketch.graph("a line", [values[-1]])
    assert slot_bytes(graph) == 2 * 1280
    assert layrub()(graph).peak_bytes == 2 * 1280 + 64 + 64  # input, and what is kept


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), ops=st.integers(1, 20))
def test_an_order_with_readers_first_can_be_run(seed, ops):
    graph, _ = with_updates_in_time(random_step(seed, ops))
    order = readers_first(graph)
    assert Request.of(graph, "", None).step.fault(order) is None


# -- micro batches ---------------------------------------------------------------------


MIB = 1 << 20


def kernel(name, images, seconds, scratch):
    return MicroKernel(Algorithm(name, seconds, scratch), images, seconds, scratch)


kernels = st.lists(
    st.builds(
        kernel,
        st.just("a"),
        st.integers(1, 8),
        st.integers(1, 30).map(float),
        st.integers(0, 6),
    ),
    max_size=6,
)


def every_division(images, rows):
    """All multisets of kernels that take so many images."""
    if not images:
        yield ()
        return
    for number, each in enumerate(rows):
        if each.images <= images:
            for rest in every_division(images - each.images, rows[number:]):
                yield (each, *rest)


@given(images=st.integers(1, 10), rows=kernels, scratch=st.integers(0, 6))
@settings(max_examples=200, deadline=None)
def test_no_division_within_the_scratch_is_faster(images, rows, scratch):
    found = divide_batch(images, rows, scratch)
    fitting = [each for each in rows if each.scratch_bytes <= scratch]
    times = [sum(k.seconds for k in parts) for parts in every_division(images, fitting)]
    if found is None:
        assert not times
        return
    assert found.seconds == min(times) == sum(part.seconds for part in found.parts)
    assert sum(part.images for part in found.parts) == images
    assert found.scratch_bytes <= scratch


@given(images=st.integers(1, 9), rows=kernels)
@settings(max_examples=100, deadline=None)
def test_the_front_has_each_division_that_no_other_beats(images, rows):
    found = desirable(images, rows)
    points = {
        (max(k.scratch_bytes for k in parts), sum(k.seconds for k in parts))
        for parts in every_division(images, rows)
    }
    best = [
        (size, time)
        for size, time in points
        if not any(
            (s <= size and t < time) or (s < size and t <= time) for s, t in points
        )
    ]
    assert [(d.scratch_bytes, d.seconds) for d in found] == sorted(best)


def divisors(n):
    return [k for k in range(1, n) if n % k == 0]


@given(
    images=st.integers(2, 48),
    seconds=st.lists(st.integers(1, 10**6), min_size=24, max_size=24),
    most=st.integers(0, 12),
)
@settings(max_examples=200, deadline=None)
def test_equal_parts_are_as_fast_as_any_where_sizes_divide_the_batch(
    images, seconds, most
):
    rows = [
        kernel(f"{name}/{size}", size, float(taken), 1 + place % 7)
        for place, (name, size, taken) in enumerate(
            (name, size, seconds[(2 * place + (name == "b")) % 24])
            for name in "ab"
            for place, size in enumerate(divisors(images))
        )
    ]
    rows.append(kernel("whole", images, 2e7, 0))
    whole = [
        MicroKernel(
            Algorithm(k.algorithm.name, k.seconds * images / k.images, k.scratch_bytes),
            *k[1:],
        )
        for k in rows
    ]
    found = divide_batch(images, whole, most)
    taken = algorithm_of(found, whole)
    assert math.isclose(taken.seconds, found.seconds)
    assert taken.scratch_bytes <= most


def test_a_faster_algorithm_fits_in_parts():
    """Of 256 images one that wants 213 MiB: in 64 MiB, parts of 32 at 49 MiB."""
    rows = [
        kernel("gemm", 256, 10.0, 4096),
        kernel("fft", 256, 3.2, 213 * MIB),
        kernel("fft/32", 32, 0.5, 49 * MIB),
        kernel("fft/64", 64, 0.9, 75 * MIB),
    ]
    assert [k.algorithm.name for k in divide_batch(256, rows, 4096).parts] == ["gemm"]
    found = divide_batch(256, rows, 64 * MIB)
    assert [k.algorithm.name for k in found.parts] == ["fft/32"] * 8
    assert found.seconds == 4.0
    assert divide_batch(256, rows, 75 * MIB).seconds == 3.6
    assert [d.seconds for d in desirable(256, rows)] == [10.0, 4.0, 3.6, 3.2]
    assert divide_batch(256, rows, 4095) is None


def test_mixed_parts_where_sizes_do_not_divide_the_batch():
    rows = [kernel("a", 16, 4.0, 5), kernel("b", 4, 3.0, 1), kernel("c", 1, 1.0, 0)]
    found = divide_batch(21, rows, 5)
    assert sorted(part.algorithm.name for part in found.parts) == ["a", "b", "c"]
    assert found.seconds == 8.0


@cache
def convolution(*shapes, roles=("activation", "parameter", "activation")):
    rows = (Algorithm("im2col", 8.0, 640), Algorithm("im2col/4", 6.0, 320))
    tensors = tuple(
        Tensor(f"t{n}", 64, role, shape)
        for n, (shape, role) in enumerate(zip(shapes, roles, strict=True))
    )
    op = Op("c", "conv2d", "forward", (0, 1), (2,), algorithms=rows)
    return Graph("g", tensors, (op,), keep=(2,))


def test_how_many_images_there_are_is_told_by_shapes():
    image, window = (16, 8, 8, 3), (3, 3, 3, 8)
    graph = convolution(image, window, (16, 8, 8, 8))
    images, found = micro_kernels(graph, graph.ops[0])
    assert images == 16
    assert [(k.images, k.seconds) for k in found] == [(16, 8.0), (4, 1.5)]
    roles = ("parameter", "activation", "activation")
    turned = convolution((8, 8, 3, 8), image, (16, 8, 8, 3), roles=roles)
    assert micro_kernels(turned, turned.ops[0])[0] == 16
    bare = convolution(None, None, None)
    images, found = micro_kernels(bare, bare.ops[0])
    assert (images, [k.algorithm.name for k in found]) == (1, ["im2col"])


# -- mxnet -----------------------------------------------------------------------------


def test_free_buffers_are_taken_by_size():
    lives = [Life(0, 1, 100), Life(0, 1, 40), Life(2, 3, 50), Life(2, 3, 30)]
    assert co_share(lives, 1).sizes == [100, 40, 50, 30]
    found = co_share(lives, 2)
    assert found.buffer == [0, 1, 0, 1]  # the larger of two first, in what is enough
    assert found.sizes == [100, 40]
    assert found.total == 140
    grown = co_share([Life(0, 1, 40), Life(2, 3, 60)], 2)
    assert (grown.buffer, grown.sizes) == ([0, 0], [60])
    alone = co_share([Life(-1, 1, 40), Life(2, 3, 40)], 16)
    assert alone.sizes == [40, 40]


def test_what_ends_where_something_begins_is_not_free_yet():
    assert co_share([Life(0, 1, 64), Life(1, 2, 64)], 1).sizes == [64, 64]
    assert co_share([Life(0, 0, 64), Life(1, 2, 64)], 1).sizes == [64]


@given(
    drawn=st.lists(
        st.tuples(st.integers(-1, 8), st.integers(0, 8), st.integers(1, 300)),
        max_size=30,
    ),
    match=st.sampled_from([1, 2, 4, 16]),
)
def test_lives_at_one_time_never_share(drawn, match):
    lives = [Life(begin, max(begin, 0) + more, size) for begin, more, size in drawn]
    found = co_share(lives, match)
    assert found.total <= sum(life.size for life in lives)
    for i, a in enumerate(lives):
        assert a.size <= found.sizes[found.buffer[i]]
        for j, b in enumerate(lives[:i]):
            if found.buffer[i] == found.buffer[j]:
                assert a.end < b.begin or b.end < a.begin


@given(
    drawn=st.lists(st.sets(st.integers(0, 9), max_size=3), max_size=10),
    colors=st.sampled_from([None, 1, 2, 3, 5]),
)
def test_nodes_of_one_color_are_on_one_path(drawn, colors):
    before = [sorted(k for k in each if k < i) for i, each in enumerate(drawn)]
    found = color_paths(before, colors)
    above = reachable(before)
    assert len({*found}) <= (colors or len(drawn) + 1)
    assert {*found} == {*range(len({*found}))}
    last = max(found, default=0) if colors is not None else None
    for i, j in combinations(range(len(drawn)), 2):
        if found[i] == found[j] != last:
            assert i in above[j]


def longest(above: list[set[int]], nodes: set[int]) -> int:
    lengths: dict[int, int] = {}
    for node in sorted(nodes):
        lengths[node] = 1 + max((lengths[k] for k in above[node] & nodes), default=0)
    return max(lengths.values(), default=0)


@given(drawn=st.lists(st.sets(st.integers(0, 9), max_size=3), max_size=10))
def test_the_longest_path_is_colored_first(drawn):
    before = [sorted(k for k in each if k < i) for i, each in enumerate(drawn)]
    found, above = color_paths(before, None), reachable(before)
    nodes = {*range(len(drawn))}
    for color in range(max(found, default=-1) + 1):
        path = {node for node in nodes if found[node] == color}
        assert len(path) == longest(above, nodes)
        nodes -= path


# -- rotor -----------------------------------------------------------------------------


def successors(stages, slots: int, state):
    """What can be done in a state within the slots, and what it costs.

    A state: the ends of stages that are kept, whole stages that are, the end that was
    just made, and how many stages are left to go backward. What is kept stays until
    it is read backward.
    """
    ends, wholes, here, left = state
    top = left - 1
    stored = sum(stages[e].crossing for e in ends)
    stored += sum(stages[w].kept for w in wholes)
    if top in wholes and stored + stages[top].backward <= slots:
        yield 0.0, (frozenset(e for e in ends if e < top - 1), wholes - {top}, -1, top)
    for end in {-1, *ends, *wholes, here}:
        stage = end + 1
        if stage > top or stage in wholes:
            continue
        loose = end >= 0 and end not in ends and end not in wholes
        used = stored + stages[stage].forward + stages[top].gradient
        used += stages[end].crossing if loose else 0
        kept = ends | {end} if loose else ends
        cost = stages[stage].cost
        if stage < top and used + stages[stage].crossing <= slots:
            yield cost, (ends, wholes, stage, left)  # what was just made is dropped
            yield cost, (kept, wholes, stage, left)
        if used + stages[stage].kept <= slots:
            yield cost, (kept, wholes | {stage}, stage, left)


def least_cost(stages, slots: int) -> float:
    """Search all schedules for the cheapest."""
    tie = itertools.count()
    start = (frozenset(), frozenset(), -1, len(stages))
    heap = [(0.0, next(tie), start)]
    seen = set()
    while heap:
        cost, _, state = heapq.heappop(heap)
        if state[-1] == 0:
            return cost
        if state in seen:
            continue
        seen.add(state)
        for more, after in successors(stages, slots, state):
            heapq.heappush(heap, (cost + more, next(tie), after))
    return math.inf


def some_stages(seed: int, count: int) -> list[Stage]:
    chance = random.Random(seed)
    stages = []
    for _ in range(count):
        crossing = chance.randint(1, 3)
        kept = crossing + chance.randint(0, 3)
        stages.append(
            Stage(chance.randint(1, 5), crossing, kept, 0, chance.randint(0, 2), 0)
        )
    return stages


@pytest.mark.parametrize("seed", range(30))
def test_the_table_is_the_optimum_of_all_schedules(seed):
    stages = some_stages(seed, 1 + seed % 5)
    most = sum(stage.kept for stage in stages) + 2
    table = ChainTable(stages, most)
    for slots in range(most + 1):
        assert table.cost(0, len(stages) - 1, slots) == least_cost(stages, slots)


def test_equal_stages_cost_no_more_than_binomial_checkpoints():
    """A hidden table has a slot for the first state; here two are for what runs."""
    stages = [Stage(1.0, 1, 1, 0, 0, 0)] * 40
    table = ChainTable(stages, 41)
    assert table.cost(0, 39, 40) == 40
    for slots in range(2, 41):
        least = hidden_table(40, slots).steps[slots, 40]
        assert table.cost(0, 39, slots + 1) <= least


@given(seed=st.integers(0, 10**6), count=st.integers(1, 12))
def test_a_schedule_costs_what_its_table_says_within_its_slots(seed, count):
    stages = some_stages(seed, count)
    most = sum(stage.kept for stage in stages) + 2
    table = ChainTable(stages, most)
    costs = [table.cost(0, count - 1, slots) for slots in range(most + 1)]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == sum(stage.cost for stage in stages)
    for slots, cost in enumerate(costs):
        if math.isinf(cost):
            continue
        moves = chain_moves(table, stages, slots)
        forwards = [stage for do, stage in moves if do is not Do.BACKWARD]
        assert sum(stages[stage].cost for stage in forwards) == cost
        backward = [stage for do, stage in moves if do is Do.BACKWARD]
        assert backward == [*reversed(range(count))]


def test_sizes_are_rounded_up_to_slots():
    stages = [Stage(1.0, 10, 30, 0, 5, 0), Stage(2.0, 11, 60, 5, 0, 10)]
    assert in_slots(stages, 10) == [
        Stage(1.0, 1, 3, 0, 1, 0),
        Stage(2.0, 2, 6, 1, 0, 1),
    ]


def test_tables_refuse_what_is_no_chain():
    with pytest.raises(ValueError, match="a chain of 0 stages"):
        ChainTable([], 4)
    with pytest.raises(ValueError, match="not negative"):
        ChainTable([Stage(1.0, -1, 0, 0, 0, 0)], 4)
    with pytest.raises(ValueError, match="not negative"):
        ChainTable([Stage(1.0, 1, 1, 0, 0, 0)], -1)
    table = ChainTable([Stage(1.0, 1, 1, 0, 0, 0)], 4)
    assert table.choice(0, 0, 0) == -1
    for place in ((1, 1, 0), (0, 1, 0), (0, 0, 5)):
        with pytest.raises(IndexError):
            table.cost(*place)


def test_what_is_expensive_is_kept():
    """Of two equal halves the one that costs more is computed once."""
    cheap = [Stage(1.0, 1, 2, 0, 0, 0)] * 4
    dear = [Stage(9.0, 1, 2, 0, 0, 0)] * 4
    stages = [*cheap, *dear]
    table = ChainTable(stages, 16)
    moves = chain_moves(table, stages, 12)
    again = [s for do, s in moves if do is not Do.BACKWARD]
    assert all(again.count(stage) == 1 for stage in range(4, 8))
    assert table.cost(0, 7, 12) <= 40 + 4


# -- superneurons ----------------------------------------------------------------------


def layers(*segments, working: int = 8) -> list[Layer]:
    """Convolutions with cheap layers of these outputs behind each."""
    chain = []
    for segment in segments:
        chain.append(Layer(1, working, checkpoint=True))
        chain += [Layer(output, working, checkpoint=False) for output in segment]
    return chain


def test_alexnet_has_the_published_counts():
    """14 layers again for speed, 23 for memory, 17 where one segment is too large."""
    chain = layers((4, 4, 1), (2, 2, 1), (1,), (1,), (1, 1), (1, 1), (1, 1), ())
    assert chain_model(chain, segment_bytes=None).again == 14
    assert chain_model(chain, segment_bytes=-1).again == 23
    assert chain_model(chain, segment_bytes=8).again == 17


def test_a_bottleneck_adds_the_published_counts():
    """ResNet-101 has 17 blocks more than ResNet-50: 85 and 119 layers."""
    for mode, more in ((None, 169 - 84), (-1, 237 - 118)):
        small, large = (
            chain_model(layers(*[(1, 1), (1, 1), (1,)] * blocks), segment_bytes=mode)
            for blocks in (16, 33)
        )
        assert large.again - small.again == more


@given(
    segments=st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=6),
    working=st.integers(0, 30),
)
def test_cost_has_the_peak_of_memory_and_work_between_the_two(segments, working):
    chain = layers(*segments, working=working)
    peak = max((layer.working for layer in chain), default=0)
    speed = chain_model(chain, segment_bytes=None)
    memory = chain_model(chain, segment_bytes=-1)
    cost = chain_model(chain, segment_bytes=peak)
    assert cost.peak == memory.peak == peak <= speed.peak
    assert speed.again == sum(map(len, segments))
    assert memory.again == sum(len(s) * (len(s) + 1) // 2 for s in segments)
    assert speed.again <= cost.again <= memory.again
    if all(sum(segment) <= peak for segment in segments):
        assert cost == speed._replace(peak=peak)


# -- superneurons cache ----------------------------------------------------------------


def traffic(graph, room, *, lru):
    """Bytes that a cache of so many bytes moves in a step: an oracle without plans.

    The graph has no state, scratch or outputs in place. Tensors are evicted by their
    last use, or by when they came; each is copied out once.
    """
    size = [tensor.nbytes for tensor in graph.tensors]
    last = {t: max(readers, default=-1) for t, readers in enumerate(graph.consumers)}
    last.update(dict.fromkeys(graph.keep, len(graph.ops)))
    given_ = (t for t, maker in enumerate(graph.producer) if maker is None)
    cache = OrderedDict((t, 0) for t in given_ if last[t] >= 0)
    outside, moved = set(), 0
    for place, op in enumerate(graph.ops):
        for tensor in (*op.inputs, *op.outputs):
            if tensor in cache:
                if lru:
                    cache.move_to_end(tensor)
                continue
            moved += size[tensor] if tensor in op.inputs else 0
            cache[tensor] = place
        for tensor in [*cache]:
            if sum(size[t] for t in cache) <= room:
                break
            if tensor in (*op.inputs, *op.outputs, *graph.keep):
                continue
            del cache[tensor]
            moved += 0 if tensor in outside else size[tensor]
            outside.add(tensor)
        for tensor in (*op.inputs, *op.outputs):
            if last[tensor] <= place:
                cache.pop(tensor, None)
    return moved


def test_last_used_is_moved_less_than_first_come():
    """What all layers read is not evicted for being old."""
    graph = attended(12)
    peak = Cache(graph, float("inf")).load
    for room in range(5 * 640, peak, 640):
        cache = Cache(graph, room)
        lru, fifo = (traffic(graph, room, lru=order) for order in (True, False))
        assert cache.moved == lru < fifo
    assert traffic(graph, peak, lru=False) == 0


@given(seed=st.integers(0, 10_000), ops=st.integers(1, 20), part=st.integers(0, 100))
@settings(max_examples=80, deadline=None)
def test_it_moves_what_the_oracle_does(seed, ops, part):
    given_ = random_step(seed, ops)
    tensors = (replace(t, nbytes=(t.nbytes + 63) // 64 * 64) for t in given_.tensors)
    bare = (
        replace(op, scratch_bytes=0, in_place=(), phase="backward") for op in given_.ops
    )
    tensors = tuple(replace(t, role="input") for t in tensors)
    graph = replace(given_, tensors=tensors, ops=tuple(bare))
    room = Cache(graph, float("inf")).load * part // 100
    assert Cache(graph, room).moved == traffic(graph, room, lru=True)


@given(seed=st.integers(0, 10_000), ops=st.integers(1, 20), part=st.integers(0, 110))
@settings(max_examples=80, deadline=None)
def test_its_bytes_are_those_in_use_and_within_the_goal(seed, ops, part):
    request = Request.of(random_step(seed, ops), "cache", None)
    goal = share()(request.graph).peak_bytes * part // 100
    cache = Cache(request.graph, goal)
    assert least_load(request, cache.events()) <= cache.load
    least = Cache(request.graph, 0).load
    assert cache.load <= max(goal, least)


@given(
    seed=st.integers(0, 10_000),
    ops=st.integers(2, 25),
    parts=st.lists(st.integers(20, 110), min_size=2, max_size=8),
)
@settings(max_examples=100, deadline=None)
def test_a_larger_cache_that_is_within_a_limit_does_what_one_of_it_does(
    seed, ops, parts
):
    graph = random_step(seed, ops)
    peak = Cache(graph, float("inf")).load
    for limit, goal in pairwise(sorted(peak * part // 100 for part in parts)):
        larger, own = Cache(graph, goal), Cache(graph, limit)
        if larger.load <= limit:
            assert larger.events() == own.events()
            assert (larger.load, larger.moved) == (own.load, own.moved)


# -- timed swaps -----------------------------------------------------------------------


def some_away(graph, chance):
    """Gaps between two uses of tensors, each maybe begun, left and asked late."""
    fixed = {*graph.persistent, *graph.keep, *graph.losses}
    for tensor, readers in enumerate(graph.consumers):
        maker = graph.producer[tensor]
        uses = [-1 if maker is None else maker, *readers]
        gaps = [(a, b) for a, b in pairwise(uses) if b - a > 1]
        if tensor in fixed or not gaps or chance.random() < 0.3:
            continue
        last, back = chance.choice(gaps)
        leave = chance.randint(last + 1, back - 1)
        begin = chance.randint(last + 1, leave)
        yield Away(tensor, begin, leave, chance.randint(last + 1, back), back)


def a_case(seed, ops, bandwidth):
    """A random step; outputs go in the place of inputs of their size alone.

    Half of them have a second tier.
    """
    tiers = (Tier("host", float(bandwidth)),)
    if seed % 2:
        tiers = (replace(tiers[0], limit_bytes=960), Tier("file", bandwidth / 4))
    graph = replace(random_step(seed, ops), tiers=tiers)
    size = [tensor.nbytes for tensor in graph.tensors]
    kept = []
    for op in graph.ops:
        pairs = tuple((a, b) for a, b in op.in_place if size[a] == size[b])
        kept.append(replace(op, in_place=pairs))
    graph = replace(graph, ops=tuple(kept))
    request = Request.of(graph, "timed", None)
    return request, [*some_away(request.graph, random.Random(seed))]


CASES = {
    "seed": st.integers(0, 10**6),
    "ops": st.integers(2, 16),
    "bandwidth": st.sampled_from([20, 200, 2000, 10**6]),
}


@given(part=st.integers(0, 120), **CASES)
@settings(max_examples=80, deadline=None)
def test_a_walk_is_within_its_goal_or_has_the_least(seed, ops, bandwidth, part):
    request, away = a_case(seed, ops, bandwidth)
    swaps = TimedSwaps(request, range(len(request.graph.ops)), away)
    most = share()(request.graph).peak_bytes
    events, load = swaps._walked(most * part // 100)
    assert swaps.least <= load <= max(swaps.least, most * part // 100)
    graph = request.graph
    inputs = [t for t, maker in enumerate(graph.producer) if maker is None]
    start = sum(align_up(graph.tensors[t].nbytes) for t in inputs)
    assert least_load(request, events) == max(load, start)
    plan = swaps.planned(most * part // 100)
    validate(request.graph, plan)


@given(**CASES)
@settings(max_examples=80, deadline=None)
def test_without_a_limit_no_wait_is_longer_than_with_barriers(seed, ops, bandwidth):
    request, away = a_case(seed, ops, bandwidth)
    sequence = range(len(request.graph.ops))
    timed = TimedSwaps(request, sequence, [a for a in away if a.begin < a.leave])
    events, _ = timed._walked(float("inf"))
    barriers = plan_swaps(request, sequence, timed.away)
    waited = barriers.elapsed_seconds
    assert clock(request.graph, events).elapsed_seconds <= waited + 1e-9


# -- division of all memory ---------------------------------------------------------


def test_claims_are_met_by_need_by_priority_or_equally():
    """The long op asks for many bytes; a small tensor saves most seconds per byte."""
    claims = Claims(
        {
            0: [Claim(0, 9.0, 640, None), Claim(0, 1.0, 64, Algorithm("b", 8.0, 64))],
            1: [Claim(1, 4.0, 128, None)],
            2: [Claim(2, 5.0, 192, None)],
        },
        [10.0, 4.0, 5.0],
    )

    def order(rule):
        return [(each.op, each.nbytes) for each in rule(claims)]

    assert order(by_rate) == [(1, 128), (2, 192), (0, 64), (0, 640)]
    assert order(by_longest) == [(0, 640), (0, 64), (2, 192), (1, 128)]
    assert order(equally) == [(0, 64), (1, 128), (2, 192), (0, 640)]
