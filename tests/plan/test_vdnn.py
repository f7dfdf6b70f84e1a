"""vDNN: what leaves when, at what peak and in what time, by hand and by formulas."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from internals import leave_out_downgrades

import memcfg as mc
from memcfg.errors import InfeasiblePlanError, PlanError
from memcfg.graph import Algorithm, Graph, Op, Tensor, Tier
from memcfg.plan import (
    Compute,
    SwapIn,
    SwapOut,
    Wait,
    share,
    simulate,
    validate,
    vdnn_all,
    vdnn_conv,
    vdnn_dyn,
)

nn = mc.nn
MIB = 1 << 20


def chain(layers, bandwidth, kinds=("conv2d",), algorithms=()):
    """A chain whose backward reads each layer's input; rows of (bytes, s, s backward).

    The loss is its last layer. Tensors: the input of layer n is n.
    """
    count = len(layers)
    tensors = [
        Tensor(f"x{n}", nbytes, "activation" if n else "input")
        for n, (nbytes, _, _) in enumerate(layers)
    ]
    tensors.append(Tensor("loss", 64, "output"))
    tensors += [
        Tensor(f"dx{n}", layers[n][0], "activation_gradient") for n in range(count)
    ]
    ops = [
        Op(
            f"f{n}",
            kinds[n % len(kinds)] if n < count - 1 else "softmax",
            "forward",
            (n,),
            (n + 1,),
            seconds=layers[n][1],
            algorithms=algorithms,
            scratch_bytes=algorithms[0].scratch_bytes if algorithms else 0,
        )
        for n in range(count)
    ]
    for n in reversed(range(count)):
        dy = () if n == count - 1 else (count + 2 + n,)
        ops.append(
            Op(
                f"b{n}",
                "conv2d_gradient_input",
                "backward",
                (n, *dy),
                (count + 1 + n,),
                seconds=layers[n][2],
            )
        )
    return Graph(
        "chain",
        tuple(tensors),
        tuple(ops),
        keep=(count, count + 1),
        tiers=(Tier("host", bandwidth),),
    )


rows = st.tuples(
    st.integers(1, 40).map(lambda n: n * 64), st.integers(1, 9), st.integers(1, 9)
)


@given(layers=st.lists(rows, min_size=3, max_size=9), bandwidth=st.integers(1, 2000))
@settings(max_examples=60, deadline=None)
def test_a_layer_takes_as_long_as_the_slower_of_its_copy_and_itself(layers, bandwidth):
    graph = chain(layers, float(bandwidth))
    plan = vdnn_all()(graph)
    validate(graph, plan)
    copies = [nbytes / bandwidth for nbytes, _, _ in layers]
    last = len(layers) - 1  # the loss: its input stays
    forward = sum(
        max(seconds, copies[n] if n < last else 0)
        for n, (_, seconds, _) in enumerate(layers)
    )
    backward = sum(
        max(seconds, copies[n - 1] if n else 0)
        for n, (_, _, seconds) in enumerate(layers)
    )
    assert plan.elapsed_seconds == pytest.approx(forward + backward)
    assert plan.predicted.moved_bytes == 2 * sum(nbytes for nbytes, _, _ in layers[:-1])


@st.composite
def networks(draw):
    """Features, of which some are convolutions, then a classifier: rows and kinds."""
    features = draw(st.lists(st.sampled_from(["conv2d", "relu"]), min_size=1))
    classifier = ["dense"] * draw(st.integers(0, 3))
    kinds = [*features, *classifier, "softmax"]
    layers = [draw(rows) for _ in kinds]
    scratch = [
        (64 * draw(st.integers(0, 40)), 64 * draw(st.integers(0, 40))) for _ in kinds
    ]
    return kinds, layers, scratch


def working_set(kinds, layers, scratch, which):
    """The bytes of the greatest working set of a layer, in either phase: vDNN's peak.

    Forward of layer n: what stayed of the layers before, its X, Y and scratch.
    Backward: what stayed, its X, dX and dY, and what came back ahead of its time. A
    layer brings one input back, of the nearest layer before it that misses its own,
    and no layer's beyond the first convolution before it.
    """
    count, last = len(kinds), len(kinds) - 1
    size = [nbytes for nbytes, _, _ in layers]
    takes = {"all": ("conv2d", "relu"), "conv": ("conv2d",)}[which]
    away = [n for n in range(last) if kinds[n] in takes]
    stays = [sum(size[m] for m in range(n) if m not in away) for n in range(count)]
    peaks = [
        stays[n] + size[n] + (size[n + 1] if n < last else 64) + scratch[n]
        for n in range(count)
    ]
    back = len(away)  # inputs away[back:] have come back
    for n in reversed(range(count)):
        window = max((m for m in range(n) if kinds[m] == "conv2d"), default=0)
        back -= back > 0 and away[back - 1] >= window
        ahead = sum(size[m] for m in away[back:] if m < n)
        gradients = size[n] + (size[n + 1] if n < last else 0)
        peaks.append(64 + stays[n] + ahead + size[n] + gradients)
    return max(peaks)


@given(network=networks(), memory=st.booleans())
@settings(max_examples=100, deadline=None)
def test_the_peak_is_the_greatest_working_set_of_a_layer(network, memory):
    kinds, layers, scratch = network
    graph = chain(layers, 1e9, kinds)
    ops = [
        replace(
            op,
            algorithms=(
                Algorithm("fast", 1.0, scratch[n][0]),
                Algorithm("thrifty", 2.0, min(scratch[n])),
            ),
            scratch_bytes=scratch[n][0],
        )
        if n < len(kinds)
        else op
        for n, op in enumerate(graph.ops)
    ]
    graph = replace(graph, ops=tuple(ops))
    pick = "memory" if memory else "performance"
    needed = [min(each) if memory else each[0] for each in scratch]
    for which, policy in (("all", vdnn_all), ("conv", vdnn_conv)):
        plan = policy(pick)(graph)
        validate(graph, plan)
        assert plan.peak_bytes == working_set(kinds, layers, needed, which)


def test_copies_start_with_the_last_reader_and_end_with_the_layer():
    graph = chain([(640, 1.0, 2.0)] * 6, 1e9)
    plan = vdnn_all()(graph)
    place = {a.op: i for i, a in enumerate(plan.actions) if isinstance(a, Compute)}
    waits = {a.action: i for i, a in enumerate(plan.actions) if isinstance(a, Wait)}
    outs = {a.tensor: i for i, a in enumerate(plan.actions) if isinstance(a, SwapOut)}
    ins = {a.tensor: i for i, a in enumerate(plan.actions) if isinstance(a, SwapIn)}
    assert sorted(outs) == sorted(ins) == [0, 1, 2, 3, 4]
    for tensor, out in outs.items():
        assert out < place[tensor] < waits[out] < place[tensor + 1]
        # back while the backward of the layer behind runs; the first waits for itself
        use = place[11 - tensor]
        assert ins[tensor] < waits[ins[tensor]] < use
        assert place[11 - tensor - 1] > ins[tensor]


def test_what_two_layers_read_leaves_once_with_the_later_one():
    x = nn.Input((8, 8, 4))
    first = nn.Conv2D(4, 3, padding="same")(x)
    branch = nn.Conv2D(4, 3, padding="same")(first)
    total = nn.Add()([first, nn.Conv2D(4, 3, padding="same")(branch)])
    head = nn.Dense(3)(nn.GlobalAveragePooling2D()(nn.Conv2D(4, 3)(total)))
    graph = graph_of(nn.Model(x, head), 4)
    plan = vdnn_all()(graph)
    validate(graph, plan)
    outs = [a.tensor for a in plan.actions if isinstance(a, SwapOut)]
    assert len(outs) == len(set(outs))
    place = {a.op: i for i, a in enumerate(plan.actions) if isinstance(a, Compute)}
    for index, action in enumerate(plan.actions):
        if isinstance(action, SwapOut):
            readers = graph.consumers[action.tensor]
            ahead = [r for r in readers if graph.ops[r].phase == "forward"]
            assert index < max(place[r] for r in ahead)
            assert all(place[r] < index for r in ahead if r != max(ahead))


def network(depth=12, size=32):
    nn.set_random_seed(1)
    layers = [nn.Input((size, size, 3))]
    for _ in range(depth):
        layers += [nn.Conv2D(16, 3, padding="same"), nn.ReLU()]
    return nn.Sequential([*layers, nn.GlobalAveragePooling2D(), nn.Dense(5)])


def compiled(model, policy):
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(0.01, momentum=0.9), loss, memory=policy, on_oom="raise")
    return model


def graph_of(model, batch):
    graphs = []

    def policy(graph, limit_bytes=None):
        graphs.append(graph)
        return share()(graph, limit_bytes=limit_bytes)

    compiled(model, policy).plan(batch)
    model.close()
    return graphs[0]


def test_more_that_leaves_is_a_lower_peak():
    graph = graph_of(network(depth=24), 8)
    state = sum(graph.tensors[t].nbytes for t in graph.persistent)
    none, conv, everything = (
        policy()(graph).peak_bytes - state for policy in (share, vdnn_conv, vdnn_all)
    )
    assert everything <= conv <= none
    assert everything <= 0.35 * none


@pytest.mark.parametrize("policy", [vdnn_all, vdnn_conv])
def test_time_goes_with_the_bandwidth(policy):
    graph = graph_of(network(), 8)
    times = [
        policy()(replace(graph, tiers=(Tier("host", rate),))).elapsed_seconds
        for rate in (1e6, 1e8, 1e10, 1e18)
    ]
    assert times == sorted(times, reverse=True)
    alone = sum(op.seconds for op in graph.ops)
    assert times[-1] == pytest.approx(alone)
    assert times[0] > 2 * alone


def test_less_that_leaves_takes_less_time_on_a_slow_lane():
    graph = replace(graph_of(network(), 8), tiers=(Tier("host", 1e6),))
    assert vdnn_conv()(graph).elapsed_seconds <= vdnn_all()(graph).elapsed_seconds


CHOICE = (
    Algorithm("fast", 1.0, 65536),
    Algorithm("middle", 2.0, 32768),
    Algorithm("thrifty", 3.0, 0),
)


def test_the_ladder_ends_at_the_first_rung_that_fits():
    kinds = ("conv2d", "relu")
    graph = chain([(6400, 1.0, 2.0)] * 9, 1e9, kinds, algorithms=CHOICE)
    none, conv, everything = (
        policy()(graph).peak_bytes for policy in (vdnn_dyn, vdnn_conv, vdnn_all)
    )
    least = vdnn_all("memory")(graph).peak_bytes
    assert least < everything < conv < none

    def found(limit):
        plan = vdnn_dyn()(graph, limit)
        validate(graph, plan)
        assert plan.peak_bytes <= limit
        names = [
            a.algorithm for a in plan.actions if isinstance(a, Compute) and a.algorithm
        ]
        return len([a for a in plan.actions if isinstance(a, SwapOut)]), names

    away_conv, away_all = (
        len([a for a in policy()(graph).actions if isinstance(a, SwapOut)])
        for policy in (vdnn_conv, vdnn_all)
    )
    assert 0 < away_conv < away_all
    assert found(none) == (0, [])
    assert found(none - 64) == found(conv) == (away_conv, [])
    assert found(conv - 64) == (away_all, [])
    assert found(everything) == (away_all, [])
    _, names = found(everything - 64)
    assert set(names) <= {"middle", "thrifty"}
    assert names
    assert found(least)[0] == away_all
    with pytest.raises(InfeasiblePlanError) as caught:
        vdnn_dyn()(graph, least - 64)
    assert caught.value.smallest_limit_bytes == least


@pytest.mark.parametrize("greedy", [True, False])
def test_the_last_rungs_have_the_least_scratch(greedy, monkeypatch):
    """Each layer's fastest algorithm alone is beyond every limit here.

    Where one op after another takes less, all end with the least, as on the last two
    rungs; those are reached alone where that step gives up.
    """
    if not greedy:
        leave_out_downgrades(monkeypatch)
    huge = (Algorithm("fast", 1.0, 1 << 20), Algorithm("thrifty", 3.0, 0))
    kinds = ("conv2d", "relu")
    graph = chain([(6400, 1.0, 2.0)] * 9, 1e9, kinds, algorithms=huge)
    conv, everything = (each("memory")(graph) for each in (vdnn_conv, vdnn_all))
    assert everything.peak_bytes < conv.peak_bytes < vdnn_all()(graph).peak_bytes
    for limit in (conv.peak_bytes, 1 << 20):
        assert vdnn_dyn()(graph, limit).actions == conv.actions
    with pytest.raises(InfeasiblePlanError):
        vdnn_conv("memory")(graph, conv.peak_bytes - 64)
    for limit in (conv.peak_bytes - 64, everything.peak_bytes):
        assert vdnn_dyn()(graph, limit).actions == everything.actions
    with pytest.raises(InfeasiblePlanError):
        vdnn_dyn()(graph, everything.peak_bytes - 64)


def test_a_network_trains_that_does_not_fit():
    """Its tensors are several times the device's limit."""
    graph = graph_of(network(depth=24), 8)
    limit = vdnn_all()(graph).peak_bytes
    assert share()(graph).peak_bytes > 2 * limit
    mc.config.reset()
    (cpu,) = mc.config.list_physical_devices("CPU")
    mc.config.set_logical_device_configuration(
        cpu,
        [
            mc.config.LogicalDeviceConfiguration(
                memory_limit=f"{limit}B", spill_to="host"
            )
        ],
    )
    x = np.random.default_rng(0).standard_normal((8, 32, 32, 3)).astype(np.float32)
    y = np.arange(8) % 5
    with pytest.raises(InfeasiblePlanError):
        compiled(network(depth=24), share()).train_on_batch(x, y)
    model = compiled(network(depth=24), vdnn_dyn())
    assert np.isfinite(model.train_on_batch(x, y))
    assert mc.config.get_memory_info("CPU:0")["peak"] <= limit


def test_what_a_tier_has_no_room_for_is_refused():
    graph = chain([(640, 1.0, 2.0)] * 6, 1e9)
    needed = simulate(graph, vdnn_all()(graph)).tier_peak_bytes["host"]
    limit = vdnn_all()(graph).peak_bytes
    full = replace(graph, tiers=(Tier("host", 1e9, 128),))
    for policy in (vdnn_all(), vdnn_dyn()):
        room = replace(graph, tiers=(Tier("host", 1e9, needed),))
        validate(room, policy(room, limit))
    with pytest.raises(PlanError, match="'host', whose limit is 128 B"):
        vdnn_all()(full, limit)
    with pytest.raises(InfeasiblePlanError, match="'host', whose limit is 128 B") as no:
        vdnn_dyn()(full, limit)
    enough = no.value.smallest_limit_bytes
    assert vdnn_dyn()(full, enough).predicted.moved_bytes == 0


def test_the_ladder_goes_on_where_a_tier_is_full():
    """Inputs of convolutions alone need less of it than those of all layers."""
    kinds = ("conv2d", "relu")
    graph = chain([(6400, 1.0, 2.0)] * 9, 1e9, kinds, algorithms=CHOICE)
    everything = vdnn_all()(graph)
    needed = simulate(graph, everything).tier_peak_bytes["host"]
    less = replace(graph, tiers=(Tier("host", 1e9, needed - 64),))
    plan = vdnn_dyn()(less, vdnn_conv("memory")(graph).peak_bytes)
    assert simulate(less, plan).tier_peak_bytes["host"] < needed


def test_a_chain_does_not_take_methods_that_swap():
    for method in ("vdnn_all", vdnn_dyn()):
        with pytest.raises(ValueError, match="methods that only compute, but vdnn"):
            mc.plan.recompute(method)


def test_algorithms_are_of_two_kinds():
    assert vdnn_all("memory") == vdnn_all("memory") != vdnn_all()
    with pytest.raises(ValueError, match="'performance' or 'memory', not 'fast'"):
        vdnn_conv("fast")
