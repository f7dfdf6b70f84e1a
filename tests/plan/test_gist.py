"""Gist and ActNN: which map gets which code, and what that is worth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machine import encode_bytes
from networks import NETWORKS, POOL, Tracer, conv_shapes, dense_shapes, with_velocity

import memcfg as mc
from memcfg.errors import InfeasiblePlanError, PlanError
from memcfg.graph import Tier
from memcfg.plan import (
    NAMED_POLICIES,
    POLICIES,
    Decode,
    Encode,
    actnn,
    auto,
    cdma,
    chain,
    contenders,
    gist,
    share,
    simulate,
    ucudnn_wd,
    ucudnn_wr,
    validate,
    workspace_dynamic,
    workspace_performance,
)
from memcfg.plan.format import code_bytes
from memcfg.units import align_up

nn = mc.nn
SPARSE = ("csr", "zvc")
LOSSY = ("fp16", "fp8", "group2", "group4", "group8", "mask", "fp10")


def encodings(graph, plan):
    """The codec of each map that is encoded, by the tensor's name."""
    found = {}
    for action in plan.actions:
        if isinstance(action, Encode):
            name = graph.tensors[action.tensor].name
            assert name not in found
            found[name] = action.codec
    return found


def waiting(graph):
    """What the forward phase makes and the backward phase reads, of float32."""
    phase = [op.phase for op in graph.ops]
    made = [t for op in graph.ops if op.phase == "forward" for t in op.outputs]
    return [
        tensor
        for tensor in made
        if graph.tensors[tensor].dtype == "float32"
        and any(phase[reader] == "backward" for reader in graph.consumers[tensor])
    ]


def compiled(layers, side=16):
    model = nn.Sequential([nn.Input((side, side, 3)), *layers])
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(0.01, momentum=0.9), loss)
    return model.graph(8)


def conv(name, filters=8):
    return nn.Conv2D(filters, 3, padding="same", activation="relu", name=name)


def head(classes=5):
    return [
        nn.Flatten(name="flat"),
        nn.Dense(64, activation="relu", name="hidden"),
        nn.Dense(classes, name="out"),
    ]


def vgg_like(blocks=3, width=16, side=32):
    layers = []
    for block in range(blocks):
        layers += [conv(f"c{block}{n}", width << block) for n in range(3)]
        layers.append(nn.MaxPooling2D(name=f"p{block}"))
    return compiled([*layers, *head()], side)


def alexnet_like():
    return compiled(
        [
            *(conv("c1"), nn.MaxPooling2D(name="p1")),
            *(conv("c2"), nn.MaxPooling2D(name="p2")),
            *(conv("c3"), conv("c4"), conv("c5"), nn.MaxPooling2D(name="p5")),
            *head(),
        ],
        32,
    )


def inception_like():
    x = inputs = nn.Input((16, 16, 3))
    x = conv("stem", 16)(x)
    one = conv("one")(x)
    two = conv("two_b")(conv("two_a")(x))
    pooled = conv("pooled")(nn.MaxPooling2D(3, 1, padding="same", name="p")(x))
    x = nn.Concatenate(name="cat")([one, two, pooled])
    x = conv("next", 16)(x)
    outputs = nn.Dense(5, name="out")(nn.GlobalAveragePooling2D(name="gap")(x))
    model = nn.Model(inputs, outputs)
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(0.01, momentum=0.9), loss)
    return model.graph(8)


def test_each_map_of_a_vgg_has_the_expected_code():
    """A ReLU before pooling is not kept at all; the last pool's gradient asks signs."""
    graph = vgg_like(2)
    relus = ("c00/relu", "c01/relu", "c10/relu", "c11/relu")
    lossless = dict.fromkeys((*relus, "hidden/relu"), "zvc") | {"p1/max_pool2d": "mask"}
    assert encodings(graph, gist()(graph)) == lossless
    narrow = encodings(graph, gist(sparse="csr")(graph))
    assert narrow == {k: v.replace("zvc", "csr") for k, v in lossless.items()}
    sparse = encodings(graph, gist(density=0.1)(graph))
    assert sparse == narrow | {"p0/max_pool2d": "zvc", "flat/flatten": "zvc"}
    every = {*lossless, "p0/max_pool2d", "flat/flatten"}
    for dpr in ("fp16", "fp10", "fp8"):
        expected = dict.fromkeys(every, dpr) | {"p1/max_pool2d": "mask"}
        assert encodings(graph, gist(dpr)(graph)) == expected  # all take fewer bytes
    mixed = encodings(graph, gist("fp16", density=0.1)(graph))
    assert mixed["c00/relu"] == "csr"
    assert mixed["flat/flatten"] == "zvc"


def test_each_map_of_an_alexnet_has_the_expected_code():
    graph = alexnet_like()
    found = encodings(graph, gist(density=0.2)(graph))
    assert found == {
        "p1/max_pool2d": "zvc",
        "p2/max_pool2d": "zvc",
        "c3/relu": "zvc",
        "c4/relu": "zvc",
        "p5/max_pool2d": "mask",
        "flat/flatten": "zvc",
        "hidden/relu": "zvc",
    }


def test_each_map_of_an_inception_module_has_the_expected_code():
    graph = inception_like()
    names = {graph.tensors[tensor].name for tensor in waiting(graph)}
    found = encodings(graph, gist()(graph))
    assert found.keys() <= names
    assert found["stem/relu"] == "zvc"  # four read it, some of them all of it
    assert found["two_a/relu"] == "zvc"
    (joined,) = (name for name in found if "cat" in name)
    assert found[joined] == "zvc"  # all that is joined is rectified
    assert "p/max_pool2d" not in found  # of nine elements one is not 0


def small(second_reader):
    """A ReLU before pooling as a builder makes it; perhaps a convolution reads it."""
    shapes = conv_shapes("c", 2, 4) | conv_shapes("d", 4, 4)
    shapes |= dense_shapes("head", 4 * 4 * 4, 3)
    t = Tracer("small", 4, with_velocity(shapes))
    x = t.builder.tensor("x", (4, 8, 8, 2), role="input")
    labels = t.builder.tensor("labels", (4,), "int32", role="input")
    y = t.op("relu", t.conv(x, "c"))
    z = t.op("max_pool2d", y, **POOL)
    other = t.op("max_pool2d", t.conv(y if second_reader else z, "d"), **POOL)
    if not second_reader:
        other = t.conv(z, "d")
    x = t.op("flatten", t.op("add", z, other))
    x = t.op("bias", t.op("dense", x, t.state["head/kernel"]), t.state["head/bias"])
    return t.finish(x, labels)


def test_signs_are_enough_unless_another_reads_the_map():
    graph = small(second_reader=False)
    plan = gist()(graph)
    assert encodings(graph, plan)["relu"] == "mask"
    assert plan.lossy == ("mask",)
    (code,) = (
        a
        for a in plan.actions
        if isinstance(a, Encode) and graph.tensors[a.tensor].name == "relu"
    )
    assert graph.tensors[code.tensor].nbytes == 32 * code.nbytes
    shared = small(second_reader=True)
    assert encodings(shared, gist()(shared))["relu"] == "zvc"


def kept(graph, plan=None):
    """Bytes that wait for the backward phase, encoded where a plan encodes them."""
    own = {tensor: graph.tensors[tensor].nbytes for tensor in waiting(graph)}
    for action in plan.actions if plan else ():
        if isinstance(action, Encode):
            own[action.tensor] = align_up(action.nbytes)
    return sum(own.values())


def test_maps_of_a_vgg_take_fewer_bytes():
    graph = vgg_like()
    whole = kept(graph)
    assert whole >= 1.3 * kept(graph, gist()(graph))
    for dpr, ratio in (("fp16", 1.95), ("fp10", 2.9), ("fp8", 3.8)):
        assert whole >= ratio * kept(graph, gist(dpr)(graph))
    assert whole >= 13 * kept(graph, actnn()(graph))


def test_a_normalized_network_peaks_lower():
    """Its maps wait beside each other at the peak, where a VGG's first block works."""
    layers = []
    for n in range(6):
        layers += [
            nn.Conv2D(16, 3, padding="same", use_bias=False, name=f"c{n}"),
            nn.BatchNormalization(name=f"b{n}"),
            nn.ReLU(name=f"r{n}"),
        ]
    ends = [nn.GlobalAveragePooling2D(name="gap"), nn.Dense(5, name="out")]
    graph = compiled([*layers, *ends], 16)
    state = sum(align_up(graph.tensors[t].nbytes) for t in graph.persistent)
    shared = share()(graph).peak_bytes - state
    for policy, ratio in ((gist(), 1.1), (gist("fp16"), 1.4), (gist("fp8"), 1.9)):
        plan = policy(graph)
        validate(graph, plan)
        assert shared >= ratio * (plan.peak_bytes - state)


def test_small_groups_of_bits_take_all_maps():
    graph = vgg_like(2)
    plan = actnn()(graph)
    found = encodings(graph, plan)
    assert set(found.values()) == {"group2", "mask"}
    assert plan.lossy == ("group2", "mask")
    assert set(encodings(graph, actnn(8)(graph)).values()) == {"group8", "mask"}


@pytest.mark.parametrize("name", ["chain", "residual", "noisy"])
@pytest.mark.parametrize("policy", [gist(), gist("fp10", density=0.2), actnn(4)])
def test_maps_are_encoded_between_their_uses(name, policy):
    graph = NETWORKS[name]()
    plan = policy(graph)
    validate(graph, plan)
    codes = [a for a in plan.actions if isinstance(a, Encode)]
    assert len(codes) == len([a for a in plan.actions if isinstance(a, Decode)]) > 0
    for code in codes:
        nbytes = graph.tensors[code.tensor].nbytes
        assert align_up(code.nbytes) < align_up(nbytes)
        assert (code.tier is None) == (code.codec in LOSSY)
        assert code.codec in plan.lossy or code.codec in SPARSE
    predicted = plan.predicted
    assert predicted.codec_seconds == pytest.approx(simulate(graph, plan).codec_seconds)
    assert predicted.codec_seconds > 0
    assert plan.gap == pytest.approx(plan.elapsed_seconds / predicted.seconds - 1)


def planned_bytes(graph, policy):
    """The bytes that are planned for each sparse code, by the tensor's name."""
    return {
        graph.tensors[action.tensor].name: action.nbytes
        for action in policy(graph).actions
        if isinstance(action, Encode) and action.codec in SPARSE
    }


def test_densities_follow_the_values():
    graph = vgg_like(2)
    own = {tensor.name: tensor.nbytes for tensor in graph.tensors}
    pooled = 1 - 0.75**4
    found = planned_bytes(graph, gist(density=0.25))
    for name, density in (
        *(("c00/relu", 0.25), ("hidden/relu", 0.25)),
        *(("p0/max_pool2d", pooled), ("flat/flatten", pooled)),
    ):
        assert found[name] == code_bytes("zvc", own[name], density)
    assert "out/bias_add" not in found
    told = planned_bytes(graph, gist(density={"c00/relu": 0.5, "c01/relu": 1.0}))
    assert told["c00/relu"] == code_bytes("zvc", own["c00/relu"], 0.5)
    assert told["c10/relu"] == code_bytes("zvc", own["c10/relu"], 0.6)
    assert "c01/relu" not in told
    graph = inception_like()
    own = {tensor.name: tensor.nbytes for tensor in graph.tensors}
    found = planned_bytes(graph, gist(density=0.5))
    (joined,) = (name for name in found if "cat" in name)
    assert found[joined] == code_bytes("zvc", own[joined], 0.5)


@settings(deadline=None, max_examples=60)
@given(words=st.integers(1, 5000), density=st.floats(0, 1), seed=st.integers(0, 99))
@pytest.mark.parametrize("codec", [*SPARSE, *LOSSY])
def test_codes_have_the_bytes_that_are_planned(codec, words, density, seed):
    values = np.zeros(words, np.float32)
    kept = int(np.ceil(density * words))
    chosen = np.random.default_rng(seed).permutation(words)[:kept]
    values[chosen] = 1.5
    code = np.empty(4 * words + 64, np.uint8)
    assert encode_bytes(codec, values, code) == code_bytes(codec, 4 * words, density)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: gist("fp4"), "dpr must be None or one of"),
        (lambda: gist(sparse="rle"), "sparse must be None or one of"),
        (lambda: gist(density=1.5), "a density must be from 0 to 1, not 1.5"),
        (lambda: gist(density={"y": -1}), "a density must be from 0 to 1, not -1"),
        (lambda: actnn(3), "bits must be one of"),
    ],
)
def test_what_there_is_not_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("gist_fp16", gist("fp16")),
        ("gist_fp10", gist("fp10")),
        ("gist_fp8", gist("fp8")),
        ("actnn", actnn()),
    ],
)
def test_what_rounds_has_a_name(name, policy):
    assert POLICIES[name]() == policy
    assert policy.name == name
    plan = policy(vgg_like())
    assert plan.method == name
    assert not {*plan.lossy} <= {"mask"}


def test_policies_say_whether_they_round():
    rounding = {name for name, make in NAMED_POLICIES.items() if not make().lossless}
    assert rounding == {"gist_fp16", "gist_fp10", "gist_fp8", "actnn"}
    assert cdma().lossless
    assert not cdma(gist("fp8")).lossless
    for over in (workspace_performance, workspace_dynamic, ucudnn_wd, ucudnn_wr):
        assert over().lossless
        assert not over(base=gist("fp8")).lossless
    assert chain().lossless


def test_auto_takes_nothing_that_rounds():
    """Not even where only that fits, or is the fastest."""
    graph = replace(vgg_like(), tiers=(Tier("host", 1e6, is_stated=True),))
    least = gist("fp8")(graph).peak_bytes
    for limit in (least, share()(graph).peak_bytes - 64):
        plan = within(auto(), graph, limit)
        assert {*plan.lossy} <= {"mask"}
        for other in contenders(auto(), graph, plan, limit):
            assert {*other.lossy} <= {"mask"}


def within(policy, graph, limit):
    """A plan within the limit, or within the smallest that the refusal names."""
    try:
        return policy(graph, limit)
    except InfeasiblePlanError as refusal:
        return policy(graph, refusal.smallest_limit_bytes)


def test_equal_policies_are_equal():
    assert gist() == gist()
    assert gist(density={"a": 0.5, "b": 0.1}) == gist(density={"b": 0.1, "a": 0.5})
    assert gist() != gist("fp8")
    assert actnn() != actnn(4)
    assert hash(gist()) == hash(gist())


def test_a_tier_without_room_for_what_may_be_left_over_is_refused():
    graph = vgg_like(2)
    needed = gist()(graph).predicted.host_peak_bytes
    enough = replace(graph, tiers=(Tier("host", 1e9, 2 * needed),))
    assert gist()(enough).predicted.host_peak_bytes == needed > 0
    small = replace(graph, tiers=(Tier("host", 1e9, needed - 64),))
    with pytest.raises(PlanError, match=r"gist has .* Raise spill_limit"):
        gist()(small)
    assert gist("fp8")(small).predicted.host_peak_bytes == 0  # whose size is fixed
