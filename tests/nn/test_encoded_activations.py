"""Training with maps that wait encoded: the same bits, or as good a network."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from machine import decode_bytes, encode_bytes

import memcfg as mc
from memcfg import ops

nn, planning = mc.nn, mc.plan
datasets = pytest.importorskip("sklearn.datasets")
BATCH = 32


@pytest.fixture(scope="module")
def digits():
    found = datasets.load_digits()
    images = (found.images / 16).astype(np.float32).repeat(2, 1).repeat(2, 2)
    order = np.random.default_rng(0).permutation(len(images))
    return images[order][..., None], found.target[order]


def network(seed=0, width=8):
    """Blocks of convolutions and a pooling, as in VGG."""
    nn.set_random_seed(seed)
    layers = [nn.Input((16, 16, 1))]
    for block in range(2):
        filters = width << block
        layers += [
            nn.Conv2D(filters, 3, padding="same", activation="relu") for _ in range(2)
        ]
        layers.append(nn.MaxPooling2D())
    layers += [nn.Flatten(), nn.Dense(32, activation="relu"), nn.Dropout(0.2)]
    return nn.Sequential([*layers, nn.Dense(10)])


def compiled(memory, rate=0.02, **options):
    model = network(**options)
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(rate, momentum=0.9), loss, metrics=["accuracy"], memory=memory)
    return model


def steps(memory, digits, count):
    """Losses and weights of some steps, and what encodings did."""
    x, y = digits
    model = compiled(memory)
    losses = []
    for step in range(count):
        rows = slice(BATCH * step % 1600, BATCH * step % 1600 + BATCH)
        losses.append(float(model.train_on_batch(x[rows], y[rows])[0]))
    weights, report = model.get_weights(), model.memory_report(verify=True)
    assert report.measured_peak_bytes == report.predicted_peak_bytes
    model.close()
    return losses, weights, report.codings


LOSSLESS = {
    "gist": planning.gist(),
    "as published": planning.gist(sparse="csr", density=0.5),
    "as if all were sparse": planning.gist(density=0.1),
    "cdma": planning.cdma(),
    "cdma of convolutions": planning.cdma(planning.vdnn_conv(), codec="csr"),
}


@pytest.mark.parametrize("name", LOSSLESS)
def test_fifty_steps_have_the_same_bits(name, digits):
    losses, weights, _ = steps(planning.share(), digits, 50)
    found, trained, codings = steps(LOSSLESS[name], digits, 50)
    assert found == losses
    assert all(map(np.array_equal, trained, weights))
    assert codings
    for each in codings:
        assert each.runs >= 50
        assert each.raw <= each.runs
    if name == "as if all were sparse":  # most do not fit, and nothing is lost
        assert sum(each.raw for each in codings) > 50


@pytest.mark.parametrize(
    "policy",
    [*(planning.gist(dpr) for dpr in ("fp16", "fp10", "fp8")), planning.actnn()],
    ids=lambda policy: policy.name,
)
def test_the_forward_phase_keeps_its_bits(policy, digits):
    losses, weights, _ = steps(planning.share(), digits, 1)
    found, trained, codings = steps(policy, digits, 1)
    assert found == losses
    assert not all(map(np.array_equal, trained, weights))
    assert not any(each.raw for each in codings)


@pytest.mark.parametrize("name", ["gist_fp16", "gist_fp10", "gist_fp8", "actnn"])
def test_a_name_is_a_policy_that_a_saved_model_keeps(name, tmp_path):
    model = compiled(name)
    assert model.plan(8).method == name
    assert not {*model.plan(8).lossy} <= {"mask"}
    model.save(tmp_path / "m.memcfg")
    model.close()
    again = nn.models.load_model(tmp_path / "m.memcfg")
    assert again.plan(8).method == name
    again.close()


def test_reduced_gradients_are_within_what_the_format_rounds_by(digits):
    """Of fp16 2**-11 of each number; the gradient of a kernel is a sum of products."""
    before = compiled(planning.share())
    first = before.get_weights()
    before.close()
    _, exact, _ = steps(planning.share(), digits, 1)
    _, found, _ = steps(planning.gist("fp16"), digits, 1)
    for start, true, rounded in zip(first, exact, found, strict=True):
        moved = np.abs(true - start).max()
        assert np.abs(rounded - true).max() <= 2**-9 * moved


def accuracy(memory, seed):
    """Train a normalised network on three quarters of the digits; ask the rest."""
    found = datasets.load_digits()
    x, y = (found.images / 16).astype(np.float32)[..., None], found.target
    order = np.random.default_rng(seed).permutation(len(x))
    ahead, later = order[:1297], order[1297:]
    nn.set_random_seed(seed)
    layers = [nn.Input((8, 8, 1))]
    for filters in (16, 32):
        for _ in range(2):
            layers += [nn.Conv2D(filters, 3, padding="same"), nn.BatchNormalization()]
            layers.append(nn.ReLU())
        layers.append(nn.MaxPooling2D())
    model = nn.Sequential([*layers, nn.Flatten(), nn.Dense(10)])
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    sgd = nn.SGD(0.02, momentum=0.9)
    model.compile(sgd, loss, metrics=["accuracy"], memory=memory)
    options = {"batch_size": BATCH, "epochs": 10, "verbose": 0, "seed": seed}
    model.fit(x[ahead], y[ahead], **options)
    told = model.evaluate(x[later], y[later], verbose=0)[1]
    model.close()
    return told


@pytest.fixture(scope="module")
def exact():
    return np.mean([accuracy(planning.share(), seed) for seed in range(3)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "points"),
    [
        (planning.gist("fp16"), 0.5),
        (planning.gist("fp10"), 0.5),
        (planning.gist("fp8"), 0.5),
        (planning.actnn(), 1.0),
    ],
)
def test_digits_are_told_apart_as_well(policy, points, exact):
    """In the mean of three seeds, in percent points."""
    found = np.mean([accuracy(policy, seed) for seed in range(3)])
    print(f"{policy}: {100 * exact:.2f} %, encoded {100 * found:.2f} %")
    assert exact > 0.97
    assert 100 * (exact - found) <= points


def code_of(values):
    """Encode what a ReLU made; return the code's length, and how many words are not 0.

    cDMA's 128 / (128 d + 4) is exact but for the header.
    """
    values = values + np.float32(0)  # predictions fuse ops, and their zeros may be -0.0
    code = np.empty(values.nbytes + 64, np.uint8)
    used = encode_bytes("zvc", values, code)
    words = np.count_nonzero(values)
    density = Fraction(words, values.size)
    assert Fraction(values.nbytes, used - 64) == 128 / (128 * density + 4)
    return used, words


def test_codes_of_maps_are_as_long_as_their_densities_say(digits):
    """Of maps that are recorded while a network trains, and of those in its lanes.

    Fused ops may round a few numbers to the other side of 0.
    """
    x, y = digits
    model = compiled(planning.cdma(codec="zvc"), width=16)
    convolutions = [each for each in model.layers if isinstance(each, nn.Conv2D)]
    probe = nn.Model(model.inputs, [each.output for each in convolutions])
    for step in range(151):
        rows = slice(BATCH * step % 1600, BATCH * step % 1600 + BATCH)
        maps = probe.predict(x[rows], verbose=0) if step % 50 == 0 else []
        model.train_on_batch(x[rows], y[rows])
        if not maps:
            continue
        found = {
            f"{layer.name}/relu": code_of(values)
            for layer, values in zip(convolutions, maps, strict=True)
        }
        density = sum(words for _, words in found.values()) / sum(m.size for m in maps)
        codings = [c for c in model.memory_report().codings if c.tensor in found]
        print(step, f"density {density:.3f}", [each.used_bytes for each in codings])
        assert codings
        for each in codings:
            used, _ = found[each.tensor]
            assert each.used_bytes == pytest.approx(used, rel=1e-3)
    assert density < 0.5
    model.close()


def kept(attributes, inputs, outputs):
    """Give back what a codec keeps of an array."""
    code = np.empty(inputs[0].nbytes, np.uint8)
    used = encode_bytes(attributes["codec"], inputs[0], code)
    decode_bytes(attributes["codec"], code[:used], outputs[0])


class Rounded(nn.Layer):
    """The next layer reads what a codec keeps; gradients pass as they are."""

    def __init__(self, codec):
        super().__init__()
        self.codec = codec

    def trace(self, scope, inputs):
        return scope.apply("rounded", inputs, {"codec": self.codec})[0]


@pytest.fixture
def rounding():
    """Make known the op of `Rounded`."""
    kind = ops.OpType(
        "rounded",
        1,
        lambda inputs, _: [ops.Spec(inputs[0].shape, inputs[0].dtype)],
        kept,
        gradient=lambda adjoint: (adjoint.dy,),
    )
    ops.register(kind)
    yield
    ops.unregister(kind.name)


def rebuilding(seed, memory, codec=None):
    """Train five layers to give digits back; tell the loss, and codecs of maps.

    With a codec the hidden layers' results are rounded before anything reads them. The
    loss is the mean of the last five epochs, one of which alone is less steady.
    """
    x = (datasets.load_digits().data / 16).astype(np.float32)
    x = x[np.random.default_rng(seed).permutation(len(x))[:1024]]
    nn.set_random_seed(seed)
    layers = [nn.Input((64,))]
    for _ in range(4):
        layers += [nn.Dense(128), *([Rounded(codec)] if codec else []), nn.ReLU()]
    model = nn.Sequential([*layers, nn.Dense(64)])
    model.compile(nn.Adam(0.001), nn.losses.MeanSquaredError(), memory=memory)
    history = model.fit(x, x, batch_size=128, epochs=90, verbose=0, seed=seed)
    codecs = {each.codec for each in model.memory_report().codings}
    model.close()
    return np.mean(history.history["loss"][-5:]), codecs


def test_rounding_is_worse_where_the_forward_phase_reads_it(rounding, tenths):
    """Gist (Jain et al. 2018) delays it: 8 bits wait, and the next layer reads 32.

    From maps of 8 bits throughout, a network cannot tell numbers as finely as from
    exact ones, which gradients of rounded maps train nearly as well. In 16 bits the
    same op does no harm, so it is the bits that do. Other kernels round otherwise, and
    change the loss of a seed by some 10 %: hence the room.

    A gate has one seed, and compares the two of 8 bits.
    """
    found = []
    for seed in range(3 if tenths == 10 else 1):
        delayed, codecs = rebuilding(seed, planning.gist("fp8"))
        assert codecs == {"fp8"}
        through, _ = rebuilding(seed, planning.share(), "fp8")
        assert through > 1.4 * delayed
        if tenths == 10:
            exact, codecs = rebuilding(seed, planning.share())
            assert not codecs
            fine, _ = rebuilding(seed, planning.share(), "fp16")
            found.append((exact, delayed, through, fine))
    if not found:
        return
    exact, delayed, through, fine = np.mean(found, axis=0)
    print(f"{exact:.6f}, fp8 {delayed:.6f}, through {through:.6f}, fp16 {fine:.6f}")
    assert through > 1.6 * delayed
    assert delayed < 1.2 * exact
    assert fine < 1.2 * exact
