"""Collectives of GPUs: through memory of the host, on the driver's stand-in."""

import cuda_stand_in
import gpus
import numpy as np
import pytest

import memcfg as mc
from memcfg import nn
from memcfg.devices import OperandSpec
from memcfg.ops import add_group
from memcfg.parallel import ParallelWrapper

RNG = np.random.default_rng(5)
X = RNG.standard_normal((24, 24)).astype(np.float32)
Y = RNG.integers(0, 4, 24)
SHARDINGS = [None, "optimizer", "gradients", "parameters"]


@pytest.fixture
def two_gpus(monkeypatch):
    """Give logical GPUs of one, under limits of their own."""
    gpus.find_stand_in(monkeypatch)
    divide()
    yield
    cuda_stand_in.late(None)
    mc.config.reset()


def divide():
    (gpu, *_) = mc.config.list_physical_devices("GPU")
    one = mc.config.LogicalDeviceConfiguration(memory_limit="4MiB")
    mc.config.set_logical_device_configuration(gpu, [one, one])


def made(device, optimizer="adam", **options):
    nn.utils.set_random_seed(3)
    with mc.device(device):
        model = nn.Sequential(
            [
                nn.Input((24,)),
                nn.Dense(65, activation="tanh"),
                nn.BatchNormalization(),
                nn.Dropout(0.2),
                nn.Dense(33, activation="relu", kernel_constraint="max_norm"),
                nn.Dense(4),
            ]
        )
        loss = nn.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, batch_statistics="micro", **options)
    return model


def state_of(model):
    return [*model.get_weights(), *model.optimizer.get_state().values()]


def trained(device, mode="all_reduce", shard=None, **options):
    """Return losses and state, the reports of workers, and an evaluation."""
    model = made(device, **options)
    with ParallelWrapper(
        model, 2, training_mode=mode, shard=shard, timeout=20
    ) as wrapper:
        given = {"batch_size": 16, "seed": 1, "verbose": 0}
        losses = wrapper.fit(X, Y, validation_data=(X[:9], Y[:9]), **given).history
        reports = wrapper.memory_reports(verify=True)
        seen = wrapper.do_evaluation((X, Y), mc.evaluation.Evaluation(4), batch_size=8)
        predicted = model.predict(X, verbose=0)
        devices = [each.device for each in reports]
    assert len(set(devices)) == (2 if "GPU" in device else 1)
    arrays = [predicted, *losses.values(), *state_of(model)]
    model.close()
    return arrays, reports, seen.to_json()


def assert_same_bits(some, others):
    for mine, theirs in zip(some, others, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("shard", SHARDINGS)
def test_gpus_train_together_within_their_limits(two_gpus, shard):
    """Work that is queued runs late, in an order by the seed."""
    wanted, *_ = trained("/CPU:0")
    whole, _, text = trained("/GPU:0")
    cuda_stand_in.late(SHARDINGS.index(shard))
    found, reports, seen = trained("/GPU:0", shard=shard)
    assert_same_bits(found, whole)
    assert seen == text
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=1e-4)
    for report in reports:
        peak = report.measured_peak_bytes
        assert peak == report.predicted_peak_bytes <= report.limit_bytes


@pytest.mark.gpu
@pytest.mark.parametrize("shard", SHARDINGS)
def test_real_gpus_train_together_as_cpus(shard):
    gpus.real()  # or a skip
    mc.config.reset()
    divide()
    wanted, *_ = trained("/CPU:0", shard=shard)
    found, reports, _ = trained("/GPU:0", shard=shard)
    again, *_ = trained("/GPU:0", shard=shard)
    assert_same_bits(found, again)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=1e-4)
    for report in reports:
        peak = report.measured_peak_bytes
        assert peak == report.predicted_peak_bytes <= report.limit_bytes


@pytest.mark.parametrize("mode", ["averaging", "shared_gradients"])
def test_other_ways_to_train_run_on_gpus(two_gpus, mode):
    wanted, *_ = trained("/CPU:0", mode, optimizer="sgd")
    found, *_ = trained("/GPU:0", mode, optimizer="sgd")
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-3)


def test_memory_on_the_host_is_planned_to_the_byte(two_gpus):
    """It is twice that of the largest collective, and a copy of the state."""
    _, (report, other), _ = trained("/GPU:0", optimizer="sgd")
    sizes = [24 * 65, 65, 65, 65, 65 * 33, 33, 33 * 4, 4]  # of one bucket
    aligned = sum(-(-4 * size // 64) * 64 for size in sizes)
    assert report.staged_bytes == other.staged_bytes == 2 * aligned
    assert report.saved_bytes >= aligned
    assert report.tier_bytes == {"host": report.staged_bytes + report.saved_bytes}
    assert "for collectives" in str(report)
    lone = made("/GPU:0", "sgd")
    lone.fit(X, Y, batch_size=16, verbose=0)
    assert lone.memory_report().tier_bytes == {}
    lone.close()


@pytest.mark.parametrize("shard", [None, "parameters"])
@pytest.mark.parametrize("call", [1, 3])
def test_a_collective_that_fails_leaves_the_state(two_gpus, monkeypatch, shard, call):
    model = made("/GPU:0")
    given = {"batch_size": 16, "seed": 1, "verbose": 0}
    with ParallelWrapper(
        model, 2, training_mode="all_reduce", shard=shard, timeout=20
    ) as wrapper:
        wrapper.fit(X, Y, **given)
        before = state_of(model)
        one, left = wrapper._members.all[1].communicator, [call]
        together = one._together

        def fails(name, *given):
            left[0] -= 1
            if not left[0]:
                raise ValueError("the wire is cut")
            together(name, *given)

        # Before the step, values are copied to all by `broadcast`.
        monkeypatch.setattr(
            one,
            "_together",
            lambda name, *given: (together if name == "broadcast" else fails)(
                name, *given
            ),
        )
        with pytest.raises(ValueError, match="the wire is cut"):
            wrapper.fit(X[:16], Y[:16], **given)
        assert_same_bits(state_of(model), before)
        wrapper.fit(X, Y, **given)


@pytest.fixture
def device():
    return gpus.made(gpus.stand_in())


class Notes:
    """A communicator of one rank that notes when it is called, and checks scratch."""

    size, rank, rate = 1, 0, None

    def __init__(self, notes, work_bytes):
        self.notes = notes
        self.nbytes = work_bytes

    def work_bytes(self, *given):
        return self.nbytes

    def all_reduce(self, arrays, work):
        assert work.nbytes == self.nbytes
        work[:] = 255
        self.notes.append(cuda_stand_in.calls())
        for each in arrays:
            each *= 3


@pytest.mark.parametrize("work_bytes", [0, 100])
def test_the_gpu_computes_until_the_result_is_needed(device, work_bytes):
    early, late = (calls_before(device, work_bytes, kernels) for kernels in (2, 0))
    assert early[0] >= late[0] + 2  # the launches; later runs launch a graph


def calls_before(device, work_bytes, before):
    """Return the calls of the driver until a collective is done, of a step that works.

    So many of its two independent kernels come before the wait for the collective.
    """
    notes, counts = [], []
    group = Notes(notes, work_bytes)
    add_group("notes", group)
    arena = device.pool.arena(1 << 20, tag="test")
    arena.grow(4096)
    attributes = {
        "group": "notes",
        "ranks": 1,
        "work_bytes": 0,
        "staged_bytes": work_bytes,
    }
    token, line = OperandSpec((1,), "float32"), OperandSpec((16,), "float32")
    kernels = device.kernels
    total = kernels.make("all_reduce", attributes, [token, line], [token, line])
    assert total.staged_bytes == 64 + -(-work_bytes // 64) * 64
    add = kernels.make("add", {}, [line, line], [line])
    tiers = {"host": device.tier_memory("host", 4096, tag="test")}
    program = device.program(arena, tiers, network=True)
    sizes = [4, 64, 4, 64]
    with pytest.raises(ValueError, match="bytes of the host"):
        program.compute(total, [0, 64, 0, 64], sizes, 128, 3)
    begun = program.compute(total, [0, 64, 0, 64], sizes, (1, 1024), 3)
    adds = [[128, 128, 192], [192, 192, 256]]
    for places in adds[:before]:
        program.compute(add, places, [64] * 3, None)
    program.wait(0, begun)
    for places in [*adds[before:], [64, 256, 320]]:
        program.compute(add, places, [64] * 3, None)
    ones = np.ones(16, np.float32)
    for run in (program.run, program.run, lambda: program.run_timed() and -1):
        device.write(arena, 64, ones)
        device.write(arena, 128, ones)
        notes.clear()
        notes.append(cuda_stand_in.calls())
        assert run() == -1
        found = np.empty(16, np.float32)
        device.read(arena, 320, found)
        assert found.tolist() == [3 + 4] * 16
        if run == program.run:
            begin, called = notes
            counts.append(called - begin)
    spans = program.run_traced()
    assert len(spans) == len(program)
    return counts
