"""Weights that inference packs once: the same bits, never old ones, in the plan."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import machine
import numpy as np
import pytest
from artificial import ArtificialDevice
from hypothesis import given, settings
from hypothesis import strategies as st
from internals import interrupt_layout_changes, set_machine_bytes
from kernels import onednn

import memcfg as mc
from memcfg.devices import CpuDevice
from memcfg.devices.cpu import kernel_table
from memcfg.errors import InfeasiblePlanError

nn = mc.nn
SHAPE = (4, 8, 8, 3)


class Plain:
    """A table that packs nothing."""

    def __init__(self):
        self._table = kernel_table("onednn")

    def __getattr__(self, name):
        return getattr(self._table, name)

    def packing(self, *op):
        del op


@pytest.fixture(autouse=True)
def _kernels(monkeypatch):
    onednn()
    monkeypatch.setenv("MEMCFG_KERNELS", "onednn")


@pytest.fixture
def plainly(monkeypatch):
    """Have models of devices that are made from now on pack nothing."""

    def switch():
        mc.config.reset()
        monkeypatch.setattr(CpuDevice, "kernels", Plain())

    return switch


def network(seed=3, **options):
    """Weights that are packed, others that are not, and moving averages.

    Whether the weight of `wide` is, depends on the processor.
    """
    nn.set_random_seed(seed)
    model = nn.Sequential(
        [
            nn.Input(SHAPE[1:]),
            nn.Conv2D(16, 3, padding="same", use_bias=False),
            nn.BatchNormalization(),
            nn.ReLU(),
            nn.Conv2D(48, 3, padding="same", activation="relu", name="large"),
            nn.Conv2D(64, 3, padding="same", name="larger"),  # scaled, too
            nn.BatchNormalization(),
            nn.ReLU(),
            nn.GlobalAveragePooling2D(),
            nn.Dense(128, activation="relu", name="wide"),
            nn.Dense(5),
        ]
    )
    return compiled(model, **options)


def compiled(model, **options):
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(0.1, momentum=0.9), loss, **options)
    return model


def batch(seed=0, size=SHAPE[0]):
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((size, *SHAPE[1:])).astype(np.float32)
    return x, generator.integers(0, 5, size)


def beside(model, kind="predict", size=SHAPE[0]):
    """Bytes by name of what is packed beside the plain weights, of a loaded program."""
    graph = model._built_session().executor.graphs[f"{kind}, batch {size}"]
    return {t.name: t.nbytes for t in graph.tensors if t.role == "packed"}


def in_place(model, kind="predict", size=SHAPE[0]):
    """Bytes by name of what lies packed in its own place, of a loaded program."""
    spec = model._built_session().executor._specs[f"{kind}, batch {size}"]
    tensors = spec.source.tensors
    return {tensors[weight].name: packing.nbytes for weight, packing in spec.in_place}


def packed(model, kind="predict", size=SHAPE[0]):
    """Bytes by name of all that is packed, of a loaded program."""
    own = in_place(model, kind, size)
    found = beside(model, kind, size) | {f"{n} packed": b for n, b in own.items()}
    return dict(sorted(found.items()))


def test_plans_have_the_bytes_and_reports_name_them():
    model = network()
    x, y = batch()
    model.predict_on_batch(x)
    found = packed(model)
    assert not beside(model)
    always = ["large/kernel packed", "larger/kernel packed"]
    assert list(found) in (always, [*always, "wide/kernel packed"])
    assert found["large/kernel packed"] >= 4 * 3 * 3 * 16 * 48
    report = model.memory_report(verify=True)
    assert report.measured_peak_bytes == report.predicted_peak_bytes
    assert "packed" not in report.by_role
    assert mc.config.get_memory_info("CPU:0")["current"] == report.predicted_peak_bytes
    model.test_on_batch(x, y)
    assert packed(model, "evaluate") == found
    assert not beside(model, "evaluate")
    model.train_on_batch(x, y)
    assert not packed(model, "train")
    for kind in ("predict", "evaluate"):  # training reads plain ones
        assert not in_place(model, kind)
        assert beside(model, kind) == found
    executor = model._built_session().executor
    report = executor.memory_report(f"predict, batch {SHAPE[0]}", verify=True)
    assert report.measured_peak_bytes == report.predicted_peak_bytes
    assert report.by_role["packed"] == sum(found.values())  # multiples of 64


def test_bits_are_those_of_packing_in_each_run(plainly):
    x, y = batch()

    def run():
        model = network()
        found = [model.predict_on_batch(x), model.test_on_batch(x, y)]
        model.train_on_batch(x, y)
        found += [model.predict_on_batch(x), model.predict_on_batch(x)]
        found.append(model.predict(np.concatenate([x, x[:3]]), batch_size=4, verbose=0))
        names = packed(model)
        model.close()
        return found, names

    with_packed, names = run()
    plainly()
    without, none = run()
    assert names
    assert not none
    for a, b in zip(with_packed, without, strict=True):
        np.testing.assert_array_equal(a, b)


def save_and_load(model, folder):
    model.save_weights(folder / "some.weights.safetensors")
    model.set_weights([np.zeros_like(w) for w in model.get_weights()])
    model.predict_on_batch(batch()[0])
    model.load_weights(folder / "some.weights.safetensors")


ACTS = {
    "predict": lambda model, _: model.predict_on_batch(batch(1)[0]),
    "predict less": lambda model, _: model.predict_on_batch(batch(1, 2)[0]),
    "evaluate": lambda model, _: model.test_on_batch(*batch(2)),
    "train": lambda model, _: model.train_on_batch(*batch(3)),
    "set": lambda model, _: model.set_weights([w * 0.9 for w in model.get_weights()]),
    "file": save_and_load,
    "report": lambda model, _: model.memory_report(verify=True),
    "compile": lambda model, _: compiled(model),
}


@pytest.mark.strength(1)
@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize(
    ("inputs", "units"),
    [(784, units) for units in (40, 64, 100, 192, 300, 320, 960, 1000)]
    + [(100, 300), (4096, 192), (25_088, 64)],
)
def test_bits_do_not_depend_on_the_blocks_of_a_layout(inputs, units, threads, plainly):
    """oneDNN's blocks of 64 columns or of 32, which few rows and columns have."""
    random = np.random.default_rng(units)
    xs = [
        random.standard_normal((rows, inputs)).astype(np.float32)
        for rows in (1, 2, 17, 32, 33)
    ]

    def run():
        nn.set_random_seed(3)
        model = nn.Sequential(
            [nn.Input((inputs,)), nn.Dense(units, activation="relu", name="one")]
        )
        compiled(model)
        found = [model.predict_on_batch(x) for x in xs]
        bytes_ = [packed(model, size=len(x)).get("one/kernel packed") for x in xs]
        model.close()
        return found, bytes_

    with machine.threads(threads):
        with_packed, bytes_ = run()
        plainly()
        without, none = run()
    assert len(set(filter(None, bytes_))) <= 1
    assert not any(none)
    for a, b in zip(with_packed, without, strict=True):
        np.testing.assert_array_equal(a, b)


@given(acts=st.lists(st.sampled_from(sorted(ACTS)), max_size=8))
@settings(max_examples=25, deadline=None)
def test_what_is_packed_is_never_old(acts, tmp_path_factory):
    x, _ = batch()
    model = network()
    model.predict_on_batch(x)
    for name in acts:
        ACTS[name](model, tmp_path_factory.mktemp("weights"))
        fresh = network(seed=4)
        fresh.set_weights(model.get_weights())
        expected = fresh.predict_on_batch(x)
        fresh.close()
        np.testing.assert_array_equal(model.predict_on_batch(x), expected)
    model.close()


class Beside(Plain):
    """A table whose packed weights are no other order of the plain ones."""

    def packing(self, *op):
        found = self._table.packing(*op)
        return found and found._replace(unpack=None, layout="")


def test_one_copy_takes_less_than_kernels_that_pack_in_each_run(plainly, monkeypatch):
    x, _ = batch()

    def peak():
        model = network(on_oom="raise")
        found = model.predict_on_batch(x), model.memory_report().predicted_peak_bytes
        model.close()
        return found

    expected, one_copy = peak()
    plainly()
    plain, more = peak()
    np.testing.assert_array_equal(plain, expected)
    assert one_copy < more
    mc.config.reset()
    monkeypatch.setattr(CpuDevice, "kernels", Beside())
    both, most = peak()
    np.testing.assert_array_equal(both, expected)
    assert more < most


def test_the_limit_says_how_much_is_packed_beside(plainly, monkeypatch):
    x, _ = batch()
    monkeypatch.setattr(CpuDevice, "kernels", Beside())

    def measured(limit):
        mc.config.set_memory_limit("CPU:0", limit)
        model = network(on_oom="raise")
        found = model.predict_on_batch(x)
        report = model.memory_report(verify=True)
        names = packed(model)
        model.close()
        assert report.measured_peak_bytes == report.predicted_peak_bytes
        assert limit is None or report.measured_peak_bytes <= limit
        return found, report.measured_peak_bytes, names

    expected, all_packed, names = measured(None)
    again, peak, same = measured(all_packed)
    assert (peak, same) == (all_packed, names)
    np.testing.assert_array_equal(again, expected)
    with monkeypatch.context():
        plainly()
        _, least, none = measured(None)
    assert not none
    monkeypatch.setattr(CpuDevice, "kernels", Beside())
    mc.config.reset()
    limits = sorted({least, *range(least, all_packed, 4096), all_packed})
    before = -1
    for limit in limits:
        found, _, some = measured(limit)
        np.testing.assert_array_equal(found, expected)
        assert sum(some.values()) >= before
        before = sum(some.values())
    assert before == sum(names.values())
    assert not measured(least)[2]
    with pytest.raises(InfeasiblePlanError):
        measured(least - 64)


@pytest.mark.parametrize("rule", ["by_need", "by_priority", "balanced"])
def test_a_policy_divides_what_packed_weights_get(rule, monkeypatch):
    """Beside plain weights, as after training; of four, the last op is the shortest."""
    monkeypatch.setattr(CpuDevice, "kernels", Beside())
    x = np.random.default_rng(0).standard_normal((8, 8, 8, 16)).astype(np.float32)

    def measured(limit):
        mc.config.set_memory_limit("CPU:0", limit)
        nn.set_random_seed(1)
        layers = [nn.Conv2D(32, 3, padding="same", name="a")]
        layers += [nn.Conv2D(48, 3, padding="same", name="b"), nn.MaxPooling2D(4)]
        layers += [nn.Conv2D(64, 3, padding="same", name="c"), nn.Flatten()]
        layers += [nn.Dense(64, name="d"), nn.Dense(5)]
        model = nn.Sequential([nn.Input((8, 8, 16)), *layers])
        compiled(model, memory=rule, on_oom="raise")
        model.predict_on_batch(x)
        report = model.memory_report(verify=True)
        assert report.measured_peak_bytes == report.predicted_peak_bytes
        assert limit is None or report.measured_peak_bytes <= limit
        names = {name[0]: nbytes for name, nbytes in packed(model, size=8).items()}
        model.close()
        return report.measured_peak_bytes, names

    top, all_packed = measured(None)
    assert set("abc") <= set(all_packed) <= set("abcd")
    with pytest.raises(InfeasiblePlanError) as caught:
        measured(1 << 16)
    least = caught.value.smallest_limit_bytes
    before, sets = -1, []
    for part in (0, 3, 6, 8):
        limit = least + (top - least) * part // 8
        _, names = measured(limit)
        sets.append(set(names))
        left = {name: all_packed[name] for name in all_packed.keys() - names}
        if rule == "balanced":
            assert max(names.values(), default=0) <= min(left.values(), default=top)
        assert sum(names.values()) >= before
        before = sum(names.values())
    assert sets[-1] == set(all_packed)
    assert set() < sets[-2] < sets[-1]
    with pytest.raises(InfeasiblePlanError):
        measured(least - 64)
    dropped = {
        "by_need": min(all_packed, key=all_packed.__getitem__),  # saves least seconds
        "by_priority": max(all_packed),
        "balanced": max(all_packed, key=all_packed.__getitem__),
    }
    assert measured(top - 64)[1].keys() == all_packed.keys() - {dropped[rule]}


def test_without_a_limit_half_of_the_machine_is_enough(monkeypatch):
    x, _ = batch()
    monkeypatch.setattr(CpuDevice, "kernels", Beside())
    model = network(on_oom="raise")
    expected = model.predict_on_batch(x)
    peak, names = model.memory_report().predicted_peak_bytes, packed(model)
    model.close()
    for most in (peak, peak - 64):
        set_machine_bytes(monkeypatch, 2 * most)
        model = network(on_oom="raise")
        np.testing.assert_array_equal(model.predict_on_batch(x), expected)
        assert (packed(model) == names) == (most == peak)
        assert model.memory_report().predicted_peak_bytes <= most
        model.close()


def test_a_layer_that_is_called_twice_is_packed_once():
    def network(first, second):
        x = nn.Input((8, 8, 32))
        return nn.Model(x, second(first(x)))

    def layer(name):
        return nn.Conv2D(32, 3, padding="same", name=name)

    twice = layer("twice")
    model = network(twice, twice)
    x = np.random.default_rng(0).standard_normal((2, 8, 8, 32)).astype(np.float32)
    found = model.predict_on_batch(x)
    assert list(packed(model, size=2)) == ["twice/kernel packed"]
    other = network(layer("first"), layer("second"))
    other.set_weights(model.get_weights() * 2)
    np.testing.assert_array_equal(other.predict_on_batch(x), found)


def test_a_kernel_with_two_normalisations_is_packed_once():
    x = nn.Input((8, 8, 32))
    layer = nn.Conv2D(32, 3, padding="same", use_bias=False, name="twice")
    first, second = nn.BatchNormalization(), nn.BatchNormalization()
    model = nn.Model(x, second(layer(nn.ReLU()(first(layer(x))))))
    rng = np.random.default_rng(0)
    model.set_weights([rng.uniform(0.5, 1.5, w.shape) for w in model.get_weights()])
    data = rng.standard_normal((2, 8, 8, 32)).astype(np.float32)
    found = model.predict_on_batch(data)
    assert list(packed(model, size=2)) == ["twice/kernel packed"]
    kernel = layer.kernel.numpy()
    for each in (first, second):
        y = convolved(data, kernel)
        gamma, beta, mean, variance = (weight.numpy() for weight in each.weights)
        data = (y - mean) * gamma / np.sqrt(variance + each.epsilon) + beta
        data = np.maximum(data, 0) if each is first else data
    np.testing.assert_allclose(found, data, rtol=1e-4, atol=1e-4 * np.abs(data).max())


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("center", [True, False])
def test_kernels_are_packed_whatever_a_normalisation_learns(scale, center):
    layers = [nn.Input((7, 7, 32)), nn.Conv2D(64, 3, padding="same", name="conv")]
    layers += [nn.BatchNormalization(scale=scale, center=center), nn.ReLU()]
    model = nn.Sequential(layers)
    model.predict_on_batch(np.zeros((1, 7, 7, 32), np.float32))
    assert list(packed(model, size=1)) == ["conv/kernel packed"]


def convolved(x, kernel):
    """A convolution by windows of three, with an edge of zeros."""
    padded = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    height, width = x.shape[1:3]
    return sum(
        padded[:, i : i + height, j : j + width] @ kernel[i, j]
        for i in range(3)
        for j in range(3)
    )


def test_models_that_share_a_layer_see_what_the_other_trains():
    large = nn.Dense(256, name="large")
    models = []
    for _ in range(2):
        inputs = nn.Input((64,))
        model = nn.Model(inputs, large(inputs))
        model.compile(nn.SGD(0.5), "mse")
        models.append(model)
    rows = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
    first, second = models
    before = second.predict_on_batch(rows)
    first.train_on_batch(rows, np.ones((3, 256), np.float32))
    after = second.predict_on_batch(rows)
    assert not np.array_equal(before, after)
    np.testing.assert_array_equal(after, first.predict_on_batch(rows))


def named(device, name=None):
    del name
    return device


def test_a_device_with_memory_of_its_own_packs_as_well(monkeypatch):
    x, y = batch()
    outputs = []
    for device in (None, ArtificialDevice(late=0.0005, seed=2)):
        if device is not None:
            found = partial(named, device)
            monkeypatch.setattr(mc.config, "logical_device", found)
        model = network(on_oom="raise")
        outputs.append([model.predict_on_batch(x)])
        assert packed(model)
        model.train_on_batch(x, y)
        outputs[-1] += [model.predict_on_batch(x), model.predict_on_batch(x)]
        model.close()
    for here, there in zip(*outputs, strict=True):
        np.testing.assert_array_equal(here, there)


def test_programs_without_a_plan_pack_in_each_run():
    x, _ = batch()
    expected = network().predict_on_batch(x)
    model = network(inference_workspace_mode="none")
    np.testing.assert_array_equal(model.predict_on_batch(x), expected)
    assert not packed(model)


def test_a_report_leaves_nothing_old_behind():
    x, _ = batch()
    model, other = network(), network(seed=5)
    model.predict_on_batch(x)
    model.set_weights(other.get_weights())
    model.memory_report(verify=True)  # packs, and puts the state back
    np.testing.assert_array_equal(model.predict_on_batch(x), other.predict_on_batch(x))


def padded_network(seed=3):
    """Weights whose layouts are padded, with blocks of other sizes by batch."""
    nn.set_random_seed(seed)
    model = nn.Sequential(
        [
            nn.Input((6, 6, 24)),
            nn.Conv2D(40, 1, name="padded"),
            nn.BatchNormalization(),
            nn.Conv2D(70, 3, padding="same", name="short lines"),
            nn.Conv2D(72, 3, padding="same", name="blocks"),  # whole, also with AVX2
            nn.Conv2D(64, 3, padding="same", name="more blocks"),
            nn.Flatten(),
            nn.Dense(300, activation="relu", name="wide"),
            nn.Dense(96),
        ]
    )
    return compiled(model)


def same_bits(first, second):
    return [w.tobytes() for w in first] == [w.tobytes() for w in second]


def with_odd_numbers(model):
    """Weights with the bits of NaN, infinity, -0 and subnormal numbers."""
    found = model.get_weights()
    for weight in found:
        odd = np.array([0x7FC12345, 0xFF800000, 0x80000000, 7], np.uint32)
        flat = weight.reshape(-1)
        flat[: odd.size] = odd.view(np.float32)[: flat.size]
    return found


def test_weights_come_back_to_the_bit(tmp_path):
    model = padded_network()
    weights = with_odd_numbers(model)
    model.set_weights(weights)
    x = np.random.default_rng(0).standard_normal((33, 6, 6, 24)).astype(np.float32)
    for size in (1, 2, 33, 1):
        model.predict_on_batch(x[:size])
        assert in_place(model, size=size)
        assert same_bits(model.get_weights(), weights)
    model.save_weights(tmp_path / "own.weights.safetensors")
    other = padded_network(seed=9)
    other.predict_on_batch(x[:2])
    other.load_weights(tmp_path / "own.weights.safetensors")
    assert same_bits(other.get_weights(), weights)


def test_training_after_inference_starts_from_the_same_weights():
    x = np.random.default_rng(0).standard_normal((5, 6, 6, 24)).astype(np.float32)
    y = np.arange(5)
    found = []
    for predicts in (True, False):
        model = padded_network()
        if predicts:
            model.predict_on_batch(x[:1])
            model.predict_on_batch(x)
        model.train_on_batch(x, y)
        model.fit(x, y, epochs=2, batch_size=2, validation_data=(x, y), verbose=0)
        found.append([*model.get_weights(), model.predict_on_batch(x)])
        model.close()
    assert same_bits(*found)


class InterruptError(Exception):
    """Stands for what a signal handler raises."""


@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("turn", range(1, 7))
def test_an_interrupt_while_layouts_change_loses_nothing(turn, changes, monkeypatch):
    x = np.random.default_rng(0).standard_normal((3, 6, 6, 24)).astype(np.float32)
    model = padded_network()
    weights = model.get_weights()
    expected = model.predict_on_batch(x)
    model.set_weights(weights)  # they lie plain
    interrupt_layout_changes(monkeypatch, InterruptError, turn, changes=changes)

    def pack_and_unpack():
        for _ in range(2):
            model.predict_on_batch(x)
            model.set_weights(weights)

    with pytest.raises(InterruptError):
        pack_and_unpack()
    assert same_bits(model.get_weights(), weights)
    np.testing.assert_array_equal(model.predict_on_batch(x), expected)
    assert same_bits(model.get_weights(), weights)


def test_a_step_that_does_not_fit_leaves_packed_weights_as_they_are():
    x = np.random.default_rng(0).standard_normal((3, 6, 6, 24)).astype(np.float32)
    model = padded_network()
    expected, weights = model.predict_on_batch(x), model.get_weights()
    peak = model.memory_report().predicted_peak_bytes
    model.close()
    mc.config.reset()
    mc.config.set_memory_limit("CPU:0", peak)
    other = padded_network()
    np.testing.assert_array_equal(other.predict_on_batch(x), expected)
    assert in_place(other, size=3)
    with pytest.raises(mc.errors.ResourceExhaustedError):
        other.train_on_batch(x, np.zeros(3, int))
    np.testing.assert_array_equal(other.predict_on_batch(x), expected)
    assert same_bits(other.get_weights(), weights)


def test_threads_read_what_another_runs():
    x = np.random.default_rng(0).standard_normal((3, 6, 6, 24)).astype(np.float32)
    model = padded_network()
    weights, expected = model.get_weights(), model.predict_on_batch(x)
    alone = model.predict_on_batch(x[:1])
    with ThreadPoolExecutor(3) as pool:
        reads = [pool.submit(model.get_weights) for _ in range(10)]
        ones = [pool.submit(model.predict_on_batch, x[:1]) for _ in range(10)]
        runs = [pool.submit(model.predict_on_batch, x) for _ in range(10)]
    assert all(same_bits(each.result(), weights) for each in reads)
    for each in ones:
        np.testing.assert_array_equal(each.result(), alone)
    for each in runs:
        np.testing.assert_array_equal(each.result(), expected)
