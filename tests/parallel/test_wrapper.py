"""Training by several workers against one model that has the whole batch."""

import copy
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import memcfg as mc
from memcfg import nn
from memcfg.errors import (
    CommunicationError,
    FallbackWarning,
    InfeasiblePlanError,
    NonFiniteLossError,
)
from memcfg.parallel import ParallelWrapper

RNG = np.random.default_rng(7)
X = RNG.standard_normal((70, 12)).astype(np.float32)
Y = RNG.integers(0, 4, 70)


@pytest.fixture
def two_devices():
    """Two logical CPUs of 8 MiB each."""
    (cpu,) = mc.config.list_physical_devices("CPU")
    half = mc.config.LogicalDeviceConfiguration(memory_limit=8)
    mc.config.set_logical_device_configuration(cpu, [half, half])


def dense(*, dropout=0.0, optimizer=None, **options):
    nn.utils.set_random_seed(3)
    model = nn.Sequential(
        [
            nn.Input((12,)),
            nn.Dense(32, activation="tanh", kernel_regularizer="l2"),
            nn.Dropout(dropout),
            nn.Dense(4),
        ]
    )
    loss = nn.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        optimizer or nn.optimizers.SGD(0.2), loss, metrics=["accuracy"], **options
    )
    return model


def alone(model, x=X, y=Y, **options):
    return model.fit(x, y, batch_size=16, epochs=2, seed=1, verbose=0, **options)


def together(model, x=X, y=Y, *, workers=2, fit=(), **options):
    with ParallelWrapper(model, workers, **options) as wrapper:
        return wrapper.fit(
            x, y, batch_size=16, epochs=2, seed=1, verbose=0, **dict(fit)
        )


def assert_same(one, other, history, wanted):
    """Compare weights, losses and metrics; sums of parts round differently."""
    for mine, theirs in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-6, atol=2e-6)
    assert history.history.keys() == wanted.history.keys()
    for name, values in wanted.history.items():
        np.testing.assert_allclose(history.history[name], values, rtol=2e-6)


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_gradient_of_a_batch_is_that_of_all_workers(workers, optimizer):
    """The last batch has 6 samples, and dropout draws the numbers of the whole one."""
    one, several = (
        dense(dropout=0.3, optimizer=optimizer),
        dense(dropout=0.3, optimizer=optimizer),
    )
    held = {"validation_data": (X[:9], Y[:9])}
    wanted = alone(one, **held)
    history = together(several, workers=workers, training_mode="all_reduce", fit=held)
    assert_same(several, one, history, wanted)


def test_a_worker_without_a_sample_changes_nothing():
    one, several = dense(), dense()
    wanted = alone(one, X[:33], Y[:33])  # the last batch has one sample
    history = together(several, X[:33], Y[:33], workers=3, training_mode="all_reduce")
    assert_same(several, one, history, wanted)


@pytest.mark.parametrize("weighting", ["class_weight", "sample_weight"])
def test_weights_of_samples_count_as_in_the_whole_batch(weighting):
    options = {
        "class_weight": {0: 0.2, 1: 3.0},
        "sample_weight": RNG.random(70).astype(np.float32),
    }
    given = {weighting: options[weighting]}
    one, several = dense(), dense()
    wanted = alone(one, **given)
    history = together(several, workers=3, training_mode="all_reduce", fit=given)
    assert_same(several, one, history, wanted)


def sequences():
    nn.utils.set_random_seed(3)
    model = nn.Sequential(
        [
            nn.Input((6,), dtype="int32"),
            nn.Embedding(9, 8, mask_zero=True),
            nn.LSTM(8, return_sequences=True),
            nn.Dense(9),
        ]
    )
    loss = nn.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.optimizers.SGD(0.5), loss, metrics=["accuracy"])
    return model


def test_masks_count_as_in_the_whole_batch():
    """Rows have different numbers of steps, so that parts have different shares."""
    tokens = RNG.integers(1, 9, (40, 6)) * (RNG.random((40, 6)) < 0.6)
    one, several = sequences(), sequences()
    wanted = alone(one, tokens, tokens)
    history = together(several, tokens, tokens, workers=3, training_mode="all_reduce")
    assert_same(several, one, history, wanted)


@pytest.mark.parametrize("reduction", ["sum", "sum_over_batch_size", "mean"])
def test_each_reduction_of_a_loss_is_that_of_the_whole_batch(reduction):
    def made():
        model = dense()
        loss = nn.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction=reduction
        )
        model.compile(nn.optimizers.SGD(0.01), loss, metrics=["accuracy"])
        return model

    one, several = made(), made()
    wanted = alone(one, X[:33], Y[:33])
    history = together(several, X[:33], Y[:33], workers=4, training_mode="all_reduce")
    assert_same(several, one, history, wanted)


def test_runs_of_the_same_program_have_the_same_bits():
    runs = []
    for _ in range(3):
        model = dense(dropout=0.2, optimizer="adam")
        together(model, workers=3, training_mode="all_reduce")
        runs.append(model.get_weights())
    for other in runs[1:]:
        for mine, theirs in zip(runs[0], other, strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("workers", [2, 3])
def test_averages_of_each_step_are_the_step_of_the_whole_batch(workers):
    """Plain gradient descent is linear in the samples, and each has its own masks."""
    one, several = dense(dropout=0.3), dense(dropout=0.3)
    wanted = alone(one, validation_data=(X[:9], Y[:9]))
    history = together(
        several, workers=workers, fit={"validation_data": (X[:9], Y[:9])}
    )
    assert_same(several, one, history, wanted)


@pytest.fixture
def narrow():
    """Three devices that hold the weights and a few samples."""
    (cpu,) = mc.config.list_physical_devices("CPU")
    one = mc.config.LogicalDeviceConfiguration("210KiB")
    mc.config.set_logical_device_configuration(cpu, [one] * 3)


def wide(policy="share", **options):
    """A model whose activations take most of its memory."""
    nn.set_random_seed(1)
    layers = [nn.Dense(64, activation="tanh") for _ in range(3)]
    model = nn.Sequential([nn.Input((16,)), *layers, nn.Dropout(0.3), nn.Dense(3)])
    model.compile(nn.SGD(0.1, momentum=0.9), "mse", memory=policy, **options)
    return model


@pytest.mark.parametrize(
    ("shard", "batch", "weighted"),
    [
        (None, 900, True),
        ("optimizer", 901, False),
        ("gradients", 900, False),
        ("parameters", 901, True),
    ],
)
def test_parts_of_workers_run_in_micro_batches(narrow, shard, batch, weighted):
    """All workers run as many, and the update is that of the whole batch."""
    x = RNG.standard_normal((2 * batch, 16)).astype(np.float32)
    y = RNG.standard_normal((2 * batch, 3)).astype(np.float32)
    given = {"sample_weight": RNG.random(2 * batch).astype(np.float32)}
    options = {"batch_size": batch, "epochs": 1, "shuffle": False, "verbose": 0}
    options |= given if weighted else {}
    several = wide()
    with ParallelWrapper(several, 3, training_mode="all_reduce", shard=shard) as them:
        with pytest.warns(FallbackWarning, match="one of 3 ranks"):
            found = them.fit(x, y, **options).history["loss"]
        for report in them.memory_reports(verify=True):
            assert "micro-batch" in report.program
            assert report.measured_peak_bytes == report.predicted_peak_bytes
            assert report.measured_peak_bytes <= report.limit_bytes == 210 << 10
    mc.config.reset()
    one = wide()
    wanted = one.fit(x, y, **options).history["loss"]
    np.testing.assert_allclose(found, wanted, rtol=2e-6)
    for mine, theirs in zip(several.get_weights(), one.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_averages_are_those_of_models_that_trained_apart():
    """Two models see the halves of three batches; then their weights are averaged."""
    several, halves = dense(), [dense(), dense()]
    for begin in range(0, 48, 16):
        for place, model in enumerate(halves):
            rows = slice(begin + 8 * place, begin + 8 * place + 8)
            model.train_on_batch(X[rows], Y[rows])
    with ParallelWrapper(several, 2, averaging_frequency=5) as wrapper:
        wrapper.fit(X[:48], Y[:48], batch_size=16, shuffle=False, verbose=0)
    pairs = zip(*(each.get_weights() for each in halves), strict=True)
    for mine, (first, second) in zip(several.get_weights(), pairs, strict=True):
        np.testing.assert_allclose(mine, (first + second) / 2, rtol=1e-6, atol=1e-7)


def test_workers_are_planned_within_the_limits_of_their_devices(two_devices):
    model = dense(optimizer="adam")
    with ParallelWrapper(model, 2, training_mode="all_reduce") as wrapper:
        wrapper.fit(X, Y, batch_size=64, verbose=0)
        reports = wrapper.memory_reports(verify=True)
        before = model.get_weights()
        wrapper.memory_reports(verify=True)
        after = model.get_weights()
    assert [report.device for report in reports] == ["/device:CPU:0", "/device:CPU:1"]
    for report in reports:
        assert report.measured_peak_bytes == report.predicted_peak_bytes
        assert report.measured_peak_bytes <= report.limit_bytes == 8 << 20
    for mine, theirs in zip(before, after, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_memory_of_replicas_is_given_back(two_devices):
    used = [device.pool.stats().current_bytes for device in devices()]
    model = dense()
    together(model, training_mode="all_reduce")
    assert devices()[1].pool.stats().current_bytes == used[1]
    model.close()
    assert devices()[0].pool.stats().current_bytes == used[0]
    assert not [t for t in threading.enumerate() if "memcfg worker" in t.name]


def devices():
    names = mc.config.list_logical_devices("CPU")
    return [mc.config.logical_device(each.name) for each in names]


def test_a_replica_that_does_not_fit_refuses_the_step_on_all(two_devices):
    mc.config.set_memory_limit("/CPU:1", "4KiB")
    model = dense()
    before = model.get_weights()
    with (
        ParallelWrapper(model, 2, training_mode="all_reduce") as wrapper,
        pytest.raises(InfeasiblePlanError),
    ):
        wrapper.fit(X, Y, verbose=0)
    for mine, theirs in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    model.fit(X, Y, verbose=0)


class Fails(nn.callbacks.Callback):
    def __init__(self, step, error):
        super().__init__()
        self.step = step
        self.error = error

    def on_train_batch_end(self, batch, logs=None):
        if batch == self.step:
            raise self.error("stop")


@pytest.mark.parametrize("mode", ["averaging", "all_reduce"])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_between_steps_leaves_the_model_trained_and_the_wrapper_usable(
    mode, error
):
    model, twin = dense(), dense()
    with ParallelWrapper(model, 2, training_mode=mode) as wrapper:
        with pytest.raises(error):
            wrapper.fit(
                X, Y, batch_size=16, seed=1, verbose=0, callbacks=[Fails(1, error)]
            )
        twin.fit(X, Y, batch_size=16, seed=1, verbose=0, callbacks=[Stops(1)])
        for mine, theirs in zip(model.get_weights(), twin.get_weights(), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=2e-6, atol=2e-6)
        wrapper.fit(X, Y, batch_size=16, verbose=0)


class Stops(nn.callbacks.Callback):
    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_train_batch_end(self, batch, logs=None):
        if batch == self.step:
            self.model.stop_training = True


@pytest.mark.parametrize("mode", ["averaging", "all_reduce"])
def test_a_loss_that_is_not_finite_stops_all_workers(mode):
    bad = X.copy()
    bad[40] = np.nan
    model = dense()
    with ParallelWrapper(model, 2, training_mode=mode) as wrapper:
        with pytest.raises(NonFiniteLossError):
            wrapper.fit(bad, Y, batch_size=16, shuffle=False, verbose=0)
        assert all(np.isfinite(each).all() for each in model.get_weights())
        wrapper.fit(X, Y, batch_size=16, verbose=0)


def test_a_worker_that_fails_ends_the_step_of_the_others(monkeypatch):
    model = dense(optimizer="adam")
    with ParallelWrapper(model, 3, training_mode="all_reduce") as wrapper:
        wrapper.fit(X, Y, batch_size=16, verbose=0)
        before = model.get_weights()
        member = wrapper._members.all[2]
        monkeypatch.setattr(member.session, "_feed", lambda *_: 1 / 0, raising=True)
        began = time.monotonic()
        with pytest.raises(ZeroDivisionError):
            wrapper.fit(X, Y, batch_size=16, verbose=0)
        assert time.monotonic() - began < 20
        for mine, theirs in zip(before, model.get_weights(), strict=True):
            np.testing.assert_array_equal(mine, theirs)
        wrapper.fit(X, Y, batch_size=16, verbose=0)  # with new replicas


def test_a_worker_that_hangs_is_named_within_the_timeout(monkeypatch):
    model = dense()
    with ParallelWrapper(model, 2, training_mode="all_reduce", timeout=0.3) as wrapper:
        wrapper.fit(X, Y, batch_size=16, verbose=0)
        session = wrapper._members.all[1].session
        run = session._run

        def slow(*arguments):
            time.sleep(1.0)
            return run(*arguments)

        monkeypatch.setattr(session, "_run", slow)
        with pytest.raises(CommunicationError, match="rank 1 did not arrive") as info:
            wrapper.fit(X, Y, batch_size=16, verbose=0)
        assert info.value.ranks == (1,)


def normalized(**options):
    nn.utils.set_random_seed(3)
    layers = [nn.Input((12,)), nn.Dense(8), nn.BatchNormalization(), nn.Dense(4)]
    model = nn.Sequential(layers)
    loss = nn.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, **options)
    return model


def test_statistics_of_parts_need_to_be_asked_for():
    with (
        ParallelWrapper(normalized(), 2, training_mode="all_reduce") as wrapper,
        pytest.raises(ValueError, match="batch_statistics='micro'"),
    ):
        wrapper.fit(X, Y, verbose=0)


def test_moving_averages_are_of_the_mean_of_all_statistics():
    model = normalized(batch_statistics="micro")
    with ParallelWrapper(model, 2, training_mode="all_reduce") as wrapper:
        wrapper.fit(X[:16], Y[:16], batch_size=16, shuffle=False, verbose=0)
    halves = [normalized() for _ in range(2)]
    for half, rows in zip(halves, (slice(0, 8), slice(8, 16)), strict=True):
        half.train_on_batch(X[rows], Y[rows])
    for place in (4, 5):  # mean and variance
        means = [half.get_weights()[place] for half in halves]
        wanted = sum(means) / 2
        np.testing.assert_allclose(model.get_weights()[place], wanted, atol=1e-6)


@pytest.mark.parametrize("mode", ["none", "single", "separate"])
def test_workspace_modes_of_workers_give_the_same_bits(mode):
    planned, other = dense(), dense()
    together(planned, training_mode="all_reduce")
    together(other, training_mode="all_reduce", workspace_mode=mode)
    assert other.training_workspace_mode is mc.WorkspaceMode.ENABLED
    for mine, theirs in zip(planned.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("prefetch", [0, 1, 24])
@pytest.mark.parametrize("kind", ["dataset", "iterator", "list"])
def test_batches_of_datasets_and_iterators_are_divided(kind, prefetch):
    batches = [(X[i : i + 16], Y[i : i + 16]) for i in range(0, 64, 16)]
    data = {
        "dataset": lambda: mc.data.Dataset.from_tensor_slices((X[:64], Y[:64])).batch(
            16
        ),
        "iterator": lambda: mc.data.ExistingDataSetIterator(batches),
        "list": lambda: batches,
    }[kind]
    one, several = dense(), dense()
    one.fit(X[:64], Y[:64], batch_size=16, shuffle=False, verbose=0)
    with ParallelWrapper(
        several, 2, training_mode="all_reduce", prefetch_buffer=prefetch
    ) as wrapper:
        wrapper.fit(data(), verbose=0)
    for mine, theirs in zip(several.get_weights(), one.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-6, atol=2e-6)


class Makes(mc.data.DataSetIterator):
    """Makes a batch when it is asked for one."""

    def __init__(self):
        self.made = 0

    def has_next(self):
        return self.made < 20

    def next(self):
        self.made += 1
        return mc.data.DataSet(X[:16].copy(), Y[:16].copy())


class Waiting(nn.callbacks.Callback):
    """Bytes of the batches that wait on each device, after twelve of twenty."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 12:
            pools = [mc.config.logical_device(f"CPU:{i}").pool for i in range(2)]
            self.held = [
                sum(n for name, n in pool.owners().items() if "workspace" in name)
                for pool in pools
            ]


@pytest.mark.usefixtures("two_devices")
@pytest.mark.parametrize("kind", ["dataset", "iterator"])
def test_batches_wait_in_a_workspace_of_each_worker_on_its_device(kind):
    data = Makes()
    if kind == "dataset":
        pair = np.tile(X[:16], (20, 1)), np.tile(Y[:16], 20)
        data = mc.data.Dataset.from_tensor_slices(pair).batch(16)
    block = 16 * (12 * 4 + 8)  # bytes of a batch
    waiting = Waiting()
    with ParallelWrapper(
        dense(), 2, training_mode="all_reduce", prefetch_buffer=3
    ) as wrapper:
        wrapper.fit(data, verbose=0, callbacks=[waiting])
    assert waiting.held == 2 * [(3 + 2) * block]


def test_the_builder_spells_the_arguments_as_dl4j(capsys):
    wrapper = (
        ParallelWrapper.Builder(dense())
        .workers(2)
        .prefetch_buffer(8)
        .averaging_frequency(3)
        .average_updaters(True)
        .report_score_after_averaging(True)
        .workspace_mode("single")
        .training_mode("averaging")
        .build()
    )
    with wrapper:
        wrapper.fit(X[:64], Y[:64], batch_size=8, verbose=0)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2  # of eight batches
    assert f"{wrapper.score:.6g}" in lines[-1]
    assert lines[-1].endswith("of 2 workers")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"workers": 1}, ValueError, "workers"),
        ({"averaging_frequency": 0}, ValueError, "averaging_frequency"),
        ({"prefetch_buffer": -1}, ValueError, "prefetch_buffer"),
        ({"training_mode": "custom"}, ValueError, "training_mode"),
        (
            {"training_mode": "all_reduce", "averaging_frequency": 5},
            ValueError,
            "averaging_frequency is for",
        ),
        (
            {"training_mode": "all_reduce", "average_updaters": False},
            ValueError,
            "average_updaters is for",
        ),
        ({"timeout": 0}, ValueError, "timeout is positive seconds"),
        ({"workers": 2, "devices": ["/CPU:0"]}, ValueError, "one for each of 2"),
    ],
)
def test_arguments_that_cannot_be_honoured_are_refused(options, error, words):
    with pytest.raises(error, match=words):
        ParallelWrapper(dense(), **({"workers": 2} | options))


def test_a_limit_of_programs_at_once_is_refused_before_it_could_hang():
    mc.config.threading.set_inter_op_parallelism_threads(1)
    with pytest.raises(ValueError, match="set_inter_op_parallelism_threads"):
        ParallelWrapper(dense(), 2)


def test_a_model_that_is_none_or_not_compiled_is_refused():
    with pytest.raises(TypeError, match="takes a Model, got str"):
        ParallelWrapper("model.memcfg", 2)
    with pytest.raises(RuntimeError, match="compile"):
        ParallelWrapper(nn.Sequential([nn.Input((3,)), nn.Dense(1)]), 2)


def evaluated():
    nn.set_random_seed(2)
    model = nn.Sequential([nn.Input((6,)), nn.Dense(3, "softmax")])
    model.compile("adam", "categorical_crossentropy")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(101, 6)).astype(np.float32)
    y = np.eye(3, dtype=np.float32)[rng.integers(0, 3, 101)]
    return model, x, y


def judges():
    return mc.evaluation.Evaluation(3), mc.evaluation.ROCMultiClass(0)


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("form", ["arrays", "batches", "dataset"])
def test_workers_merge_what_their_evaluators_have_seen(workers, form):
    model, x, y = evaluated()
    alone = judges()
    model.do_evaluation((x, y), *alone, batch_size=10)
    data = {
        "arrays": (x, y),
        "batches": [(x[i : i + 10], y[i : i + 10]) for i in range(0, 101, 10)],
        "dataset": mc.data.Dataset.from_tensor_slices((x, y)).batch(10),
    }[form]
    options = {"batch_size": 10} if form == "arrays" else {}
    found = judges()
    with mc.parallel.ParallelWrapper(model, workers) as wrapper:
        result = wrapper.do_evaluation(data, *found, **options)
        assert result == found
        assert found[0].to_json() == alone[0].to_json()
        assert found[1].calculate_average_auc() == alone[1].calculate_average_auc()
        some = wrapper.do_evaluation(
            data, mc.evaluation.Evaluation(3), steps=2, **options
        )
        assert some.count == 20
        wrapper.fit(x, y, batch_size=32, verbose=0)
        again = wrapper.do_evaluation((x, y), mc.evaluation.Evaluation(3))
    expected = model.do_evaluation((x, y), mc.evaluation.Evaluation(3))
    assert again.to_json() == expected.to_json()


def test_ranks_all_have_what_all_have_seen():
    """Three ranks of this process stand for processes of MPI; one has no batch."""
    model, x, y = evaluated()
    expected = mc.evaluation.Evaluation(3)
    model.do_evaluation((x[:20], y[:20]), expected, batch_size=10)
    group = mc.parallel.in_process_group(3, 20.0)

    def run(communicator):
        with mc.parallel.ParallelWrapper(
            copy.deepcopy(model), communicator=communicator
        ) as wrapper:
            data = [(x[:10], y[:10]), (x[10:20], y[10:20])]
            return wrapper.do_evaluation(data, mc.evaluation.Evaluation(3))

    with ThreadPoolExecutor(3) as threads:
        for found in threads.map(run, group):
            assert found.to_json() == expected.to_json()


def test_an_evaluation_that_fails_changes_no_evaluator():
    model, x, y = evaluated()
    found = mc.evaluation.Evaluation(3)
    batches = [(x[:10], y[:10]), (x[10:20], y[10:20]), (x[:5, :4], y[:5])]
    with mc.parallel.ParallelWrapper(model, 2) as wrapper:
        with pytest.raises(ValueError, match="x has shape"):
            wrapper.do_evaluation(batches, found)
        assert not found.count
        with pytest.raises(ValueError, match="there is no evaluator"):
            wrapper.do_evaluation(batches)
        with pytest.raises(ValueError, match="batch_size is for arrays"):
            wrapper.do_evaluation(batches, found, batch_size=4)
        for name in ("batch_size", "steps"):
            with pytest.raises(ValueError, match=f"{name} must be positive, got 0"):
                wrapper.do_evaluation((x, y), found, **{name: 0})
        with pytest.raises(TypeError, match="has no method merge"):
            wrapper.do_evaluation(batches, object())
