"""Crash reports of models: the failing call, the fallbacks, the plans."""

from __future__ import annotations

import json

import numpy as np
import pytest

import memcfg as mc
from memcfg import nn
from memcfg.errors import FallbackWarning, InfeasiblePlanError, ResourceExhaustedError

WIDE = 64


@pytest.fixture
def folder(tmp_path):
    mc.config.set_crash_reports(tmp_path)
    return tmp_path


def made(name="wide", **options):
    model = nn.Sequential(
        [
            nn.Input((WIDE,)),
            *(nn.Dense(WIDE, activation="relu") for _ in range(4)),
            nn.Dense(4),
        ],
        name=name,
    )
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, **options)
    return model


def data(rows):
    generator = np.random.default_rng(3)
    x = generator.standard_normal((rows, WIDE)).astype(np.float32)
    return x, generator.integers(0, 4, rows)


def limited(nbytes):
    mc.config.set_memory_limit("CPU:0", nbytes)


def only(folder):
    (path,) = folder.iterdir()
    words = (path / "report.txt").read_text(encoding="utf-8")
    assert max(map(len, words.splitlines())) <= 80
    document = json.loads((path / "report.json").read_text(encoding="utf-8"))
    assert document["failed_sections"] == []
    return words, document


CALLS = {
    "fit": lambda model, x, y: model.fit(x, y, batch_size=64, verbose=0),
    "evaluate": lambda model, x, y: model.evaluate(x, y, batch_size=64, verbose=0),
    "predict": lambda model, x, y: model.predict(x, batch_size=64, verbose=0),
    "train_on_batch": lambda model, x, y: model.train_on_batch(x, y),
    "test_on_batch": lambda model, x, y: model.test_on_batch(x, y),
    "predict_on_batch": lambda model, x, y: model.predict_on_batch(x),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_is_refused(name, folder):
    model, (x, y) = made(f"to_{name}"), data(64)
    limited("40KiB")
    with pytest.raises(InfeasiblePlanError) as caught:
        CALLS[name](model, x, y)
    words, document = only(folder)
    error = document["error"]
    assert error["asked"].startswith(f"{name}(float32 (64, 64)")
    assert error["by"] == model.name
    assert error["at"].startswith(__file__)
    assert error["smallest_limit_bytes"] == caught.value.smallest_limit_bytes
    assert document[f"model {model.name}"]["on_oom"] == ["micro_batch"]
    refused = document[f"model {model.name}: refused"]
    assert refused["predicted"]["peak_bytes"] > 40 * 1024
    assert max(each["live_bytes"] for each in refused["timeline"]) > 40 * 1024
    assert "live bytes over the step" in words
    assert str(caught.value.smallest_limit_bytes) in words


def test_steps_down_the_plan_and_the_step(folder):
    """A pool's error tells of the models that hold its memory."""
    model, (x, y) = made("down"), data(512)
    limited(mc.plan.lower_bound(model.graph(512)) // 4096 * 4096 - 4096)
    with pytest.warns(FallbackWarning):
        model.fit(x, y, batch_size=512, verbose=0)
    with pytest.raises(ResourceExhaustedError):
        mc.config.logical_device("CPU:0").pool.allocate(2**20)
    words, document = only(folder)
    (step,) = document["model down: fallbacks"]["in_force"]
    assert (step["step"], step["program"]) == ("micro_batch", "train, batch 512")
    assert str(model.history.fallbacks[0]) in " ".join(words.split())
    plan, timeline = document["model down: plan"], document["model down: timeline"]
    assert plan["predicted"]["peak_bytes"] == model.memory_plan.peak_bytes
    assert timeline["measured_peak_bytes"] == model.memory_plan.peak_bytes
    assert str(model.memory_plan).splitlines()[1] in words
    model.close()


def test_the_model_is_as_before(folder):
    model, (x, y) = made(), data(64)
    other, _ = made(), data(64)
    other.set_weights(model.get_weights())
    for each in (model, other):
        each.fit(x, y, batch_size=16, verbose=0, shuffle=False)
    pool = mc.config.logical_device("CPU:0").pool
    with pytest.raises(ResourceExhaustedError):
        pool.allocate(2**60)
    used = pool.stats().current_bytes
    mc.crash_report(folder=folder)
    assert pool.stats().current_bytes == used
    for each in (model, other):
        each.fit(x, y, batch_size=16, verbose=0, shuffle=False)
    for a, b in zip(model.get_weights(), other.get_weights(), strict=True):
        assert a.tobytes() == b.tobytes()


def test_no_value_of_an_array_is_in_it(folder):
    model = made()
    limited("40KiB")
    x, y = np.full((64, WIDE), 1234.5678, np.float32), np.zeros(64, int)
    weights = np.full(64, 1234.5678)
    with pytest.raises(InfeasiblePlanError):
        model.fit(x=x, y=y, sample_weight=weights, verbose=0)
    words, document = only(folder)
    assert "1234.5" not in words + json.dumps(document)
    assert "sample_weight=float64 (64,)" in document["error"]["asked"]


def test_no_value_of_a_list_is_in_it(folder):
    model = made()
    limited("40KiB")
    with pytest.raises(InfeasiblePlanError):
        model.predict([[1234.5] * WIDE] * 64, batch_size=64, verbose=0)
    _, document = only(folder)
    row = "(float, float, float, ...)"
    asked = f"predict(({row}, {row}, {row}, ...), batch_size=64, verbose=0)"
    assert document["error"]["asked"] == asked


@pytest.mark.parametrize(
    "names", [("error", "memory"), ("format", "host"), ("a: plan", "a")]
)
def test_names_of_models_hide_no_section(names, folder):
    models, (x, _) = [made(name, on_oom="raise") for name in names], data(2)
    for model in models:
        model.predict_on_batch(x)
    limited(mc.config.get_memory_info("CPU:0")["current"])
    with pytest.raises(InfeasiblePlanError):
        models[0].predict_on_batch(data(64)[0])
    (path,) = folder.iterdir()
    pairs = json.loads(
        (path / "report.json").read_text(encoding="utf-8"), object_pairs_hook=list
    )
    keys = [key for key, _ in pairs]
    assert len({*keys}) == len(keys)
    _, document = only(folder)
    assert document["format"] == "memcfg.crash_report/1"
    assert document["error"]["type"] == "InfeasiblePlanError"
    assert document["versions"]["memcfg"] == mc.__version__
    for name in names:
        assert document[f"model {name}"]["arena_bytes"] > 0


def test_the_failing_model_comes_first(folder):
    first, second, (x, y) = made("first"), made("second"), data(64)
    first.fit(x, y, verbose=0)
    used = mc.config.get_memory_info("CPU:0")["current"]
    limited(used + 64 * 1024)
    with pytest.raises(InfeasiblePlanError):
        second.fit(x, y, verbose=0)
    words, document = only(folder)
    assert words.index("Model second") < words.index("Model first")
    assert document["model first"]["arena_bytes"] > 0
    assert document["error"]["owners"] == {"model first": used}


def test_other_errors_write_none(folder):
    model, (x, y) = made(), data(64)
    with pytest.raises(ValueError, match="batch_size"):
        model.fit(x, y, batch_size=-1)
    with pytest.raises(ValueError, match="differ in number"):
        model.train_on_batch(x, y[:3])
    with pytest.raises(InfeasiblePlanError):
        model.plan(64, limit="40KiB")  # only a question
    assert list(folder.iterdir()) == []


def test_an_error_of_the_data_is_reported_once(folder):
    """It passes an allocation, a thread that reads ahead, and `fit`."""
    scratch = mc.memory.Pool(limit="1MiB", name="scratch")

    def batches():
        yield data(16)
        scratch.allocate(2**21)

    model = made()
    with pytest.raises(ResourceExhaustedError, match="on scratch"):
        model.fit(batches(), verbose=0)
    words, document = only(folder)
    assert "scratch.allocate(2**21)" in words
    assert document["error"]["asked"] == "2097152 B (2.00 MiB) of scratch"


def test_memory_errors_of_others_are_reported(folder):
    def batches():
        yield data(16)
        raise MemoryError("no more")

    with pytest.raises(MemoryError, match="no more") as caught:
        made().fit(batches(), verbose=0)
    words, _ = only(folder)
    assert "MemoryError: no more" in words
    assert "A crash report is in" in caught.value.__notes__[-1]
