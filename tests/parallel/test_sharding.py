"""State that workers divide, against workers that each have all of it."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc
from memcfg import nn
from memcfg.errors import CommunicationError, InfeasiblePlanError
from memcfg.parallel import ParallelWrapper, in_process_group

RNG = np.random.default_rng(5)
X = RNG.standard_normal((70, 12)).astype(np.float32)
Y = RNG.integers(0, 4, 70)
SHARDINGS = ["gradients", "optimizer", "parameters"]
ELEMENTWISE = {
    "adadelta": nn.optimizers.Adadelta,
    "adagrad": nn.optimizers.Adagrad,
    "adam": nn.optimizers.Adam,
    "adam with amsgrad and an average": lambda: nn.optimizers.Adam(
        amsgrad=True, use_ema=True, ema_overwrite_frequency=3
    ),
    "adamax": nn.optimizers.Adamax,
    "adamw that accumulates": lambda: nn.optimizers.AdamW(
        gradient_accumulation_steps=2
    ),
    "ftrl": nn.optimizers.Ftrl,
    "lion": nn.optimizers.Lion,
    "nadam": nn.optimizers.Nadam,
    "rmsprop with values clipped": lambda: nn.optimizers.RMSprop(
        centered=True, momentum=0.5, clipvalue=0.01
    ),
    "schedule-free": nn.optimizers.ScheduleFreeAdamW,
    "sgd": lambda: nn.optimizers.SGD(0.2),
    "sgd with momentum": lambda: nn.optimizers.SGD(0.1, momentum=0.9),
    "several": lambda: nn.optimizers.MultiOptimizer(
        nn.optimizers.OptimizerMap(
            nn.optimizers.SGD(0.1, momentum=0.5),
            {".*kernel": nn.optimizers.Adam()},
        )
    ),
}


def dense(optimizer="adam", units=33, **options):
    """A model whose kernels do not divide evenly, and whose biases are small."""
    nn.utils.set_random_seed(3)
    model = nn.Sequential(
        [
            nn.Input((12,)),
            nn.Dense(units, activation="tanh", kernel_regularizer="l2"),
            nn.Dropout(0.3),
            nn.Dense(17, kernel_constraint="max_norm"),
            nn.Dense(4),
        ]
    )
    loss = nn.losses.SparseCategoricalCrossentropy(from_logits=True)
    made = ELEMENTWISE.get(optimizer, lambda: optimizer)()
    model.compile(made, loss, metrics=["accuracy"], **options)
    return model


def wrapped(model, workers, shard, **options):
    given = {"training_mode": "all_reduce", "shard": shard, **options}
    return ParallelWrapper(model, workers, **given)


def fit(wrapper, epochs=2, **options):
    given = {"batch_size": 16, "seed": 1, "verbose": 0, **options}
    return wrapper.fit(X, Y, epochs=epochs, **given)


def state_of(model):
    return [*model.get_weights(), *model.optimizer.get_state().values()]


def assert_same_bits(some, others):
    for mine, theirs in zip(some, others, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("shard", SHARDINGS)
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_division_changes_no_bit(optimizer, shard, workers):
    """The last batch has 6 samples, and validation the others' weights."""
    whole, divided = dense(optimizer), dense(optimizer)
    held = {"validation_data": (X[:9], Y[:9])}
    with wrapped(whole, workers, None) as wrapper:
        wanted = fit(wrapper, **held).history
    with wrapped(divided, workers, shard) as wrapper:
        found = fit(wrapper, **held).history
        within = state_of(divided)
    assert found == wanted
    assert_same_bits(state_of(divided), state_of(whole))
    assert_same_bits(within, state_of(whole))


@pytest.mark.parametrize("optimizer", sorted(ELEMENTWISE))
def test_each_elementwise_optimizer_divides(optimizer):
    states = []
    for shard in [None, *SHARDINGS]:
        model = dense(optimizer)
        with wrapped(model, 3, shard) as wrapper:
            fit(wrapper)
        states.append(state_of(model))
    for each in states[1:]:
        assert_same_bits(each, states[0])


@pytest.mark.parametrize("shard", SHARDINGS)
def test_losses_are_those_of_one_model_with_the_whole_batch(shard):
    one, several = dense(), dense()
    options = {"batch_size": 16, "epochs": 2, "seed": 1, "verbose": 0}
    wanted = one.fit(X, Y, **options).history
    with wrapped(several, 3, shard) as wrapper:
        found = fit(wrapper).history
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values, rtol=2e-6)


@settings(max_examples=12, deadline=None)
@given(st.integers(2, 5), st.integers(1, 60), st.sampled_from(SHARDINGS))
def test_weights_of_any_length_are_divided(workers, units, shard):
    whole, divided = dense(units=units), dense(units=units)
    with wrapped(whole, workers, None) as wrapper:
        fit(wrapper, epochs=1)
    with wrapped(divided, workers, shard) as wrapper:
        fit(wrapper, epochs=1)
    assert_same_bits(state_of(divided), state_of(whole))


def layered():
    """Layers that gather rows, recur, replace weights, are frozen, or round."""
    nn.utils.set_random_seed(3)
    frozen = nn.Dense(16, activation="tanh", name="frozen")
    frozen.trainable = False
    model = nn.Sequential(
        [
            nn.Input((6,), dtype="int32"),
            nn.Embedding(50, 16, mask_zero=True),
            nn.LSTM(16),
            frozen,
            nn.SpectralNormalization(nn.Dense(32)),
            nn.Dense(32, dtype="mixed_bfloat16", activation="relu"),
            nn.Dense(9, dtype="float32"),
        ]
    )
    loss = nn.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.optimizers.Adam(0.01), loss, batch_statistics="micro")
    return model


@pytest.mark.filterwarnings("ignore:this processor has no instructions for bfloat16")
@pytest.mark.parametrize("shard", SHARDINGS)
def test_layers_of_all_kinds_are_divided(shard):
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, 50, (40, 6)) * (rng.random((40, 6)) < 0.6)
    labels = rng.integers(0, 9, 40)
    runs = []
    for each in [None, shard]:
        model = layered()
        options = {"batch_size": 16, "epochs": 2, "seed": 1, "verbose": 0}
        with wrapped(model, 3, each) as wrapper:
            losses = wrapper.fit(tokens, labels, **options).history["loss"]
        runs.append([losses, *state_of(model)])
    assert_same_bits(*runs)


def devices(count, limit):
    """Make logical CPUs with limits, and return their names."""
    (cpu,) = mc.config.list_physical_devices("CPU")
    one = mc.config.LogicalDeviceConfiguration(memory_limit=limit)
    mc.config.set_logical_device_configuration(cpu, [one] * count)
    return [each.name for each in mc.config.list_logical_devices("CPU")]


def deep(layers=6, **options):
    """A model of weights of 256 KiB, each with 1 KiB of bias."""
    nn.utils.set_random_seed(3)
    model = nn.Sequential(
        [nn.Input((256,))] + [nn.Dense(256, activation="tanh") for _ in range(layers)]
    )
    model.compile("adam", "mse", **options)
    return model


WIDE = RNG.standard_normal((32, 256)).astype(np.float32)


def rounded(nbytes):
    """What a tensor takes of an arena."""
    return -(-nbytes // 64) * 64


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("shard", SHARDINGS)
def test_each_rank_holds_its_part_to_the_byte(shard, workers):
    devices(workers, 32)
    model = deep()
    with wrapped(model, workers, shard) as wrapper:
        wrapper.fit(WIDE, WIDE, batch_size=16, verbose=0)
        reports = wrapper.memory_reports(verify=True)
        timeline = model.memory_timeline()
        with pytest.raises(RuntimeError, match="runs on all ranks together"):
            model.memory_timeline(verify=True)
    lanes = {copy.queue for copy in timeline.copies}
    assert lanes == {"network"}
    sizes = [each.size for each in model.get_weights()]
    parts = sum(rounded(4 * math.ceil(size / workers)) for size in sizes)
    held = parts if shard == "parameters" else sum(rounded(4 * n) for n in sizes)
    for report in reports:
        assert report.by_role["optimizer_state"] == 2 * parts
        assert report.by_role["parameter"] == held
        assert report.measured_peak_bytes == report.predicted_peak_bytes
        assert report.measured_peak_bytes <= report.limit_bytes


def test_each_division_takes_less_than_the_one_before():
    """Without a limit, weights are gathered once, and stay whole."""
    peaks = []
    for shard in [None, "optimizer", "gradients", "parameters"]:
        lowest = mc.plan.look_ahead() if shard == "parameters" else mc.plan.share()
        with wrapped(deep(memory=lowest), 4, shard) as wrapper:
            wrapper.fit(WIDE, WIDE, batch_size=16, verbose=0)
            peaks.append(wrapper.memory_reports(verify=True)[0].measured_peak_bytes)
    assert peaks == sorted(set(peaks), reverse=True)
    assert peaks[-1] < peaks[0] / 3


@pytest.mark.parametrize(
    ("limit", "fits", "does_not"),
    [
        ("4000KiB", "optimizer", None),
        ("3000KiB", "gradients", "optimizer"),
        ("2000KiB", "parameters", "gradients"),
    ],
)
def test_each_division_fits_where_the_one_before_does_not(limit, fits, does_not):
    devices(4, limit)
    options = {"batch_size": 16, "verbose": 0}
    with wrapped(deep(), 4, does_not) as wrapper, pytest.raises(InfeasiblePlanError):
        wrapper.fit(WIDE, WIDE, **options)
    with wrapped(deep(), 4, fits) as wrapper:
        wrapper.fit(WIDE, WIDE, **options)
        for report in wrapper.memory_reports(verify=True):
            assert report.measured_peak_bytes == report.predicted_peak_bytes
            assert report.measured_peak_bytes <= report.limit_bytes


def test_a_model_that_no_device_holds_trains_on_four():
    """Its weights alone take 3,084 KiB, and each device has 2,900."""
    devices(4, "2900KiB")
    model = deep(12)
    with pytest.raises(InfeasiblePlanError):
        model.fit(WIDE, WIDE, batch_size=16, verbose=0)
    with (
        wrapped(deep(12), 4, None) as wrapper,
        pytest.raises(InfeasiblePlanError),
    ):
        wrapper.fit(WIDE, WIDE, batch_size=16, verbose=0)
    model = deep(12)
    with wrapped(model, 4, "parameters") as wrapper:
        options = {"batch_size": 16, "epochs": 3, "shuffle": False, "verbose": 0}
        found = wrapper.fit(WIDE, WIDE, **options).history["loss"]
        for report in wrapper.memory_reports(verify=True):
            assert report.measured_peak_bytes == report.predicted_peak_bytes
            assert report.measured_peak_bytes <= report.limit_bytes == 2900 << 10
    mc.config.set_memory_limit("/CPU:0", "64MiB")
    wanted = deep(12).fit(WIDE, WIDE, **options).history["loss"]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("batch", [16, 15])
@pytest.mark.parametrize("tight", [0, 2])
def test_the_tightest_rank_chooses_when_weights_are_gathered(tight, batch):
    """Ranks with room would keep weights whole in 3,352 KiB, and that one cannot."""
    (cpu,) = mc.config.list_physical_devices("CPU")
    limits = [64.0] * 3
    limits[tight] = "2200KiB"
    configurations = [mc.config.LogicalDeviceConfiguration(each) for each in limits]
    mc.config.set_logical_device_configuration(cpu, configurations)
    options = {"batch_size": batch, "epochs": 2, "shuffle": False, "verbose": 0}
    with wrapped(deep(), 3, "parameters") as wrapper:
        found = wrapper.fit(WIDE, WIDE, **options).history["loss"]
        reports = wrapper.memory_reports(verify=True)
    for report in reports:
        assert report.measured_peak_bytes == report.predicted_peak_bytes < 2500 << 10
    assert reports[tight].measured_peak_bytes <= 2200 << 10
    mc.config.reset()
    wanted = deep().fit(WIDE, WIDE, **options).history["loss"]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


# Whole values outside


class Saves(nn.callbacks.Callback):
    def __init__(self, path):
        super().__init__()
        self.path = path

    def on_epoch_end(self, epoch, logs=None):
        self.model.save(self.path.format(epoch))


@pytest.mark.parametrize("after", [None, *SHARDINGS])
@pytest.mark.parametrize("shard", SHARDINGS)
def test_a_checkpoint_of_four_ranks_is_continued_by_two(shard, after, tmp_path):
    path = str(tmp_path / "{}.memcfg")
    whole, divided = dense(), dense()
    with wrapped(whole, 4, None) as wrapper:
        fit(wrapper)
        wanted = fit(wrapper, epochs=1).history["loss"]
    with wrapped(divided, 4, shard) as wrapper:
        fit(wrapper, callbacks=[Saves(path)])
    restored = nn.models.load_model(path.format(1))
    assert_same_bits(state_of(restored), state_of(divided))
    with wrapped(restored, 2, after) as wrapper:
        found = fit(wrapper, epochs=1).history["loss"]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("shard", SHARDINGS)
def test_values_written_between_fits_reach_all_ranks(shard):
    runs = []
    for each in [None, shard]:
        model = dense()
        state = model.optimizer.get_state()
        with wrapped(model, 3, each) as wrapper:
            fit(wrapper, epochs=1)
            model.set_weights([0.5 * value for value in model.get_weights()])
            model.optimizer.set_state(state)
            fit(wrapper, epochs=1)
        runs.append(state_of(model))
    assert_same_bits(*runs)


class Halves(nn.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.model.set_weights([0.5 * value for value in self.model.get_weights()])


@pytest.mark.parametrize("shard", [None, *SHARDINGS])
def test_a_callback_that_writes_weights_writes_those_of_all_ranks(shard):
    one, several = dense("sgd"), dense("sgd")
    options = {"batch_size": 16, "epochs": 2, "seed": 1, "verbose": 0}
    one.fit(X, Y, callbacks=[Halves()], **options)
    with wrapped(several, 3, shard) as wrapper:
        fit(wrapper, callbacks=[Halves()])
    for mine, theirs in zip(several.get_weights(), one.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("shard", SHARDINGS)
def test_the_model_trains_and_predicts_alone_while_the_wrapper_is_open(shard):
    runs = []
    for each in [None, shard]:
        model = dense()
        with wrapped(model, 3, each) as wrapper:
            fit(wrapper, epochs=1)
            predicted = model.predict(X, verbose=0)
            numbers = model.evaluate(X, Y, verbose=0)
            model.fit(X, Y, batch_size=16, seed=1, verbose=0)
            fit(wrapper, epochs=1)
        runs.append([predicted, numbers, *state_of(model)])
    assert_same_bits(*runs)


@pytest.mark.parametrize("shard", SHARDINGS)
def test_another_wrapper_takes_the_values_over(shard):
    runs = []
    for each in [None, shard]:
        model = dense()
        with wrapped(model, 3, each) as first, wrapped(model, 2, each) as second:
            fit(first, epochs=1)
            fit(second, epochs=1)
            fit(first, epochs=1)
        runs.append(state_of(model))
    assert_same_bits(*runs)


class Predicts(nn.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.predicted = self.model.predict(X, verbose=0)


@pytest.mark.parametrize("shard", SHARDINGS)
def test_a_callback_predicts_with_whole_weights(shard):
    model, callback = dense(), Predicts()
    with wrapped(model, 2, shard) as wrapper:
        fit(wrapper, epochs=1, callbacks=[callback])
        fit(wrapper, epochs=1, callbacks=[callback])  # programs are loaded
    np.testing.assert_array_equal(callback.predicted, model.predict(X, verbose=0))


def wide():
    """A model whose weights take 1,546 KiB."""
    model = nn.Sequential([nn.Input((256,)), *deep(6).layers, nn.Dense(4)])
    model.compile("sgd", "mse", memory=mc.plan.look_ahead())
    return model


def judge():
    """Evaluators whose sums of floats depend on the order of batches."""
    return mc.evaluation.RegressionEvaluation(4)


@pytest.mark.parametrize("processes", [False, True])
def test_workers_that_no_device_holds_evaluate_and_predict_to_the_bit(processes):
    """Each device has 1,540 KiB; the last round has fewer batches than ranks."""
    x, y, workers = WIDE[:28], WIDE[:28, :4], 4
    data = [(x[i : i + 5], y[i : i + 5]) for i in range(0, 28, 5)]
    training = {"batch_size": 16, "seed": 1, "verbose": 0}
    model, whole = wide(), judge()
    with wrapped(model, workers, None) as wrapper:
        wrapper.fit(WIDE, WIDE[:, :4], **training)
        text = wrapper.do_evaluation(data, whole).to_json()
    options = {"batch_size": 6, "verbose": 0}
    wanted = [model.predict(x, **options), model.evaluate(x, y, **options)]
    model.close()
    del whole  # its counters are memory of the device
    mc.config.reset()
    names = devices(workers, "1540KiB")
    models = []
    for name in names[: workers if processes else 1]:
        with mc.device(name):
            models.append(wide())
    with pytest.raises(InfeasiblePlanError):
        models[0].predict(x, verbose=0)

    def run(communicator=None):
        rank = 0 if communicator is None else communicator.rank
        own, found = models[rank], judge()
        count = None if processes else workers
        group = {"communicator": communicator} if processes else {}
        with wrapped(own, count, "parameters", **group) as wrapper:
            wrapper.fit(WIDE, WIDE[:, :4], **training)
            assert wrapper.do_evaluation(data, found) is found
            told = found.to_json()
            found = None  # its counters are memory of a device, where steps just fit
            results = [own.predict(x, **options), own.evaluate(x, y, **options)]
            results.append(own.predict_on_batch(x[:2]))
            for report in wrapper.memory_reports(verify=True):
                assert report.measured_peak_bytes == report.predicted_peak_bytes
            peaks = [mc.config.get_memory_info(name)["peak"] for name in names]
            assert max(peaks) <= 1540 << 10
            mc.config.set_memory_limit(names[rank], "64MiB")
        return told, results

    for found, results in ranks(workers, run) if processes else [run()]:
        assert found == text
        assert_same_bits(results[:2], wanted)
        np.testing.assert_allclose(results[2], wanted[0][:2], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shard", [None, "optimizer", "parameters"])
@pytest.mark.parametrize("fails", ["data", "evaluator", "count"])
def test_a_rank_that_fails_to_evaluate_leaves_the_group(shard, fails):
    """The other raises an error that names it; parts of both are as before."""
    models = [dense(), dense()]

    class Fails(mc.evaluation.Evaluation):
        def eval(self, *args, **options):
            raise KeyError("no such label")

    def run(communicator):
        model = models[communicator.rank]
        data = [(X[i : i + 8], Y[i : i + 8]) for i in range(0, 48, 8)]
        own = mc.evaluation.Evaluation(4)
        if communicator.rank and fails == "data":
            data[3] = (X[:8, :5], Y[:8])
        elif communicator.rank and fails == "count":
            del data[2:]
        elif communicator.rank:
            own = Fails(4)
        with wrapped(model, None, shard, communicator=communicator) as wrapper:
            fit(wrapper, epochs=1)
            with pytest.raises((ValueError, KeyError, CommunicationError)) as caught:
                wrapper.do_evaluation(data, own)
            assert own.count == 0
            fit(wrapper, epochs=1)
        return caught.value, state_of(model)

    (first, one), (second, other) = ranks(2, run)
    assert_same_bits(one, other)
    assert np.isfinite(one[0]).all()
    if fails == "count":
        assert "other numbers of batches, [2, 0]" in str(first)
        assert str(first) == str(second)
    else:
        assert isinstance(first, CommunicationError)
        assert list(first.ranks) == [1]
        assert not isinstance(second, CommunicationError)


class Reads(nn.callbacks.Callback):
    """Reads the model in another thread, all the time."""

    def on_train_begin(self, logs=None):
        self.found = []
        self.ends = threading.Event()
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self):
        while not self.ends.is_set():
            self.found.append(self.model.optimizer.get_state())

    def on_train_end(self, logs=None):
        self.ends.set()
        self.thread.join()


@pytest.mark.parametrize("shard", SHARDINGS)
def test_another_thread_reads_all_parts_of_one_step(shard):
    """All elements of the weight are equal, and so are those of its gradient."""
    layer = nn.Dense(64, use_bias=False, kernel_initializer="ones", name="only")
    model = nn.Sequential([nn.Input((64,)), layer])
    model.compile(nn.optimizers.SGD(1e-3, momentum=0.5), "mse")
    callback = Reads()
    ones = np.ones((64, 64), np.float32)
    with wrapped(model, 4, shard) as wrapper:
        options = {"batch_size": 16, "epochs": 8, "verbose": 0}
        wrapper.fit(ones, ones, callbacks=[callback], **options)
    seen = {state["only/kernel/momentum"].ravel()[0] for state in callback.found}
    assert len(seen) > 1
    for state in callback.found:
        momentum = state["only/kernel/momentum"]
        assert (momentum == momentum[0, 0]).all()


# Failures


@pytest.mark.parametrize("shard", SHARDINGS)
def test_a_worker_that_fails_leaves_all_values(shard, monkeypatch):
    model = dense()
    with wrapped(model, 3, shard) as wrapper:
        fit(wrapper)
        before = state_of(model)
        session = wrapper._members.all[2].session
        monkeypatch.setattr(session, "_feed", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            fit(wrapper)
        assert_same_bits(state_of(model), before)
        fit(wrapper)  # with new replicas


@pytest.mark.parametrize("shard", SHARDINGS)
def test_a_rank_that_does_not_fit_leaves_all_values(shard):
    devices(2, 8)
    model = dense()
    with wrapped(model, 2, shard) as wrapper:
        before = state_of(model)
        mc.config.set_memory_limit("/CPU:1", "4KiB")
        with pytest.raises(InfeasiblePlanError):
            fit(wrapper)
        assert_same_bits(state_of(model), before)
        mc.config.set_memory_limit("/CPU:1", "8MiB")
        fit(wrapper)


def ranks(size, train):
    """Call a function with communicators that are of other processes, as it seems."""
    group = in_process_group(size, 20.0)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(train, group))


@pytest.mark.parametrize("shard", SHARDINGS)
def test_ranks_of_several_processes_read_and_save_together(shard, tmp_path):
    path = str(tmp_path / "{}-{}.memcfg")
    model = dense()
    with wrapped(model, 2, shard) as wrapper:
        fit(wrapper)
    models = [dense(), dense()]  # one after another, as they draw

    def train(communicator):
        rank = communicator.rank
        with wrapped(models[rank], None, shard, communicator=communicator) as wrapper:
            fit(wrapper, callbacks=[Saves(path.replace("{}", str(rank), 1))])
        return state_of(models[rank])

    for found in ranks(2, train):
        assert_same_bits(found, state_of(model))
    for rank in range(2):
        restored = nn.models.load_model(path.format(rank, 1))
        assert_same_bits(state_of(restored), state_of(model))


class Fails(nn.callbacks.Callback):
    """Raises in one rank, when a step has ended."""

    def __init__(self, communicator):
        super().__init__()
        self.rank = communicator.rank

    def on_train_batch_end(self, batch, logs=None):
        if batch == 2 and self.rank == 1:
            raise KeyError("no such batch")


@pytest.mark.parametrize("shard", [None, *SHARDINGS])
def test_a_process_that_raises_leaves_all_values_to_the_others(shard, tmp_path):
    """They are those of before the step that it did not take, on each rank."""
    whole = dense()
    with wrapped(whole, 3, None) as wrapper:
        wrapper.fit(X[:48], Y[:48], batch_size=16, seed=1, shuffle=False, verbose=0)
    models = [dense(), dense(), dense()]

    def train(communicator):
        model = models[communicator.rank]
        with wrapped(model, None, shard, communicator=communicator) as wrapper:
            options = {"shuffle": False, "callbacks": [Fails(communicator)]}
            with pytest.raises((KeyError, CommunicationError)) as caught:
                fit(wrapper, epochs=1, **options)
            if communicator.rank != 1:
                assert caught.value.ranks == (1,)
                assert "no such batch" in str(caught.value)
        return state_of(model)

    for found in ranks(3, train):
        assert_same_bits(found, state_of(whole))


def test_parts_of_other_steps_are_not_put_together():
    models = [dense(), dense()]

    def train(communicator):
        model = models[communicator.rank]
        with wrapped(model, None, "optimizer", communicator=communicator) as wrapper:
            fit(wrapper, epochs=1)
            if communicator.rank:  # as after an update that others did not end
                model.optimizer._iterations.advance()
            with pytest.raises((KeyError, CommunicationError)):
                fit(wrapper, epochs=1, callbacks=[Fails(communicator)])
        return state_of(model)

    with pytest.warns(RuntimeWarning, match="other ranks held are lost"):
        both = ranks(2, train)
    assert all(np.isfinite(each).all() for one in both for each in one)


@pytest.mark.parametrize("shard", ["gradients", "parameters"])
def test_parts_of_a_process_that_has_failed_are_lost_in_words(shard):
    models = [dense(), dense()]
    fitted = threading.Barrier(2)

    def train(communicator):
        model = models[communicator.rank]
        wrapper = wrapped(model, None, shard, communicator=communicator)
        fit(wrapper)
        fitted.wait()
        if communicator.rank:
            communicator.fail("killed")
            return None
        with pytest.raises(CommunicationError):
            model.optimizer.get_state()
        with pytest.warns(RuntimeWarning, match="other ranks held are lost"):
            wrapper.close()
        return state_of(model)

    kernel = ranks(2, train)[0][0]
    assert np.isnan(kernel).all() == (shard == "parameters")


# The choice


def predicted(workers, limit, model=None):
    """The rows of an estimate, of workers in one process with a thread each."""
    model = deep() if model is None else model
    options = {"link": 5e9, "latency": "30us"}
    return mc.parallel.estimate(model, workers, 16, limit, **options)


@pytest.mark.parametrize("limit", ["64MiB", "2600KiB", "1700KiB"])
def test_auto_chooses_the_fastest_division_that_fits_and_keeps_it(limit):
    mc.config.threading.set_intra_op_parallelism_threads(1)
    best = predicted(4, limit).best
    mc.config.reset()
    mc.config.threading.set_intra_op_parallelism_threads(1)
    devices(4, limit)
    with wrapped(deep(), 4, "auto") as wrapper:
        for _ in range(2):
            wrapper.fit(WIDE, WIDE, batch_size=16, epochs=1, verbose=0)
            assert wrapper.shard == best.shard
        for report in wrapper.memory_reports(verify=True):
            assert report.measured_peak_bytes == best.peak_bytes


def test_auto_divides_nothing_where_the_optimizer_needs_whole_weights():
    with wrapped(dense(nn.optimizers.Lamb()), 2, "auto") as wrapper:
        fit(wrapper)
        assert wrapper.shard is None


@pytest.mark.parametrize("tight", [0, 1])
def test_the_rank_with_the_least_memory_chooses_for_all(tight):
    """The other one would not need to divide, and may be another process."""
    (cpu,) = mc.config.list_physical_devices("CPU")
    limits = ["64MiB", "64MiB"]
    limits[tight] = "4800KiB"
    configurations = [mc.config.LogicalDeviceConfiguration(each) for each in limits]
    mc.config.set_logical_device_configuration(cpu, configurations)
    models = []
    for rank in range(2):
        with mc.device(f"/CPU:{rank}"):
            models.append(deep())

    def train(communicator):
        model = models[communicator.rank]
        with wrapped(model, None, "auto", communicator=communicator) as wrapper:
            wrapper.fit(WIDE, WIDE, batch_size=16, epochs=1, verbose=0)
            report = wrapper.memory_reports()[0]
            return wrapper.shard, report.predicted_peak_bytes

    (one, peak), (other, same) = ranks(2, train)
    assert one == other is not None
    assert peak == same <= 4800 << 10


def test_an_error_says_what_could_be_divided_with_the_limits_that_suffice():
    devices(4, "4MiB")
    options = {"batch_size": 16, "epochs": 1, "verbose": 0}
    with (
        wrapped(deep(), 4, None) as wrapper,
        pytest.raises(InfeasiblePlanError) as refused,
    ):
        wrapper.fit(WIDE, WIDE, **options)
    limits = refused.value.limits_with
    divisions = "optimizer", "gradients", "parameters"
    found = [f'shard="{each}"' for each in divisions]
    assert [each for each in limits if each.startswith("shard")] == found
    assert f"With {found[-1]}: at least {limits[found[-1]]} B" in str(refused.value)
    for each, setting in zip(divisions, found, strict=True):
        mc.config.reset()
        devices(4, f"{limits[setting]}B")
        with wrapped(deep(), 4, each) as wrapper:
            wrapper.fit(WIDE, WIDE, **options)
            report = wrapper.memory_reports(verify=True)[0]
        assert report.measured_peak_bytes <= limits[setting]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shard": "states"}, "shard"),
        ({"shard": "optimizer", "training_mode": "averaging"}, "all_reduce"),
    ],
)
def test_divisions_that_there_are_not_are_refused(options, words):
    given = {"training_mode": "all_reduce", **options}
    with pytest.raises(ValueError, match=words):
        ParallelWrapper(dense(), 2, **given)


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (nn.optimizers.Adam(clipnorm=1.0), "clipnorm needs the norm"),
        (nn.optimizers.Adam(global_clipnorm=1.0), "global_clipnorm needs the norm"),
        (nn.optimizers.Adafactor(), "Adafactor computes with whole weights"),
        (nn.optimizers.Lamb(), "Lamb computes with whole weights"),
        (nn.optimizers.Muon(), "Muon computes with whole weights"),
        (
            nn.optimizers.MultiOptimizer(
                nn.optimizers.OptimizerMap(
                    nn.optimizers.Adam(), {".*kernel": nn.optimizers.Lamb()}
                )
            ),
            "Lamb computes with whole weights",
        ),
    ],
)
def test_updates_of_whole_weights_are_refused(optimizer, words):
    with pytest.raises(ValueError, match=words):
        wrapped(dense(optimizer), 2, "gradients")


def test_an_optimizer_that_is_compiled_later_is_refused_then():
    model = dense()
    with wrapped(model, 2, "gradients") as wrapper:
        fit(wrapper)
        before = model.get_weights()
        model.compile(nn.optimizers.Lamb(), "mse")
        with pytest.raises(ValueError, match="Lamb computes"):
            fit(wrapper)
        assert_same_bits(model.get_weights(), before)


def test_the_builder_sets_what_is_divided():
    builder = ParallelWrapper.Builder(dense()).workers(2)
    wrapper = builder.training_mode("all_reduce").shard("parameters").build()
    assert wrapper.shard == "parameters"
    with wrapper:
        fit(wrapper)
