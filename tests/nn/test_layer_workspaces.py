"""Models whose arrays lie in the workspaces that a LayerWorkspaceMgr names."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import memcfg as mc
from memcfg.errors import (
    InfeasiblePlanError,
    WorkspaceConfigError,
    WorkspaceFullError,
)

nn = mc.nn
Kind = mc.workspaces.ArrayType
Manager = mc.workspaces.LayerWorkspaceMgr


@pytest.fixture(autouse=True)
def _nothing_is_left():
    yield
    mc.destroy_all_workspaces(thread="all")


def pool():
    return mc.config.logical_device().pool


def make(**options):
    nn.set_random_seed(3)
    x = nn.Input((8, 8, 3))
    h = nn.Conv2D(4, 3, padding="same", activation="relu")(x)
    h = nn.Add()([h, nn.BatchNormalization()(nn.Conv2D(4, 3, padding="same")(h))])
    h = nn.Dropout(0.2)(nn.Flatten()(nn.MaxPool2D(2)(h)))
    model = nn.Model(x, nn.Dense(5)(h))
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"], **options)
    return model


@functools.cache
def data():
    generator = np.random.default_rng(5)
    x = generator.standard_normal((20, 8, 8, 3)).astype(np.float32)
    return x, generator.integers(0, 5, 20)


def everything(model):
    """Train, evaluate and predict; return all numbers as bytes."""
    x, y = data()
    history = model.fit(
        x, y, batch_size=8, epochs=2, verbose=0, seed=1, validation_split=0.1
    )
    numbers = [history.history, model.evaluate(x, y, batch_size=16, verbose=0)]
    outputs = model.predict(x, batch_size=12, verbose=0)
    weights = [weight.tobytes() for weight in model.get_weights()]
    return numbers, outputs.tobytes(), weights


@functools.cache
def planned():
    model = make()
    found = everything(model)
    model.close()
    return found


def train(model):
    return model.train_on_batch(*data())


def predict(model):
    return model.predict_on_batch(data()[0])


def listed():
    return {each.name: each.nbytes for each in mc.list_workspaces()}


MANAGERS = {
    "one for all": lambda: Manager().default_workspace("all"),
    "none": Manager.no_workspaces,
    "the arena but activations": lambda: Manager().set(Kind.ACTIVATIONS, "acts"),
    "by kind": lambda: (
        Manager()
        .set(Kind.INPUT, "inputs")
        .set(Kind.ACTIVATIONS, "acts")
        .set(Kind.FF_CACHE, "acts")
        .set(Kind.ACTIVATION_GRAD, "gradients")
        .no_workspace_for(Kind.BP_WORKING_MEM)
        .default_workspace("working memory")
    ),
}


@pytest.fixture(params=MANAGERS)
def manager(request):
    return MANAGERS[request.param]()


def test_all_numbers_are_those_of_the_planned_default(manager):
    model = make(layer_workspaces=manager)
    assert everything(model) == planned()
    model.close()
    assert pool().stats().current_bytes == 0


@pytest.mark.parametrize("act", [train, predict], ids=["train", "predict"])
def test_the_reported_peak_is_the_pools(manager, act):
    model = make(layer_workspaces=manager)
    pool().reset_peak()
    act(model)
    for verify in (False, True):
        report = model.memory_report(verify=verify)
        assert report.mode == "layer_workspaces"
        assert report.predicted_peak_bytes == report.measured_peak_bytes
        assert report.predicted_peak_bytes == pool().stats().peak_bytes
        assert max(each.top_bytes for each in report.timeline) == (
            report.predicted_peak_bytes
        )


def test_workspaces_are_the_pools_and_are_listed():
    model = make(layer_workspaces=MANAGERS["by kind"]())
    train(model)
    found = listed()
    assert set(found) == {"inputs", "acts", "gradients", "working memory"}
    prefix = f"model {model.name}: "
    owners = {name: nbytes for name, nbytes in pool().owners().items() if ": " in name}
    assert owners == {prefix + name: nbytes for name, nbytes in found.items()}
    summary = mc.workspaces.summary()
    assert all(name in summary for name in found)
    mc.destroy_all_workspaces()
    assert mc.list_workspaces() == []
    train(model)
    assert listed() == found


def test_a_step_allocates_nothing_once_its_workspaces_are_there():
    model = make(layer_workspaces=Manager().default_workspace("all"))
    train(model)
    before = pool().stats().allocation_count
    train(model)
    assert pool().stats().allocation_count == before


def test_bytes_are_used_again_within_a_workspace():
    """One workspace for all kinds takes far less than mode "single"."""
    model = make(training_workspace_mode="single")
    train(model)
    (single,) = listed().values()
    model.close()
    model = make(layer_workspaces=Manager().default_workspace("all"))
    train(model)
    assert listed()["all"] < 0.7 * single


def test_training_and_inference_lie_in_workspaces_of_their_own():
    managers = {
        "training": Manager().set(Kind.ACTIVATIONS, "training activations"),
        "inference": Manager().set(Kind.ACTIVATIONS, "results"),
    }
    model = make(layer_workspaces=managers)
    train(model)
    assert list(listed()) == ["training activations"]
    predict(model)
    assert list(listed()) == ["results"]
    assert everything(make(layer_workspaces=managers)) == planned()


@pytest.mark.parametrize("of", ["training", "inference"])
def test_a_pass_without_a_manager_is_planned(of):
    manager = Manager().default_workspace("all")
    model = make(layer_workspaces={of: manager}, memory="share")
    train(model)
    predict(model)
    assert everything(model)[0]
    assert (model.memory_report().mode == "enabled") == (of == "inference")


def test_a_manager_is_read_when_the_model_is_compiled():
    manager = Manager().set(Kind.ACTIVATIONS, "first")
    model = make(layer_workspaces=manager)
    manager.set(Kind.ACTIVATIONS, "second")
    train(model)
    assert list(listed()) == ["first"]


def test_sizes_of_a_configuration_are_the_least_that_an_arena_has():
    config = mc.WorkspaceConfig(initial_size="1MiB", min_size=2**21)
    model = make(layer_workspaces=Manager().set(Kind.ACTIVATIONS, "acts", config))
    train(model)
    assert listed() == {"acts": 2**21}


def limited(max_size):
    config = mc.WorkspaceConfig(max_size=max_size)
    return make(layer_workspaces=Manager().set(Kind.ACTIVATIONS, "acts", config))


def test_a_limit_that_is_too_small_names_the_smallest_that_would_do():
    model = limited(None)
    train(model)
    needed = listed()["acts"]
    model.close()
    model = limited(needed - 1)
    before = model.get_weights()
    with pytest.raises(WorkspaceFullError, match="1 B more of workspace 'acts'") as e:
        train(model)
    assert e.value.requested_bytes == needed
    assert e.value.limit_bytes == needed - 1
    assert f"Smallest max_size that would do: {needed} B" in str(e.value)
    assert pool().stats().current_bytes == 0
    for old, new in zip(before, model.get_weights(), strict=True):
        assert np.array_equal(old, new)
    predict(model)  # which needs less
    model.close()
    model = limited(needed)
    train(model)
    assert listed() == {"acts": needed}


def test_the_limit_of_the_device_holds_for_the_sum_of_all_arenas(manager):
    device = mc.config.list_logical_devices("CPU")[0].name
    mc.config.set_memory_limit(device, 4096)
    model = make(layer_workspaces=manager)
    with pytest.raises(InfeasiblePlanError, match="layer_workspaces") as caught:
        train(model)
    assert pool().stats().current_bytes == 0
    mc.config.set_memory_limit(device, caught.value.smallest_limit_bytes)
    assert np.isfinite(train(model)[0])


def test_a_workspace_may_lie_in_a_file(tmp_path):
    path = tmp_path / "activations"
    config = mc.WorkspaceConfig(
        location="mmap", path=path, initial_size="1MiB", learning="none"
    )
    manager = Manager().set(Kind.ACTIVATIONS, "acts", config)
    model = make(layer_workspaces=manager)
    assert everything(model) == planned()
    assert path.stat().st_size == 2**20
    predict(model)
    assert listed() == {"acts": 2**20}
    assert not any(": " in name for name in pool().owners())
    report = model.memory_report(verify=True)
    assert report.predicted_peak_bytes == report.measured_peak_bytes
    with pytest.raises(BlockingIOError, match="activations"):  # it has an owner
        train(make(layer_workspaces=manager))
    model.close()
    train(make(layer_workspaces=manager))


def test_a_file_is_free_again_after_a_load_that_failed_for_another(tmp_path):
    """Also while the error, with its traceback, is kept."""
    manager = Manager().default_workspace("rest")
    for kind, path in ((Kind.ACTIVATIONS, "a"), (Kind.ACTIVATION_GRAD, "no/g")):
        config = mc.WorkspaceConfig(
            location="mmap",
            learning="none",
            initial_size="1MiB",
            path=str(tmp_path / path),
        )
        manager.set(kind, path, config)
    model = make(layer_workspaces=manager)
    with pytest.raises(OSError, match="no/g") as kept:
        model.fit(*data(), batch_size=10, verbose=0)
    (tmp_path / "no").mkdir()
    model.fit(*data(), batch_size=10, verbose=0)
    assert kept.value.__traceback__ is not None
    model.close()


def test_two_names_of_one_file_are_seen_at_compile(tmp_path):
    manager = Manager().default_workspace("rest")
    for kind, path in ((Kind.ACTIVATIONS, "a"), (Kind.ACTIVATION_GRAD, "./a")):
        config = mc.WorkspaceConfig(
            location="mmap",
            learning="none",
            initial_size="1MiB",
            path=f"{tmp_path}/{path}",
        )
        manager.set(kind, path, config)
    with pytest.raises(WorkspaceConfigError, match="both have the file"):
        make(layer_workspaces=manager)


def test_a_file_without_a_path_is_temporary_and_its_length_a_limit():
    config = mc.WorkspaceConfig(location="mmap", initial_size=4096, learning="none")
    model = make(layer_workspaces=Manager().set(Kind.ACTIVATIONS, "acts", config))
    with pytest.raises(WorkspaceFullError, match="than its initial_size") as caught:
        train(model)
    config = config.replace(initial_size=caught.value.requested_bytes)
    model = make(layer_workspaces=Manager().set(Kind.ACTIVATIONS, "acts", config))
    train(model)
    assert listed() == {"acts": caught.value.requested_bytes}


def test_debug_modes_bypass_named_workspaces():
    mc.config.set_debug_mode("bypass_everything")
    try:
        model = make(layer_workspaces=Manager().default_workspace("all"))
        assert everything(model) == planned()
        assert mc.list_workspaces() == []
    finally:
        mc.config.set_debug_mode("disabled")


def test_what_a_policy_planned_is_told_of_other_passes_alone():
    model = make(layer_workspaces=Manager().default_workspace("all"))
    train(model)
    with pytest.raises(RuntimeError, match="without layer_workspaces"):
        _ = model.memory_plan


RING = mc.WorkspaceConfig(reset="end_of_buffer", overallocation=3)
FILE = mc.WorkspaceConfig(location="mmap", path="x", initial_size=64, learning="none")


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"layer_workspaces": "acts"}, TypeError, "is a LayerWorkspaceMgr"),
        ({"layer_workspaces": Manager()}, ValueError, "has no workspaces"),
        ({"layer_workspaces": {"train": Manager()}}, ValueError, "not for 'train'"),
        (
            {
                "layer_workspaces": Manager().default_workspace("all"),
                "training_workspace_mode": "single",
            },
            ValueError,
            "leave one of them out",
        ),
        (
            {
                "layer_workspaces": Manager().default_workspace("all"),
                "memory": "share",
            },
            ValueError,
            "has nothing to plan",
        ),
        (
            {"layer_workspaces": Manager().default_workspace("all", RING)},
            WorkspaceConfigError,
            "reset='end_of_buffer' has no meaning",
        ),
        (
            {
                "layer_workspaces": Manager().default_workspace(
                    "all", mc.WorkspaceConfig(on_escape="error")
                )
            },
            WorkspaceConfigError,
            "on_escape='error' has no meaning",
        ),
        (
            {
                "layer_workspaces": Manager()
                .set(Kind.INPUT, "a", FILE)
                .set(Kind.ACTIVATIONS, "b", FILE)
            },
            WorkspaceConfigError,
            "give each its own",
        ),
        (
            {
                "layer_workspaces": {
                    "training": Manager().default_workspace("all"),
                    "inference": Manager().default_workspace("all", FILE),
                }
            },
            WorkspaceConfigError,
            "two configurations",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_and_the_model_is_as_it_was(
    options, kind, words
):
    model = make()
    expected = train(model)
    model.close()
    model = make()
    with pytest.raises(kind, match=words):
        model.compile("sgd", "mse", **options)
    assert train(model) == expected


def test_named_workspaces_are_not_saved(tmp_path):
    model = make(layer_workspaces=Manager().default_workspace("all"))
    train(model)
    with pytest.warns(RuntimeWarning, match="layer_workspaces are not saved"):
        model.save(tmp_path / "model.memcfg")
    again = nn.models.load_model(tmp_path / "model.memcfg")
    assert train(again) == train(model)
    assert list(listed()) == ["all"]
