"""Copies that lanes encode: another's schedule, fewer bytes on its way."""

from __future__ import annotations

from dataclasses import replace

import pytest
from networks import (
    NETWORKS,
    Tracer,
    chain,
    conv_shapes,
    dense_shapes,
    with_velocity,
)

from memcfg.errors import PlanError
from memcfg.graph import Tier
from memcfg.plan import (
    POLICIES,
    Encode,
    SwapIn,
    SwapOut,
    cdma,
    meng_swap,
    recompute,
    simulate,
    validate,
    vdnn_all,
    vdnn_conv,
)
from memcfg.plan.format import code_bytes


def plain(plan):
    """Its actions without codecs and places on tiers."""
    return [
        replace(a, offset=None, codec=None, nbytes=None)
        if isinstance(a, SwapOut)
        else replace(a, offset=None)
        if isinstance(a, SwapIn)
        else a
        for a in plan.actions
    ]


def coded(plan):
    return [a for a in plan.actions if isinstance(a, SwapOut) and a.codec]


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("base", [vdnn_all(), vdnn_conv(), meng_swap()])
def test_the_schedule_is_that_of_the_method(network, base):
    graph = NETWORKS[network]()
    own, plan = base(graph), cdma(base)(graph)
    validate(graph, plan)
    assert plan.method == "cdma"
    assert plain(plan) == plain(own)
    assert plan.peak_bytes == own.peak_bytes
    assert plan.predicted.moved_bytes <= own.predicted.moved_bytes
    for copy in coded(plan):
        nbytes = graph.tensors[copy.tensor].nbytes
        assert (copy.codec, copy.nbytes) == ("zvc", code_bytes("zvc", nbytes, 0.6))


def slow(graph, rate=1e5, **more):
    return replace(graph, tiers=(Tier("host", rate, **more),))


def test_a_slow_link_is_waited_for_less_by_the_ratio():
    graph = slow(chain(depth=6, batch=16))
    own, plan = vdnn_all()(graph), cdma(density=0.2)(graph)
    assert len(coded(plan)) > 2
    assert plan.predicted.stall_seconds < own.predicted.stall_seconds
    tensors = graph.tensors
    codes = {copy.tensor: copy.nbytes for copy in coded(plan)}
    rates = {"host": 1e5}
    for action, before, after in zip(
        (plan.actions[each.action] for each in simulate(graph, plan, rates).schedule),
        simulate(graph, own, rates).schedule,
        simulate(graph, plan, rates).schedule,
        strict=True,
    ):
        if isinstance(action, SwapOut | SwapIn) and action.tensor in codes:
            nbytes = tensors[action.tensor].nbytes
            words = nbytes / 4
            ratio = nbytes / (64 + 128 * (0.2 * words / 32) + 4 * words / 32)
            took = (before.end - before.begin, after.end - after.begin)
            assert took[0] / took[1] == pytest.approx(ratio, rel=0.01)


def test_dense_tensors_are_copied_as_they_are():
    graph = chain()
    assert coded(cdma(density=0.97)(graph)) == []
    plan, own = cdma(density=1.0)(graph), vdnn_all()(graph)
    assert plan.actions == own.actions
    assert replace(plan.predicted, planning_seconds=0.0) == replace(
        own.predicted, planning_seconds=0.0
    )
    names = {tensor.name: i for i, tensor in enumerate(graph.tensors)}
    given = cdma(density={"relu": 1.0})(graph)
    assert {copy.tensor for copy in coded(given)} == {
        names[name] for name in names if name.startswith("relu_") and "/" not in name
    } & {a.tensor for a in own.actions if isinstance(a, SwapOut)}


def activated(kind, depth=4, batch=4, size=6, width=4, classes=3):
    """Small convolutions, each with an activation of a kind, and a dense head."""
    shapes = dense_shapes("head", size * size * width, classes)
    for i in range(depth):
        shapes |= conv_shapes(f"c{i}", width, width)
    trace = Tracer(kind, batch, with_velocity(shapes))
    x = trace.builder.tensor("x", (batch, size, size, width), role="input")
    labels = trace.builder.tensor("labels", (batch,), "int32", role="input")
    for i in range(depth):
        x = trace.op(kind, trace.conv(x, f"c{i}"))
    x = trace.op("dense", trace.op("flatten", x), trace.state["head/kernel"])
    return trace.finish(trace.op("bias", x, trace.state["head/bias"]), labels)


@pytest.mark.strength(1)
@pytest.mark.parametrize("rate", [1e4, 1e6, 1e8, 1e9, 1e10, 1e12])
@pytest.mark.parametrize("base", [vdnn_all(), vdnn_conv()])
@pytest.mark.parametrize("kind", ["gelu", "tanh", "relu"])
def test_dense_maps_slow_nothing_down(kind, base, rate):
    """The maps of GELU and tanh are dense; those of the ReLUs are told to be.

    A copy that is encoded all the same has all bytes of its tensor, and a header.
    """
    graph, rates = slow(activated(kind), rate), {"host": rate}
    plan = cdma(base, density=1.0)(graph) if kind == "relu" else cdma(base)(graph)
    assert plan.predicted.moved_bytes > 0
    actions = [
        replace(a, nbytes=code_bytes(a.codec, graph.tensors[a.tensor].nbytes, 1.0))
        if isinstance(a, SwapOut) and a.codec
        else a
        for a in plan.actions
    ]
    dense = simulate(graph, replace(plan, actions=tuple(actions)), rates)
    own = base(graph)
    for found in (dense.elapsed_seconds, plan.elapsed_seconds):
        assert found <= 1.02 * own.elapsed_seconds


def test_what_a_lossy_code_gave_back_has_no_codec():
    graph = chain()

    def rounded(graph, limit_bytes=None):
        plan = vdnn_all()(graph)
        (first, *_) = coded(cdma()(graph))
        code = Encode(first.tensor, "fp8", 10**6, 0)
        return replace(plan, actions=(*plan.actions, code))

    (first, *rest) = coded(cdma()(graph))
    left = [copy.tensor for copy in coded(cdma(rounded)(graph))]
    assert left == [copy.tensor for copy in rest if copy.tensor != first.tensor]


def test_tiers_that_it_cannot_use_are_refused():
    file = replace(chain(), tiers=(Tier("file", 1e9),))
    with pytest.raises(
        PlanError, match=r"to 'host', but those of 'chain' go to 'file'"
    ):
        cdma()(file)
    needed = simulate(chain(), cdma()(chain())).tier_peak_bytes["host"]
    assert cdma()(slow(chain(), limit_bytes=needed)).method == "cdma"
    with pytest.raises(PlanError, match=f"cdma has .*{needed} B.* Raise spill_limit"):
        cdma()(slow(chain(), limit_bytes=needed - 64))


def test_it_is_a_value_with_a_name():
    assert cdma() == POLICIES["cdma"]() == cdma(vdnn_all())
    assert cdma() != cdma(vdnn_conv())
    assert cdma().name == "cdma"
    with pytest.raises(ValueError, match="methods that only compute, but cdma swaps"):
        recompute("cdma")
    with pytest.raises(ValueError, match="codec must be one of"):
        cdma(codec="rle")
    with pytest.raises(ValueError, match="a density must be from 0 to 1"):
        cdma(density=-0.1)
