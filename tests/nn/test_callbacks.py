"""Callbacks: Keras's hooks, in Keras's order, with Keras's decisions."""

from __future__ import annotations

import csv
import functools
import sys
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc
from memcfg.nn import callbacks as cb

nn = mc.nn


def samples(count=96, width=6, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, width)).astype(np.float32)
    return x, x[:, :3].argmax(1)


def made(optimizer=None, width=6):
    nn.set_random_seed(3)
    model = nn.Sequential([nn.Input((width,)), nn.Dense(8, "relu"), nn.Dense(3)])
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer or nn.SGD(0.1), loss, metrics=["accuracy"])
    return model


class Recorder(cb.Callback):
    """Notes each hook that is called."""

    def __init__(self):
        super().__init__()
        self.calls = []


def _noting(hook):
    def note(self, *arguments):
        *numbers, logs = arguments
        self.calls.append((hook, *numbers, tuple(logs)))

    return note


for _hook in [name for name in vars(cb.Callback) if name.startswith("on_")]:
    if _hook not in ("on_batch_begin", "on_batch_end"):
        setattr(Recorder, _hook, _noting(_hook))


def test_hooks_come_in_kerass_order_with_their_numbers():
    x, y = samples(64)
    recorder, model = Recorder(), made()
    model.fit(x, y, epochs=2, validation_split=0.5, verbose=0, callbacks=[recorder])
    names = ("loss", "accuracy")
    step = [("on_train_batch_begin", 0, ()), ("on_train_batch_end", 0, names)]
    test = [
        ("on_test_begin", ()),
        ("on_test_batch_begin", 0, ()),
        ("on_test_batch_end", 0, names),
        ("on_test_end", names),
    ]
    both = (*names, "val_loss", "val_accuracy")
    wanted = [("on_train_begin", ())]
    for epoch in (0, 1):
        wanted += [("on_epoch_begin", epoch, ()), *step, *test]
        wanted += [("on_epoch_end", epoch, both)]
    assert recorder.calls == [*wanted, ("on_train_end", both)]
    assert recorder.model is model
    assert recorder.params == {"verbose": 0, "epochs": 2, "steps": 1}


def test_hooks_of_evaluate_and_predict():
    x, y = samples(64)
    recorder, model = Recorder(), made()
    model.evaluate(x, y, verbose=0, callbacks=recorder)
    model.predict(x, verbose=0, callbacks=(recorder,))
    hooks = [call[0] for call in recorder.calls]
    batches = ["on_test_batch_begin", "on_test_batch_end"] * 2
    assert hooks[:6] == ["on_test_begin", *batches, "on_test_end"]
    batches = ["on_predict_batch_begin", "on_predict_batch_end"] * 2
    assert hooks[6:] == ["on_predict_begin", *batches, "on_predict_end"]


def test_the_other_names_of_batches():
    x, y = samples(64)
    seen = []

    class Old(cb.Callback):
        def on_batch_begin(self, batch, logs=None):
            seen.append(batch)

        def on_batch_end(self, batch, logs=None):
            seen.append(logs["loss"])

    model = made()
    model.fit(x, y, verbose=0, callbacks=Old())
    assert seen[0::2] == [0, 1]
    assert seen[3] == model.history.history["loss"][0]


def test_what_a_callback_writes_into_the_logs_is_in_the_history():
    x, y = samples()

    class Extra(cb.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["answer"] = 42 + epoch

    history = made().fit(x, y, epochs=2, verbose=0, callbacks=Extra())
    assert history.history["answer"] == [42, 43]


@pytest.mark.parametrize("wrong", [3, "early", [None], cb.EarlyStopping])
def test_what_is_no_callback_is_refused_and_nothing_happens(wrong):
    x, y = samples()
    model = made()
    before = model.get_weights()
    with pytest.raises(TypeError, match="callbacks must be instances"):
        model.fit(x, y, verbose=0, callbacks=wrong)
    assert model.history is None
    assert all(map(np.array_equal, before, model.get_weights()))


def test_an_error_in_a_hook_ends_fit_and_the_model_goes_on():
    x, y = samples()

    class Failing(cb.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1:
                raise OSError("the disk is full")

    model = made()
    with pytest.raises(OSError, match="disk is full"):
        model.fit(x, y, verbose=0, callbacks=Failing())
    assert model.optimizer.iterations == 2
    model.fit(x, y, verbose=0)


def test_a_hook_may_use_the_model():
    x, y = samples()
    seen = {}

    class Busy(cb.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen["loss"] = self.model.evaluate(x, y, verbose=0)[0]
            seen["rows"] = len(self.model.predict(x, verbose=0))
            self.model.set_weights([0 * w for w in self.model.get_weights()])

    model = made()
    model.fit(x, y, epochs=2, verbose=0, callbacks=Busy())
    assert seen["rows"] == len(x)
    assert seen["loss"] > 0
    assert not any(w.any() for w in model.get_weights())


class Scripted:
    """A model that only has what callbacks that follow a number need."""

    def __init__(self, rate=1.0):
        self.stop_training = False
        self.weights = 0
        self.optimizer = type("Optimizer", (), {"learning_rate": rate})()

    def get_weights(self):
        return self.weights

    def set_weights(self, weights):
        self.weights = weights


def stopped_at(numbers, patience, min_delta, start, larger, baseline):
    """Say by which epoch to stop, and which was the best: over all that were seen.

    A number that is better, but not than the baseline, is waited for as well.
    """
    best_epoch, waited, sign = None, 0, 1 if larger else -1
    for epoch, number in enumerate(numbers):
        if epoch < start:
            continue
        waited += 1
        than = None if best_epoch is None else numbers[best_epoch]
        if than is None or sign * (number - than) > min_delta:
            best_epoch = epoch
            if baseline is None or sign * (number - baseline) > min_delta:
                waited = 0
        elif waited >= patience:
            return epoch, best_epoch
    return None, best_epoch


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=25),
    st.integers(0, 4),
    st.sampled_from([0, 1, 2]),
    st.integers(0, 3),
    st.booleans(),
    st.none() | st.integers(1, 8),
)
def test_early_stopping_stops_where_a_plain_loop_does(
    numbers, patience, min_delta, start, larger, baseline
):
    monitor = "val_accuracy" if larger else "val_loss"
    stopping = cb.EarlyStopping(
        monitor,
        min_delta,
        patience,
        mode="max" if larger else "min",
        baseline=baseline,
        restore_best_weights=True,
        start_from_epoch=start,
    )
    model = Scripted()
    stopping.set_model(model)
    stopping.on_train_begin()
    last = None
    for epoch, number in enumerate(numbers):
        model.weights = epoch
        stopping.on_epoch_end(epoch, {monitor: number})
        if model.stop_training:
            last = epoch
            break
    stopping.on_train_end()
    stop, best = stopped_at(numbers, patience, min_delta, start, larger, baseline)
    assert last == stop
    if best is not None:
        assert model.weights == best


def test_early_stopping_ends_fit_with_the_best_weights():
    x, y = samples(width=6)
    model = made(nn.SGD(3.0))
    stopping = cb.EarlyStopping("loss", patience=1, restore_best_weights=True)
    history = model.fit(x, y, epochs=40, verbose=0, callbacks=stopping)
    assert len(history.epoch) < 40
    assert stopping.stopped_epoch == history.epoch[-1]
    assert stopping.best == min(history.history["loss"])


def test_tensorboard_says_what_it_needs(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    x, y = samples()
    with pytest.raises(ImportError, match="pip install tensorboardX"):
        made().fit(x, y, verbose=0, callbacks=cb.TensorBoard(tmp_path))


def test_a_number_that_is_not_there_is_one_warning_an_epoch():
    x, y = samples()
    with pytest.warns(
        RuntimeWarning, match="'val_loss', which is not in the logs"
    ) as w:
        made().fit(x, y, verbose=0, callbacks=cb.EarlyStopping())
    assert len(w) == 1


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=25),
    st.integers(1, 3),
    st.integers(0, 2),
)
def test_reduce_lr_on_plateau_lowers_where_a_plain_loop_does(
    numbers, patience, cooldown
):
    plateau = cb.ReduceLROnPlateau(
        patience=patience,
        mode="min",
        cooldown=cooldown,
        factor=0.5,
        min_lr=0.1,
        min_delta=0,
    )
    model = Scripted(1.0)
    plateau.set_model(model)
    plateau.on_train_begin()
    rate, best, bad, rest = 1.0, None, 0, 0
    for epoch, number in enumerate(numbers):
        logs = {"val_loss": number}
        plateau.on_epoch_end(epoch, logs)
        assert logs["learning_rate"] == rate
        if rest:
            rest, bad = rest - 1, 0
        if best is None or number < best:
            best, bad = number, 0
        elif not rest:
            bad += 1
            if bad >= patience and rate > 0.1:
                rate, rest, bad = max(rate / 2, 0.1), cooldown, 0
        assert model.optimizer.learning_rate == rate


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [(lambda epoch: 0.5 / (epoch + 1), [0.5, 0.25]), (lambda e, r: r / 2, [0.2, 0.1])],
)
def test_learning_rate_scheduler(schedule, rates):
    x, y = samples()
    model = made(nn.SGD(0.4))
    scheduler = cb.LearningRateScheduler(schedule)
    history = model.fit(x, y, epochs=2, verbose=0, callbacks=scheduler)
    assert history.history["learning_rate"] == rates


def test_a_schedule_that_gives_no_float_is_refused():
    x, y = samples()
    scheduler = cb.LearningRateScheduler(lambda _: "fast")
    with pytest.raises(ValueError, match="schedule must return a float"):
        made().fit(x, y, verbose=0, callbacks=scheduler)


def test_csv_logger_writes_and_continues(tmp_path):
    x, y = samples()
    model, path = made(), tmp_path / "log.csv"
    first = model.fit(x, y, epochs=2, verbose=0, callbacks=cb.CSVLogger(path))
    second = model.fit(
        x, y, epochs=1, verbose=0, callbacks=cb.CSVLogger(path, append=True)
    )
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["epoch", "accuracy", "loss"]
    wanted = first.history["loss"] + second.history["loss"]
    assert [float(row["loss"]) for row in rows] == wanted
    assert [row["epoch"] for row in rows] == ["0", "1", "0"]


@pytest.mark.parametrize("on_nan", ["raise", "ignore"])
def test_terminate_on_nan_ends_training_without_an_error(on_nan, capsys):
    x, y = samples()
    x[-1, 0] = np.nan
    model = made()
    history = model.fit(
        x,
        y,
        epochs=5,
        shuffle=False,
        verbose=0,
        on_nan=on_nan,
        callbacks=cb.TerminateOnNaN(),
    )
    assert len(history.epoch) == 1
    assert np.isnan(history.history["loss"][0])
    assert "the loss is nan" in capsys.readouterr().out
    finite = all(np.isfinite(w).all() for w in model.get_weights())
    assert finite == (on_nan == "raise")


@pytest.mark.parametrize("on_nan", ["raise", "ignore"])
def test_terminate_on_nan_may_raise(on_nan):
    x, y = samples()
    x[-1, 0] = np.nan
    callback = cb.TerminateOnNaN(raise_error=True)
    options = {"verbose": 0, "on_nan": on_nan, "callbacks": callback}
    with pytest.raises(mc.errors.NonFiniteLossError, match="loss is nan"):
        made().fit(x, y, shuffle=False, **options)


def test_lambda_callback_calls_what_it_was_given():
    x, y = samples()
    seen = []
    given = cb.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append((epoch, logs["loss"])),
        on_train_end=lambda _: seen.append("end"),
    )
    history = made().fit(x, y, epochs=2, verbose=0, callbacks=given)
    assert seen == [*enumerate(history.history["loss"]), "end"]
    with pytest.raises(TypeError, match="no hook named 'on_epoch'"):
        cb.LambdaCallback(on_epoch=print)


def test_stop_training_from_a_hook_ends_the_epoch():
    x, y = samples()

    class Stop(cb.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 1

    model = made()
    history = model.fit(x, y, epochs=9, verbose=0, callbacks=Stop())
    assert history.epoch == [0]
    assert model.optimizer.iterations == 2


def test_listeners_print_as_nd4js_do(capsys):
    x, y = samples(64)
    model = made()
    listeners = [cb.ScoreIterationListener(2), cb.PerformanceListener(2, True)]
    model.fit(x, y, epochs=2, verbose=0, shuffle=False, callbacks=listeners)
    first, second, third, fourth = capsys.readouterr().out.splitlines()
    assert first.startswith("Score at iteration 0 is ")
    assert third.startswith("Score at iteration 2 is ")
    for line, number in ((second, 2), (fourth, 4)):
        assert line.startswith(f"iteration {number}; iteration time: ")
        assert "batches/sec: " in line
        assert "; score: " in line


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: cb.EarlyStopping(mode="up"), 'mode must be "auto"'),
        (lambda: cb.EarlyStopping(patience=-1), "patience"),
        (lambda: cb.ReduceLROnPlateau(factor=1.0), "below 1"),
        (lambda: cb.ModelCheckpoint("x.h5"), "end in '.memcfg' or '.keras'"),
        (
            lambda: cb.ModelCheckpoint("x.h5", save_weights_only=True),
            "end in '.weights.safetensors'",
        ),
        (lambda: cb.ModelCheckpoint("x.memcfg", save_freq=0), "save_freq"),
        (lambda: cb.ScoreIterationListener(0), "print_iterations"),
    ],
)
def test_arguments_without_a_meaning_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_checkpoints_of_weights(tmp_path):
    x, y = samples()
    model = made()
    path = tmp_path / "deep" / "{epoch:02d}-{loss:.3f}.weights.safetensors"
    history = model.fit(
        x,
        y,
        epochs=2,
        verbose=0,
        callbacks=cb.ModelCheckpoint(path, save_weights_only=True),
    )
    names = sorted(each.name for each in path.parent.iterdir())
    losses = history.history["loss"]
    assert names == [
        f"{i + 1:02d}-{loss:.3f}.weights.safetensors" for i, loss in enumerate(losses)
    ]
    other = made()
    other.load_weights(path.parent / names[-1])
    assert all(map(np.array_equal, other.get_weights(), model.get_weights()))


def test_a_checkpoint_of_the_best_is_that_of_the_best_epoch(tmp_path):
    x, y = samples()
    model, path = made(nn.SGD(3.0)), tmp_path / "best.weights.safetensors"
    kept = []
    callbacks = [
        cb.LambdaCallback(on_epoch_end=lambda *_: kept.append(model.get_weights())),
        cb.ModelCheckpoint(
            path, monitor="loss", save_best_only=True, save_weights_only=True
        ),
    ]
    history = model.fit(x, y, epochs=8, verbose=0, callbacks=callbacks)
    best = int(np.argmin(history.history["loss"]))
    other = made()
    other.load_weights(path)
    assert all(map(np.array_equal, other.get_weights(), kept[best]))


def test_a_field_that_is_not_in_the_logs_is_said(tmp_path):
    x, y = samples()
    path = tmp_path / "{val_loss}.weights.safetensors"
    checkpoint = cb.ModelCheckpoint(path, save_weights_only=True)
    with pytest.raises(
        KeyError, match=r"field 'val_loss'.*available fields are epoch, loss"
    ):
        made().fit(x, y, verbose=0, callbacks=checkpoint)


def test_a_checkpoint_may_be_a_file_of_keras(tmp_path):
    pytest.importorskip("h5py")
    x, y = samples()
    model = made()
    files = tmp_path / "w.weights.h5", tmp_path / "{epoch}.keras"
    checkpoints = [
        cb.ModelCheckpoint(path, save_weights_only=i == 0)
        for i, path in enumerate(files)
    ]
    model.fit(x, y, verbose=0, callbacks=checkpoints)
    other = made()
    other.load_weights(files[0])
    for each in (other, nn.models.load_model(tmp_path / "1.keras")):
        assert all(map(np.array_equal, each.get_weights(), model.get_weights()))


def test_checkpoints_after_batches(tmp_path):
    x, y = samples(128)
    path = tmp_path / "{epoch}-{batch}.weights.safetensors"
    checkpoint = cb.ModelCheckpoint(path, save_weights_only=True, save_freq=3)
    made().fit(x, y, epochs=2, verbose=0, callbacks=checkpoint)
    names = sorted(each.name.partition(".")[0] for each in tmp_path.iterdir())
    assert names == ["1-3", "2-2"]


def test_tensorboard_says_what_is_missing_or_writes(tmp_path):
    try:
        from tensorboardX import SummaryWriter  # noqa: F401
    except ImportError:
        with pytest.raises(ImportError, match=r"memcfg\[tensorboard\]"):
            cb.TensorBoard(tmp_path)
        return
    x, y = samples()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made().fit(
            x,
            y,
            validation_split=0.25,
            verbose=0,
            callbacks=cb.TensorBoard(tmp_path, update_freq=1),
        )
    for run in ("train", "validation"):
        (events,) = (tmp_path / run).iterdir()
        assert b"epoch_loss" in events.read_bytes()


def test_a_callback_does_not_keep_its_model_alive():
    x, y = samples()
    model, recorder = made(), Recorder()
    history = model.fit(x, y, verbose=0, callbacks=recorder)
    assert recorder.model is history.model is model
    del model
    assert recorder.model is history.model is None


def test_no_callbacks_cost_no_calls_and_no_hooks_of_others():
    list_of = cb.CallbackList([cb.EarlyStopping()], made(), {})
    assert list_of.hooks("on_train_batch_end") == []
    assert len(list_of.hooks("on_epoch_end")) == 1


def measured():
    """A binary classifier whose metrics have several names and directions."""
    model = nn.Sequential([nn.Input((6,)), nn.Dense(1, "sigmoid")])
    kinds = nn.metrics
    score = [
        *(kinds.AUC(), kinds.AUC(), kinds.AUC(name="roc"), kinds.Precision(), "mae"),
        *(kinds.SensitivityAtSpecificity(0.5), kinds.TruePositives()),
    ]
    model.compile(nn.SGD(0.1), "binary_crossentropy", metrics=score)
    return model


@pytest.mark.parametrize(
    ("monitor", "larger"),
    [
        ("val_loss", False),
        ("val_auc_1", True),
        ("roc", True),
        ("precision", True),
        ("val_sensitivity_at_specificity", True),
        ("mae", False),
        ("true_positives", None),
        ("val_nothing", None),
    ],
)
@pytest.mark.parametrize("make", ["stopping", "checkpoint", "plateau"])
def test_the_metric_of_that_name_says_which_way_is_better(
    make, monitor, larger, tmp_path
):
    file = tmp_path / "best.memcfg"
    callback = {
        "stopping": lambda: cb.EarlyStopping(monitor),
        "checkpoint": lambda: cb.ModelCheckpoint(file, monitor, save_best_only=True),
        "plateau": lambda: cb.ReduceLROnPlateau(monitor),
    }[make]()
    x, y = samples(32)
    model, rows = measured(), (x, (y > 0)[:, None])

    def train():
        model.fit(*rows, validation_data=rows, verbose=0, callbacks=[callback])

    if larger is None:
        before = model.get_weights()
        with pytest.raises(ValueError, match=f"{monitor}.* pass mode="):
            train()
        np.testing.assert_array_equal(model.get_weights()[0], before[0])
    else:
        train()
        assert callback.is_better(2.0, 1.0) == larger
    model.close()


class Rates:
    """Schedules that are no plain functions."""

    def __call__(self, epoch):
        return 0.5 + epoch

    def of_both(self, epoch, rate):
        return 0.5 + epoch + 0 * rate


@pytest.mark.parametrize(
    "schedule",
    [
        Rates(),
        Rates().of_both,
        Rates().__call__,
        functools.partial(lambda epoch, rate, more: 0.5 + epoch + more, more=0.0),
        functools.partial(lambda more, epoch: 0.5 + epoch + more, 0.0),
        lambda epoch, rate=0.5: 0.5 + epoch + 0 * rate,
    ],
)
def test_schedules_are_whatever_can_be_called(schedule):
    model = made()
    history = model.fit(
        *samples(32),
        epochs=2,
        verbose=0,
        callbacks=[cb.LearningRateScheduler(schedule)],
    )
    assert history.history["learning_rate"] == [0.5, 1.5]


@pytest.mark.parametrize(
    "make",
    [
        lambda: cb.EarlyStopping(baseline="x"),
        lambda: cb.EarlyStopping(min_delta="a"),
        lambda: cb.EarlyStopping(3),
        lambda: cb.ModelCheckpoint("a.memcfg", initial_value_threshold="x"),
        lambda: cb.CSVLogger("a.csv", separator=3),
        lambda: cb.CSVLogger("a.csv", separator="::"),
        lambda: cb.TensorBoard("logs", 1),  # Keras's histogram_freq
    ],
)
def test_arguments_are_looked_at_when_a_callback_is_made(make):
    with pytest.raises(TypeError):
        make()


def test_checkpoints_say_what_improved_as_keras_does(tmp_path, capsys):
    class Named(cb.Callback):
        """Gives the numbers that the checkpoint reads."""

        def on_epoch_end(self, epoch, logs=None):
            logs["val_loss"] = (1.3644, 2.0, 1.0)[epoch]

    path = str(tmp_path / "m.memcfg")
    best = cb.ModelCheckpoint(path, verbose=1, save_best_only=True)
    x, y = np.ones((4, 2), np.float32), np.zeros((4, 1), np.float32)
    model = mc.nn.Sequential([mc.nn.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(x, y, epochs=3, verbose=0, callbacks=[Named(), best])
    assert capsys.readouterr().out.splitlines() == [
        f"Epoch 1: val_loss improved from None to 1.36440, saving to {path}",
        "Epoch 2: val_loss did not improve from 1.36440",
        f"Epoch 3: val_loss improved from 1.36440 to 1.00000, saving to {path}",
    ]


def test_what_verbose_callbacks_print(capsys):
    x, y = samples()
    told = [
        cb.EarlyStopping("loss", 1e9, verbose=1, restore_best_weights=True),
        cb.LearningRateScheduler(lambda epoch: 0.25, verbose=1),
        cb.ReduceLROnPlateau("loss", 0.5, 1, verbose=1, min_delta=1e9),
    ]
    model = made()
    model.fit(x, y, epochs=9, verbose=0, callbacks=told)
    assert capsys.readouterr().out.splitlines() == [
        *("Epoch 1: learning rate 0.25", "Epoch 2: learning rate 0.25"),
        *("Epoch 2: learning rate 0.125",),
        *("Epoch 2: early stopping", "Restoring the weights of epoch 1"),
    ]


def test_a_schedule_that_is_a_function_in_c_is_called_with_the_epoch_alone():
    x, y = samples()
    model = made()
    rates = {0: 0.5, 1: 0.25}
    schedule = cb.LearningRateScheduler(rates.__getitem__)
    history = model.fit(x, y, epochs=2, verbose=0, callbacks=[schedule])
    assert history.history["learning_rate"] == [0.5, 0.25]


@pytest.mark.parametrize(
    "make",
    [
        lambda path: cb.ModelCheckpoint(path, "val_loss", save_best_only=True),
        lambda path: cb.ReduceLROnPlateau("val_loss"),
    ],
)
def test_a_number_that_is_not_there_is_told_and_training_goes_on(make, tmp_path):
    x, y = samples()
    path = tmp_path / "best.memcfg"
    with pytest.warns(RuntimeWarning, match="monitors 'val_loss', which is not"):
        made().fit(x, y, verbose=0, callbacks=[make(str(path))])


def test_a_backup_amid_an_epoch_goes_on_from_its_beginning(tmp_path):
    x, y = samples()

    class Stop(cb.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if self.epochs and batch == 1:
                raise RuntimeError("killed")

        def on_epoch_begin(self, epoch, logs=None):
            self.epochs = epoch

    backup = cb.BackupAndRestore(tmp_path, save_freq=1)
    options = {"batch_size": 32, "epochs": 3, "verbose": 0, "shuffle": False}
    with pytest.raises(RuntimeError, match="killed"):
        made().fit(x, y, callbacks=[Stop(), backup], **options)
    resumed = made()
    history = resumed.fit(
        x,
        y,
        callbacks=[cb.BackupAndRestore(tmp_path, delete_checkpoint=False)],
        **options,
    )
    assert history.epoch == [1, 2]


def test_performance_without_the_score(capsys):
    x, y = samples()
    made().fit(x, y, verbose=0, callbacks=[cb.PerformanceListener(1)])
    assert "score" not in capsys.readouterr().out
    listener = cb.PerformanceListener(1, report_score=True)
    made().fit(x, y, verbose=0, callbacks=[listener])
    assert "; score: " in capsys.readouterr().out


def test_progress_by_a_callback(capsys):
    class Named(nn.callbacks.ProgbarLogger):
        def on_epoch_end(self, epoch, logs=None):
            super().on_epoch_end(epoch, {"found": logs["loss"]})

    model = nn.Sequential([nn.Input((2,)), nn.Dense(1)])
    model.compile("sgd", "mse")
    x, y = np.ones((4, 2), np.float32), np.ones((4, 1), np.float32)
    plain, named = nn.callbacks.ProgbarLogger(), Named()
    shown = []
    for callback in (None, plain, named):
        model.fit(x, y, epochs=2, verbose=2, callbacks=callback, validation_data=(x, y))
        shown.append(capsys.readouterr().out.splitlines())
    assert [len(each) for each in shown] == [2, 2, 2]
    for line in (*shown[0], *shown[1]):
        assert line.startswith("Epoch ")
        assert "- loss: " in line
        assert "val_loss: " in line
    assert all("- found: " in line and " loss" not in line for line in shown[2])
    model.fit(x, y, verbose=0, callbacks=plain)
    assert capsys.readouterr().out == ""
    model.evaluate(x, y, verbose=2, callbacks=plain)
    model.predict(x, verbose=2, callbacks=plain)
    first, second = capsys.readouterr().out.splitlines()
    assert "loss: " in first
    assert "loss" not in second
    model.fit(x, y, verbose=1, callbacks=plain)
    assert "loss: " in capsys.readouterr().out
