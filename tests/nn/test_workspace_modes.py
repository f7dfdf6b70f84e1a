"""Models in every workspace mode: the same bits, other bytes.

G1 to G11 are DL4J's network tests of workspaces (`WorkspaceTests`), run for every mode
with scope checks on. Not here: G4 (rnnTimeStep) and G5 (truncated backpropagation) are
stateful layers, which test_recurrent.py runs in every mode; G12 (a closed network
refuses to be used) is not memcfg's contract, whose models take their memory again.
"""

from __future__ import annotations

import functools
import gc
import os
import signal
import threading

import numpy as np
import pytest
from internals import Batch

import memcfg as mc
from memcfg.errors import (
    InfeasiblePlanError,
    KernelError,
    NonFiniteLossError,
    ResourceExhaustedError,
    WorkspaceConfigError,
    WorkspaceError,
    WorkspaceLeakError,
    WorkspaceLeakWarning,
    WorkspaceStaleError,
)

nn = mc.nn
MODES = list(mc.WorkspaceMode)
UNPLANNED = [mode for mode in MODES if mode is not mc.WorkspaceMode.ENABLED]


@pytest.fixture(autouse=True)
def _scope_checks():
    assert mc.config.get_scope_checks() == "error"
    yield
    mc.destroy_all_workspaces(thread="all")
    gc.collect()


@pytest.fixture(params=MODES, ids=str)
def mode(request):
    return request.param


def both(mode):
    return {"training_workspace_mode": mode, "inference_workspace_mode": mode}


def in_use():
    return mc.config.get_memory_info("CPU:0")["current"]


def mlp():
    layers = [nn.Dense(16, activation="relu"), nn.Dropout(0.2), nn.Dense(5)]
    return nn.Sequential([nn.Input((8, 8, 3)), nn.Flatten(), *layers])


def lenet():
    return nn.Sequential(
        [
            nn.Input((8, 8, 3)),
            nn.Conv2D(6, 3, padding="same", activation="relu"),
            nn.MaxPool2D(2),
            nn.Conv2D(8, 3, activation="relu"),
            nn.AveragePooling2D(2),
            nn.Flatten(),
            nn.Dense(12, activation="relu"),
            nn.Dense(5),
        ]
    )


def residual():
    shared = nn.Conv2D(4, 3, padding="same")
    x = nn.Input((8, 8, 3))
    h = nn.Conv2D(4, 3, padding="same", use_bias=False)(x)
    h = nn.Dropout(0.2)(nn.ReLU()(nn.BatchNormalization()(h)))
    inner = nn.ReLU()(nn.BatchNormalization()(shared(h)))
    h = nn.Add()([nn.Dropout(0.1)(h), shared(inner)])
    return nn.Model(x, nn.Dense(5)(nn.GlobalAvgPool2D()(h)))


NETWORKS = {"mlp": mlp, "lenet": lenet, "residual": residual}
OPTIMIZERS = {
    "sgd": lambda: nn.SGD(0.05),
    "momentum": lambda: nn.SGD(0.05, momentum=0.9, nesterov=True),
    "adam": lambda: nn.Adam(0.01),
}


def make(network="lenet", optimizer="adam", **options):
    nn.set_random_seed(3)
    model = NETWORKS[network]()
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(OPTIMIZERS[optimizer](), loss, metrics=["accuracy"], **options)
    return model


def data():
    generator = np.random.default_rng(5)
    x = generator.standard_normal((40, 8, 8, 3)).astype(np.float32)
    return x, generator.integers(0, 5, 40)


def everything(model):
    """Train, evaluate and predict; return all numbers as bytes."""
    x, y = data()
    history = model.fit(
        x, y, batch_size=12, epochs=5, verbose=0, seed=1, validation_split=0.05
    )
    numbers = [history.history, model.evaluate(x, y, batch_size=16, verbose=0)]
    outputs = model.predict(x, batch_size=25, verbose=0)
    weights = [weight.tobytes() for weight in model.get_weights()]
    return numbers, outputs.tobytes(), weights


@functools.cache
def planned(network, optimizer):
    model = make(network, optimizer)
    found = everything(model)
    model.close()
    return found


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("mode", UNPLANNED, ids=str)
def test_all_numbers_are_those_of_the_planned_default(network, optimizer, mode):
    """Twenty steps in two batch sizes, validation, evaluation, prediction."""
    model = make(network, optimizer, **both(mode))
    assert everything(model) == planned(network, optimizer)
    model.close()
    assert in_use() == 0


def test_the_modes_may_differ(mode):
    options = {"inference_workspace_mode": mode}
    found = everything(make("residual", "adam", **options))
    assert found == planned("residual", "adam")
    found = everything(make("residual", "adam", training_workspace_mode=mode))
    assert found == planned("residual", "adam")


@pytest.mark.strength(1)
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("mode", UNPLANNED, ids=str)
def test_the_reported_peak_is_the_pools(network, mode):
    x, y = data()
    model = make(network, **both(mode))
    pool = mc.config.logical_device().pool
    pool.reset_peak()
    model.train_on_batch(x, y)
    peak = pool.stats().peak_bytes
    before = model.get_weights()
    report = model.memory_report()
    verified = model.memory_report(verify=True)
    assert report.measured_peak_bytes == report.predicted_peak_bytes == peak
    assert verified.measured_peak_bytes == verified.predicted_peak_bytes == peak
    assert report.mode == mode.value
    assert f"workspace mode '{mode.value}'" in " ".join(str(verified).split())
    assert all(entry.seconds is not None for entry in verified.timeline)
    for first, second in zip(before, model.get_weights(), strict=True):
        assert np.array_equal(first, second)


def peaks(network, act):
    """Measure what an act takes of the pool in each mode."""
    found = {}
    for mode in MODES:
        model = make(network, **both(mode))
        pool = mc.config.logical_device().pool
        pool.reset_peak()
        act(model)
        found[mode.name] = pool.stats().peak_bytes
        model.close()
        assert in_use() == 0
    return found


@pytest.mark.strength(1)
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(
    "act",
    [
        lambda model: model.fit(*data(), 12, verbose=0, validation_split=0.4),
        lambda model: model.evaluate(*data(), 16, verbose=0),
        lambda model: model.predict(data()[0], 25, verbose=0),
        everything,
    ],
    ids=["fit", "evaluate", "predict", "all"],
)
def test_separate_takes_less_than_single_and_plans_least(network, act):
    found = peaks(network, act)
    assert found["SEPARATE"] < found["SINGLE"]
    assert found["ENABLED"] < found["SEPARATE"]
    assert found["ENABLED"] <= found["NONE"] < found["SINGLE"]


def allocations(model):
    x, y = data()
    pool = mc.config.logical_device().pool
    for _ in range(2):
        model.train_on_batch(x, y)
    before = pool.stats().allocation_count
    for _ in range(3):
        model.train_on_batch(x, y)
    return (pool.stats().allocation_count - before) / 3


def test_what_a_step_allocates(mode):
    """Nothing once its workspaces are there; with NONE one block a tensor at least."""
    found = allocations(make(**both(mode)))
    assert found > 30 if mode is mc.WorkspaceMode.NONE else found == 0


def test_the_pool_is_as_it_was(mode):
    model = make(**both(mode))
    with mc.config.logical_device().pool.allocate(1000, tag="neighbour"):
        before = in_use()
        everything(model)
        assert in_use() > before
        model.close()
        assert in_use() == before
        everything(model)
        del model
        assert in_use() == before


def test_with_none_only_weights_and_optimizer_stay():
    model = make("mlp", "sgd", **both("none"))
    model.fit(*data(), verbose=0)
    sizes = [-(-weight.nbytes // 64) * 64 for weight in model.get_weights()]
    assert in_use() == sum(sizes)


KEEPING = ["single", "separate"]


def pool_owners():
    return mc.config.logical_device().pool.owners()


def train(model):
    return model.train_on_batch(*data())


def listed():
    """The workspaces of models that are listed, as the pool names them."""
    found = {
        f"model {each.model}: {each.name}": each.nbytes for each in mc.list_workspaces()
    }
    assert not any(each.is_open for each in mc.list_workspaces())
    assert {each.thread_id for each in mc.list_workspaces()} <= {threading.get_ident()}
    return found


def in_a_thread(act):
    found = []
    thread = threading.Thread(target=lambda: found.append(act()))
    thread.start()
    thread.join(60)
    return found[0]


@pytest.mark.parametrize(
    "act",
    [
        train,
        lambda model: model.predict(data()[0], verbose=0).tobytes(),
        lambda model: model.evaluate(*data(), verbose=0),
    ],
    ids=["train", "predict", "evaluate"],
)
def test_workspaces_of_a_model_are_listed_and_destroyed_between_steps(mode, act):
    expected, model = make(), make(**both(mode))
    assert mc.list_workspaces() == []
    wanted = [act(expected) for _ in range(3)]
    expected.close()
    found = []
    for _ in range(3):
        found.append(act(model))
        owners = pool_owners()
        arena = {name: size for name, size in owners.items() if ": " not in name}
        assert listed() == {n: size for n, size in owners.items() if ": " in n}
        assert bool(listed()) == (mode in KEEPING)
        mc.destroy_all_workspaces()
        assert mc.list_workspaces() == []
        assert pool_owners() == arena
    assert found == wanted
    assert mc.workspaces.current_workspace() is None
    model.close()
    assert in_use() == 0


def test_workspaces_of_a_model_are_in_the_summary():
    model = make("mlp", training_workspace_mode="single")
    train(model)
    (each,) = mc.list_workspaces()
    assert each.name == "LOOP_EXTERNAL"
    lines = mc.workspaces.summary().splitlines()
    assert lines[0] == "1 workspace of this thread"
    assert f"LOOP_EXTERNAL of model {each.model}: closed; " in lines[1]
    assert f"({each.nbytes} B)" in lines[1]
    assert not mc.workspaces.workspace_exists("LOOP_EXTERNAL")
    mc.testing.assert_no_workspaces_open()


@pytest.mark.parametrize("mode", KEEPING)
def test_workspaces_of_models_are_of_the_thread_that_ran_them_last(mode):
    here, there = make("mlp", **both(mode)), make("mlp", **both(mode))
    train(here)
    in_a_thread(lambda: train(there))
    mine = listed()
    assert mine
    kept = in_use()
    assert in_a_thread(mc.list_workspaces) == []
    in_a_thread(mc.destroy_all_workspaces)  # they may have the dead thread's number
    assert listed() == mine
    mc.destroy_all_workspaces()
    assert listed() == {}
    assert in_use() < kept
    train(there)
    kept = in_use()
    in_a_thread(lambda: mc.destroy_all_workspaces("all"))
    assert listed() == {}
    assert in_use() < kept


@pytest.mark.parametrize("mode", KEEPING)
def test_models_that_are_closed_or_gone_have_no_workspaces(mode):
    model = make("mlp", **both(mode))
    train(model)
    model.close()
    assert mc.list_workspaces() == []
    train(model)
    assert mc.list_workspaces() != []
    del model
    gc.collect()
    assert mc.list_workspaces() == []
    mc.destroy_all_workspaces("all")


@pytest.mark.parametrize("thread", ["current", "all"])
@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
def test_a_model_amid_a_step_keeps_its_workspaces(thread, elsewhere, monkeypatch):
    """Of another thread's step, "current" takes no notice."""
    x, y = data()
    model, expected = make(**both("single")), make()
    model.train_on_batch(x, y)
    other = mc.workspace("other")
    seen = []

    def destroy():
        try:
            mc.destroy_all_workspaces(thread)
        except WorkspaceError as error:
            seen.append(str(error))
            assert (
                mc.workspaces.workspace_exists("other") is not elsewhere
                or thread == "all"
            )

    write = Batch.write

    def amid(batch, *args):
        write(batch, *args)
        in_a_thread(destroy) if elsewhere else destroy()

    monkeypatch.setattr(Batch, "write", amid)
    found = model.train_on_batch(x, y)
    monkeypatch.undo()
    if elsewhere and thread == "current":
        assert seen == []
    else:
        (message,) = seen
        assert f"step of thread {threading.get_ident()}" in message
    assert mc.workspace("other") is other
    assert [expected.train_on_batch(x, y) for _ in range(2)][1] == found
    mc.destroy_all_workspaces(thread)
    assert model.train_on_batch(x, y) == expected.train_on_batch(x, y)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="POSIX processes")
def test_the_child_of_a_fork_destroys_its_models_workspaces():
    model = make("mlp", **both("separate"))
    train(model)
    kept = listed()
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # ends a child that hangs
        code = 1
        try:
            assert listed() == kept
            mc.destroy_all_workspaces("all")
            assert listed() == {}
            train(model)
            assert listed() == kept
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert listed() == kept


@pytest.mark.skipif(not hasattr(os, "fork"), reason="POSIX processes")
def test_the_child_of_a_fork_amid_a_step_destroys_all_other_workspaces(monkeypatch):
    model, other = make("mlp", **both("single")), make("mlp", **both("single"))
    train(other)
    ready, go = threading.Event(), threading.Event()
    write = Batch.write

    def amid(batch, *args):
        write(batch, *args)
        ready.set()
        assert go.wait(30)

    monkeypatch.setattr(Batch, "write", amid)
    thread = threading.Thread(target=train, args=[model])
    thread.start()
    assert ready.wait(30)
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # ends a child that hangs
        code = 1
        try:
            mc.workspace("here")
            with pytest.raises(RuntimeError, match="fork"):
                mc.destroy_all_workspaces("all")
            assert mc.list_workspaces() == []
            assert [n for n in pool_owners() if ": " in n and other.name in n] == []
            code = 0
        finally:
            os._exit(code)
    with pytest.raises(WorkspaceError, match="in the middle of a step"):
        mc.destroy_all_workspaces("all")
    go.set()
    thread.join(60)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    mc.destroy_all_workspaces("all")
    assert [name for name in pool_owners() if ": " in name] == []


def test_a_step_without_memory_for_its_workspaces_changes_nothing():
    model, expected = make(**both("single")), make()
    assert train(model) == train(expected)
    expected_next = train(expected)
    expected.close()
    (each,) = mc.list_workspaces()
    mc.destroy_all_workspaces()
    before = [weight.tobytes() for weight in model.get_weights()]
    pool = mc.config.logical_device().pool
    device = mc.config.list_logical_devices("CPU")[0]
    mc.config.set_memory_limit(
        device.name, pool.stats().current_bytes + each.nbytes // 2
    )
    with pytest.raises(ResourceExhaustedError):
        train(model)
    assert mc.list_workspaces() == []
    assert [weight.tobytes() for weight in model.get_weights()] == before
    mc.config.set_memory_limit(device.name, None)
    assert train(model) == expected_next


# DL4J's network tests


def test_g1_gradients_and_score(mode):
    """After a step of SGD, weights tell the gradients."""
    x, y = data()
    expected, model = make("residual", "sgd"), make("residual", "sgd", **both(mode))
    for each in (expected, model):
        each.test_on_batch(x, y)
    assert model.test_on_batch(x, y) == expected.test_on_batch(x, y)
    assert model.train_on_batch(x, y) == expected.train_on_batch(x, y)
    for first, second in zip(expected.get_weights(), model.get_weights(), strict=True):
        assert np.array_equal(first, second)


@pytest.mark.strength(1)
@pytest.mark.parametrize("other", MODES, ids=str)
def test_g2_models_of_different_modes_do_not_meet(mode, other):
    x, _ = data()
    first, second = make(**both(mode)), make(**both(other))
    a = first.predict(x, verbose=0)
    b = second.predict(x, verbose=0)
    assert np.array_equal(a, b)
    assert np.array_equal(first.predict(x, verbose=0), a)


def test_g3_an_input_that_is_read_twice(mode):
    """DL4J has preprocessors; here the input is added to itself and flattened."""

    def build(**options):
        nn.set_random_seed(3)
        x = nn.Input((8, 8, 3))
        doubled = nn.Flatten()(nn.Add()([x, x]))
        model = nn.Model(x, nn.Dense(5)(doubled))
        loss = nn.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, **options)
        return model

    x, y = data()
    expected, model = build(), build(**both(mode))
    for each in (expected, model):
        each.fit(x, y, batch_size=15, verbose=0, seed=2)
    wanted = expected.predict(x, verbose=0)
    assert np.array_equal(model.predict(x, verbose=0), wanted)


def test_g6_outputs_are_detached_and_equal(mode):
    x, _ = data()
    model = make(**both(mode))
    with mc.workspace("outer"):
        first = model.predict(x[:1], verbose=0)
        second = model.predict_on_batch(x[:1])
    assert not mc.is_attached(first)
    assert not mc.is_attached(second)
    mc.destroy_all_workspaces()
    assert np.array_equal(first, second)
    assert np.array_equal(model.predict(x[:1], verbose=0), first)


def test_g7_the_modes_can_be_read_back(mode):
    model = make(training_workspace_mode=mode)
    assert model.training_workspace_mode is mode
    assert model.inference_workspace_mode is mc.WorkspaceMode.ENABLED
    again = make(
        training_workspace_mode=model.training_workspace_mode.value,
        inference_workspace_mode=model.training_workspace_mode,
    )
    assert again.training_workspace_mode is again.inference_workspace_mode is mode


def test_g8_fit_after_fit(mode):
    x, y = data()
    model, expected = make(**both(mode)), make()
    for each in (model, expected):
        for size in (7, 40, 12):
            each.fit(x, y, batch_size=size, verbose=0, seed=size)
    for first, second in zip(expected.get_weights(), model.get_weights(), strict=True):
        assert np.array_equal(first, second)


WITH_WORKSPACES = [mode for mode in MODES if mode is not mc.WorkspaceMode.NONE]


@pytest.mark.parametrize("mode", WITH_WORKSPACES, ids=str)
@pytest.mark.parametrize(
    "config",
    [mc.WorkspaceConfig(learning="over_time", learning_cycles=1), mc.WorkspaceConfig()],
    ids=["over time (G9)", "default (G10)"],
)
def test_g9_g10_the_output_goes_into_the_callers_workspace(mode, config):
    x, _ = data()
    model = make(**both(mode))
    expected = model.predict(x, 16, verbose=0)
    for number in range(3):
        with mc.workspace("output", config) as ws:
            found = model.predict(x, 16, verbose=0, workspace=ws)
            assert ws.stats().spilled_count == (number == 0)
            assert ws.stats().cycle_bytes == -(-expected.nbytes // 64) * 64
            assert mc.workspace_of(found) is ws
            assert mc.workspaces.is_in_scope(found)
            assert np.array_equal(found, expected)
            assert ws.is_open
            del found
        assert not ws.is_open


def test_g11_scores_inside_a_workspace_and_out_of_it(mode):
    x, y = data()
    model = make(**both(mode))
    expected = model.test_on_batch(x, y)
    with mc.workspace("outer") as outer, mc.scope_out():
        for _ in range(10):
            assert model.test_on_batch(x, y) == expected
    for _ in range(10):
        rows = [model.test_on_batch(x[i : i + 1], y[i : i + 1])[0] for i in range(3)]
        assert np.isfinite(rows).all()
    assert outer.stats().max_cycle_bytes == 0


# Arrays from and for workspaces


def test_a_model_leaves_its_callers_workspace_alone(mode):
    x, y = data()
    model = make(**both(mode))
    with mc.workspace("outer") as outer:
        model.fit(x, y, verbose=0, seed=1)
        model.evaluate(x, y, verbose=0)
        kept = [model.predict(x, verbose=0), *model.get_weights()]
        model.set_weights(model.get_weights())
        model.close()
        assert outer.stats().cycle_bytes == 0
    assert not any(mc.is_attached(array) for array in kept)
    assert outer.stats().escaped_arrays == 0


INVALIDATE = mc.WorkspaceConfig(on_escape="invalidate")
CALLS = {
    "fit": lambda model, x, y: model.fit(x, y, verbose=0),
    "validation": lambda model, x, y: model.fit(
        *data(), verbose=0, validation_data=(x, y)
    ),
    "evaluate": lambda model, x, y: model.evaluate(x, y, verbose=0),
    "train_on_batch": lambda model, x, y: model.train_on_batch(x, y),
    "test_on_batch": lambda model, x, y: model.test_on_batch(x, y),
    "predict": lambda model, x, y: model.predict(x, verbose=0),
    "predict_on_batch": lambda model, x, y: model.predict_on_batch(x),
}


@pytest.mark.strength(1)
@pytest.mark.parametrize(
    ("call", "which"),
    [(c, w) for c in CALLS for w in "xy" if w == "x" or "predict" not in c],
)
def test_data_whose_bytes_may_be_anothers_is_refused(mode, call, which):
    model = make(**both(mode))
    before = model.get_weights()
    ws = mc.workspace("data", INVALIDATE)
    given = dict(zip("xy", data(), strict=True))
    with ws:
        given[which] = ws.array(given[which])
        CALLS[call](model, **given)  # it is in scope here
        expected = model.get_weights()
    with pytest.raises(WorkspaceLeakError, match=f"cannot read .*{which}: .*'data'"):
        CALLS[call](model, **given)
    with ws, pytest.raises(WorkspaceStaleError, match="in cycle 2"):
        CALLS[call](model, **given)
    for first, second in zip(expected, model.get_weights(), strict=True):
        assert np.array_equal(first, second)
    assert len(before) == len(expected)


def test_scope_checks_can_be_turned_off(mode):
    x, y = data()
    model = make(**both(mode))
    with mc.workspace("data", INVALIDATE) as ws:
        stale = ws.array(x)
    mc.config.set_scope_checks("warn")
    with pytest.warns(WorkspaceLeakWarning, match="cannot read x"):
        model.predict(stale, verbose=0)
    mc.config.set_scope_checks("off")
    model.predict(stale, verbose=0)
    mc.config.set_scope_checks("error")
    with pytest.raises(WorkspaceError):
        model.evaluate(stale, y, verbose=0)


def test_data_that_escaped_its_workspace_is_fine(mode):
    """By default what outlives its cycle is never overwritten."""
    x, y = data()
    model = make(**both(mode))
    expected = model.evaluate(x, y, verbose=0)
    with mc.workspace("data") as ws:
        escaped = ws.array(x)
    assert model.evaluate(escaped, y, verbose=0) == expected


def test_a_workspace_for_the_output_must_be_open(mode):
    x, _ = data()
    model = make(inference_workspace_mode="single", training_workspace_mode=mode)
    with pytest.raises(WorkspaceError, match="'output' is not open: call predict insi"):
        model.predict(x, verbose=0, workspace=mc.workspace("output"))
    with pytest.raises(TypeError, match="workspace is a Workspace or None, not 'out"):
        model.predict(x, verbose=0, workspace="output")
    assert in_use() == 0


def test_without_workspaces_the_output_cannot_go_into_one():
    x, _ = data()
    model = make(inference_workspace_mode="none")
    with (
        mc.workspace("output") as ws,
        pytest.raises(WorkspaceConfigError, match="inference_workspace_mode='none'"),
    ):
        model.predict(x, verbose=0, workspace=ws)
    assert isinstance(model.predict(x, verbose=0), np.ndarray)


def test_a_workspace_that_is_full_refuses_the_output(mode):
    x, _ = data()
    model = make(training_workspace_mode=mode)
    config = mc.WorkspaceConfig(initial_size=64, allocation="strict", spill="fail")
    with (
        mc.workspace("output", config) as ws,
        pytest.raises(mc.errors.WorkspaceFullError),
    ):
        model.predict(x, verbose=0, workspace=ws)
    assert model.predict(x, verbose=0).shape == (40, 5)


# Settings


@pytest.mark.parametrize(
    "name", ["training_workspace_mode", "inference_workspace_mode"]
)
@pytest.mark.parametrize("wrong", ["fast", "ENABLED ", None, 3])
def test_an_unknown_mode_names_the_choices(name, wrong):
    model = make("mlp")
    before = model.optimizer
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    with pytest.raises(ValueError, match=f"{name} is one of 'none', 'enabled', 'sin"):
        model.compile("sgd", loss, **{name: wrong})
    assert model.optimizer is before
    assert getattr(model, name) is mc.WorkspaceMode.ENABLED


def test_settings_hold_for_predictions_of_a_model_without_a_loss(tmp_path):
    model = nn.Sequential([nn.Input((3,)), nn.Dense(50, "relu"), nn.Dense(2)])
    for policy in ("keep_all", "share", "out_of_core"):
        model.compile(memory=policy)
        assert model.plan(8, program="predict").method == policy
    model.save(tmp_path / "a.memcfg")
    loaded = nn.models.load_model(tmp_path / "a.memcfg")
    assert loaded.plan(8, program="predict").method == "out_of_core"
    model.compile(inference_workspace_mode="none")
    model.predict(np.zeros((4, 3)), verbose=0)
    with pytest.raises(RuntimeError, match="workspace mode 'none'"):
        model.plan(8, program="predict")


def test_a_policy_needs_something_to_plan():
    with pytest.raises(
        ValueError, match=r"nothing to plan.*'none' for training and 'si"
    ):
        make(
            memory="share",
            training_workspace_mode="none",
            inference_workspace_mode="single",
        )
    model = make(memory="share", training_workspace_mode="none")
    model.predict(data()[0], verbose=0)
    assert model.memory_plan.method == "share"


@pytest.mark.parametrize("mode", UNPLANNED, ids=str)
def test_what_is_not_planned_has_no_plan(mode):
    model = make(training_workspace_mode=mode)
    with pytest.raises(RuntimeError, match=f"'train, batch 8' has no plan.*'{mode}'"):
        model.plan(8)
    model.train_on_batch(*data())
    with pytest.raises(RuntimeError, match=r"memory_report\(\) says"):
        _ = model.memory_plan
    assert in_use() > 0
    with pytest.raises(RuntimeError, match="compile"):
        _ = NETWORKS["mlp"]().training_workspace_mode


def test_compiling_again_changes_the_mode_and_keeps_all(mode):
    x, y = data()
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model, expected = make(), make()
    for each, options in ((model, both(mode)), (expected, {})):
        each.fit(x, y, verbose=0, seed=1)
        each.compile(each.optimizer, loss, **options)
        each.fit(x, y, verbose=0, seed=2)
    for first, second in zip(expected.get_weights(), model.get_weights(), strict=True):
        assert np.array_equal(first, second)


# Limits and faults


@pytest.mark.strength(1)
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("mode", UNPLANNED, ids=str)
def test_the_limit_is_real(cpu, network, mode):
    """The limit that the error names does; under what is needed it is refused."""
    x, y = data()
    mc.config.set_memory_limit(cpu, 1024)
    model = make(network, **both(mode))
    with pytest.raises(InfeasiblePlanError, match="workspace mode 'enabled'") as caught:
        model.fit(x, y, batch_size=12, verbose=0)
    needed, enough = caught.value.requested_bytes, caught.value.smallest_limit_bytes
    assert caught.value.lower_bound_bytes < needed <= enough
    before = model.get_weights()
    mc.config.set_memory_limit(cpu, needed - 64)
    with pytest.raises(InfeasiblePlanError):
        model.fit(x, y, batch_size=12, verbose=0)
    assert mc.config.get_memory_info("CPU:0")["peak"] == 0
    for first, second in zip(before, model.get_weights(), strict=True):
        assert np.array_equal(first, second)
    mc.config.set_memory_limit(cpu, enough)
    model.fit(x, y, batch_size=12, epochs=2, verbose=0)
    assert mc.config.get_memory_info("CPU:0")["peak"] == needed


@pytest.mark.parametrize("mode", UNPLANNED, ids=str)
def test_a_mode_may_need_more_than_a_plan(cpu, mode):
    x, y = data()
    model = make("residual")
    peak = model.plan(40).peak_bytes
    mc.config.set_memory_limit(cpu, peak)
    model.fit(x, y, batch_size=40, verbose=0)
    model.close()
    other = make("residual", **both(mode))
    with pytest.raises(InfeasiblePlanError) as caught:
        other.fit(x, y, batch_size=40, verbose=0)
    assert caught.value.smallest_limit_bytes > peak
    assert in_use() == 0


@pytest.mark.parametrize("mode", UNPLANNED, ids=str)
def test_memory_that_others_take_between_steps(mode):
    """The step is refused whole, and the next one goes on as if nothing had been."""
    x, y = data()
    device = mc.config.logical_device()
    model, expected = make(**both(mode)), make()
    for each in (model, expected):
        each.train_on_batch(x[:8], y[:8])
    mc.config.set_memory_limit(device.name, in_use() + 4 * 2**20)
    model.train_on_batch(x, y)
    model.predict(x[:8], verbose=0)  # training gives its pages back
    before = model.get_weights()
    left = device.pool.limit - in_use()
    with (
        device.pool.allocate(left - 32 * 2**10, tag="neighbour"),
        pytest.raises(ResourceExhaustedError, match="neighbour") as caught,
    ):
        model.train_on_batch(x, y)
    assert "as before the step" in caught.value.hint
    assert model.optimizer.iterations == 2
    for first, second in zip(before, model.get_weights(), strict=True):
        assert np.array_equal(first, second)
    expected.train_on_batch(x, y)
    assert model.train_on_batch(x, y) == expected.train_on_batch(x, y)


@pytest.mark.strength(1)
@pytest.mark.parametrize("mode", UNPLANNED, ids=str)
@pytest.mark.parametrize("place", [0, 5, 12])
def test_an_error_inside_a_step_closes_all_and_changes_nothing(mode, place):
    x, y = data()
    model, expected = make(**both(mode)), make()
    for each in (model, expected):
        each.train_on_batch(x, y)
    held, before = in_use(), model.get_weights()
    (program,) = model._session.executor._programs.values()
    program._loop.fail_at(program._op_instructions[place])
    with pytest.raises(KernelError, match="fault") as caught:
        model.train_on_batch(x, y)
    program._loop.fail_at(None)
    assert mc.workspaces.current_workspace() is None
    assert in_use() == held
    assert model.optimizer.iterations == 1
    for first, second in zip(before, model.get_weights(), strict=True):
        assert np.array_equal(first, second)
    assert model.train_on_batch(x, y) == expected.train_on_batch(x, y)
    expected.close()
    model.close()
    assert in_use() == 0
    assert caught.value.__traceback__ is not None


def test_a_loss_that_is_not_finite(mode):
    x, y = data()
    x = x.copy()
    x[3] = np.nan
    model = make("residual", **both(mode))
    before = model.get_weights()
    with pytest.raises(NonFiniteLossError, match="the loss is nan"):
        model.train_on_batch(x, y)
    for first, second in zip(before, model.get_weights(), strict=True):
        assert np.array_equal(first, second)
    assert np.isnan(model.train_on_batch(x, y, on_nan="ignore")[0])
    assert mc.workspaces.current_workspace() is None


def test_two_threads_use_one_model(mode):
    """Steps follow one another, whichever thread made the workspaces."""
    x, y = data()
    model, expected = make(**both(mode)), make()
    wanted = expected.predict(x, 10, verbose=0)
    assert np.array_equal(model.predict(x, 10, verbose=0), wanted)
    found = []

    def predict():
        found.extend(model.predict(x, 10, verbose=0) for _ in range(10))

    threads = [threading.Thread(target=predict) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        model.evaluate(x, y, verbose=0)
    for thread in threads:
        thread.join(60)
    assert len(found) == 20
    assert all(np.array_equal(each, wanted) for each in found)
    model.fit(x, y, verbose=0, seed=1)
    expected.fit(x, y, verbose=0, seed=1)
    assert np.array_equal(model.predict(x, verbose=0), expected.predict(x, verbose=0))


@pytest.mark.parametrize("mode", ["single", "separate"])
def test_a_debug_mode_holds_from_the_next_step_on(mode):
    model = make(**both(mode))
    assert allocations(model) == 0
    before = mc.config.set_debug_mode("spill_everything")
    try:
        assert allocations(model) > 30
    finally:
        mc.config.set_debug_mode(before)
    assert allocations(model) == 0


@pytest.mark.parametrize("debug", ["spill_everything", "bypass_everything"])
@pytest.mark.parametrize("mode", UNPLANNED, ids=str)
def test_debug_modes_change_no_number(mode, debug):
    before = mc.config.set_debug_mode(debug)
    try:
        assert everything(make("mlp", **both(mode))) == planned("mlp", "adam")
    finally:
        mc.config.set_debug_mode(before)
